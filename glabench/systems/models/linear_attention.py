"""Linear attention without gates, in the form of section 2.1 of the GLA paper (Yang et al. 2024, arXiv 2312.06635)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from gla_kernels import gla

from .gla import EPS


class LinearAttention(nn.Module):
    """The GLA layer without its gates on keys, the "No gate" of the paper's Table 2: 4 width² parameters.

    o_t = q_t S_t with S_t = S_{t-1} + k_t^T v_t, for ``heads`` heads: no feature map and no normalizer, but a norm of
    each head's output; d_k = width / 2, d_v = width, and the Swish gate on the output.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        keys = width // 2
        self.heads = heads
        self.sizes = (keys, keys, width, width)
        self.project = nn.Linear(width, sum(self.sizes), bias=False)
        self.norm = nn.RMSNorm(width // heads, EPS)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> the same shape."""
        q, k, v, gate = (y.unflatten(-1, (self.heads, -1)) for y in self.project(x).split(self.sizes, -1))
        o, _ = gla(q, k, v, None)
        mixed: Tensor = self.out((F.silu(gate) * self.norm(o)).flatten(2))
        return mixed


__all__ = ["LinearAttention"]
