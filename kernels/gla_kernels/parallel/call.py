"""A call on one rank's tokens as autograd sees it, with what goes from rank to rank in between.

On a rank let S be the state after its tokens if none entered, and A how they decay one that does. With E_r the state
that enters rank r, and D_r the gradient of it that comes of the rank's own results:

    E_{r+1} = A_r E_r + S_r                     gradient of what leaves rank r = D_{r+1} + A_{r+1} (that of rank r+1)

(S, A) and D are what ranks gather. The form of the operator has to be asked twice each way: for S, and with E.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..ops.form import DIFFERENTIATED, Inputs, state_shape
from .ranks import Ranks
from .sequences import Sequences, of_these


class Results(NamedTuple):
    """Of a rank: o; the final states of sequences that end on it; and the state that leaves it, [B, H, K, V]."""

    o: Tensor
    final: Tensor
    leaving: Tensor


@dataclass(frozen=True)
class Shard:
    """The operator on one rank: ``op`` returns o and the final states of whole sequences."""

    op: Callable[[Inputs], tuple[Tensor, Tensor]]
    ranks: Ranks
    cu_seqlens: Tensor | None
    v_first: bool

    def run(self, x: Inputs, entering: Tensor, sequences: Sequences | None) -> Results:
        """With this state entering, [B, H, K, V]. cu_seqlens of ``x`` does not count."""
        if sequences is None:
            first = x.initial_state if self.ranks.first else entering
            o, state = self.op(x._replace(initial_state=first))
            return Results(o, state if self.ranks.last else torch.zeros_like(state), state)
        states = of_these(entering, sequences.enters)
        if x.initial_state is not None:
            states = states + of_these(x.initial_state, sequences.begins)
        o, after = self.op(x._replace(initial_state=states, cu_seqlens=sequences.cu_seqlens))
        return Results(o, of_these(after, sequences.ends), of_these(after, sequences.leaves).sum(0, keepdim=True))

    def decays(self, x: Inputs, sequences: Sequences | None) -> list[Tensor]:
        """How the rank's tokens decay a state: factors that it is multiplied by, each float32 with as many axes."""
        found = []
        for gates, of_keys in ((x.g, True), (x.gv, False)):
            if gates is None:
                continue
            factor = gates.sum(1, dtype=torch.float32).exp()
            factor = factor[..., None] if factor.dim() == 2 else factor  # one a head
            found.append(factor.unsqueeze(-2 if of_keys == self.v_first else -1))
        if sequences is not None:
            found.append(sequences.through.float().view(1, 1, 1, 1))
        return found

    def entering(self, pairs: list[list[Tensor]]) -> Tensor:
        """The state that enters this rank, of (S, *A) of each."""
        state, *_ = pairs[0]
        for added, *decays in pairs[1 : self.ranks.rank]:
            state = decayed(state, decays) + added
        return state if self.ranks.rank else torch.zeros_like(state)

    def leaving(self, gradients: list[Tensor], decays: list[list[Tensor]]) -> Tensor:
        """The gradient of the state that leaves this rank, of D and A of each."""
        total = torch.zeros_like(gradients[0])
        for rank in range(self.ranks.size - 1, self.ranks.rank, -1):
            total = decayed(total, decays[rank]) + gradients[rank]
        return total


def decayed(state: Tensor, factors: Sequence[Tensor]) -> Tensor:
    for factor in factors:
        state = state * factor
    return state


def call(shard: Shard, inputs: Inputs, final: bool) -> tuple[Tensor, Tensor | None]:
    """o, and the final states if they are asked for."""
    wanted = inputs.requires_grad
    shard.ranks.agree(inputs, shard.v_first, wanted)
    if wanted:
        o, states = _Call.apply(shard, *inputs)
        return o, states if final else None
    results = _forward(shard, inputs, False).results
    return results.o, results.final if final else None


@dataclass
class _Ran:
    """A forward pass: what it gave, on which inputs, with which state entering; and how each rank decays one."""

    inputs: Inputs
    state: Tensor
    results: Results
    decays: list[list[Tensor]]

    @cached_property
    def leaves(self) -> list[Tensor | None]:
        return [x if x is not None and x.requires_grad else None for x in self.inputs[:DIFFERENTIATED]]


def _forward(shard: Shard, given: Inputs, differentiated: bool) -> _Ran:
    """Nothing of it has a history but what comes of the inputs' copies in ``_Ran``."""
    ranks, empty = shard.ranks, None
    x = Inputs(*(None if y is None else y.detach() for y in given))  # type: ignore[arg-type]
    sequences = None if shard.cu_seqlens is None else Sequences.of(shard.cu_seqlens, x.q.shape[1], ranks)
    empty = x.q.new_zeros(x.q.shape[0], *state_shape(x, shard.v_first)[1:], dtype=torch.float32)
    added = empty  # of the last rank none asks
    if not ranks.last:
        with torch.no_grad():
            added = shard.run(x, empty, sequences).leaving
    pairs = gathered(ranks, [added, *shard.decays(x, sequences)])
    state = shard.entering(pairs)
    with torch.set_grad_enabled(differentiated):
        if differentiated:
            for own, theirs in zip(x, given, strict=True):
                if own is not None and theirs is not None and theirs.requires_grad:
                    own.requires_grad_()
            state.requires_grad_()
        return _Ran(x, state, shard.run(x, state, sequences), [decays for _, *decays in pairs])


def gathered(ranks: Ranks, parts: list[Tensor]) -> list[list[Tensor]]:
    """These tensors of each rank, by one message."""
    message = torch.cat([part.flatten() for part in parts])
    sizes, shapes = [part.numel() for part in parts], [part.shape for part in parts]
    return [
        [part.view(shape) for part, shape in zip(row.split(sizes), shapes, strict=True)]
        for row in ranks.gathered(message)
    ]


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Shard, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        ran = _forward(shard, Inputs(*inputs), True)  # type: ignore[arg-type]
        ctx.shard, ctx.ran = shard, ran
        ctx.set_materialize_grads(False)
        return ran.results.o.detach(), ran.results.final.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, d_final: Tensor | None) -> tuple[Any, ...]:
        shard, ran = ctx.shard, ctx.ran
        o, final, leaving = ran.results
        outputs = [(y, dy) for y, dy in ((o, do), (final, d_final)) if dy is not None and y.requires_grad]
        own = torch.zeros_like(ran.state)  # of the first rank none asks
        if not shard.ranks.first and outputs:
            own = _gradients(outputs, [ran.state], True)[0]
        gradients = [parts[0] for parts in gathered(shard.ranks, [own])]
        outputs.append((leaving, shard.leaving(gradients, ran.decays)))
        leaves = ran.leaves
        found = iter(_gradients(outputs, [x for x in leaves if x is not None], False))
        return None, *(None if x is None else next(found) for x in leaves), None


def _gradients(outputs: list[tuple[Tensor, Tensor]], inputs: list[Tensor], keep: bool) -> list[Tensor]:
    """Zeros for what no output depends on."""
    ys, dys = zip(*outputs, strict=True)
    return list(torch.autograd.grad(ys, inputs, dys, retain_graph=keep, allow_unused=True, materialize_grads=True))
