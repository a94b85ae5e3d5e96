"""Mamba-2's state space duality in plain PyTorch: what its kernels are judged by, as `ssm` is for the selective scan.

Arguments are named as in ``Inputs``, with one head of it for all H of SSD, which share B and C: C and B as q and k
``[B,T,P,K]``, x as v ``[B,T,P,H*V]``, dt as g ``[B,T,P,H]``. A is the number -strength in every head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gla_kernels import reference
from glabench.run import ssm


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, initial_state: None, strength: float
) -> tuple[Tensor, None]:  # fmt: skip
    """The definition: a selective scan with the same steps for all channels of a head, and the same A everywhere."""
    channels = v.shape[-1]
    a = v.new_full((channels, k.shape[-1]), -strength, dtype=torch.promote_types(v.dtype, torch.float32))
    steps = g.repeat_interleave(channels // g.shape[-1], dim=-1)
    return ssm.recurrent(q, k, v, steps, a, a.new_zeros(channels)), None


def chunkwise(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, initial_state: None, strength: float
) -> tuple[Tensor, None]:  # fmt: skip
    """The plain form whose error sets the tolerance: chunks of linear attention with keys dt B and gates dt A."""
    per_head = (*g.shape, -1)  # [B, T, P, H, ...]
    dt = g.unsqueeze(-1)
    keys = (k.unsqueeze(-2) * dt).flatten(2, 3)
    queries = q.unsqueeze(-2).expand(per_head).flatten(2, 3)
    gates = (-strength * dt.to(torch.promote_types(g.dtype, torch.float32))).flatten(2, 3)
    values = v.unflatten(-1, (g.shape[-1], -1)).flatten(2, 3)
    o, _ = reference.chunkwise(queries, keys, values, gates, scale=1.0, chunk=64, sub_chunk=16)
    return o.reshape_as(v), None
