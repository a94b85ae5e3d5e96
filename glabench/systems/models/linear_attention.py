"""Linear attention without gates, in the form of section 2.1 of the GLA paper (Yang et al. 2024, arXiv 2312.06635)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gla_kernels import gla, reference
from gla_kernels.projections import projected

from .gla import EPS
from .operators import Operator, Packed, bounds, given


def by_gla(q: Tensor, k: Tensor, v: Tensor, packed: Packed | None = None) -> Tensor:
    """``gla`` without gates and without states at the ends."""
    return gla(q, k, v, None, cu_seqlens=bounds(packed))[0]


class LinearAttention(nn.Module):
    """The GLA layer without its gates on keys, the "No gate" of the paper's Table 2: 4 width² parameters.

    o_t = q_t S_t with S_t = S_{t-1} + k_t^T v_t, for ``heads`` heads: no feature map and no normalizer, but a norm of
    each head's output; d_k = width / 2, d_v = width, and the Swish gate on the output.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        keys = width // 2
        self.heads = heads
        self.operator: Operator = by_gla
        self.queries, self.keys = (nn.Linear(width, keys, bias=False) for _ in range(2))
        self.values, self.output_gate = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.norm = nn.RMSNorm(width // heads, EPS)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        """x [B, T, width] -> the same shape."""
        projections = self.queries, self.keys, self.values, self.output_gate
        q, k, v, gate = (y.unflatten(-1, (self.heads, -1)) for y in projected(x, projections))
        o = self.operator(q, k, v, **given(packed))
        mixed: Tensor = self.out((F.silu(gate) * self.norm(o)).flatten(2))
        return mixed

    @torch.no_grad()
    def attend_to_itself(self) -> None:
        """Make each token's key its query."""
        self.keys.weight.copy_(self.queries.weight)

    @staticmethod
    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The chunkwise form in PyTorch."""
        return reference.chunkwise(q, k, v, None)[0]


__all__ = ["LinearAttention"]
