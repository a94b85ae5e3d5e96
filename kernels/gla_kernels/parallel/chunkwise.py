"""The chunkwise form on one rank's tokens, in steps between which ranks exchange: see `chunk.shards`. Each step is host
code that is recorded once for all calls of a kind, as `ops.prepared` does for a whole call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import chunk
from ..chunk.kept import Kept
from ..chunk.prepare import Prepared as Made
from ..chunk.problem import Problem
from ..chunk.shards import Added, gradients_added, states_added, through
from ..launch import Launcher
from ..launch.record import Sort, record
from ..ops.form import Inputs
from ..ops.forms import Chunkwise
from ..ops.prepared import Ready

Tensors = Sequence[Tensor | None]
Host = Callable[[Any, Launcher], Tensors]


class Step:
    """A step's host code, recorded: ``host`` is given tensors without data, and returns those that it makes."""

    def __init__(self, host: Host, given: Tensors) -> None:
        sorts = [None if x is None else Sort.of(x) for x in given]
        metas = [None if x is None else x.on_meta() for x in sorts]
        device = next(x.device for x in given if x is not None)
        self._run = Ready(record(lambda launch: (host(metas, launch), ()), metas), sorts, device)

    def __call__(self, given: Tensors) -> list[Any]:
        return self._run(tuple(given))[0]


class Steps:
    """The steps of calls of one kind: each is recorded when it is first asked for, with what else its tensors are
    like."""

    def __init__(self, form: Chunkwise) -> None:
        self.form = form
        self._known: dict[Any, Step] = {}

    def run(self, name: str, host: Host, given: Tensors) -> list[Any]:
        key = name, tuple(x is None for x in given)
        step = self._known.get(key)
        if step is None:
            step = self._known[key] = Step(host, given)
        return step(given)


def fits(form: object) -> bool:
    """Whether it is a form that these steps are of, both ways."""
    return isinstance(form, Chunkwise) and form.plan.schedule.materialize and form.backward_plan.schedule.materialize


@dataclass
class InSteps:
    """One call: see `call.Local`. first: whether no rank comes before this one, whose initial state counts then."""

    steps: Steps
    inputs: Inputs
    first: bool
    last: bool

    def adds(self) -> Tensor:
        x = self._inputs(self.inputs.initial_state if self.first else None)
        self._states = self.steps.run("adds", self._adds_host, x)
        return self._state_of(self._states[0][:, -1])

    def _adds_host(self, x: Any, launch: Launcher) -> Tensors:
        p = self._problem(x, False)
        added = states_added(p, launch)
        return through(p, added, p.chain_start, False, launch), *_parts(added)

    def decays(self) -> list[Tensor]:
        decays = self._states[2]
        if decays is None:
            return []
        B, _, H, K = self.inputs.q.shape
        return [decays.sum(1).exp2().view(B, H, K).unsqueeze(-2 if self.steps.form.v_first else -1)]

    def forward(self, entering: Tensor) -> tuple[Tensor, Tensor]:
        self._entered = self.inputs.initial_state if self.first else entering
        x = [*self._inputs(self._entered), *self._states[1:]]
        o, final, *self._kept = self.steps.run("forward, last" if self.last else "forward", self._forward_host, x)
        self._states = []
        return o, torch.zeros_like(entering) if final is None else final

    def _forward_host(self, x: Any, launch: Launcher) -> Tensors:
        form, p = self.steps.form, self._problem(x, False)
        backward = self._problem(x, True)
        every = backward.states_apart if form.few else 1
        o, final, kept = chunk.forward(p, self.last, launch, form.keep, every, _added(x[INPUTS:]))
        if kept is None or not backward.served_by(kept):
            return o, final, None, None
        return o, final, kept.states, kept.halves

    def owes(self, do: Tensor, d_final: Tensor | None) -> Tensor:
        self._do = do
        d_final = d_final if self.last else None
        x = [*self._inputs(self._entered), do, d_final, *self._kept]
        self._gradients = self.steps.run("owes", self._owes_host, x)
        return self._state_of(self._gradients[0][:, 0])

    def _owes_host(self, x: Any, launch: Launcher) -> Tensors:
        do, d_final, kept = x[INPUTS], x[INPUTS + 1], x[INPUTS + 2 : INPUTS + 4]
        p = replace(self._problem(x, True), d_final=d_final)
        added = gradients_added(p, do, self._kept_of(p, kept), launch)
        return through(p, added, p.chain_end, True, launch), *_parts(added)

    def gradients(self, leaving: Tensor, d_final: Tensor | None) -> list[Tensor | None]:
        """Of the inputs; leaving: of the state after this rank's tokens, by what comes after them."""
        d_state = d_final if self.last else leaving
        x = [*self._inputs(self._entered), self._do, d_state, *self._kept, *self._gradients[1:]]
        dq, dk, dv, dg, d_initial = self.steps.run("gradients", self._gradients_host, x)
        self._gradients, self._kept = [], []
        given = self.inputs.initial_state
        if not self.first:
            d_initial = None if given is None else torch.zeros_like(given)
        return [dq, dk, dv, dg, None, d_initial]

    def _gradients_host(self, x: Any, launch: Launcher) -> Tensors:
        do, d_state, *kept = x[INPUTS : INPUTS + 4]
        p = self._problem(x, True)
        found = chunk.backward(p, do, d_state, launch, self._kept_of(p, kept), _added(x[INPUTS + 4 :]))
        return *found[:3], None if p.g is None else found.g, found.initial_state

    def _inputs(self, state: Tensor | None) -> list[Tensor | None]:
        x = self.inputs
        return [x.q, x.k, x.v, x.g, state]

    def _problem(self, x: Any, backward: bool) -> Problem:
        form = self.steps.form
        q, k, v, g, state = x[:INPUTS]
        return form.problem(Inputs(q, k, v, g, None, state), form.backward_plan if backward else form.plan)

    def _kept_of(self, p: Problem, kept: Any) -> Kept | None:
        states, halves = kept
        return p.kept(states, None, halves, p.states_apart if self.steps.form.few else 1)

    def _state_of(self, state: Tensor) -> Tensor:
        """[B, H, K, V], or [B, H, V, K], of what is [B*H, K, V]."""
        state = state.unflatten(0, (self.inputs.q.shape[0], -1))
        return state.mT if self.steps.form.v_first else state


INPUTS = 5  # q, k, v, g, and the state that enters, which the steps are given before all else


def _parts(added: Added) -> Tensors:
    """Of what segments add, the tensors that a later step is given."""
    made = added.made
    return added.states, added.decays, added.halves, *((None,) * 3 if made is None else (made.q, made.k, made.a))


def _added(parts: Any) -> Added:
    """The same of such tensors again."""
    states, decays, halves, q, k, a = parts
    made = None if q is None else Made(q, k, a, halves, None)
    return Added(states, decays, halves, made)
