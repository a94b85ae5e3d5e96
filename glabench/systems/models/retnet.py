"""The layer of RetNet: multi-scale retention (Sun et al. 2023, arXiv 2307.08621, section 2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gla_kernels import reference, retnet_decays, simple_gla
from gla_kernels.projections import projected

from .attention import Rotary
from .gla import EPS
from .operators import Operator, Packed, bounds, given


def by_simple_gla(q: Tensor, k: Tensor, v: Tensor, decays: Tensor, packed: Packed | None = None) -> Tensor:
    """``simple_gla`` without states at the ends."""
    return simple_gla(q, k, v, decays, cu_seqlens=bounds(packed))[0]


class MultiScaleRetention(nn.Module):
    """Retention of ``heads`` heads, d_k = width / 2, d_v = width, 4 width² parameters.

    A head's queries and keys turn by their positions, its state decays by a constant of its own, 1 - 2^(-5-h), its
    output is normalized by itself, and a Swish gate is on all outputs. Keys are half as wide as values, as printed, but
    half as wide as there: RetNet's layer has 8 width² parameters. The norm is the RMS norm of the rest of the model, as
    in RetNet's own code, where the paper has a group norm; what the paper divides scores by, it takes out again.
    """

    def __init__(self, width: int, heads: int, rotary: Rotary) -> None:
        super().__init__()
        keys = width // 2
        self.heads, self.rotary = heads, rotary
        self.decays = retnet_decays(heads)  # no buffer: they stay in float32, whatever the model's weights are
        self.operator: Operator = by_simple_gla
        self.queries, self.keys = (nn.Linear(width, keys, bias=False) for _ in range(2))
        self.values, self.output_gate = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.norm = nn.RMSNorm(width // heads, EPS)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        """x [B, T, width] -> the same shape."""
        projections = self.queries, self.keys, self.values, self.output_gate
        q, k, v, gate = (y.unflatten(-1, (self.heads, -1)) for y in projected(x, projections))
        decays = self.decays.to(x.device).expand(q.shape[:-1])
        q, k = self.rotary(q, packed), self.rotary(k, packed)
        o = self.operator(q, k, v, decays, **given(packed))
        mixed: Tensor = self.out((F.silu(gate) * self.norm(o)).flatten(2))
        return mixed

    @torch.no_grad()
    def attend_to_itself(self) -> None:
        """Make each token's key its query."""
        self.keys.weight.copy_(self.queries.weight)

    @staticmethod
    def plain(q: Tensor, k: Tensor, v: Tensor, decays: Tensor) -> Tensor:
        """The chunkwise form in PyTorch."""
        return reference.chunkwise(q, k, v, decays[..., None])[0]


__all__ = ["MultiScaleRetention"]
