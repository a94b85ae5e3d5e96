"""The search: strategies say what to measure, processes compile it, one process measures it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from gla_kernels import Schedule, Workload
from glabench.tune.candidate import Candidate, candidates_of
from glabench.tune.gpu import Answer, Gpu
from glabench.tune.history import History
from glabench.tune.space import Space
from glabench.tune.stage import reference_plan, reference_schedule
from glabench.tune.strategies import Request, Strategy

FAR_BEHIND = 3.0  # a kernel that takes this much longer than the best of its pass gets few samples
POLL_S = 0.5


class Compiler(Protocol):
    """Who compiles: glabench.tune.compiler.CompilePool."""

    def submit(self, work: Workload, candidate: Candidate) -> Future[Answer]: ...

    def forget(self, future: Future[Answer]) -> None: ...


@dataclass(eq=False)
class Job:
    """A request that waits for its kernels: its own, and those of the plan that it is compared with."""

    search: Search
    request: Request
    own: Future[Answer]
    needs: list[Future[Answer]]

    def ready(self) -> bool:
        return self.own.done() and all(need.done() for need in self.needs)


@dataclass(eq=False)
class Search:
    """One workload, its history and the strategy that goes through it."""

    history: History
    batches: Iterator[list[Request]]
    open: int = 0  # jobs of the current batch that are not done
    stopped: str | None = None  # why the search ended

    @classmethod
    def of(cls, history: History, strategy: Strategy) -> Search:
        return cls(history, strategy(history))


@dataclass
class Searcher:
    """Runs searches side by side until each has ended or the deadline has come.

    deadline: time.monotonic() after which nothing new is measured; None for none. progress is told of each trial.
    """

    gpu: Gpu
    compiler: Compiler
    deadline: float | None = None
    progress: Callable[[Search], None] = lambda search: None
    measure_s: float = 0.0
    _searches: list[Search] = field(default_factory=list, init=False)
    _jobs: list[Job] = field(default_factory=list, init=False)
    _references: dict[tuple[Workload, Schedule], list[Future[Answer]]] = field(default_factory=dict, init=False)

    def begin(self, search: Search) -> None:
        """Have the search's first batch compiled, and go through it with the others."""
        self._searches.append(search)
        self._advance(search)

    def run(self) -> None:
        """Go through the searches that were begun; each then has its history and says why it stopped."""
        while self._jobs:
            if self._late():
                self._give_up()
                return
            ready = [job for job in self._jobs if job.ready()]
            for job in sorted(ready, key=_together):
                if self._late():
                    break
                self._jobs.remove(job)
                self._measure(job)
                if job.search.open == 0:
                    self._advance(job.search)
            if not ready:
                waiting = {f for job in self._jobs for f in (job.own, *job.needs) if not f.done()}
                wait(waiting, timeout=POLL_S, return_when=FIRST_COMPLETED)

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def _give_up(self) -> None:
        """Measure no more, and have no more compiled: the next shape would wait for it."""
        for search in self._searches:
            search.stopped = search.stopped or "the budget was spent"
        for future in (*(job.own for job in self._jobs), *chain.from_iterable(self._references.values())):
            self.compiler.forget(future)
        self._jobs.clear()

    def _advance(self, search: Search) -> None:
        """The next batch that holds anything, as jobs; none when the strategy has come to its end."""
        batch: list[Request] = []
        while not batch:
            try:
                batch = next(search.batches)
            except StopIteration:
                search.stopped = search.stopped or "the strategy ended"
                return
        space = search.history.space
        for request in batch:
            candidate = space.candidates[request.key]
            needs = self._reference(space, candidate.variant.schedule)
            self._jobs.append(Job(search, request, self.compiler.submit(space.work, candidate), needs))
        search.open = len(batch)

    def _reference(self, space: Space, schedule: Schedule) -> list[Future[Answer]]:
        """The kernels of the plan that candidates of the schedule are compared with, on their way."""
        kind = (space.work, reference_schedule(schedule))
        if kind not in self._references:
            plan = reference_plan(space.work, schedule, space.capability)
            passes = candidates_of(space.work, plan, space.capability)
            self._references[kind] = [self.compiler.submit(space.work, one) for one in passes]
        return self._references[kind]

    def _measure(self, job: Job) -> None:
        """Measure the job's candidate and add what came of it to the history."""
        search, key = job.search, job.request.key
        search.open -= 1
        own = job.own.result()
        reference = next((need.result() for need in job.needs if need.result()["status"] != "ok"), None)
        if own["status"] != "ok":
            search.history.add(key, own["status"], own["reason"])
        elif reference is not None:
            reason = f"the plan that it is compared with: {reference['reason']}"
            search.history.add(key, reference["status"], reason)
        else:
            answer = self._time(job)
            search.history.add(key, answer["status"], answer["reason"], answer.get("samples_ms", ()))
        search.history.results[key].compiled = own.get("compiled")
        self.progress(search)

    def _time(self, job: Job) -> Answer:
        space = job.search.history.space
        candidate = space.candidates[job.request.key]
        enough_ms = job.search.history.limit_ms(job.request.key, FAR_BEHIND)
        began = time.monotonic()
        answer = self.gpu.trial(space.work, candidate, job.request.samples, enough_ms)
        self.measure_s += time.monotonic() - began
        return answer


def _together(job: Job) -> tuple[str, int, bool, int, int, int]:
    """Jobs that share inputs and reference plan, and without materialized states its slices, are measured one after
    another."""
    space = job.search.history.space
    variant = space.candidates[job.request.key].variant
    schedule, every = variant.schedule, variant.schedule.states_every or 0
    rows = 0 if schedule.materialize else variant.block_t
    return space.work.direction, schedule.chunk, schedule.materialize, every, rows, job.request.samples
