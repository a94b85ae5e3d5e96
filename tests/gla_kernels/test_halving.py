"""Chunks whose scores are made by halving, at gates that no anchor serves, against float64.

Hopper's kernels leave such chunks to `chunk.steep`. Here the portable passes make the states alone, and the steep
kernels all the rest.
"""

from __future__ import annotations

import pytest
import torch

from gla_kernels import Plan, Schedule, chunk, default_config
from gla_kernels.apply import problem_of
from gla_kernels.chunk.steep import TILE, grad_qk_steep_kernel, grad_v_steep_kernel, output_steep_kernel, steep_of
from gla_kernels.launch import Launch, execute

SCHEDULE = Schedule(64)
LEFT = ("output", "grad_qk", "grad_v")
GRADS = ("p_dq", "p_dk", "p_dg", "p_dv")


class Steep(torch.autograd.Function):
    """`gla` with every chunk left to the steep kernels."""

    @staticmethod
    def forward(ctx, q, k, v, g, state):
        config = default_config(q.shape[-1], v.shape[-1], q.element_size(), SCHEDULE)
        ctx.problem = problem_of(q, k, v, g, q.shape[-1] ** -0.5, state, Plan(SCHEDULE, config))
        found: dict[str, Launch] = {}
        o, final, ctx.kept = chunk.forward(ctx.problem, True, lambda launch: run(launch, found))
        left = found["output"].args | {"p_o": o.fill_(torch.nan)}
        fill(ctx.problem, output_steep_kernel, left)
        return o, final

    @staticmethod
    def backward(ctx, do, d_final):
        found: dict[str, Launch] = {}
        x, d_final = ctx.problem, d_final.contiguous()
        dq, dk, dv, dg, ds = chunk.backward(x, do.contiguous(), d_final, lambda launch: run(launch, found), ctx.kept)
        assert dg is not None
        grads = {name: one.fill_(torch.nan) for name, one in zip(GRADS, (dq, dk, dg, dv), strict=True)}
        for kernel, step in ((grad_v_steep_kernel, "grad_v"), (grad_qk_steep_kernel, "grad_qk")):
            fill(x, kernel, found[step].args | grads)
        return dq, dk, dv, dg, ds


def run(launch: Launch, found: dict[str, Launch]) -> None:
    """Run it, but for what is left to the steep kernels."""
    if launch.step not in LEFT:
        execute(launch)
    found[launch.step] = launch


def fill(problem, kernel, args) -> None:
    execute(steep_of(problem, kernel, args, problem.whole, problem.state_buffer()))


@pytest.mark.parametrize("gates", [4.0, 16.0, 40.0, "resets", "closed"])
def test_every_gate_strength_that_no_anchor_serves(judge, inputs, gates):
    assert TILE.block_k < 72
    judge(Steep.apply, inputs((1, 150, 1, 72, 40), torch.float32, gates))


def test_a_single_gate_that_forgets_everything(judge, inputs):
    """All else mild: rows on both sides of the reset meet none of the others."""
    x = inputs((1, 128, 1, 16, 16), torch.float32, 0.1)
    x.g[:, [37, 64, 127]] = -1e4
    judge(Steep.apply, x)


def test_the_same_twice(inputs, outputs_of):
    x = inputs((1, 64, 1, 16, 16), torch.float32, 16.0)
    first, second = outputs_of(Steep.apply, x), outputs_of(Steep.apply, x)
    for name, out in first.items():
        assert torch.equal(out, second[name]), name
