"""The layer of Transformer++: causal softmax attention with rotary positions (Su et al. 2021, arXiv 2104.09864)."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from glabench.hardware.environment import package_version

from .operators import Operator, Packed, given

BASE = 10_000.0  # positions turn by angles from 1 to 1 / BASE a token


def backend(device: torch.device) -> SDPBackend:
    """The backend of SDPA that is measured: FlashAttention-2 on a GPU. A CPU, where only tests run, has plain math."""
    return SDPBackend.FLASH_ATTENTION if device.type == "cuda" else SDPBackend.MATH


def packs() -> str | None:
    """Why a GPU has no attention within documents here, or None."""
    if importlib.util.find_spec("torch.nn.attention.varlen") is not None:
        return None
    return f"torch {package_version('torch')} has no varlen_attn, attention within documents; torch >= 2.10 has"


def causal() -> dict[str, Any]:
    """How ``varlen_attn`` is told that attention is causal: its first version, in torch 2.10, has a flag."""
    if packs() is not None:
        return {}
    from torch.nn.attention.varlen import varlen_attn

    flag = "is_causal" in inspect.signature(varlen_attn).parameters
    return {"is_causal": True} if flag else {"window_size": (-1, 0)}


CAUSAL = causal()  # found once, and not while a block is compiled


def by_sdpa(q: Tensor, k: Tensor, v: Tensor, packed: Packed | None = None) -> Tensor:
    """Causal attention of q, k, v [B, T, H, dim], by the backend that the model chose. Within documents on a GPU
    ``varlen_attn``, which calls the kernels of SDPA's flash backend; on a CPU a mask."""
    if packed is not None and q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        where = (packed.cu_seqlens, packed.cu_seqlens, packed.longest, packed.longest)
        o: Any = varlen_attn(q.squeeze(0), k.squeeze(0), v.squeeze(0), *where, **CAUSAL)
        return torch.unsqueeze(o, 0)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # heads before time, as views
    if packed is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    first = torch.arange(q.shape[2], device=q.device) - packed.positions
    mask = (first[:, None] == first).tril()
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)


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

    def forward(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        """x [B, T, H, dim] with pairs (i, i + dim / 2) of each head turned by their position: three kernels. A
        document's first token is at position 0."""
        at = slice(x.shape[1]) if packed is None else packed.positions
        exchanged = x.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
        return torch.addcmul(x * self.cos[at], exchanged, self.sin[at])


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

    def forward(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        """x [B, T, width] -> the same shape."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        o = self.operator(self.rotary(q, packed), self.rotary(k, packed), v, **given(packed))
        mixed: Tensor = self.out(o.flatten(2))
        return mixed

    @staticmethod
    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Every score in memory."""
        with sdpa_kernel(SDPBackend.MATH):
            return by_sdpa(q, k, v)


__all__ = ["Attention", "Rotary", "backend", "by_sdpa", "causal", "packs"]
