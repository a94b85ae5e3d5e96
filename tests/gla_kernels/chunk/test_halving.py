"""Row blocks that are not mild, as passes do them: their own scores number by number, how far blocks are halved, and
chunks of every kind in one sequence through both directions."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from gla_kernels import Schedule, gla
from gla_kernels.chunk.strong_gates import WARPS, share_of
from gla_kernels.tiles.gates import LEAST_GATE
from gla_kernels.tiles.halving import FORGETS, clamped, levels_of, own_scores
from gla_kernels.tiles.operands import load_tile

PRECISION = {torch.float32: "tf32x3", torch.float16: "tf32", torch.bfloat16: "tf32"}
# of a product's operands, each rounded to tf32, where they are not exact; else of exponents, sums of gates of up to 150
# that are rounded some eight times to 2^-17, and below which all is 0
ROUNDING = {"tf32": 2.0**-9, "tf32x3": 2.0**-14}
TINY = torch.finfo(torch.float32).tiny  # below it float32 has no more bits


@triton.jit
def scores_kernel(p_q, p_k, p_g, p_a, T, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
    """p_a [.., BT, BT]: scores of each BT rows of p_q, p_k, p_g [T, K]."""
    i, o = tl.program_id(0), tl.arange(0, BT)
    b_a = own_scores(p_q, p_k, p_g, i * BT, T, K, K, BT, BK, PRECISION)
    tl.store(p_a + i * BT * BT + o[:, None] * BT + o[None, :], b_a)


@triton.jit
def levels_kernel(p_g, p_n, K: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr):
    b_g = clamped(load_tile(p_g, 0, BT, K, tl.arange(0, K), K, BT), PRECISION)
    tl.store(p_n, levels_of(b_g, 0, BT, PRECISION))


GATES = {
    "weak": lambda g: g / 16,
    "1": lambda g: g,
    "4": lambda g: 4 * g,
    "16": lambda g: 16 * g,
    "40": lambda g: 40 * g,
    "closed": lambda g: torch.full_like(g, -1e4),
    "infinite": lambda g: torch.where(g < -1.5, -math.inf, g),
    "one reset": lambda g: torch.where((torch.arange(len(g)) % 64 == 37)[:, None].to(g.device), -1e4, g / 16),
    "some features": lambda g: torch.where((torch.arange(g.shape[1]) % 7 == 3).to(g.device), 30 * g, g),
}


def exact(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of a block's rows in float64, and what they would be of the numbers' sizes."""
    n = len(q)
    m = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    found = []
    for x, y in ((q, k), (q.abs(), k.abs())):
        a = q.new_zeros(n, n)
        for j in range(n):
            gates = torch.cat([g.new_zeros(1, g.shape[1]), g[j + 1 :].cumsum(0)])  # none passes a row's own score
            a[j:, j] = (x[j:] * y[j] * gates.exp()).sum(1)
        found.append(torch.where(m, a, 0.0))
    return found[0], found[1]


