"""Any form of the operator on one rank's tokens, as autograd has it: asked twice each way, without a state that enters
for what others want to know, and with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..ops.form import DIFFERENTIATED, Inputs, state_shape
from .ranks import Ranks
from .sequences import Sequences, of_these

Op = Callable[[Inputs], tuple[Tensor, Tensor]]  # o and the final states of whole sequences


class Results(NamedTuple):
    """Of a rank: o; the final states of sequences that end on it; and the state that leaves it, [B, H, K, V]."""

    o: Tensor
    final: Tensor
    leaving: Tensor


class ByAutograd:
    """One call: see `call.Local`. x: its tensors, without a history."""

    def __init__(self, op: Op, ranks: Ranks, x: Inputs, v_first: bool, differentiated: bool) -> None:
        self.op, self.ranks, self.v_first, self.differentiated = op, ranks, v_first, differentiated
        self.sequences = None if x.cu_seqlens is None else Sequences.of(x.cu_seqlens, x.q.shape[1], ranks)
        self.x = x
        self._none = x.q.new_zeros(x.q.shape[0], *state_shape(x, v_first)[1:], dtype=torch.float32)

    def message(self) -> Tensor:
        added = self._none
        if not self.ranks.last:  # of which none asks
            with torch.no_grad():
                added = self._run(self._none).leaving
        self.factors = self._factors()
        return torch.cat([self._flat(added), *(x.flatten() for x in self.factors)])

    def forward(self, messages: Tensor) -> tuple[Tensor, Tensor]:
        sizes = [self._none.numel(), *(x.numel() for x in self.factors)]
        states, *factors = messages.split(sizes, 1)
        self.decays = [[x[rank].view_as(own) for x, own in zip(factors, self.factors, strict=True)]
                       for rank in range(self.ranks.size)]  # fmt: skip
        entering = self._none
        for rank in range(self.ranks.rank):
            entering = self._decayed(entering, rank) + self._state(states[rank])
        with torch.set_grad_enabled(self.differentiated):
            self.state = entering.clone().requires_grad_(self.differentiated)
            # copies, of which all that is wanted later is the history
            self.leaves = [self._copy_of(x) for x in self.x[:DIFFERENTIATED]]
            self.results = self._run(self.state, Inputs(*self.leaves))  # type: ignore[arg-type]
        return self.results.o.detach(), self.results.final.detach()

    def left(self) -> list[Tensor | None]:
        return list(self.x)

    def take(self, left: Sequence[Tensor | None]) -> None:
        """What there is to take is in the history."""

    def owed(self, do: Tensor, d_final: Tensor | None) -> Tensor:
        self._outputs = [(self.results.o, do)]
        if d_final is not None and self.results.final.requires_grad:
            self._outputs.append((self.results.final, d_final))
        own = self._none
        if not self.ranks.first:  # of which none asks
            (own,) = _gradients(self._outputs, [self.state], True)
        return self._flat(own)

    def gradients(self, messages: Tensor, d_final: Tensor | None) -> list[Tensor | None]:
        leaving = self._none
        for rank in range(self.ranks.size - 1, self.ranks.rank, -1):
            leaving = self._decayed(leaving, rank) + self._state(messages[rank])
        outputs = [*self._outputs, (self.results.leaving, leaving)]
        found = iter(_gradients(outputs, [x for x in self.leaves if x is not None], False))
        return [None if x is None else next(found) for x in self.leaves]

    def _factors(self) -> list[Tensor]:
        """How the rank's tokens decay a state: factors that it is multiplied by."""
        found = []
        for gates, of_keys in ((self.x.g, True), (self.x.gv, False)):
            if gates is None:
                continue
            factor = gates.sum(1, dtype=torch.float32).exp()
            factor = factor[..., None] if factor.dim() == 2 else factor  # one a head
            found.append(factor.unsqueeze(-2 if of_keys == self.v_first else -1))
        if self.sequences is not None:
            found.append(self.sequences.through.float().view(1, 1, 1, 1))
        return found

    def _decayed(self, state: Tensor, rank: int) -> Tensor:
        for factor in self.decays[rank]:
            state = state * factor
        return state

    def _flat(self, state: Tensor) -> Tensor:
        return (state.mT if self.v_first else state).flatten()

    def _state(self, message: Tensor) -> Tensor:
        """What `_flat` was made of."""
        return message.view_as(self._none.mT).mT if self.v_first else message.view_as(self._none)

    def _copy_of(self, x: Tensor | None) -> Tensor | None:
        return None if x is None else x.detach().requires_grad_(self.differentiated)

    def _run(self, entering: Tensor, x: Inputs | None = None) -> Results:
        """With this state entering. cu_seqlens of the inputs does not count."""
        x = self.x if x is None else x
        if self.sequences is None:
            o, state = self.op(x._replace(initial_state=x.initial_state if self.ranks.first else entering))
            return Results(o, state if self.ranks.last else torch.zeros_like(state), state)
        states = of_these(entering, self.sequences.enters)
        if x.initial_state is not None:
            states = states + of_these(x.initial_state, self.sequences.begins)
        o, after = self.op(x._replace(initial_state=states, cu_seqlens=self.sequences.cu_seqlens))
        out = of_these(after, self.sequences.leaves).sum(0, keepdim=True)
        return Results(o, of_these(after, self.sequences.ends), out)


def _gradients(outputs: list[tuple[Tensor, Tensor]], inputs: list[Tensor], keep: bool) -> list[Tensor]:
    """Zeros for what no output depends on."""
    ys, dys = zip(*outputs, strict=True)
    return list(torch.autograd.grad(ys, inputs, dys, retain_graph=keep, allow_unused=True, materialize_grads=True))
