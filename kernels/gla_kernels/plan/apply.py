"""A plan applied: to a call's tensors, or on torch's meta device, where it shows what it would launch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from .. import chunk
from ..chunk.problem import Problem
from ..launch import Launch
from ..schedule import Plan, Workload

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def problem_of(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, scale: float, initial_state: Tensor | None, plan: Plan
) -> Problem:
    """One direction of a call as the plan says."""
    return Problem(q, k, v, g, scale, initial_state, plan.schedule, plan.config)


def launches_of(work: Workload, plan: Plan, initial_state: bool = False, few: bool = False) -> dict[str, Launch]:
    """The launches of the workload's direction by pass, in order, on meta tensors: of a pass that is launched several
    times, over slices of a long sequence, the first over a slice. ``initial_state``: of a call that is given a state.
    None asks for the final one."""
    return by_pass(all_launches(work, plan, initial_state, few=few))


def by_pass(launches: Iterable[Launch]) -> dict[str, Launch]:
    """One launch of each pass, of launches in order: see `launches_of`."""
    found: dict[str, Launch] = {}
    for launch in launches:
        known = found.get(launch.step)
        if known is None or known.constexprs != launch.constexprs:  # first over the whole sequence, then by slices
            found[launch.step] = launch
    return found


def all_launches(
    work: Workload,
    plan: Plan,
    initial_state: bool = False,
    other: Plan | None = None,
    keep: bool = True,
    few: bool = False,
) -> list[Launch]:
    """Every launch of the workload's direction, in order, on meta tensors. See `launches_of`.

    other: the other direction's plan: for the backward direction that of the forward pass, if that has left states; for
    the forward direction that of the backward pass, by default the same. keep: for the forward direction, whether it
    leaves states; few: no more of them than a call leaves by default. Else of all chunks, as models and tuners of plans
    have it, for which states are led along or not is no matter: there is no tile to choose for that.
    """
    found: list[Launch] = []
    run = None if few else 1
    problem = _on_meta(work, plan, initial_state, run)
    others = problem if other is None else _on_meta(work, other, initial_state, run)
    if work.direction == "bwd":
        kept = None
        if other is not None:
            kept = chunk.forward(others, False, lambda launch: None, every=problem.states_apart)[2]
        chunk.backward(problem, problem.v, None, found.append, kept)
    else:
        chunk.forward(problem, False, found.append, keep, others.states_apart)
    return found


def _on_meta(work: Workload, plan: Plan, initial_state: bool, run: int | None) -> Problem:
    B, T, H, dtype = work.B, work.T, work.H, DTYPES[work.dtype]
    q = torch.empty(B, T, H, work.K, dtype=dtype, device="meta")
    v = torch.empty(B, T, H, work.V, dtype=dtype, device="meta")
    # of its own: torch.empty_like takes six times as long on the meta device
    gates = DTYPES[work.gate_dtype or work.dtype]
    g = torch.empty(B, T, H, work.K, dtype=gates, device="meta") if work.gated else None
    state = torch.empty(B, H, work.K, work.V, dtype=torch.float32, device="meta") if initial_state else None
    return replace(problem_of(q, q, v, g, work.K**-0.5, state, plan), run=run)
