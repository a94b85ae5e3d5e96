"""`gla` with gates on the value side, as autograd sees it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import Schedule
from ..launch import execute
from ..once import differentiable_once
from . import Kept, backward, forward
from .problem import MAX_CHUNK, Problem

# Sub-chunks as small as tensor cores take: gates are seldom so strong that one of them is not mild (halving.py).
DEFAULT = Schedule(chunk=64, sub_chunk=16)


def check_schedule(schedule: Schedule | None, config: object) -> Schedule:
    """The schedule to run. Raises ValueError, naming the argument, for what there is only without value-side gates."""
    if config is not None:
        raise ValueError(f"config: with gv there is one config a schedule, so expected None, got {config!r:.60}")
    if schedule is None:
        return DEFAULT
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedule: expected a Schedule or None, got {type(schedule).__name__}")
    if schedule.chunk > MAX_CHUNK:
        raise ValueError(f"schedule: with gv expected a chunk of at most {MAX_CHUNK}, got {schedule.chunk}")
    if schedule.states_every is not None:
        raise ValueError(f"schedule: with gv expected states_every=None, got {schedule.states_every}")
    return schedule


class ValueGatedGLA(torch.autograd.Function):
    """q, k, v, g, gv and initial_state may require gradients; see `api.gla`. ``keep``: whether states are kept for the
    backward pass."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]  # autograd's calling convention
        ctx, q, k, v, g, gv, scale, initial_state, output_final_state, schedule, keep
    ):
        given = tuple(None if x is None else x.contiguous() for x in (q, k, v, g, gv, initial_state))
        problem = _problem(given, scale, schedule)
        o, final_state, (states, handed) = forward(problem, execute)
        ctx.save_for_backward(*given, *((states, *handed) if keep else ()))
        ctx.set_materialize_grads(False)
        ctx.scale, ctx.schedule = scale, schedule
        return o, final_state if output_final_state else None

    @staticmethod
    @differentiable_once
    def backward(ctx, do, d_final):  # type: ignore[no-untyped-def]
        saved = ctx.saved_tensors  # read once: a checkpoint hands them out once
        given, between = saved[:6], saved[6:]
        problem = _problem(given, ctx.scale, ctx.schedule)
        kept: Kept | None = (between[0], list(between[1:])) if between else None
        do = torch.zeros_like(problem.v) if do is None else do.contiguous()
        d_final = None if d_final is None else d_final.contiguous()
        dq, dk, dv, dg, dgv, d_initial = backward(problem, do, d_final, execute, kept)
        return dq, dk, dv, dg, dgv, None, d_initial if problem.initial_state is not None else None, None, None, None


def _problem(given: tuple[Tensor | None, ...], scale: float, schedule: Schedule) -> Problem:
    q, k, v, g, gv, initial_state = given
    assert q is not None
    assert k is not None
    assert v is not None
    return Problem(q, k, v, g, gv, scale, initial_state, schedule)