@pytest.mark.each_value
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("dtype", PRECISION, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize(("BT", "K", "BK"), [(64, 64, 32), (64, 100, 64), (32, 24, 32), (16, 16, 16)])
def test_scores_are_those_of_float64_number_by_number(device, gates, dtype, BT, K, BK):
    torch.manual_seed(0)
    T = BT + 5  # the last block is short
    q, k = (torch.randn(T, K, device=device).to(dtype) for _ in range(2))
    g = GATES[gates](torch.nn.functional.logsigmoid(torch.randn(T, K, device=device))).to(dtype)
    found = torch.full((2, BT, BT), torch.nan, device=device)
    scores_kernel[(2,)](q, k, g, found, T, K, BT, BK, PRECISION[dtype])
    for i in range(2):
        rows = slice(i * BT, min(T, (i + 1) * BT))
        a, size = exact(*(x[rows].double() for x in (q, k, g)))
        n = len(a)
        # what a gate lets through that counts as FORGETS
        through = 0.0 if dtype == torch.float32 else math.exp(FORGETS.value)
        least = through * (q[rows].double().abs() @ k[rows].double().abs().T)
        tiny = TINY * (K if device.type == "cuda" else 1)  # tensor cores take each product that is so small for 0
        error, allowed = (found[i, :n, :n].double() - a).abs(), ROUNDING[PRECISION[dtype]] * size + 2 * least + tiny
        assert (error <= allowed).all(), (error - allowed).max()
        assert not found[i].triu(1).any()
        assert not found[i, n:].any()


def frames(rows: int, whole: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Gates of 64 rows that decay by so many powers of two over any ``rows`` of them."""
    return torch.full((64, 16), -whole / rows * math.log(2), device=device).to(dtype)


@pytest.mark.parametrize("dtype", PRECISION, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("levels", range(7))
def test_a_block_is_halved_until_frames_are_mild_and_no_more(device, dtype, levels):
    """Rows that decay alike, by a little less than a frame of so many levels may: its first gate does not count."""
    found, limit = torch.zeros(1, dtype=torch.int32, device=device), 48 if dtype == torch.float32 else 208
    rows = 64 >> levels
    g = frames(rows, 0.95 * limit, dtype, device)
    levels_kernel[(1,)](g, found, 16, 64, PRECISION[dtype])
    least = 6 if dtype == torch.float32 else 3  # 8 rows of gates of 16 bits are a frame at any strength
    assert found.item() == min(levels, least)


@pytest.mark.parametrize("dtype", PRECISION, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("gate", [-1e4, -math.inf, LEAST_GATE.value])
def test_a_single_row_that_lets_nothing_through_asks_for_every_level(device, dtype, gate):
    found, g = torch.zeros(1, dtype=torch.int32, device=device), torch.full((64, 16), -0.01, device=device)
    g[30] = gate
    g = g.to(dtype)
    levels_kernel[(1,)](g, found, 16, 64, PRECISION[dtype])
    # of 16 bits FORGETS is as little as there is, which a whole block takes; 48 powers of two of float32 it takes never
    assert found.item() == (6 if dtype == torch.float32 else 0)


def test_eight_gates_that_forget_are_a_frame():
    """So large may factors be, and clamped gates come to no more."""
    assert 7 * -FORGETS.value / math.log(2) < 208 < 8 * -FORGETS.value / math.log(2)


def test_a_gate_that_is_no_number_shows_in_the_scores_that_it_has_a_part_in(device):
    q = torch.ones(16, 16, device=device, dtype=torch.float16)
    g = torch.full_like(q, -1.0)
    g[5, 3] = torch.nan
    found = torch.zeros(1, 16, 16, device=device)
    scores_kernel[(1,)](q, q, g, found, 16, 16, 16, 16, "tf32")
    assert found[0, 5:, :5].isnan().all()


KINDS = ("mild", "strong", "infinite", "reset", "closed", "mild")


def planted(x):
    """A chunk of 64 rows of each kind, and a short one."""
    g = x.g
    for i, kind in enumerate(KINDS):
        rows = slice(64 * i, 64 * (i + 1))
        if kind == "strong":
            g[:, rows] *= 20
        elif kind == "infinite":
            g[:, rows][g[:, rows] < -1.0] = -math.inf
        elif kind == "reset":
            g[:, 64 * i + 13] = -1e4
        elif kind == "closed":
            g[:, rows] = -1e4
    return x


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", PRECISION, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("gate_type", [None, torch.float32], ids=["", "float32 gates"])
@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(128, 64), Schedule(64, 64, False)], ids=str)
def test_every_kind_of_chunk_in_one_sequence(judge, inputs, dtype, gate_type, schedule):
    x = planted(inputs((1, 64 * len(KINDS) + 20, 1, 32, 16), dtype, 1.0, gate_dtype=gate_type))
    judge(lambda q, k, v, g, s: gla(q, k, v, g, None, s, True, schedule=schedule), x)


def test_a_program_looks_at_many_chunks_only_where_there_are_many():
    assert [share_of(n, 4, 8) for n in (1, 32, 256, 1024, 1 << 20)] == [1, 1, 1, 4, 8]
    assert -(-1024 // share_of(1024, 4, 8)) * 4 >= WARPS
