"""The selective scan in plain PyTorch: what its kernels are judged by, as `gla_kernels.reference` is for GLA."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from glabench.systems.mamba_scan import ssm_parameters

SEGMENT = 64  # steps between two states that are kept for the backward pass; those between are computed again


def recurrent(
    c: Tensor, b: Tensor, x: Tensor, dt: Tensor, a: Tensor, skip: Tensor
) -> Tensor:  # fmt: skip
    """h_t = e^{dt_t A} h_{t-1} + dt_t B_t x_t,  y_t = C_t h_t + D x_t, one token after another.

    c, b [B, T, H, N]; x, dt, y [B, T, H, D]; a [D, N] and skip [D] in the dtype of the states, float32 or wider.
    """
    B, T, H, D = x.shape
    h = a.new_zeros(B, H, D, a.shape[-1])
    parts = []
    for t in range(0, T, SEGMENT):
        rows = slice(t, t + SEGMENT)
        y, h = checkpoint(_walk, c[:, rows], b[:, rows], x[:, rows], dt[:, rows], a, skip, h, use_reentrant=False)
        parts.append(y)
    return torch.cat(parts, dim=1)


def _walk(
    c: Tensor, b: Tensor, x: Tensor, dt: Tensor, a: Tensor, skip: Tensor, h: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    outputs = []
    for t in range(x.shape[1]):
        step, x_t = dt[:, t, ..., None].to(h.dtype), x[:, t].to(h.dtype)
        h = (step * a).exp() * h + step * x_t[..., None] * b[:, t, :, None].to(h.dtype)
        outputs.append((torch.einsum("bhdn,bhn->bhd", h, c[:, t].to(h.dtype)) + skip * x_t).to(x.dtype))
    return torch.stack(outputs, dim=1), h


def form(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, *, initial_state: Tensor | None
) -> tuple[Tensor, None]:  # fmt: skip
    """The same with the parameters that Mamba begins with, and arguments named as in ``Inputs``: C, B, x and dt."""
    assert g is not None  # dt
    return recurrent(q, k, v, g, *ssm_parameters(v.shape[-1], k.shape[-1], v)), None
