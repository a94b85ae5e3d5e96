"""Calls as autograd sees them: one function, whatever form of the operator computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

Between = tuple[Tensor | None, ...]  # what a forward pass leaves for the backward one


class Given(NamedTuple):
    """The tensors of a call, or the gradients of them; None of what there is not."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    gv: Tensor | None
    initial_state: Tensor | None

    def contiguous(self) -> Given:
        """Every tensor as it lies in memory: contiguous, and with no sign that PyTorch turns as it is read."""
        return Given(*(None if x is None else laid_out(x) for x in self))  # type: ignore[arg-type]

    @property
    def requires_grad(self) -> bool:
        """Whether a call has to leave something for a backward pass."""
        return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in self)

    @property
    def has_tangents(self) -> bool:
        """Whether forward-mode differentiation goes through any of them."""
        if getattr(forward_ad, "_current_level", 0) < 0:  # as nearly always: none is under way
            return False
        return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in self)


def laid_out(x: Tensor) -> Tensor:
    """The tensor as kernels read it."""
    return x.resolve_neg().contiguous()


class Form(Protocol):
    """One way to compute a call: the host code of both directions. All but the scale is in ``settings``, which JSON can
    say."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> dict[str, Any]: ...

    def forward(self, x: Given, final: bool) -> tuple[Tensor, Tensor | None, Between]:
        """o, the state after the last token if ``final``, and what `backward` makes use of."""

    def backward(
        self, x: Given, between: Between, do: Tensor, d_final: Tensor | None, needed: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """The gradients of all of ``x``, in its order; None of what there is not, or, if a form likes, is not needed.
        do [B, T, H, V]; d_final [B, H, K, V] or None."""


def call(form: Form, given: Given, final: bool) -> tuple[Tensor, Tensor | None]:
    """o, and the final state or None, differentiable once in all that is given."""
    result: tuple[Tensor, Tensor | None] = _Call.apply(form, final, *given)
    return result


def _differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """torch's `once_differentiable`, whose error is raised for a constant gradient of the output, too, as that of
    ``o.sum()`` is: torch takes gradients for constants then, and what a gradient penalty adds would be missing."""
    once = once_differentiable(backward)

    @wraps(backward)
    def call(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # create_graph=True
            grads = tuple(None if x is None else x.detach().requires_grad_() for x in grads)
        return once(ctx, *grads)

    return call


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: Form, final: bool, *given: Tensor | None) -> tuple[Tensor, Tensor | None]:
        o, final_state, between = form.forward(Given(*given), final)  # type: ignore[arg-type]
        ctx.save_for_backward(*given, *between)
        ctx.set_materialize_grads(False)
        ctx.form = form
        return o, final_state

    @staticmethod
    @_differentiable_once
    def backward(ctx: Any, do: Tensor | None, d_final: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # read once: a checkpoint hands them out once
        x, between = Given(*saved[:6]), saved[6:]
        do = torch.zeros_like(x.v) if do is None else laid_out(do)
        d_final = None if d_final is None else laid_out(d_final)
        return None, None, *ctx.form.backward(x, between, do, d_final, ctx.needs_input_grad[2:])
