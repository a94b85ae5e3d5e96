"""Several projections of one x, whose gradients of x are one sum:

    y_i = x W_i^T            dW_i = dy_i^T x,  dx = dy_1 W_1 + dy_2 W_2 + ..

By autograd each of the products is written, and their sum is made of them then, in as many reads and a write, or in as
many sums. Here each product is added to what those before it left, in the matrix product itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def projected(x: Tensor, layers: Sequence[nn.Module]) -> list[Tensor]:
    """What each of the layers makes of x [.., width]. Where all are plain linear layers without a bias, x's gradient is
    one sum; the first layer's should be the smallest product, which is written as it is. Differentiable once."""
    if x.requires_grad and torch.is_grad_enabled() and as_written(x) and all(_fits(layer, x) for layer in layers):
        found = _Projections.apply(x.flatten(0, -2), *(layer.weight for layer in layers))
        return [y.unflatten(0, x.shape[:-1]) for y in found]
    return [layer(x) for layer in layers]


def _fits(layer: Any, x: Tensor) -> bool:
    return is_plain(layer, nn.Linear) and layer.bias is None and bool(layer.weight.dtype == x.dtype)


def as_written(x: Tensor) -> bool:
    """Whether a product with x is what is written: not another one by autocast or by torch.func."""
    autocast = x.device.type in ("cuda", "cpu") and torch.is_autocast_enabled(x.device.type)
    return not autocast and not torch._C._are_functorch_transforms_active()


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer is just that, with weights that are plain tensors, and nobody listens to its calls."""
    weights = all(type(weight) in (nn.Parameter, Tensor) for weight in layer.parameters())
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return type(layer) is kind and weights and not hooks


@torch.library.custom_op("gla_kernels::sum_of_products", mutates_args=())
def sum_of_products(xs: list[Tensor], ws: list[Tensor]) -> Tensor:
    """The sum of all x_i [n, m_i] times w_i [m_i, width], one after another, each rounded to their dtype."""
    found = xs[0] @ ws[0]
    for x, w in zip(xs[1:], ws[1:], strict=True):
        found.addmm_(x, w)
    return found


@sum_of_products.register_fake
def _shape(xs: list[Tensor], ws: list[Tensor]) -> Tensor:
    return xs[0].new_empty(xs[0].shape[0], ws[0].shape[1])


class _Projections(torch.autograd.Function):
    """y_i [n, m_i] of x [n, width] and W_i [m_i, width]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        return tuple(x @ weight.t() for weight in weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        dx = torch.ops.gla_kernels.sum_of_products(list(grads), weights) if wanted[0] else None
        return dx, *(dy.t() @ x if one else None for dy, one in zip(grads, wanted[1:], strict=True))


__all__ = ["is_plain", "projected", "sum_of_products"]
