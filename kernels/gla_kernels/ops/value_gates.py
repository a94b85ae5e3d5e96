"""`gla` with gates on the value side, as a form that autograd can be given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from .. import packed
from ..chunk.problem import Problem as Walks
from ..launch import Launcher
from ..plan.apply import problem_of
from ..plan.request import plan_of
from ..plan.table import Machine
from ..schedule import Plan, Schedule, Workload
from ..value_gates import backward, by_walks, forward
from ..value_gates.problem import MAX_CHUNK, Problem
from .form import Inputs, Left
from .forms import Recurrent

# Sub-chunks as small as tensor cores take: gates are seldom so strong that one of them is not mild (halving.py).
DEFAULT = Schedule(chunk=64, sub_chunk=16)


def check_schedule(schedule: Schedule | None, config: object) -> Schedule:
    """The schedule to run. Raises ValueError, naming the argument, for what there is only without value-side gates."""
    if config is not None:
        raise ValueError(f"config: with gv there is one config a schedule, so expected None, got {config!r:.60}")
    if schedule is None:
        return DEFAULT
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedule: expected a Schedule or None, got {type(schedule).__name__}")
    if schedule.chunk > MAX_CHUNK:
        raise ValueError(f"schedule: with gv expected a chunk of at most {MAX_CHUNK}, got {schedule.chunk}")
    if schedule.states_every is not None:
        raise ValueError(f"schedule: with gv expected states_every=None, got {schedule.states_every}")
    return schedule


def plans_of(works: Sequence[Workload], machine: Machine) -> list[Plan]:
    """The plans of `gla` for both directions of such a call without gates of the value side, by which these ride on its
    walks (value_gates/by_walks.py). All states are kept, whichever plan it would be."""
    plans = []
    for work in works:
        plan = plan_of(work, None, machine)
        if not plan.schedule.materialize and work.schedule is None:
            plan = plan_of(replace(work, schedule=Schedule()), None, machine)
        plans.append(plan)
    return plans


@dataclass(frozen=True)
class ValueGated:
    """`gla` with gates on the value side. ``keep``: whether states are kept for the backward pass. plans: of both
    directions, where `plans_of` has any.

    Packed sequences: where there are no states of theirs, chunks are of several, parted by closed gates of the value
    side. With states tokens are taken one after another.
    """

    scale: float
    schedule: Schedule
    keep: bool
    v_first: bool = False
    plans: tuple[Plan, Plan] | None = None

    def forward(self, x: Inputs, final: bool, launch: Launcher) -> tuple[Tensor, Tensor | None, Left]:
        if x.cu_seqlens is not None and (final or x.initial_state is not None):
            return self._by_token.forward(x, final, launch)
        if (walks := self._walks(x)) is not None:
            o, final_state, left = by_walks.forward(walks[0], self._framed(x), final, self.keep, launch)
            return o, final_state, () if left is None else tuple(left)
        o, last, (states, boundary) = forward(self._problem(x, launch), launch)
        return o, last if final else None, (states, *boundary) if self.keep else ()

    def backward(
        self, x: Inputs, left: Left, do: Tensor, d_final: Tensor | None, needed: Sequence[bool], launch: Launcher
    ) -> Sequence[Tensor | None]:
        if x.cu_seqlens is not None and (d_final is not None or x.initial_state is not None):
            return self._by_token.backward(x, left, do, d_final, needed, launch)
        if (walks := self._walks(x)) is not None:
            framed = by_walks.Framed(*left) if left else None  # type: ignore[arg-type]
            return by_walks.backward(walks, self._framed(x), do, d_final, framed, launch)
        if len(left) < 2:  # nothing, or of a final state that has no gradient: those are of sequences, not of chunks
            left = ()
        kept = (left[0], [state for state in left[1:] if state is not None]) if left else None
        *gradients, d_initial = backward(self._problem(x, launch), do, d_final, launch, kept)
        return *gradients, None if x.initial_state is None else d_initial

    @property
    def _by_token(self) -> Recurrent:
        return Recurrent(self.scale, self.v_first)

    def _walks(self, x: Inputs) -> tuple[Walks, Walks] | None:
        """Both directions of the call without these gates, if they ride on its walks."""
        if self.plans is None or x.gv is None or x.cu_seqlens is not None:
            return None
        given = x.q, x.k, x.v, x.g, self.scale, x.initial_state
        fwd, bwd = (replace(problem_of(*given, plan), v_first=self.v_first) for plan in self.plans)
        return (fwd, bwd) if by_walks.serves(fwd, bwd, x.gv) else None

    def _framed(self, x: Inputs) -> Problem:
        given = x.q, x.k, x.v, x.g, x.gv, self.scale, x.initial_state
        return Problem(*given, DEFAULT, self.v_first, framed=True)

    def _problem(self, x: Inputs, launch: Launcher) -> Problem:
        gv = x.gv
        if x.cu_seqlens is not None and gv is not None:
            gv = packed.closed(gv, packed.marks(x.cu_seqlens, gv.shape[1], launch), launch)
        return Problem(x.q, x.k, x.v, x.g, gv, self.scale, x.initial_state, self.schedule, self.v_first)
