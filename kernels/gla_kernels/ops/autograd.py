"""Calls as autograd sees them: one function, whatever form of the operator computes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .form import DIFFERENTIATED, Inputs, laid_out, no_tangents, output_shape
from .prepared import Prepared


def call(prepared: Prepared, inputs: Inputs, differentiated: bool) -> tuple[Tensor, Tensor | None]:
    """o, and the final state or None, differentiable once in all inputs if any of it is ``differentiated``."""
    if not differentiated and not inputs.has_tangents:
        return prepared.forward(inputs)[:2]
    result: tuple[Tensor, Tensor | None] = _apply(prepared, *inputs)
    return result


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prepared: Prepared, *inputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        o, final_state, left, read = prepared.forward(Inputs(*inputs))  # type: ignore[arg-type]
        results = (x if needed else None for x, needed in zip((o, final_state), prepared.leaves, strict=True))
        ctx.save_for_backward(*read, *results, left)
        ctx.set_materialize_grads(False)
        ctx.prepared = prepared
        return o, final_state

    @staticmethod
    def backward(ctx: Any, do: Tensor | None, d_final: Tensor | None) -> tuple[Any, ...]:
        # Torch takes a gradient of the output that is constant, as that of ``o.sum()`` is, for a constant where more
        # gradients are wanted (create_graph=True), and what a gradient penalty adds would be missing.
        if torch.is_grad_enabled():
            return _once(ctx, *(None if x is None else x.detach().requires_grad_() for x in (do, d_final)))
        return _gradients(ctx, do, d_final)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        no_tangents()


# What `torch.autograd.Function.apply` comes to where no transform of torch.func is at work, which is asked before: what
# it does for those takes Python half as long as all of the call.
_apply = super(torch.autograd.Function, _Call).apply


def _gradients(ctx: Any, do: Tensor | None, d_final: Tensor | None) -> tuple[Any, ...]:
    *given, o, final_state, left = ctx.saved_tensors  # read once: a checkpoint hands them out once
    o, final_state, left = (None if x is None else laid_out(x) for x in (o, final_state, left))
    do = given[2].new_zeros(output_shape(Inputs(*given))) if do is None else laid_out(do)
    d_final = None if d_final is None else laid_out(d_final)
    needed = ctx.needs_input_grad[1 : 1 + DIFFERENTIATED]
    return None, *ctx.prepared.backward(Inputs(*given), (o, final_state), left, do, d_final, needed), None


_once = once_differentiable(_gradients)
