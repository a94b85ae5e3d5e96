"""Functions of JAX on PyTorch's tensors, with their gradients, compiled by XLA at each shape.

Tensors pass by DLPack, without a copy and without waiting for the GPU. JAX runs on a stream of its own: it waits there
for what PyTorch's stream has queued before, and PyTorch's stream waits for what comes back, so that events on it have
JAX's work between them. What JAX allocates, PyTorch's allocator does not count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"


class Bridged:
    """``function`` of JAX arrays, which returns a tuple of arrays, as a differentiable one of tensors."""

    def __init__(self, function: Callable[..., tuple[Any, ...]]) -> None:
        os.environ.setdefault(PREALLOCATE, "false")  # else JAX takes three quarters of the GPU's memory as it starts
        import jax

        self.alone = jax.jit(function)
        self.keeping = jax.jit(partial(jax.vjp, function))  # what it returns holds what gradients need: a pytree
        self.gradients = jax.jit(_pull_back)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            found: tuple[torch.Tensor, ...] = _Call.apply(self, *inputs)
            return found
        return tuple(map(to_torch, self.alone(*map(to_jax, inputs))))


def _pull_back(pull: Callable[..., Any], ups: tuple[Any, ...]) -> Any:
    return pull(ups)


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bridged: Bridged, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, ctx.pull = bridged.keeping(*map(to_jax, inputs))
        ctx.bridged = bridged
        return tuple(map(to_torch, outputs))

    @staticmethod
    def backward(ctx: Any, *ups: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        found = ctx.bridged.gradients(ctx.pull, tuple(map(to_jax, ups)))
        return None, *map(to_torch, found)


def to_jax(x: torch.Tensor) -> Any:
    """An array of the tensor's memory."""
    from jax import dlpack

    return dlpack.from_dlpack(x.detach().contiguous())


def to_torch(x: Any) -> torch.Tensor:
    """A tensor of the array's memory."""
    found: torch.Tensor = torch.utils.dlpack.from_dlpack(x)
    return found
