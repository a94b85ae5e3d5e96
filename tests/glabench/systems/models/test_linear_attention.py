"""Linear attention without gates against its formulas, token by token in float64."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from glabench.systems.models.gla import EPS
from glabench.systems.models.linear_attention import LinearAttention

from .agreement import assert_is_what_is_written, assert_knows_no_later_token, randomized

WIDTH, HEADS = 64, 2


def written_out(layer: LinearAttention, x: Tensor) -> Tensor:
    B, T, _ = x.shape
    q, k, v = ((x @ of.weight.mT).view(B, T, HEADS, -1) for of in (layer.queries, layer.keys, layer.values))
    state = x.new_zeros(B, HEADS, WIDTH // 2 // HEADS, WIDTH // HEADS)
    outputs = []
    for t in range(T):
        state = state + k[:, t, :, :, None] * v[:, t, :, None]
        o = torch.einsum("bhk,bhkv->bhv", q[:, t], state) / q.shape[-1] ** 0.5
        outputs.append(o * (o.square().mean(-1, keepdim=True) + EPS).rsqrt() * layer.norm.weight)
    return (F.silu(x @ layer.output_gate.weight.mT) * torch.stack(outputs, 1).flatten(2)) @ layer.out.weight.mT


def test_layer_is_what_its_formulas_say() -> None:
    assert_is_what_is_written(*randomized(LinearAttention(WIDTH, HEADS), WIDTH), written_out)


def test_later_tokens_change_nothing_before_them() -> None:
    assert_knows_no_later_token(*randomized(LinearAttention(WIDTH, HEADS), WIDTH))
