"""The GLA layer of section 4.4 of the paper (Yang et al. 2024, arXiv 2312.06635)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from gla_kernels import gla

RANK = 16  # of the projection that gates come from
TEMPERATURE = 16  # gates are that much closer to 1 than a sigmoid
EPS = 1e-5


class GatedLinearAttention(nn.Module):
    """Gated linear attention of ``heads`` heads: d_k = width / 2, d_v = width, some 4 width² parameters.

    The norm of each head is an RMS norm with one weight for all heads, where the paper has a LayerNorm without saying
    which weights; it is the norm of the rest of the model. The paper's output gate has a bias, which is left out.
    recompute: what ``gla`` calls so.
    """

    def __init__(self, width: int, heads: int, recompute: bool | None = None) -> None:
        super().__init__()
        keys = width // 2
        self.heads, self.recompute = heads, recompute
        # One product for queries, keys, values, the output gate and the gates' low rank, as attention has one for
        # three: gla copies its slices, which costs less than products of their own.
        self.sizes = (keys, keys, width, width, RANK)
        self.project = nn.Linear(width, sum(self.sizes), bias=False)
        self.gate = nn.Linear(RANK, keys)
        self.norm = nn.RMSNorm(width // heads, EPS)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> the same shape. Gates are in x's dtype, with which all kernels serve."""
        q, k, v, output_gate, low_rank = self.project(x).split(self.sizes, -1)
        q, k, v, gate = (self._by_head(y) for y in (q, k, v, self.gate(low_rank)))
        o, _ = gla(q, k, v, F.logsigmoid(gate) / TEMPERATURE, recompute=self.recompute)
        mixed: Tensor = self.out((F.silu(self._by_head(output_gate)) * self.norm(o)).flatten(2))
        return mixed

    def _by_head(self, x: Tensor) -> Tensor:
        """x [B, T, H * dim] as a view [B, T, H, dim]."""
        return x.unflatten(-1, (self.heads, -1))


__all__ = ["GatedLinearAttention"]
