"""Tuning a shape: search both directions, compare whole plans, gate the winners, and say all of it in a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from gla_kernels import Plan, Workload
from glabench.tune import finals
from glabench.tune.candidate import Variant
from glabench.tune.gpu import Answer, Gpu
from glabench.tune.history import History
from glabench.tune.search import Compiler, Search, Searcher
from glabench.tune.space import Space
from glabench.tune.stage import strong_work
from glabench.tune.strategies import STRATEGIES
from glabench.tuning_store import Trial, Tuning

if TYPE_CHECKING:
    from gla_kernels.plan.choose import Choice

# What a record keeps of what the compiler made of a kernel.
COMPILED = ("registers", "spill_bytes", "shared_bytes", "programs_per_sm", "limited_by", "tensor_core", "compile_s")
FINALS_S = 15.0  # kept free of a budget for what follows the search

Prepared = tuple[Searcher, list[Search]]  # what a shape's search begins with


class PlanCompiler(Compiler, Protocol):
    """Who compiles whole plans and enumerates spaces, too: glabench.tune.compiler.CompilePool."""

    def space_of(self, work: Workload) -> Space: ...

    def submit_plan(self, work: Workload, plan: Plan) -> dict[str, Future[Answer]]: ...


@dataclass
class Tuner:
    """Tunes workloads on the GPU that ``gpu`` has.

    incumbent: says which plan gla() would run for a workload, and why; environment: what records say of the machine.
    Both are asked once the first kernels compile. progress is told of each trial.
    """

    gpu: Gpu
    compiler: PlanCompiler
    strategy: str = "model"
    incumbent: Callable[[Workload], Choice | None] = lambda work: None
    environment: Callable[[], dict[str, Any]] = dict
    progress: Callable[[Search], None] = lambda search: None
    _ahead: dict[tuple[Workload, ...], Future[Prepared]] = field(default_factory=dict, init=False)

    def tune(
        self, works: Sequence[Workload], budget_s: float | None = None, following: Sequence[Workload] = ()
    ) -> list[Tuning]:
        """Tune workloads of one shape, forward before backward; one record each, whatever happened.

        budget_s: seconds for all of them together; the search ends some seconds before. following: the workloads to be
        tuned next, whose first kernels compile while these are measured: by a thread that nobody waits for before
        their turn comes, and that ends when the compiler is closed.
        """
        ahead = self._ahead.pop(tuple(works), None)
        prepared = None if ahead is None else ahead.result()
        began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        searcher, searches = prepared or self._prepare(works)
        searcher.deadline = None if budget_s is None else began + max(budget_s - FINALS_S, 0.0)
        searcher.progress = self.progress
        if following:
            beside = ThreadPoolExecutor(1, thread_name_prefix="prepare")
            self._ahead[tuple(following)] = beside.submit(self._prepare, following)
            beside.shutdown(wait=False)
        return self._tune(works, searcher, searches, budget_s, began, started)

    def _prepare(self, works: Sequence[Workload]) -> Prepared:
        """Enumerate the spaces, by the processes that compile: before any of them has something to compile. Then have
        the first candidates compiled."""
        spaces = [self.compiler.space_of(work) for work in works]
        searches = [Search.of(History(space), STRATEGIES[self.strategy]) for space in spaces]
        searcher = Searcher(self.gpu, self.compiler)
        for search in searches:
            searcher.begin(search)
        return searcher, searches

    def _tune(
        self, works: Sequence[Workload], searcher: Searcher, searches: list[Search], budget_s: float | None,
        began: float, started: str,
    ) -> list[Tuning]:  # fmt: skip
        incumbents = [self.incumbent(work) for work in works]
        found = self._forward_in_use(works)
        self._compile_ahead(works, incumbents, found)
        searcher.run()
        searched = time.monotonic()

        ends = []
        for search, incumbent in zip(searches, incumbents, strict=True):
            ends.append(self._finish(search, incumbent, found))
        wall = time.monotonic() - began
        spent = {"search": searched - began, "measure": searcher.measure_s, "finals": began + wall - searched}
        return [
            self._record(search, end, budget_s, started, wall, spent)
            for search, end in zip(searches, ends, strict=True)
        ]

    def _forward_in_use(self, works: Sequence[Workload]) -> dict[str, Plan]:
        """By its direction, the plan of the forward pass that leaves its states for a backward one which is tuned
        alone: what gla() runs. None where the forward pass is tuned as well: then it is the one that wins."""
        if any(work.direction == "fwd" for work in works):
            return {}
        choice = self.incumbent(replace(works[0], direction="fwd"))
        return {} if choice is None else {"fwd": choice.plan}

    def _compile_ahead(
        self, works: Sequence[Workload], incumbents: Sequence[Choice | None], others: dict[str, Plan]
    ) -> None:
        """Have the kernels of the incumbents, and of other directions' plans that run beside them, compiled by the time
        of the finals, and those that the gate runs after any plan's, where gates are strong: no candidate has these."""
        plans = [(work, one.plan) for work, one in zip(works, incumbents, strict=True) if one is not None]
        plans += [(replace(works[0], direction=direction), plan) for direction, plan in others.items()]  # type: ignore[arg-type]  # a key is a direction
        for work, plan in plans:
            self.compiler.submit_plan(work, plan)
            self.compiler.submit_plan(strong_work(work), plan)

    def _finish(self, search: Search, incumbent: Choice | None, found: dict[str, Plan]) -> finals.Final:
        """The finals of one workload; its winner is added to ``found``, which a later direction is timed and gated
        with."""
        known = None if incumbent is None else (incumbent.plan, incumbent.origin)
        final = finals.decide(self.gpu, search.history, known, found)
        if final.winner is not None:
            found[search.history.space.work.direction] = Plan.from_dict(final.finalists[final.winner].plan)
        return final

    def _record(
        self, search: Search, final: finals.Final, budget_s: float | None, started: str, wall: float,
        spent: dict[str, float],
    ) -> Tuning:  # fmt: skip
        space = search.history.space
        return Tuning(
            workload=space.work.to_dict(),
            strategy=self.strategy,
            budget_s=budget_s,
            feasible=len(space.candidates),
            trials=tuple(_trials(search.history)),
            finalists=final.finalists,
            winner=final.winner,
            states_given=space.work.direction == "bwd",
            stopped=search.stopped or "",
            environment=self.environment(),
            started=started,
            wall_s=round(wall, 2),
            spent_s={name: round(seconds, 2) for name, seconds in spent.items()},
            times=tuple(recorded_times(search.history)),
        )


