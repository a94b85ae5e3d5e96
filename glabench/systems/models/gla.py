"""The GLA layer of section 4.4 of the paper (Yang et al. 2024, arXiv 2312.06635)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gla_kernels import gla, reference

from .operators import Operator

RANK = 16  # of the projection that gates come from
TEMPERATURE = 16  # gates are that much closer to 1 than a sigmoid
EPS = 1e-5


def by_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, recompute: bool | None = None) -> Tensor:
    """``gla`` without states at the ends; recompute: what it calls so."""
    return gla(q, k, v, g, recompute=recompute)[0]


class GatedLinearAttention(nn.Module):
    """Gated linear attention of ``heads`` heads: d_k = width / 2, d_v = width, some 4 width² parameters.

    The norm of each head is an RMS norm with one weight for all heads, where the paper has a LayerNorm without saying
    which weights; it is the norm of the rest of the model. The paper's output gate has a bias, which is left out.
    operator: (q, k [B, T, H, K], v [B, T, H, V], g [B, T, H, K]) -> o [B, T, H, V].
    """

    def __init__(self, width: int, heads: int, operator: Operator = by_gla) -> None:
        super().__init__()
        keys = width // 2
        self.heads, self.operator = heads, operator
        # Products of their own, where attention has one for three: gla would copy slices of one, and keep the copies
        # for the backward pass beside what they are of.
        self.queries, self.keys = (nn.Linear(width, keys, bias=False) for _ in range(2))
        self.values, self.output_gate = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.gate = nn.Sequential(nn.Linear(width, RANK, bias=False), nn.Linear(RANK, keys))
        self.norm = nn.RMSNorm(width // heads, EPS)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> the same shape. Gates are in x's dtype, with which all kernels serve."""
        q, k, v, gate = (self._by_head(f(x)) for f in (self.queries, self.keys, self.values, self.gate))
        o = self.operator(q, k, v, F.logsigmoid(gate) / TEMPERATURE)
        mixed: Tensor = self.out((F.silu(self._by_head(self.output_gate(x))) * self.norm(o)).flatten(2))
        return mixed

    @torch.no_grad()
    def attend_to_itself(self) -> None:
        """Make each token's key its query."""
        self.keys.weight.copy_(self.queries.weight)

    @staticmethod
    def plain(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        """The chunkwise form in PyTorch."""
        return reference.chunkwise(q, k, v, g)[0]

    def _by_head(self, x: Tensor) -> Tensor:
        """x [B, T, H * dim] as a view [B, T, H, dim]."""
        return x.unflatten(-1, (self.heads, -1))


recomputed = partial(by_gla, recompute=True)

__all__ = ["GatedLinearAttention", "by_gla", "recomputed"]
