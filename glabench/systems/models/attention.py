"""The layer of Transformer++: causal softmax attention with rotary positions (Su et al. 2021, arXiv 2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .operators import Operator

BASE = 10_000.0  # positions turn by angles from 1 to 1 / BASE a token


def backend(device: torch.device) -> SDPBackend:
    """The backend of SDPA that is measured: FlashAttention-2 on a GPU. A CPU, where only tests run, has plain math."""
    return SDPBackend.FLASH_ATTENTION if device.type == "cuda" else SDPBackend.MATH


def by_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of q, k, v [B, T, H, dim], by the backend that the model chose."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # heads before time, as views
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Rotary(nn.Module):
    """Rotary positions for heads of ``dim`` and up to ``length`` tokens. One for all layers of a model."""

    cos: Tensor
    sin: Tensor

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        speeds = BASE ** (-torch.arange(0, dim, 2) / dim)
        angles = torch.outer(torch.arange(length), speeds)[:, None]  # [length, 1, dim / 2]
        self.register_buffer("cos", torch.cat((angles.cos(), angles.cos()), -1), persistent=False)
        self.register_buffer("sin", torch.cat((-angles.sin(), angles.sin()), -1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, H, dim] with pairs (i, i + dim / 2) of each head turned by their position: three kernels."""
        tokens = x.shape[1]
        exchanged = x.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
        return torch.addcmul(x * self.cos[:tokens], exchanged, self.sin[:tokens])


class Attention(nn.Module):
    """Softmax attention of ``heads`` heads, 4 width² parameters.

    SDPA's backend is the caller's choice, by ``sdpa_kernel``: once a model, for it takes Python as long as a launch.
    """

    def __init__(self, width: int, heads: int, rotary: Rotary) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.operator: Operator = by_sdpa
        # One product for three: flash attention takes views of it, and the backward pass stacks the gradients once.
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> the same shape."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        mixed: Tensor = self.out(self.operator(self.rotary(q), self.rotary(k), v).flatten(2))
        return mixed

    @staticmethod
    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Every score in memory."""
        with sdpa_kernel(SDPBackend.MATH):
            return by_sdpa(q, k, v)


__all__ = ["Attention", "Rotary", "backend", "by_sdpa"]
