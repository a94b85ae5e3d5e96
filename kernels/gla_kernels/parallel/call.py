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

from ..ops.form import DIFFERENTIATED, Inputs
from .ranks import Ranks


class Local(Protocol):
    """One call on a rank's tokens, asked in this order. States are [B, H, K, V], or [B, H, V, K]."""

    def adds(self) -> Tensor:
        """S."""

    def decays(self) -> list[Tensor]:
        """A: factors that a state is multiplied by, float32 with as many axes."""

    def forward(self, entering: Tensor) -> tuple[Tensor, Tensor]:
        """o, and the final states of sequences that end on the rank, with zeros for those of others."""

    def owes(self, do: Tensor, d_final: Tensor | None) -> Tensor:
        """D."""

    def gradients(self, leaving: Tensor, d_final: Tensor | None) -> list[Tensor | None]:
        """The gradients of the call's tensors, the first `DIFFERENTIATED` of `Inputs`, with that of the state that
        leaves the rank."""


Make = Callable[[Inputs, bool], Local]  # of detached inputs, and whether gradients will be asked for


def call(make: Make, ranks: Ranks, inputs: Inputs, v_first: bool, final: bool) -> tuple[Tensor, Tensor | None]:
    """o, and the final states if they are asked for."""
    wanted = inputs.requires_grad
    ranks.agree(inputs, v_first, wanted)
    if wanted:
        o, states = _Call.apply(make, ranks, *inputs)
    else:
        with torch.no_grad():
            o, states = _forward(make(_detached(inputs), False), ranks)[:2]
    return o, states if final else None


def _detached(inputs: Inputs) -> Inputs:
    return Inputs(*(None if x is None else x.detach() for x in inputs))  # type: ignore[arg-type]


def _forward(local: Local, ranks: Ranks) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    """o, the final states, and how each rank decays a state."""
    pairs = gathered(ranks, [local.adds(), *local.decays()])
    o, states = local.forward(entering(pairs, ranks.rank))
    return o, states, [decays for _, *decays in pairs]


def entering(pairs: list[list[Tensor]], rank: int) -> Tensor:
    """The state that enters a rank, of (S, *A) of each; zeros on the first one."""
    state, *_ = pairs[0]
    for added, *decays in pairs[1:rank]:
        state = decayed(state, decays) + added
    return state.clone() if rank else torch.zeros_like(state)


def leaving(gradients: list[Tensor], decays: list[list[Tensor]], rank: int) -> Tensor:
    """The gradient of the state that leaves a rank, of D and A of each; zeros on the last one."""
    total = torch.zeros_like(gradients[0])
    for after in range(len(gradients) - 1, rank, -1):
        total = decayed(total, decays[after]) + gradients[after]
    return total


def decayed(state: Tensor, factors: Sequence[Tensor]) -> Tensor:
    for factor in factors:
        state = state * factor
    return state


def gathered(ranks: Ranks, parts: list[Tensor]) -> list[list[Tensor]]:
    """These tensors of each rank, by one message."""
    sizes, shapes = [part.numel() for part in parts], [part.shape for part in parts]
    rows = ranks.gathered(torch.cat([part.flatten() for part in parts]))
    return [[part.view(shape) for part, shape in zip(row.split(sizes), shapes, strict=True)] for row in rows]


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, make: Make, ranks: Ranks, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.ranks, ctx.local = ranks, make(_detached(Inputs(*inputs)), True)  # type: ignore[arg-type]
        o, states, ctx.decays = _forward(ctx.local, ranks)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)  # that PyTorch tells if one of them is changed in place
        ctx.like = o.shape, o.dtype, o.device
        return o, states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, d_final: Tensor | None) -> tuple[Any, ...]:
        ranks, local, _ = ctx.ranks, ctx.local, ctx.saved_tensors
        if do is None:
            shape, dtype, device = ctx.like
            do = torch.zeros(shape, dtype=dtype, device=device)
        own = [gradient for (gradient,) in gathered(ranks, [local.owes(do.contiguous(), d_final)])]
        found = local.gradients(leaving(own, ctx.decays, ranks.rank), d_final)
        needed = ctx.needs_input_grad[2 : 2 + DIFFERENTIATED]
        return None, None, *(x if wanted else None for x, wanted in zip(found, needed, strict=True)), None
