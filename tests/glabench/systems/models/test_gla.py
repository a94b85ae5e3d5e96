"""The GLA layer against section 4.4 of the paper, token by token in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from glabench.systems.models.gla import EPS, GatedLinearAttention

WIDTH, HEADS, TEMPERATURE = 32, 2, 16


def written_out(layer: GatedLinearAttention, x: Tensor) -> Tensor:
    """x [B, T, width] -> the same shape, as the paper's formulas stand there, but for the output gate's bias."""
    B, T, width = x.shape
    weights = dict(layer.named_parameters())
    low_rank = x @ weights["gk_proj.0.weight"].mT
    alpha = torch.sigmoid(low_rank @ weights["gk_proj.1.weight"].mT + weights["gk_proj.1.bias"]) ** (1 / TEMPERATURE)
    q, k, v = (x @ weights[f"{name}_proj.weight"].mT for name in "qkv")
    q, k, v, alpha = (y.view(B, T, HEADS, -1) for y in (q, k, v, alpha))
    state = x.new_zeros(B, HEADS, width // 2 // HEADS, width // HEADS)
    outputs = []
    for t in range(T):
        state = alpha[:, t, :, :, None] * state + k[:, t, :, :, None] * v[:, t, :, None]
        o = torch.einsum("bhk,bhkv->bhv", q[:, t], state) / q.shape[-1] ** 0.5
        outputs.append(o * (o.square().mean(-1, keepdim=True) + EPS).rsqrt() * weights["g_norm_swish_gate.weight"])
    r = F.silu(x @ weights["g_proj.weight"].mT)
    return (r * torch.stack(outputs, 1).flatten(2)) @ weights["o_proj.weight"].mT


def random_layer() -> tuple[GatedLinearAttention, Tensor]:
    """A layer none of whose weights is a neutral number, and its input of 37 tokens."""
    layer = GatedLinearAttention(WIDTH, HEADS)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    return layer, torch.randn(2, 37, WIDTH)


def results(
    layer: GatedLinearAttention, x: Tensor, call: Callable[[GatedLinearAttention, Tensor], Tensor] | None = None
) -> list[Tensor]:
    """The output and the gradients of the input and of every parameter, by the layer itself or by ``call``."""
    x = x.clone().requires_grad_()
    y = layer(x) if call is None else call(layer, x)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y, *torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])]


def test_layer_is_what_the_paper_writes() -> None:
    """Output and every gradient are no further from float64 than the same formulas in float32, but for order."""
    layer, x = random_layer()
    exact = results(copy.deepcopy(layer).double(), x.double(), written_out)
    plain = results(layer, x, written_out)
    names = ["y", "x", *(name for name, _ in layer.named_parameters())]
    for name, ours, theirs, right in zip(names, results(layer, x), plain, exact, strict=True):
        error, baseline = ((found - right).norm() / right.norm() for found in (ours, theirs))
        assert error <= 4 * baseline, f"{name}: {error:.2e}, in plain float32 {baseline:.2e}"


def test_recompute_changes_no_result() -> None:
    layer, x = random_layer()
    kept = results(layer, x)
    layer.recompute = True
    for ours, theirs in zip(results(layer, x), kept, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_later_tokens_change_nothing_before_them() -> None:
    layer, x = random_layer()
    other = x.clone()
    other[:, 20:] = torch.randn_like(other[:, 20:])
    y, changed = layer(x), layer(other)
    torch.testing.assert_close(changed[:, :20], y[:, :20])
    assert (changed[:, 20:] - y[:, 20:]).abs().amax(-1).min() > 1e-3
