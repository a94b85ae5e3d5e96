"""A call on one rank's tokens as autograd sees it, with what goes from rank to rank in between.

On a rank let S be the state after its tokens if none entered, and A how they decay one that does. With E_r the state
that enters rank r, and D_r the gradient of it that comes of the rank's own results:

    E_{r+1} = A_r E_r + S_r                     gradient of what leaves rank r = D_{r+1} + A_{r+1} (that of rank r+1)

(S, A) and D are what ranks gather.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..ops.form import DIFFERENTIATED, Inputs, laid_out
from .ranks import Ranks


class Local(Protocol):
    """One call on a rank's tokens, asked in this order. Messages are float32 and of one length on all ranks: states
    [B, H, K, V], and the factors that decay them."""

    def message(self) -> Tensor:
        """S and A."""

    def forward(self, messages: Tensor) -> tuple[Tensor, Tensor]:
        """o, and the final states of sequences that end on the rank, with zeros for those of others; of the messages of
        all ranks, [ranks, n]."""

    def left(self) -> list[Tensor | None]:
        """Tensors that the backward pass is to have, for PyTorch to keep, to watch, and to let go."""

    def take(self, left: Sequence[Tensor | None]) -> None:
        """The same again, before it."""

    def owed(self, do: Tensor, d_final: Tensor | None) -> Tensor:
        """D."""

    def gradients(self, messages: Tensor, d_final: Tensor | None) -> list[Tensor | None]:
        """The gradients of the call's tensors, the first `DIFFERENTIATED` of `Inputs`; of what is owed to all ranks."""


Make = Callable[[Inputs, bool], Local]  # of detached inputs, and whether gradients will be asked for


def call(make: Make, ranks: Ranks, inputs: Inputs, v_first: bool, final: bool) -> tuple[Tensor, Tensor | None]:
    """o, and the final states if they are asked for."""
    wanted = inputs.requires_grad
    ranks.agree(inputs, v_first, wanted)
    if wanted:
        o, states = _Call.apply(make, ranks, *inputs)
    else:
        with torch.no_grad():
            local = make(_detached(inputs), False)
            o, states = local.forward(ranks.gathered(local.message()))
    return o, states if final else None


def _detached(inputs: Inputs) -> Inputs:
    return Inputs(*(None if x is None else x.detach() for x in inputs))  # type: ignore[arg-type]


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, make: Make, ranks: Ranks, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        local = make(_detached(Inputs(*inputs)), True)  # type: ignore[arg-type]
        o, states = local.forward(ranks.gathered(local.message()))
        ctx.ranks, ctx.local, ctx.like = ranks, local, (o.shape, o.dtype, o.device)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*local.left())
        return o, states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, d_final: Tensor | None) -> tuple[Any, ...]:
        ranks, local = ctx.ranks, ctx.local
        local.take(ctx.saved_tensors)
        if do is None:
            shape, dtype, device = ctx.like
            do = torch.zeros(shape, dtype=dtype, device=device)
        d_final = None if d_final is None else laid_out(d_final)
        found = local.gradients(ranks.gathered(local.owed(laid_out(do), d_final)), d_final)
        needed = ctx.needs_input_grad[2 : 2 + DIFFERENTIATED]
        return None, None, *(x if wanted else None for x, wanted in zip(found, needed, strict=True)), None
