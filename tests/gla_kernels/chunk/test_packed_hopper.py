"""Packed sequences by Hopper's own kernels, all passes of both directions, against float64. On a CPU the kernels'
source runs (gluon_on_cpu.py), and Triton's interpreter beside it."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, product
from typing import Any

import pytest
import torch

from gla_kernels import Plan, Schedule, Workload, chunk, default_config, reference
from gla_kernels.chunk.packing import of_sequences
from gla_kernels.plan.apply import problem_of
from gla_kernels.plan.choose import with_walks

ERROR = 4e-3  # of the norm: rounding to bfloat16 costs 1.66e-3, and rows at a sequence's edge round states besides
MIXED = (40, 24, 66, 1, 20)
BF16, FLOAT32 = torch.bfloat16, torch.float32  # of gates
GATES: dict[str, Any] = {
    "mild": lambda g: 0.3 * g,
    "weak": lambda g: 0.03 * g,  # that a state shows a chunk behind where it is given
    "strong": lambda g: 20 * g,
    "resets": lambda g: torch.where(torch.rand_like(g) < 0.01, -1e4, 0.3 * g),
    "infinite": lambda g: torch.where(torch.rand_like(g) < 0.01, -torch.inf, 0.3 * g),
}


def check(
    launch, place, lengths, dims, gates, states=True, v_first=False, every=None, keep=True, schedule=None,
    gate_type=BF16,
):  # fmt: skip
    """every: chunks from one kept state to the next."""
    torch.manual_seed(0)
    schedule, (H, K, V), T = schedule or Schedule(64), dims, sum(lengths)
    g = GATES[gates](torch.nn.functional.logsigmoid(torch.randn(1, T, H, K))).to(gate_type)
    q, k = (torch.randn(1, T, H, K).bfloat16() for _ in range(2))
    v, do = (torch.randn(1, T, H, V).bfloat16() for _ in range(2))
    first, d_last = (torch.randn(len(lengths), H, K, V) * states for _ in range(2))

    exact = tuple(x.double().requires_grad_() for x in (q, k, v, g, first))
    ends, (wide_q, wide_k, wide_v, wide_g, start) = torch.tensor([0, *accumulate(lengths)]), exact
    right_o, end = reference.recurrent(wide_q, wide_k, wide_v, wide_g, None, start, cu_seqlens=ends)
    right = {"o": right_o.detach(), "last": end.detach()}
    found = torch.autograd.grad((right_o * do.double()).sum() + (end * d_last.double()).sum(), exact)
    right |= dict(zip(("dq", "dk", "dv", "dg", "d_first"), found, strict=True))

    def lay(x):
        return (x.mT.contiguous() if v_first else x).to(place.device)

    config = with_walks(default_config(K, V, 2, schedule), Workload("fwd", 1, T, H, K, V))
    q, k, v, g = (x.to(place.device) for x in (q, k, v, g))
    p = problem_of(q, k, v, g, K**-0.5, lay(first) if states else None, Plan(schedule, config))
    assert p.all_native(config.walk, config.grad_walk, config.grad_qk)
    p = of_sequences(replace(p, v_first=v_first, run=every), ends.to(place.device), True, launch)
    o, last, kept = chunk.forward(p, states, launch, keep, p.states_apart)
    grads = chunk.backward(p, do.to(place.device), lay(d_last) if states else None, launch, kept)
    got: dict[str, Any] = {"o": o, "dq": grads.q, "dk": grads.k, "dv": grads.v, "dg": grads.g}
    if states:
        assert last is not None
        assert grads.initial_state is not None
        got |= {"last": last, "d_first": grads.initial_state}
    for name, x in got.items():
        if v_first and name in ("last", "d_first"):
            x = x.mT
        assert (x.cpu().double() - right[name]).norm() <= ERROR * right[name].norm(), name


ALL = [(gates, *one) for gates in GATES for one in ((True, BF16), (True, FLOAT32), (False, BF16))]
SOME = [("mild", True, BF16), ("strong", True, FLOAT32), ("weak", False, BF16)]
SOME += [("resets", True, BF16), ("infinite", True, FLOAT32), ("infinite", False, BF16)]


@pytest.mark.parametrize(("gates", "states", "gate_type"), ALL if torch.cuda.is_available() else SOME)
def test_mixed_lengths(launch, place, gates, states, gate_type):
    check(launch, place, MIXED, (1, 64, 64), gates, states, gate_type=gate_type)


@pytest.mark.parametrize("lengths", [(64, 0, 64, 64), (8,) * 12, (130,)], ids=str)
def test_lengths_alike(launch, place, lengths):
    check(launch, place, lengths, (1, 64, 64), "mild")


@pytest.mark.exhaustive(every=(3,))
@pytest.mark.parametrize(
    ("K", "V", "every", "gate_type"),
    [(64, 64, 2, FLOAT32), (64, 192, 2, BF16), (64, 64, 3, BF16), (128, 128, 3, BF16)],
)
def test_few_states(launch, place, K, V, every, gate_type):
    check(launch, place, (40, 66, 1, 50), (1, K, V), "weak", v_first=True, every=every, gate_type=gate_type)


def test_few_states_where_sequences_begin_with_none(launch, place):
    check(launch, place, (100, 80), (1, 64, 64), "weak", states=False, every=3)


@pytest.mark.parametrize(("states", "gate_type"), [(True, BF16), (False, FLOAT32)])
def test_chunks_of_one_sequence_beside_others(launch, place, states, gate_type):
    """Runs of two chunks: a sequence's own; of one that goes on, and ends with its last row; of one that ends
    inside, and one that begins there; of one that ends with its last row; and a chunk of two sequences."""
    check(launch, place, (128, 256, 90, 166, 20, 44), (1, 64, 64), "weak", states, every=2, gate_type=gate_type)


def test_several_heads_and_features(launch, place):
    check(launch, place, (40, 24, 0, 20), (2, 128, 64), "resets", v_first=True)


def test_states_made_again(launch, place):
    check(launch, place, MIXED, (1, 64, 64), "mild", keep=False)


def test_segments(launch, place):
    check(launch, place, (*MIXED, 100), (1, 64, 64), "mild", schedule=Schedule(64, 64, states_every=2))


# Heads of K = 256, whose walks go by what was prepared: a group of warps a tile of V, or two.
FEWER = (30, 66, 1)
WIDE: list[Any] = [
    (FEWER, 64, "strong", True, FLOAT32, True), (FEWER, 64, "infinite", False, BF16, False),
    (FEWER, 128, "weak", True, BF16, True),
]  # fmt: skip
WIDE += [
    pytest.param(lengths, 64, gates, states, gate_type, False, marks=pytest.mark.exhaustive)
    for lengths, gates, states, gate_type in (
        (FEWER, "mild", True, BF16), ((40, 88, 20), "resets", True, FLOAT32), ((64, 0, 64), "mild", True, BF16),
        ((8,) * 10, "weak", False, FLOAT32),
    )
]  # fmt: skip
if torch.cuda.is_available():
    lengths = (MIXED, (64, 0, 64, 64), (8,) * 20, (40, 88, 70))
    WIDE = list(product(lengths, (64, 128, 512), GATES, (True, False), (BF16, FLOAT32), (False, True)))


@pytest.mark.parametrize(("lengths", "V", "gates", "states", "gate_type", "v_first"), WIDE)
def test_wide_heads(launch, place, lengths, V, gates, states, gate_type, v_first):
    check(launch, place, lengths, (1, 256, V), gates, states, v_first, gate_type=gate_type)


@pytest.mark.parametrize("states", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_wide_heads_of_which_few_states_are_kept(launch, place, states):
    check(launch, place, (66, 1, 40), (1, 256, 128), "weak", states, v_first=True, every=2)


def test_segments_of_wide_heads(launch, place):
    check(launch, place, (40, 24, 66, 30), (1, 256, 64), "mild", schedule=Schedule(64, 64, states_every=2))
