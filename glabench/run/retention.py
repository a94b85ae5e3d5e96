"""RetNet's retention in plain PyTorch: linear attention whose decays are constants of the heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Form = Callable[..., tuple[Tensor, Tensor]]


def decays(heads: tuple[int, ...], like: Tensor) -> Tensor:
    """log(1 - 2^(-5-h)) of these heads, [1, 1, heads, 1], float32 or wider (Sun et al. 2023, arXiv:2307.08621)."""
    powers = torch.tensor([2.0 ** (-5 - head) for head in heads], dtype=torch.float64, device=like.device)
    return torch.log1p(-powers)[None, None, :, None].to(torch.promote_types(like.dtype, torch.float32))


def form(of: Form, heads: tuple[int, ...]) -> Form:
    """A form of gated linear attention, `gla_kernels.reference`'s, with the decays of these heads as its gates."""

    def retention(
        q: Tensor, k: Tensor, v: Tensor, g: Any, *, initial_state: Tensor | None, **packed: Tensor
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        assert g is None  # nothing is asked of gates
        gates = decays(heads, q).expand(*q.shape[:2], -1, -1)
        return of(q, k, v, gates, initial_state=initial_state, **packed)

    return retention
