"""From a plan to its rows: which cases are left, in which processes they run, and one row of each on the disk at once.

Nothing here imports torch: what a case needs happens in workers (``glabench.run.worker``).
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from glabench import claims, store
from glabench.hardware import environment
from glabench.run.attempts import Attempts, still_holds
from glabench.run.forks import Forks
from glabench.run.gpus import only_this, taken
from glabench.run.parts import merge, parts
from glabench.run.processes import cores, worker_env
from glabench.run.quiet import Calm
from glabench.run.sharing import Shared
from glabench.run.untimed import ALONE_S, Job, Untimed
from glabench.run.worker import MODULE, PIPELINE, Worker
from glabench.spec.case import Case
from glabench.spec.settings import Device, Part, Settings
from glabench.store import Appender, Row

# What the first case on a GPU would import, for seconds: torch does at its first checkpoint, which models have.
FIRST_CASE = ("torch._dynamo",)
# Processes that compile beside what is timed, at most. Each opens the GPU, and they wait for one another: 62 of them on
# 64 cores took 29 s until the last one had, and a kernel that is compiled in 4 s took 19 meanwhile.
MOST_BESIDE = 15


class Progress(Protocol):
    """Who is told how the sweep goes; see ``glabench.run.progress``."""

    def running(self, case: Case, part: Part) -> None: ...

    def finished(self, row: Row) -> None: ...


@dataclass
class Outcome:
    """What a run of the sweep came to."""

    statuses: Counter[str] = field(default_factory=Counter)  # of the rows that this run wrote
    interrupted: bool = False


@dataclass
class Driver:
    """Runs cases on one device and appends their rows.

    compiled: ids of the cases whose kernels are cross-compiled on a CPU besides being checked.
    limit_s: a part of a case that takes longer is killed, and its row says "timeout".
    gpus: what CUDA_VISIBLE_DEVICES is for each of several workers that time cases at once, in the order of
    ``glabench.run.sharing``; none is one worker, on the GPU that CUDA takes.
    pipeline, split: the module whose ``run_case`` workers call, and the parts in which it runs a case.
    imports: what the processes that time cases import besides, while kernels compile.
    later: ids of the cases that are not timed before all others have their rows, and, unless ``beside``, not compiled.
    alone_s: see ``glabench.run.untimed.Untimed``.
    beside: whether a case is timed as soon as it is compiled itself, while others are, but for its samples
    (``glabench.run.quiet``). One GPU's cases alone.
    """

    sweep: str
    device: Device
    settings: Settings
    limit_s: float
    compiled: frozenset[str]
    out: Appender
    progress: Progress
    pipeline: str = PIPELINE
    split: Callable[[Case, Device], tuple[Part, ...]] = parts
    gpus: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    later: frozenset[str] = frozenset()
    alone_s: float = ALONE_S
    beside: bool = False
    _attempts: Attempts = field(default_factory=Attempts, init=False)
    _workers: list[Worker] = field(default_factory=list, init=False)
    _halves: dict[str, Row] = field(default_factory=dict, init=False)
    _untimed: Untimed = field(default_factory=lambda: Untimed(()), init=False)
    _calm: Calm = field(default_factory=Calm, init=False)
    _forks: Forks | None = field(default=None, init=False)
    _claims: str = field(default="", init=False)
    _prepared: dict[str, list[dict[str, Any]]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stopped: bool = field(default=False, init=False)
    _outcome: Outcome = field(default_factory=Outcome, init=False)

    def run(self, cases: Sequence[Case]) -> Outcome:
        """Run the cases; Ctrl-C ends the workers and comes back with ``interrupted``, every finished row kept.

        What is not timed comes first, in parallel; what is timed runs alone, with nothing beside it on its GPU. Then
        the same again of the ``later`` ones. Meanwhile the processes that will time import what they need.
        """
        timed = any("all" in self._parts(case) for case in cases)
        try:
            self._start_forks(cases)
            workers = [self._worker("all", gpu) for gpu in self._seen()] if timed else []
            for worker in workers:
                worker.start()
            turns = [[case for case in cases if (case.id in self.later) is last] for last in (False, True)]
            with tempfile.TemporaryDirectory(prefix="glabench-", ignore_cleanup_errors=True) as self._claims:
                if self.beside and len(workers) == 1:
                    self._run_beside(turns, workers[0])
                else:
                    for turn in turns:
                        self._run_untimed(self._jobs(turn))
                        self._run_timed([case for case in turn if "all" in self._parts(case)], workers)
        except KeyboardInterrupt:
            self._outcome.interrupted = True
        finally:
            self._stop()
        return self._outcome

    def _start_forks(self, cases: Sequence[Case]) -> None:
        """What a GPU machine's processes that compile are forked from: it imports torch once for all."""
        if self.device == "cuda" and any("compile" in self._parts(case) for case in cases):
            with suppress(OSError):  # each imports by itself then
                self._forks = Forks(worker_env("compile"), (MODULE, self.pipeline))
                self._calm.add(self._forks)

    def _run_beside(self, turns: Sequence[Sequence[Case]], worker: Worker) -> None:
        """Each case as soon as it is compiled, while the rest is. The first of a turn needs more than its kernels, and
        has it by then."""
        untimed = self._jobs([case for turn in turns for case in turn])
        with ThreadPoolExecutor(1) as pool:
            compiling = pool.submit(self._run_untimed, untimed)
            try:
                left = [[case for case in turn if "all" in self._parts(case)] for turn in turns]
                for turn in left:
                    for case in turn[:1]:
                        self._prepared[case.id] = worker.prepare(case, self.settings, self.limit_s)
                    while turn:
                        case = untimed.ready(turn)
                        turn.remove(case)
                        self._run_job(worker, Job(case, "all"))
                compiling.result()
            except BaseException:
                self._stop()  # before the pool waits for its thread
                raise

    def _jobs(self, cases: Sequence[Case]) -> Untimed:
        """What of the cases is not timed."""
        jobs = [Job(case, part) for case in cases for part in self._parts(case) if part != "all"]
        self._untimed = Untimed(jobs, self.alone_s)
        return self._untimed

    def _run_timed(self, cases: Sequence[Case], workers: Sequence[Worker]) -> None:
        if len(workers) > 1:
            shared = Shared(cases)
            takes = [partial(shared.take, number) for number in range(len(workers))]
            self._side_by_side([partial(self._time, take, one) for take, one in zip(takes, workers, strict=True)])
        elif workers:
            self._time(partial(next, iter(cases), None), workers[0])

    def _time(self, take: Callable[[], Case | None], worker: Worker) -> None:
        """Cases one after another, in a process that has its GPU to itself."""
        while not self._stopped and (case := take()) is not None:
            self._run_job(worker, Job(case, "all"))

    def _run_untimed(self, untimed: Untimed) -> None:
        """Gates and compilations side by side; a process is kept for one kind of part as long as there are any."""
        jobs = untimed.jobs
        kinds: tuple[Part, Part] = ("gate", "compile")
        most = max(1, min(cores() - 1, MOST_BESIDE) if self.beside else cores())  # what is timed beside has a core
        count = most if any(job.shared for job in jobs) else min(most, len(jobs))
        gpus = self._seen()  # the processes that compile each open one: not all of them the same
        self._side_by_side(
            [partial(self._work, untimed, kinds[index % 2], gpus[index % len(gpus)]) for index in range(count)]
        )

    def _side_by_side(self, calls: Sequence[Callable[[], None]]) -> None:
        """The calls, each in a thread of its own; the first error stops them all."""
        if not calls:
            return
        with ThreadPoolExecutor(len(calls)) as pool:
            running = [pool.submit(call) for call in calls]
            try:
                for done in as_completed(running):
                    done.result()
            except BaseException:
                self._stop()  # before the pool waits for its threads
                raise

    def _parts(self, case: Case) -> tuple[Part, ...]:
        needed = self.split(case, self.device)
        if self.device == "cuda":
            return needed
        return tuple(part for part in needed if part != "compile" or case.id in self.compiled)

    def _work(self, untimed: Untimed, part: Part, gpu: str | None) -> None:
        """One thread: jobs of one kind while there are any, then of the other; then others' that share their work."""
        other: Part = "compile" if part == "gate" else "gate"
        for kind in (part, other):
            worker: Worker | None = None
            while (job := untimed.take(kind)) is not None:
                self._calm.wait()
                worker = worker or self._worker(kind, gpu)
                self._run_job(worker, job)
                untimed.finished(job)
            if worker is not None:
                worker.close()
        self._help(untimed, gpu)

    def _help(self, untimed: Untimed, gpu: str | None) -> None:
        """Do jobs that other threads are at, too; what becomes of them there is what counts."""
        helped: list[Job] = []
        worker = self._worker("compile", gpu, helps=True)
        while (job := untimed.to_help(worker, helped)) is not None:
            self._calm.wait()
            worker.run(job.case, self.sweep, self.settings.with_part(job.part), self.limit_s)
            helped.append(job)
            if not untimed.helped(job, worker):
                worker = self._worker("compile", gpu, helps=True)
        worker.close()

    def _seen(self) -> tuple[str | None, ...]:
        """What CUDA_VISIBLE_DEVICES is for processes, one after another; None leaves it as it is."""
        return self.gpus or ((taken(),) if self.device == "cuda" else (None,))

    def _worker(self, part: Part, gpu: str | None, helps: bool = False) -> Worker:
        imports = self.imports if part == "all" else ()
        env = worker_env(part, max(1, len(self.gpus))) | only_this(gpu)
        if part == "compile":
            env |= {claims.FOLDER: self._claims, claims.HELPS: "1" if helps else None}
        told = self._calm.told if part == "all" else None
        forks = self._forks if part == "compile" else None
        worker = Worker(env, known_environment(self.device), self.pipeline, imports, told, forks)
        with self._lock:
            self._workers.append(worker)
        if part != "all":
            self._calm.add(worker)
        return worker

    def _run_job(self, worker: Worker, job: Job) -> None:
        if self._stopped:
            return
        self.progress.running(job.case, job.part)
        try:
            row = self._attempts.run(worker, job.case, self.sweep, self.settings.with_part(job.part), self.limit_s)
        finally:
            if job.part == "all":
                self._calm.still(False)  # where the process died while it took samples
        if job.part == "all" and (before := self._prepared.pop(job.case.id, [])):
            took = sum(sum(one["seconds"].values()) for one in before)
            row = replace(row, spent=[*before, *(row.spent or ())], wall_s=row.wall_s + took)
        with self._lock:
            if not self._stopped:
                self._finish(row, job)

    def _finish(self, row: Row, job: Job) -> None:
        """Append the case's row once all its parts are in."""
        if len(self._parts(job.case)) > 1:
            half = self._halves.pop(row.case_id, None)
            if half is None:
                self._halves[row.case_id] = row
                return
            row = merge(half, row) if job.part == "compile" else merge(row, half)
        self._write(row)

    def _write(self, row: Row) -> None:
        self.out.append(row)
        self._outcome.statuses[row.status] += 1
        self.progress.finished(row)

    def _stop(self) -> None:
        """Kill the workers. The lock is not taken: a thread may hold it, and a row it writes meanwhile is valid."""
        self._stopped = True
        self._untimed.stop()
        self._calm.still(False)  # who waits for its end, ends
        if self._forks is not None:
            self._forks.stop()
        for worker in list(self._workers):
            worker.close()
        if self._forks is not None:
            self._forks.close()


