"""What is not timed, taken by many threads, one job at a time; whoever finds none left helps with the longest.

A rival that tunes itself compiles hundreds of configs for a shape: minutes, while the other cores have long been idle
and no case is timed yet. Each process compiles what no other has claimed (``glabench.claims``), so a second one that
compiles the same case, a rival's or ours, shares its work.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from glabench.run.worker import Worker
from glabench.spec.case import Case
from glabench.spec.settings import Part

# Seconds that a job of a sweep takes before it is helped with: a process for it has imported torch and opened the GPU
# in ten, and what another sweep has compiled before is found on the disk sooner than that.
ALONE_S = 20.0
LOOK_S = 0.5


@dataclass(frozen=True)
class Job:
    """One part of one case."""

    case: Case
    part: Part

    @property
    def shared(self) -> bool:
        """Whether two processes that do it do it sooner than one."""
        return self.part == "compile"


@dataclass
class _Running:
    since: float  # time.monotonic()
    helpers: list[Worker] = field(default_factory=list)


class Untimed:
    """The jobs that are left and those that run. ``alone_s``: seconds after which a job is helped with. Used by many
    threads."""

    def __init__(self, jobs: Sequence[Job], alone_s: float = ALONE_S) -> None:
        self.jobs = tuple(jobs)
        self._alone_s = alone_s
        self._left: dict[Part, deque[Job]] = {
            part: deque(job for job in jobs if job.part == part) for part in ("gate", "compile")
        }
        self._running: dict[Job, _Running] = {}
        self._changed = threading.Condition()
        self._stopped = False

    def take(self, part: Part) -> Job | None:
        """The next job of this kind, whose end ``finished`` has to be told of; None when there is none."""
        with self._changed:
            if self._stopped or not self._left[part]:
                return None
            job = self._left[part].popleft()
            self._running[job] = _Running(time.monotonic())
            return job

    def finished(self, job: Job) -> None:
        """The job is done; whoever helped with it is stopped."""
        with self._changed:
            helpers = self._running.pop(job).helpers
            self._changed.notify_all()
        for helper in helpers:
            helper.close()

    def to_help(self, helper: Worker, helped: Collection[Job]) -> Job | None:
        """The job that ``helper`` should do besides the process that does it already; of those with the fewest helpers
        the one that takes longest. Waits until one has taken long enough; None when there will be none but those in
        ``helped``. The helper is closed once the job is done."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                running = {job: one for job, one in self._running.items() if job.shared and job not in helped}
                if not running:
                    return None
                long = [job for job, one in running.items() if now - one.since >= self._alone_s]
                if long:
                    job = min(long, key=lambda job: (len(running[job].helpers), running[job].since))
                    running[job].helpers.append(helper)
                    return job
                self._changed.wait(LOOK_S)
            return None

    def helped(self, job: Job, helper: Worker) -> bool:
        """Told when a helper has done what it could: whether it can do more, and was not stopped with the job."""
        with self._changed:
            one = self._running.get(job)
            if one is None or helper not in one.helpers:
                return False
            one.helpers.remove(helper)
            return True

    def ready(self, cases: Sequence[Case]) -> Case:
        """The first of these that has no job left, once there is one; of all of them where no more are given out."""
        with self._changed:
            while True:
                open_ = set() if self._stopped else {job.case for job in self._open()}
                found = next((case for case in cases if case not in open_), None)
                if found is not None:
                    return found
                self._changed.wait(LOOK_S)

    def _open(self) -> list[Job]:
        return [*self._running, *(job for left in self._left.values() for job in left)]

    def stop(self) -> None:
        """Give out no more, and wake who waits."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
