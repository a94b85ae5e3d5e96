"""Backward passes that have no derivative of their own, and say so."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """torch's `once_differentiable`, whose error is raised for a constant gradient of the output, too, as that of
    ``o.sum()`` is: torch takes gradients for constants then, and what a gradient penalty adds would be missing."""
    once = once_differentiable(backward)

    @wraps(backward)
    def call(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # create_graph=True
            grads = tuple(None if x is None else x.detach().requires_grad_() for x in grads)
        return once(ctx, *grads)

    return call
