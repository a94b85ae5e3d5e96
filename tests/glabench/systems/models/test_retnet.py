"""RetNet's layer against section 2 of its paper, token by token in float64."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from glabench.systems.models.attention import BASE, Rotary
from glabench.systems.models.gla import EPS
from glabench.systems.models.retnet import MultiScaleRetention

from .agreement import TOKENS, assert_is_what_is_written, assert_knows_no_later_token, randomized

WIDTH, HEADS = 64, 2
KEYS = WIDTH // 2 // HEADS


def layer_and_input() -> tuple[MultiScaleRetention, Tensor]:
    return randomized(MultiScaleRetention(WIDTH, HEADS, Rotary(TOKENS, KEYS)), WIDTH)


def turned(x: Tensor, t: int) -> Tensor:
    """x [B, H, K] at position t: pairs (i, i + K / 2) are complex numbers."""
    angles = t * BASE ** (-torch.arange(KEYS // 2).to(x.dtype) * 2 / KEYS)
    return torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)


def written_out(layer: MultiScaleRetention, x: Tensor) -> Tensor:
    B, T, _ = x.shape
    q, k, v = ((x @ of.weight.mT).view(B, T, HEADS, -1) for of in (layer.queries, layer.keys, layer.values))
    decays = 1 - 2.0 ** (-5 - torch.arange(HEADS).to(x.dtype))
    state = torch.complex(*(x.new_zeros(2, B, HEADS, KEYS // 2, WIDTH // HEADS)))
    outputs = []
    for t in range(T):
        state = decays[:, None, None] * state + turned(k[:, t], t).conj()[..., None] * v[:, t, :, None]
        o = torch.einsum("bhk,bhkv->bhv", turned(q[:, t], t), state).real / KEYS**0.5
        outputs.append(o * (o.square().mean(-1, keepdim=True) + EPS).rsqrt() * layer.norm.weight)
    return (F.silu(x @ layer.output_gate.weight.mT) * torch.stack(outputs, 1).flatten(2)) @ layer.out.weight.mT


def test_layer_is_what_the_paper_writes() -> None:
    assert_is_what_is_written(*layer_and_input(), written_out)


def test_later_tokens_change_nothing_before_them() -> None:
    assert_knows_no_later_token(*layer_and_input())


def test_decays_stay_what_they_are_in_bf16() -> None:
    layer, _ = layer_and_input()
    decays = layer.decays.clone()
    assert torch.equal(layer.to(torch.bfloat16).decays, decays)
    assert decays.dtype == torch.float32
