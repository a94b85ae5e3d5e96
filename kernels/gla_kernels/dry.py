"""What a plan would launch: the host code run on torch's meta device, where tensors have shapes and no memory."""

from __future__ import annotations

import torch

from . import chunk
from .config import Plan, Workload
from .launch import Launch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def launches_of(work: Workload, plan: Plan) -> dict[str, Launch]:
    """The launches of the workload's direction by pass, in order. No state is given or asked for."""
    B, T, H, dtype = work.B, work.T, work.H, DTYPES[work.dtype]
    q = torch.empty(B, T, H, work.K, dtype=dtype, device="meta")
    v = torch.empty(B, T, H, work.V, dtype=dtype, device="meta")
    g = torch.empty_like(q) if work.gated else None
    backward = work.direction == "bwd"
    seg_chunks = chunk.segment_chunks(plan.schedule, T, backward)
    problem = chunk.Problem(q, q, v, g, work.K**-0.5, None, plan.schedule, plan.config, seg_chunks)
    found: list[Launch] = []
    if backward:
        chunk.backward(problem, v, None, None, found.append)
    else:
        chunk.forward(problem, False, found.append)
    return {launch.step: launch for launch in found}
