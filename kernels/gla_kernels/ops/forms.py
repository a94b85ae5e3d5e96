"""The forms of calls of `gla`, `gla_recurrent` and `simple_gla` without gates on the value side: see `form.Form`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from .. import chunk, recurrent
from ..chunk.packing import of_sequences
from ..chunk.problem import Problem
from ..launch import Launch, Launcher
from ..plan.apply import problem_of
from ..schedule import Plan, Schedule
from ..simple import passes
from ..simple.call import Call
from .form import Inputs, Left


@dataclass(frozen=True)
class Chunkwise:
    """The chunkwise form by a plan for each direction. ``keep``: whether states are kept for the backward pass;
    ``few``: no more than that asks for."""

    scale: float
    plan: Plan
    backward_plan: Plan
    keep: bool
    few: bool = True
    v_first: bool = False

    def forward(self, x: Inputs, final: bool, launch: Launcher) -> tuple[Tensor, Tensor | None, Left]:
        problem = self._packed(x, self.problem(x, self.plan), False, launch)
        backward = self._packed(x, self.problem(x, self.backward_plan), True, unlaunched)
        o, final_state, kept = chunk.forward(problem, final, launch, self.keep, self._apart(backward))
        if kept is None or not backward.served_by(kept):
            return o, final_state, ()
        return o, final_state, (kept.states, kept.boundary, kept.halves)

    def backward(
        self, x: Inputs, left: Left, do: Tensor, d_final: Tensor | None, needed: Sequence[bool], launch: Launcher
    ) -> Sequence[Tensor | None]:
        problem = self._packed(x, self.problem(x, self.backward_plan), True, launch)
        kept = None
        if left:
            states, boundary, halves = left
            kept = problem.kept(states, boundary, halves, self._apart(problem))
        dq, dk, dv, dg, d_initial = chunk.backward(problem, do, d_final, launch, kept)
        return dq, dk, dv, None if x.g is None else dg, None, d_initial

    def _packed(self, x: Inputs, p: Problem, backward: bool, launch: Launcher) -> Problem:
        """The problem of packed sequences, if they are."""
        if x.cu_seqlens is None:
            return p
        tiles = (p.config.grad_walk, p.config.grad_qk) if backward else (p.config.walk,)
        return of_sequences(p, x.cu_seqlens, p.all_native(*tiles), launch)

    def _apart(self, backward: Problem) -> int:
        """Chunks from one kept state to the next."""
        return backward.states_apart if self.few else 1

    def problem(self, x: Inputs, plan: Plan) -> Problem:
        return replace(problem_of(x.q, x.k, x.v, x.g, self.scale, x.initial_state, plan), v_first=self.v_first)


def unlaunched(launch: Launch) -> None:
    """Of a problem that is only asked what it would do."""


@dataclass(frozen=True)
class Recurrent:
    """The fused recurrent form."""

    scale: float
    v_first: bool = False

    def forward(self, x: Inputs, final: bool, launch: Launcher) -> tuple[Tensor, Tensor | None, Left]:
        how = x.gv, x.cu_seqlens, self.v_first
        o, state = recurrent.forward(x.q, x.k, x.v, x.g, self.scale, x.initial_state, final, launch, *how)
        return o, state, (state if x.g is not None or x.gv is not None else None,)  # without gates none asks for it

    def backward(
        self, x: Inputs, left: Left, do: Tensor, d_final: Tensor | None, needed: Sequence[bool], launch: Launcher
    ) -> Sequence[Tensor | None]:
        state = left[0] if d_final is not None else None
        how = x.gv, x.cu_seqlens, self.v_first
        return recurrent.backward(x.q, x.k, x.v, x.g, self.scale, x.initial_state, do, state, d_final, launch, *how)


@dataclass(frozen=True)
class Simple:
    """Linear attention with one gate a head and token, g [B, T, H], or with none. ``keep``: whether a backward pass
    that follows is to find states."""

    scale: float
    schedule: Schedule
    capability: int
    keep: bool
    v_first: bool = False

    def forward(self, x: Inputs, final: bool, launch: Launcher) -> tuple[Tensor, Tensor | None, Left]:
        o, final_state, kept = passes.forward(self.call(x), final, self.keep, launch)
        return o, final_state, (kept.sums, kept.states, kept.marks)

    def backward(
        self, x: Inputs, left: Left, do: Tensor, d_final: Tensor | None, needed: Sequence[bool], launch: Launcher
    ) -> Sequence[Tensor | None]:
        sums, states, marks = left
        assert sums is not None
        kept = passes.Kept(sums, states, marks)
        gates = x.g is not None and needed[3]
        dq, dk, dv, dg, d_initial = passes.backward(self.call(x), kept, do, d_final, gates, launch)
        return dq, dk, dv, dg, None, d_initial

    def call(self, x: Inputs) -> Call:
        how = self.schedule.chunk, self.schedule.materialize, self.capability, x.cu_seqlens, self.v_first
        return Call(x.q, x.k, x.v, x.g, self.scale, x.initial_state, *how)
