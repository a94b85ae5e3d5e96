"""The backward passes alone against the float64 recurrence: outputs are from PyTorch, gradients from the kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.autograd.function import once_differentiable

import gla_kernels.chunk
from gla_kernels import Plan, Schedule, reference
from gla_kernels.chunk import backward
from gla_kernels.launch import execute
from gla_kernels.plan.apply import problem_of
from gla_kernels.plan.choose import default_config
from gla_kernels.schedule import CHUNKS

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PAIRS = [(c, s) for c in CHUNKS for s in (16, 32, 64, 128, 256) if s <= c]
SCHEDULES = [Schedule(c, s, m) for c, s in PAIRS for m in (True, False)]
GATES = [None, 0.06, 1.0, 4.0, 16.0, 40.0, "resets", "infinite", "closed"]


class OnlyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, s, plan):
        o, final = reference.chunkwise(q, k, v, g, initial_state=s)
        ctx.save_for_backward(q, k, v, g, s)
        ctx.plan = plan
        return o, final

    @staticmethod
    @once_differentiable
    def backward(ctx, do, d_final):
        q, k, v, g, s = ctx.saved_tensors
        problem = problem_of(q, k, v, g, q.shape[-1] ** -0.5, s, ctx.plan)
        dq, dk, dv, dg, ds = backward(problem, do.contiguous(), d_final, execute)
        return dq, dk, dv, dg, ds, None


def form(schedule: Schedule, block_t: int | None = None, **tiles: tuple[int, int]):
    """``gla`` but for its forward pass; ``tiles``: (block_k, block_v) of passes."""

    def call(q, k, v, g, s):
        K, V = q.shape[-1], v.shape[-1]
        config = default_config(K, V, 2 if q.dtype == torch.bfloat16 else 4, schedule, 80)  # by pointers
        for name, (block_k, block_v) in tiles.items():
            config = replace(config, **{name: replace(getattr(config, name), block_k=block_k, block_v=block_v)})
        plan = Plan(schedule, replace(config, block_t=block_t or config.block_t))
        return OnlyBackward.apply(q, k, v, g, s, plan)

    return call


def name(value: object) -> str:
    if isinstance(value, Schedule):
        return f"{value.chunk}-{value.sub_chunk}-{'m' if value.materialize else 'w'}"
    return str(value).removeprefix("torch.").replace(" ", "")


@pytest.mark.exhaustive(schedule=[Schedule(128, rows) for rows in (16, 32, 128)])
@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s.materialize and s.chunk <= 128], ids=name)
def test_every_schedule(judge, inputs, schedule):  # test_gla.py has all of them, with mild gates
    rows = schedule.chunk + 21  # a whole chunk, and of the next one more than a row block of 16
    judge(form(schedule), inputs((1, rows, 1, 16, 16), torch.float32, "resets"))


@pytest.mark.each_value
@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(64, 32, False)], ids=name)
@pytest.mark.parametrize("gates", GATES, ids=name)
@pytest.mark.exhaustive(gates=(0.06, 4.0, 16.0))  # other schedules have them, below and in test_segments.py
def test_every_gate_strength(judge, inputs, gates, schedule):
    judge(form(schedule), inputs((1, schedule.chunk + 22, 1, 32, 16), torch.float32, gates))


@pytest.mark.each_value
@pytest.mark.parametrize("gates", [0.06, 16.0, "resets"], ids=name)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("schedule", [Schedule(32), Schedule(64, 16, False)], ids=name)
def test_every_dtype(judge, inputs, dtype, gates, schedule):
    judge(form(schedule), inputs((1, 70, 1, 32, 32), dtype, gates))


def test_a_block_that_decays_to_the_limit(judge, at_the_limit):
    judge(form(Schedule(64), block_t=64), at_the_limit)


@pytest.mark.each_value
@pytest.mark.parametrize(("schedule", "gates"), [(Schedule(32, 16), 8.0), (Schedule(128, 64), 2.0)], ids=name)
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=name)
def test_row_blocks_that_decay_a_lot_and_meet(judge, inputs, dtype, schedule, gates):
    """By some 150 powers of two each: e to half of both is 0 in float32, though rows at the border hardly decay."""
    tiles = dict.fromkeys(("grad_qk", "grad_v"), (64, 64))  # of 32 columns are refused for such blocks: limits.py
    judge(form(schedule, block_t=schedule.rows, **tiles), inputs((1, 150, 1, 64, 64), dtype, gates))


@pytest.mark.each_value  # test_gla.py has each with both
@pytest.mark.parametrize("T", [1, 2, 15, 16, 63, 65, 129])
@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(128, 32, False)], ids=name)
def test_any_length(judge, inputs, T, schedule):
    judge(form(schedule), inputs((1, T, 1, 16, 16), torch.float32, 1.0))


@pytest.mark.each_value  # gates know nothing of tiles of features
@pytest.mark.parametrize("gates", [None, 4.0, "resets"], ids=name)
@pytest.mark.parametrize(("K", "V"), [(20, 64), (48, 40), (72, 20)])
@pytest.mark.parametrize("schedule", [Schedule(64, 32)], ids=name)
def test_any_head_dimension(judge, inputs, schedule, K, V, gates):
    small = dict.fromkeys(("states", "grad_states", "grad_qk", "grad_v"), (16, 32))
    judge(form(schedule, block_t=32, **small), inputs((1, 90, 1, K, V), torch.float32, gates))


@pytest.mark.each_value
@pytest.mark.parametrize("gates", [None, 0.1], ids=name)
@pytest.mark.parametrize("schedule", [Schedule(256, 64), Schedule(64, 64, False)], ids=name)
def test_several_segments(judge, inputs, monkeypatch, schedule, gates):
    monkeypatch.setattr(gla_kernels.chunk.parted, "segments_at_once", lambda *_: 1)
    monkeypatch.setattr(gla_kernels.chunk.parted, "SEGMENT_ROWS", 256)
    judge(form(schedule), inputs((1, 530, 1, 16, 16), torch.float32, gates))


def test_without_states(judge, inputs):
    judge(form(Schedule(64)), inputs((2, 100, 2, 24, 40), torch.float32, 1.0, states=False))


def test_gates_in_float32_with_16_bit_inputs(judge, inputs):
    judge(form(Schedule(64)), inputs((1, 80, 2, 32, 32), torch.bfloat16, 1.0, gate_dtype=torch.float32))


def test_gates_around_the_limit_of_the_fast_path(judge, inputs):
    for gates in (1.5, 1.75, 2.0, 2.5):
        judge(form(Schedule(64), block_t=64), inputs((1, 80, 1, 64, 32), torch.float32, gates))


@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(64, 16, False)], ids=name)
def test_an_empty_sequence_hands_the_gradient_on(inputs, schedule):
    x = inputs((2, 0, 2, 16, 16), torch.float32, 1.0)
    plan = Plan(schedule, default_config(16, 16, 4, schedule))
    problem = problem_of(x.q, x.k, x.v, x.g, 0.25, x.initial_state, plan)
    dq, dk, dv, dg, d_initial = backward(problem, x.do, x.d_final, execute)
    assert dg is not None
    assert [len(d[0]) for d in (dq, dk, dv, dg)] == [0, 0, 0, 0]
    assert d_initial is not None
    assert torch.equal(d_initial, x.d_final)
