"""Tuning a shape: search both directions, compare whole plans, gate the winners, and say all of it in a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
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
    from gla_kernels.choose import Choice

# What a record keeps of what the compiler made of a kernel.
COMPILED = ("registers", "spill_bytes", "shared_bytes", "programs_per_sm", "limited_by", "tensor_core", "compile_s")
FINALS_S = 15.0  # kept free of a budget for what follows the search


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
    _prepared: dict[tuple[Workload, ...], tuple[Searcher, list[Search]]] = field(default_factory=dict, init=False)

    def tune(
        self, works: Sequence[Workload], budget_s: float | None = None, following: Sequence[Workload] = ()
    ) -> list[Tuning]:
        """Tune workloads of one shape, forward before backward; one record each, whatever happened.

        budget_s: seconds for all of them together; the search ends some seconds before. following: the workloads to be
        tuned next, whose first kernels compile while these are measured.
        """
        began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        key = tuple(works)
        searcher, searches = self._prepared.pop(key) if key in self._prepared else self._prepare(works)
        searcher.deadline = None if budget_s is None else began + max(budget_s - FINALS_S, 0.0)
        searcher.progress = self.progress
        with ThreadPoolExecutor(1) as beside:
            ahead = beside.submit(self._prepare, following) if following else None
            tunings = self._tune(works, searcher, searches, budget_s, began, started)
            if ahead is not None:
                self._prepared[tuple(following)] = ahead.result()
        return tunings

    def _prepare(self, works: Sequence[Workload]) -> tuple[Searcher, list[Search]]:
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
        self._compile_ahead(works, incumbents)
        searcher.run()
        searched = time.monotonic()

        found: dict[str, Plan] = {}
        ends = []
        for search, incumbent in zip(searches, incumbents, strict=True):
            ends.append(self._finish(search, incumbent, found))
        wall = time.monotonic() - began
        spent = {"search": searched - began, "measure": searcher.measure_s, "finals": began + wall - searched}
        return [
            self._record(search, end, budget_s, started, wall, spent)
            for search, end in zip(searches, ends, strict=True)
        ]

    def _compile_ahead(self, works: Sequence[Workload], incumbents: Sequence[Choice | None]) -> None:
        """Have the incumbents' kernels compiled by the time of the finals, and those that the gate runs after any
        plan's, where gates are strong: no candidate has these."""
        for work, incumbent in zip(works, incumbents, strict=True):
            if incumbent is not None:
                self.compiler.submit_plan(work, incumbent.plan)
                self.compiler.submit_plan(strong_work(work), incumbent.plan)

    def _finish(self, search: Search, incumbent: Choice | None, found: dict[str, Plan]) -> finals.Final:
        """The finals of one workload; its winner is added to ``found``, which a later direction is gated with."""
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
