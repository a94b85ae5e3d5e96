"""How a layer is judged: by its formulas token by token in float64, and by what it knows of later tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = 37  # no multiple of any chunk
FLOOR = 8 * torch.finfo(torch.float32).eps  # another order of a sum may be so far from it, however lucky one order is

Formulas = Callable[[Any, Tensor], Tensor]  # (layer, x [B, T, width]) -> what the layer should give


def randomized(layer: nn.Module, width: int, tokens: int = TOKENS) -> tuple[Any, Tensor]:
    """The layer with weights none of which is a neutral number, and an input of it [2, tokens, width]."""
    for parameter in layer.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2 + 0.05)
    return layer, torch.randn(2, tokens, width)


def assert_is_what_is_written(layer: nn.Module, x: Tensor, written_out: Formulas) -> None:
    """Output and every gradient are no further from float64 than the same formulas in float32, but for order."""
    exact = _results(copy.deepcopy(layer).double(), x.double(), written_out)
    plain = _results(layer, x, written_out)
    names = ["y", "x", *(name for name, _ in layer.named_parameters())]
    ours = _results(layer, x, lambda layer, x: layer(x))
    for name, found, theirs, right in zip(names, ours, plain, exact, strict=True):
        assert right.norm() > 0, name
        error, baseline = (((y - right).norm() / right.norm()).item() for y in (found, theirs))
        assert error <= max(4 * baseline, FLOOR), f"{name}: {error:.2e}, in plain float32 {baseline:.2e}"


def _results(layer: nn.Module, x: Tensor, call: Formulas) -> list[Tensor]:
    """The output, and the gradients of the input and of every parameter."""
    x = x.clone().requires_grad_()
    y = call(layer, x)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y, *torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])]


def assert_knows_no_later_token(layer: nn.Module, x: Tensor, first: int = 20) -> None:
    """Other tokens from ``first`` on change every output from there on, and none before."""
    other = x.clone()
    other[:, first:] = torch.randn_like(other[:, first:])
    y, changed = layer(x), layer(other)
    torch.testing.assert_close(changed[:, :first], y[:, :first])
    assert (changed[:, first:] - y[:, first:]).abs().amax(-1).min() > 1e-3
