"""A plan applied: to a call's tensors, or on torch's meta device, where it shows what it would launch."""

from __future__ import annotations

import torch
from torch import Tensor

from . import chunk
from .config import Plan, Workload
from .launch import Launch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def problem_of(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, scale: float, initial_state: Tensor | None, plan: Plan,
    grad: bool,
) -> chunk.Problem:  # fmt: skip
    """One direction of a call as the plan says; ``grad``: the backward one."""
    seg_chunks = chunk.segment_chunks(plan.schedule, q.shape[1], grad)
    return chunk.Problem(q, k, v, g, scale, initial_state, plan.schedule, plan.config, seg_chunks)


def launches_of(work: Workload, plan: Plan, initial_state: bool = False) -> dict[str, Launch]:
    """The launches of the workload's direction by pass, in order, on meta tensors; ``initial_state``: of a call that
    is given a state. None asks for the final one."""
    B, T, H, dtype = work.B, work.T, work.H, DTYPES[work.dtype]
    q = torch.empty(B, T, H, work.K, dtype=dtype, device="meta")
    v = torch.empty(B, T, H, work.V, dtype=dtype, device="meta")
    g = torch.empty_like(q) if work.gated else None
    state = torch.empty(B, H, work.K, work.V, device="meta") if initial_state else None
    found: list[Launch] = []
    problem = problem_of(q, q, v, g, work.K**-0.5, state, plan, work.direction == "bwd")
    if work.direction == "bwd":
        chunk.backward(problem, v, None, None, found.append)
    else:
        chunk.forward(problem, False, found.append)
    return {launch.step: launch for launch in found}
