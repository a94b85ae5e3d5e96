"""The forward kernels against the float64 recurrence: schedules, tiles, gate strengths, lengths, dtypes, states.

Without a GPU everything here runs in Triton's interpreter, on small shapes.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from gla_kernels import Plan, Schedule, Tile, Workload, chunk, default_config, gla, reference
from gla_kernels.launch import Launch
from gla_kernels.plan.apply import launches_of, problem_of
from gla_kernels.schedule import CHUNKS, KernelConfig
from gla_kernels.tiles import slices

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SCHEDULES = [Schedule(c, s, m) for c, s, m in product(CHUNKS, CHUNKS, (True, False)) if s <= c]
GATES = (None, 0.06, 1.0, 4.0, 16.0, 40.0, "resets", "infinite", "closed")
FACTOR, FLOOR = 4.0, 128 * torch.finfo(torch.float32).eps  # of conftest.py


def name(value):
    if isinstance(value, Schedule):
        return f"{value.chunk}-{value.sub_chunk}-{'m' if value.materialize else 'w'}"
    return str(value).removeprefix("torch.").replace(" ", "")


def tiled(block_t, block_k, block_v):
    tile = Tile(block_k, block_v)
    return KernelConfig(block_t, tile, tile, tile, tile, tile)


def judge(x, schedule, config=None, final=True):
    """Assert that o and the final state are as near to float64 as the same-dtype PyTorch form, times FACTOR."""
    K, V = x.q.shape[-1], x.v.shape[-1]
    config = config or default_config(K, V, 2 if x.q.dtype == torch.bfloat16 else 4, schedule)
    exact = x.cast(torch.float64)
    right = reference.recurrent(exact.q, exact.k, exact.v, exact.g, initial_state=exact.initial_state)
    plain = reference.chunkwise(x.q, x.k, x.v, x.g, initial_state=x.initial_state)
    found = gla(x.q, x.k, x.v, x.g, None, x.initial_state, final, schedule=schedule, config=config)
    for what, a, b, c in zip(("o", "final state"), found, right, plain, strict=True):
        if a is None:
            continue
        assert torch.isfinite(a).all(), f"{what} has values that are not finite"
        error, allowed = (a.double() - b).norm(), FACTOR * (c.double() - b).norm() + FLOOR * b.norm()
        assert error <= allowed, f"{what}: off by {error:.3e}, allowed {allowed:.3e}, norm {b.norm():.3e}"


@pytest.mark.each_value  # test_gla.py has all of them with mild gates
@pytest.mark.parametrize("gates", [None, "resets"], ids=name)
@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s.materialize], ids=name)  # test_gla.py has all
def test_every_schedule(inputs, schedule, gates):
    rows = schedule.chunk + 21  # a whole chunk, and of the next one more than a row block of 16
    judge(inputs((1, rows, 1, 20, 16), torch.float32, gates), schedule, tiled(min(schedule.rows, 64), 32, 16))


@pytest.mark.pairwise
@pytest.mark.parametrize("gates", GATES, ids=name)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(64, 32, False), Schedule(128, 128)], ids=name)
def test_every_gate_strength_and_dtype(inputs, schedule, dtype, gates):
    judge(inputs((1, schedule.chunk + 22, 1, 32, 16), dtype, gates), schedule)


@pytest.mark.parametrize("gates", [1.0, 16.0], ids=name)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_gates_in_float32(inputs, dtype, gates):
    judge(inputs((1, 80, 2, 32, 32), dtype, gates, gate_dtype=torch.float32), Schedule(64))


@pytest.mark.each_value
@pytest.mark.parametrize("gates", [None, 1.0, 2.0, "resets"], ids=name)
@pytest.mark.parametrize(("K", "V"), [(20, 64), (96, 20), (96, 64), (8, 8)])
@pytest.mark.parametrize("block_t", [16, 32])
def test_every_head_dimension_cut_into_tiles(inputs, block_t, K, V, gates):
    judge(
        inputs((1, 100, 1, K, V), torch.float32, gates),
        Schedule(64, 32),
        tiled(block_t, *(32 if d > 16 else 16 for d in (K, V))),
    )


def test_a_block_that_decays_to_the_limit(at_the_limit):
    judge(at_the_limit, Schedule(64), tiled(64, 64, 64))


@pytest.mark.each_value  # test_gla.py has each with both
@pytest.mark.parametrize(
    ("T", "gates"),
    [(T, "resets") for T in (1, 2, 15, 16, 17, 63, 64, 65, 129)] + [(17, 1.0), (64, 1.0)],  # test_gla.py has the others
)
@pytest.mark.parametrize("materialize", [True, False])
def test_any_length(inputs, T, materialize, gates):
    judge(inputs((1, T, 2, 16, 16), torch.float32, gates), Schedule(64, 16, materialize))


@pytest.mark.pairwise
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("materialize", [True, False])
def test_with_and_without_states(inputs, materialize, final, states):
    for gates in (None, 1.0):
        x = inputs((2, 100, 2, 24, 40), torch.float32, gates, states=states)
        judge(x, Schedule(64, 64, materialize), None, final)


@pytest.mark.each_value  # of slices gates know nothing
@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("gates", [None, 0.05, "resets"], ids=name)
def test_slices_of_a_long_sequence(inputs, monkeypatch, gates, states, at_once):
    monkeypatch.setattr(chunk.parted, "SEGMENT_ROWS", 128)
    monkeypatch.setattr(chunk.parted, "segments_at_once", lambda segment, whole: at_once)
    x = inputs((1, 300, 1, 16, 16), torch.float32, gates, states=states)
    for schedule in (Schedule(64, 64, False), Schedule(128, 32, False)):
        judge(x, schedule, tiled(32 if gates == "resets" else schedule.rows, 16, 16))


def test_a_segment_of_1024_rows(inputs):
    judge(inputs((1, 1100, 1, 16, 16), torch.bfloat16, 0.05), Schedule(64, 64, False), tiled(32, 16, 16))


def test_an_empty_sequence_hands_the_state_on(inputs):
    x = inputs((2, 0, 2, 16, 16), torch.float32, 1.0)
    for materialize in (True, False):
        schedule = Schedule(64, 64, materialize)
        o, final = gla(x.q, x.k, x.v, x.g, None, x.initial_state, True, schedule=schedule, config=tiled(64, 16, 16))
        assert o.shape == (2, 0, 2, 16)
        assert final is not None
        assert x.initial_state is not None
        assert torch.equal(final, x.initial_state)


def test_slices_cover_the_chunks_once():
    for n_chunks, at_once in product((1, 15, 16, 17, 32, 50), (1, 2, 3, 9)):
        n_seg = -(-n_chunks // 16)
        parts = list(slices.slices_of(n_seg, n_chunks, 16, at_once))
        covered = [c for part in parts for c in range(part.first_chunk, part.first_chunk + part.chunks)]
        assert covered == list(range(n_chunks))
        assert all(part.first_chunk == 16 * part.first_segment for part in parts)


def launched(B: int, T: int, H: int) -> tuple[list[Launch], int]:
    """What a forward pass without materialized states launches at heads of 128, and room for its chunks' states."""
    found: list[Launch] = []
    q = torch.empty(B, T, H, 128, dtype=torch.bfloat16, device="meta")
    plan = Plan(Schedule(64, 64, False), default_config(128, 128, 2, Schedule(64, 64, False)))
    chunk.forward(problem_of(q, q, q, q, 1.0, None, plan), False, found.append)
    return found, max(slices.SLICE_BYTES, 4 * q.nbytes // slices.SLICE_SHARE)


def test_states_of_a_long_sequence_share_a_small_buffer():
    found, room = launched(1, 65536, 32)
    whole, stored = found[0].args["p_s"], {id(launch.args["p_s"]) for launch in found[1:]}
    assert (whole.dtype, whole.shape) == (torch.float32, (32, 64, 128, 128))
    assert len(stored) == 1
    assert found[1].args["p_s"].nbytes <= room
    assert [launch.args["first_block"] for launch in found[2::2]] == list(range(0, 1024, 1024 * 2 // (len(found) - 1)))


def test_many_heads_need_no_first_pass():
    found, room = launched(4, 16384, 32)
    copies, found = ([one for one in found if (one.step == "copy") is copied] for copied in (True, False))
    assert len(copies) in (1, len(found) // 2 + 1)  # of the state at the start, and of each slice's if it is kept
    assert len({id(launch.args["p_s"]) for launch in found}) == 1
    assert found[0].args["p_s"].nbytes <= room
    chunks = [launch.args["n_here"] for launch in found[1::2]]
    assert sum(chunks) == 256
    assert chunks[0] == max(chunks)
    assert len(chunks) == -(-256 // (room // (128 * 128 * 128 * 2)))  # no more slices than it takes, and alike
    assert chunks[0] == -(-256 // len(chunks))


def test_a_short_sequence_needs_none_either():
    config = default_config(128, 128, 2, Schedule(64, 64, False))
    work = Workload("fwd", 1, 512, 32, 128, 128)
    steps = launches_of(work, Plan(Schedule(64, 64, False), config))
    assert list(steps) == ["states", "output"]