def _trials(history: History) -> Iterator[Trial]:
    """What was looked at, in the order in which it was."""
    homes = history.space.homes
    for key, result in history.results.items():
        candidate = history.space.candidates[key]
        yield Trial(
            candidate=candidate.to_dict(),
            predicted_ms=history.space.predicted_ms[key],
            status=result.status,
            reason=result.reason,
            samples_ms=tuple(round(ms, 5) for ms in result.samples_ms),
            compiled=None if result.compiled is None else {name: result.compiled.get(name) for name in COMPILED},
            shared=tuple(_recorded(variant) for variant in homes[key] if variant != candidate.variant),
        )


def recorded_times(history: History) -> Iterator[tuple[Any, ...]]:
    """`Tuning.times`, of variants of which a pass was looked at."""
    space = history.space
    seen = {variant for key in history.results for variant in space.homes[key]}
    for variant in (one for one in space.menus if one in seen):
        for step, factor in space.times[variant].items():
            if round(factor, 4) != 1.0:
                yield _recorded(variant), step, round(factor, 4)


def _recorded(variant: Variant) -> tuple[Any, ...]:
    """A variant as `record.Trial.shared` has it."""
    schedule = variant.schedule
    every = schedule.states_every or 0
    return schedule.chunk, schedule.rows, schedule.materialize, variant.block_t, every, variant.walks