def finished(
    path: Path,
    settings: Settings,
    limit_s: float,
    counts: Callable[[Row], bool] = lambda row: True,
    where: dict[str, Any] | None = None,
) -> dict[str, str]:
    """Cases of a file that need not run again, with their status: their last row on this device is of the same sources
    and versions as ``where`` (by default this machine's ``run_environment``), of the same settings, and what else
    ``counts`` wants of a row. An older one does not count, for reports and comparisons take the last.

    Any status counts as finished: a case that ran out of memory would do so again. One that took too long does unless
    ``limit_s``, in seconds, is more than it was given then. What the machine failed at has no fingerprint
    (``environment.tried_again``), and runs again.
    """
    if not path.exists():
        return {}
    here = run_environment(settings.device) if where is None else where
    threads = here.get("omp_num_threads")
    ours = (row for row in store.read(path) if row.environment.get("device_slug") == here["device_slug"])
    last = {row.case_id: row for row in ours if counts(row)}
    return {
        case_id: row.status
        for case_id, row in last.items()
        if row.environment.get("fingerprint") == here["fingerprint"] and still_holds(row, settings, limit_s, threads)
    }


def known_environment(device: Device) -> dict[str, Any]:
    """What is known of this machine without torch: for the rows of workers that died before they could say more."""
    return {
        "device": environment.device_name(device),
        "kind": device,
        "device_slug": environment.device_slug(device),
        "fingerprint": environment.fingerprint(),
    }


def run_environment(device: Device) -> dict[str, Any]:
    """``known_environment``, and the threads of what is timed on a CPU: what decides whether rows are finished."""
    threads = {"omp_num_threads": worker_env("all")["OMP_NUM_THREADS"]} if device == "cpu" else {}
    return known_environment(device) | threads
