"""The GLA layer of section 4.4 of the paper (Yang et al. 2024, arXiv 2312.06635): `gla_kernels.nn`'s own."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from gla_kernels import gla, reference
from gla_kernels import nn as layers

from .operators import Operator, Packed, bounds, given

EPS = 1e-5  # of all norms


def by_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, packed: Packed | None = None, recompute: bool | None = None
) -> Tensor:
    """``gla`` without states at the ends; recompute: what it calls so."""
    return gla(q, k, v, g, cu_seqlens=bounds(packed), recompute=recompute)[0]


recomputed = partial(by_gla, recompute=True)


class GatedLinearAttention(layers.GatedLinearAttention):
    """``gla_kernels.nn.GatedLinearAttention`` with an operator that can be another; for whole sequences.

    operator: (q, k [B, T, H, K], v [B, T, H, V], g [B, T, H, K]) -> o [B, T, H, V], and packed by name.
    """

    def __init__(self, width: int, heads: int, operator: Operator = by_gla) -> None:
        super().__init__(hidden_size=width, num_heads=heads, norm_eps=EPS)
        self.operator = operator

    def forward(self, x: Tensor, packed: Packed | None = None) -> Tensor:  # type: ignore[override]  # no states
        """x [B, T, width] -> the same shape. Gates are in x's dtype, with which all kernels serve."""
        self._check(x, "B, T")
        q, k, v, g, gate = self._inputs(x)
        return self._output(self.operator(q, k, v, g, **given(packed)), gate)

    def continued(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """`forward` by ``gla`` after tokens that left the state [B, H, K, V], None for none; and the state after x."""
        y, after = super().forward(x, state, output_final_state=True)
        assert after is not None
        return y, after

    @torch.no_grad()
    def attend_to_itself(self) -> None:
        """Make each token's key its query."""
        self.k_proj.weight.copy_(self.q_proj.weight)

    @staticmethod
    def plain(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        """The chunkwise form in PyTorch."""
        return reference.chunkwise(q, k, v, g)[0]


__all__ = ["EPS", "GatedLinearAttention", "by_gla", "recomputed"]
