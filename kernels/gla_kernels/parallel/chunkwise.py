"""The chunkwise form on one rank's tokens, in steps between which ranks exchange: see `chunk.shards`. Each step is host
code that is recorded once for all calls of a kind, as `ops.prepared` does for a whole call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import chunk
from ..chunk.kept import Kept
from ..chunk.pairs import meeting_of, message_of
from ..chunk.prepare import Prepared as Made
from ..chunk.problem import Problem
from ..chunk.shards import Added, gradients_added, states_added
from ..launch import Launcher
from ..launch.record import Sort, record
from ..ops.form import Inputs, state_shape
from ..ops.forms import Chunkwise
from ..ops.prepared import Ready
from .ranks import Ranks

Tensors = Sequence[Tensor | None]
Host = Callable[[Any, Launcher], Tensors]


class Step:
    """A step's host code, recorded: ``host`` is given tensors without data, and returns those that it makes, and of
    those that it was given what a later step is to have."""

    def __init__(self, host: Host, given: Tensors) -> None:
        sorts = [None if x is None else Sort.of(x) for x in given]
        metas = [None if x is None else x.on_meta() for x in sorts]
        device = next(x.device for x in given if x is not None)
        self._passed_on: list[int | None] = []  # of a result, the number of the given tensor that it is

        def made(launch: Launcher) -> tuple[Tensors, Tensors]:
            found = host(metas, launch)
            at = {id(x): i for i, x in enumerate(metas) if x is not None}
            self._passed_on = [at.get(id(x)) for x in found]
            return [x if i is None else None for x, i in zip(found, self._passed_on, strict=True)], ()

        self._run = Ready(record(made, metas, device), sorts, device)

    def __call__(self, given: Tensors) -> list[Any]:
        found = self._run(tuple(given))[0]
        return [x if i is None else given[i] for x, i in zip(found, self._passed_on, strict=True)]


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


def fits(form: Chunkwise) -> bool:
    """Whether these steps can be of the form: both ways states are materialized."""
    return form.plan.schedule.materialize and form.backward_plan.schedule.materialize


class InSteps:
    """One call: see `call.Local`."""

    def __init__(self, steps: Steps, ranks: Ranks, x: Inputs) -> None:
        self.steps, self.ranks = steps, ranks
        self._state_shape, self._has_initial = state_shape(x, steps.form.v_first), x.initial_state is not None
        # What every step is given before all else; of the first rank the call's state is all that enters.
        self._given: list[Tensor | None] = [x.q, x.k, x.v, x.g, x.initial_state if ranks.first else None]
        self._messages: Tensor | None = None

    def message(self) -> Tensor:
        message, *self._added = self.steps.run("message", self._message_host, self._given)
        return message

    def _message_host(self, x: Any, launch: Launcher) -> Tensors:
        p = self._problem(x, False)
        added = states_added(p, launch)
        message, written = message_of(p, added, p.chain_start, False)
        launch(written)
        return message, *_parts(added)

    def forward(self, messages: Tensor) -> tuple[Tensor, Tensor]:
        self._messages = messages
        x = [*self._given, messages, *self._added]
        o, final, entered, *self._kept = self.steps.run("forward", self._forward_host, x)
        if not self.ranks.first:
            self._given = [*self._given[:-1], entered]
        del self._added
        return o, o.new_zeros(self._state_shape, dtype=torch.float32) if final is None else final

    def _forward_host(self, x: Any, launch: Launcher) -> Tensors:
        messages, parts = x[INPUTS], x[INPUTS + 1 :]
        entered, added = None, _added(parts)
        if not self.ranks.first:
            entered, met = meeting_of(self._problem(x, False), added, messages, messages, self.ranks.rank, False)
            launch(met)
            x = [*x[: INPUTS - 1], entered]
        p, backward = self._problem(x, False), self._problem(x, True)
        form = self.steps.form
        every = backward.states_apart if form.few else 1
        o, final, kept = chunk.forward(p, self.ranks.last, launch, form.keep, every, added)
        if kept is None or not backward.served_by(kept):
            return o, final, entered, None, None
        return o, final, entered, kept.states, kept.halves

    def left(self) -> list[Tensor | None]:
        left = [*self._given, self._messages, *self._kept]
        del self._given, self._messages, self._kept
        return left

    def take(self, left: Sequence[Tensor | None]) -> None:
        *self._given, self._messages, states, halves = left
        self._kept = [states, halves]

    def owed(self, do: Tensor, d_final: Tensor | None) -> Tensor:
        self._do = do
        x = [*self._given, do, d_final if self.ranks.last else None, *self._kept]
        message, *self._added = self.steps.run("owed", self._owed_host, x)
        return message

    def _owed_host(self, x: Any, launch: Launcher) -> Tensors:
        do, d_final, *kept = x[INPUTS:]
        p = replace(self._problem(x, True), d_final=d_final)
        added = gradients_added(p, do, self._kept_of(p, kept), launch)
        message, written = message_of(p, added, p.chain_end, True)
        launch(written)
        return message, *_parts(added)

    def gradients(self, messages: Tensor, d_final: Tensor | None) -> list[Tensor | None]:
        d_final = d_final if self.ranks.last else None
        x = [*self._given, self._do, d_final, messages, self._messages, *self._kept, *self._added]
        dq, dk, dv, dg, d_initial = self.steps.run("gradients", self._gradients_host, x)
        del self._given, self._messages, self._kept, self._do, self._added
        if not self.ranks.first:
            d_initial = dq.new_zeros(self._state_shape, dtype=torch.float32) if self._has_initial else None
        return [dq, dk, dv, dg, None, d_initial]

    def _gradients_host(self, x: Any, launch: Launcher) -> Tensors:
        do, d_state, messages, forward, *kept = x[INPUTS : INPUTS + 6]
        p, added = self._problem(x, True), _added(x[INPUTS + 6 :])
        if not self.ranks.last:
            d_state, met = meeting_of(p, added, messages, forward, self.ranks.rank, True)
            launch(met)
        found = chunk.backward(p, do, d_state, launch, self._kept_of(p, kept), added)
        return *found[:3], None if p.g is None else found.g, found.initial_state

    def _problem(self, x: Any, backward: bool) -> Problem:
        form = self.steps.form
        q, k, v, g, state = x[:INPUTS]
        return form.problem(Inputs(q, k, v, g, None, state), form.backward_plan if backward else form.plan)

    def _kept_of(self, p: Problem, kept: Any) -> Kept | None:
        states, halves = kept
        return p.kept(states, None, halves, p.states_apart if self.steps.form.few else 1)


INPUTS = 5  # of `InSteps._given`


def _parts(added: Added) -> Tensors:
    """Of what segments add, the tensors that a later step is given: where they start has it all by now."""
    made = added.made
    by_walks = (None,) * 3 if made is None else (made.q, made.k, made.a)
    return added.starts, added.left, added.halves, *by_walks


def _added(parts: Any) -> Added:
    """The same of such tensors again."""
    starts, left, halves, q, k, a = parts
    made = None if q is None else Made(q, k, a, halves, None)
    return Added(None, None, halves, made, starts, left)
