"""The attention layer of Transformer++ against its formulas in float64."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from glabench.systems.models.attention import BASE, Attention, Rotary

WIDTH, HEADS, TOKENS = 32, 2, 37


def written_out(layer: Attention, x: Tensor) -> Tensor:
    """x [B, T, width] -> the same shape: pairs of each head are complex numbers that turn with time."""
    B, T, width = x.shape
    dim = width // HEADS
    q, k, v = (x @ layer.qkv.weight.mT).view(B, T, 3, HEADS, dim).permute(2, 0, 3, 1, 4)
    angles = torch.arange(T)[:, None] * BASE ** (-torch.arange(dim // 2).double() * 2 / dim)
    q, k = (torch.complex(*y.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles) for y in (q, k))
    scores = (q @ k.mH).real / dim**0.5  # the real part of a product of complex numbers is that of their pairs
    after = torch.ones(T, T).triu(1).bool()
    o = scores.masked_fill(after, -torch.inf).softmax(-1) @ v
    return o.transpose(1, 2).flatten(2) @ layer.out.weight.mT


def layer_and_input() -> tuple[Attention, Tensor]:
    return Attention(WIDTH, HEADS, Rotary(TOKENS, WIDTH // HEADS)), torch.randn(2, TOKENS, WIDTH)


def test_layer_is_what_its_formulas_say() -> None:
    layer, x = layer_and_input()
    right = written_out(copy.deepcopy(layer).double(), x.double())
    torch.testing.assert_close(layer(x), right.float(), rtol=1e-4, atol=1e-5)


def test_scores_know_only_how_far_apart_tokens_are() -> None:
    rotary = Rotary(TOKENS, 16).double()
    q, k = torch.randn(2, 16, dtype=torch.float64)
    turned_q, turned_k = (rotary(y.expand(1, TOKENS, 1, 16))[0, :, 0] for y in (q, k))
    scores = turned_q @ turned_k.mT
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1], rtol=1e-5, atol=1e-5)
    assert scores[5, 0] != scores[0, 0]


def test_later_tokens_change_nothing_before_them() -> None:
    layer, x = layer_and_input()
    other = x.clone()
    other[:, 20:] = torch.randn_like(other[:, 20:])
    y, changed = layer(x), layer(other)
    torch.testing.assert_close(changed[:, :20], y[:, :20])
    assert (changed[:, 20:] - y[:, 20:]).abs().amax(-1).min() > 1e-3
