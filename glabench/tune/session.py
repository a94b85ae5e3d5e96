"""A run of ``glabench tune``: processes started once, shapes tuned one after another, records written as they come and
winners kept where gla() finds them.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from gla_kernels import Choice, Entry, Machine, Plan, TableError, Workload, chosen, keep
from gla_kernels.plan.table import header_of
from glabench import tuning_store
from glabench.analysis.load import load_tunings
from glabench.errors import UserError
from glabench.hardware import nvml
from glabench.lines import TUNING_START, Lines
from glabench.run.child import Child, ChildDied
from glabench.run.gpus import only_this
from glabench.run.processes import cores
from glabench.systems.gla import schedule_name
from glabench.tune.compiler import CompilePool
from glabench.tune.gpu import Gpu
from glabench.tune.search import Search
from glabench.tune.tuner import FINALS_S, Tuner
from glabench.tuning_store import Tuning

SAY_EVERY_S = 15.0  # where no bar can be drawn
WORKER = "glabench.tune.worker"


def seconds(text: str) -> float:
    """ "90s", "2m" or "1.5h" as seconds; UserError for anything else, and for what leaves no time to search."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if found is None or float(found[1]) <= 0:
        raise UserError(f"--budget {text}: expected a time > 0 such as 90s, 2m or 1h")
    given = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]
    if given <= FINALS_S:
        raise UserError(f"--budget {text}: expected more than the {FINALS_S:g} s kept for comparing the best plans")
    return given


def this_arch() -> str:
    """The architecture of this machine's GPU, "sm_90", without importing torch."""
    info = nvml.gpu_info()
    if info is None or not any(info.capability):
        raise UserError("NVML does not answer, so the GPU's architecture is unknown; `glabench doctor` says more")
    major, minor = info.capability
    return f"sm_{major}{minor}"


class Session:
    """Tunes shapes.

    out: file that records are appended to, if any. quiet: no sign of life but a line a tuning. arch, env: the GPU's
    architecture, and what makes it the one that the processes see, where it is another than this machine's first. keep:
    whether winners go into this GPU's own table. gpus: what CUDA_VISIBLE_DEVICES is for each of several GPUs of one
    model, in place of ``env``: `run_all` shares shapes among them, the first GPU's by this process and each other's by
    one of its own. What they keep counts from the next session on. jobs: processes that compile for each GPU.
    """

    def __init__(
        self, strategy: str, budget_s: float | None = None, out: Path | None = None,
        console: Console | None = None, quiet: bool = False, arch: str | None = None,
        env: Mapping[str, str | None] | None = None, keep: bool = True, gpus: Sequence[str] = (),
        jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.console = console or Console(highlight=False, markup=False)
        self.strategy, self.budget_s, self.out, self.quiet, self.keep = strategy, budget_s, out, quiet, keep
        self._lines = None if out is None else Lines(out, starts=TUNING_START)
        self._settling = threading.Lock()
        arch = arch or this_arch()
        self._capability = int(arch.removeprefix("sm_"))
        self._jobs = jobs or max(1, cores() // max(1, len(gpus)) - 1)
        env = only_this(gpus[0]) if gpus else env
        self._gpu, self._pool = Gpu(env=env), CompilePool(arch, jobs=self._jobs, env=env)
        self._others = [Child(WORKER, only_this(gpu)) for gpu in gpus[1:]]
        self._gpu.start()
        for child in self._others:
            child.start()
        self._tuner = Tuner(
            self._gpu,
            self._pool,
            strategy,
            incumbent=self._incumbent,
            environment=lambda: self._environment,
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for child in self._others:
            child.close()
        self._gpu.close()
        self._pool.close()
        if self._lines is not None:
            self._lines.close()

    def left(self, groups: Sequence[Sequence[Workload]]) -> list[Sequence[Workload]]:
        """The shapes that are not in the records yet, each workload decided (`Tuning.decided`), by this strategy, these
        kernels and this GPU. UserError when the records cannot be read."""
        if self.out is None or not self.out.stat().st_size:
            return list(groups)
        header = asdict(header_of(self.machine))
        found = [one for one in load_tunings([self.out]) if one.header == header and one.strategy == self.strategy]
        done = {Workload.from_dict(one.workload) for one in found if one.decided}
        return [works for works in groups if not done.issuperset(works)]

    def run_all(self, groups: Sequence[Sequence[Workload]]) -> int:
        """Tune one shape after another, on each GPU; how many have a workload that was not decided (`Tuning.decided`).

        UserError as `run`, and when what tunes on another GPU died: what it had done is kept.
        """
        left = deque(groups)
        with ThreadPoolExecutor(max(1, len(self._others)), thread_name_prefix="elsewhere") as threads:
            elsewhere = [threads.submit(self._run_elsewhere, child, left) for child in self._others]
            try:
                failed = sum(not self.run(works, ahead) for works, ahead in _in_turn(left))
                return failed + sum(each.result() for each in elsewhere)
            except BaseException:
                left.clear()
                for child in self._others:
                    child.close()
                raise

    def run(self, works: Sequence[Workload], following: Sequence[Workload] = ()) -> bool:
        """Tune the workloads of one shape, those that follow it in mind; whether each was decided (`Tuning.decided`).
        UserError when the processes are of a GPU that nothing was compiled for."""
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} measured"))
        drawn = self.console.is_terminal and not self.quiet
        with Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True, disable=not drawn) as bar:
            task, said = bar.add_task(describe(works[0]), total=None), time.monotonic()

            def trial(search: Search) -> None:
                nonlocal said
                bar.advance(task)
                if not self.quiet and not self.console.is_terminal and time.monotonic() - said > SAY_EVERY_S:
                    said = time.monotonic()
                    self.console.print(f"{describe(works[0])}: {bar.tasks[0].completed:.0f} tried", soft_wrap=True)

            self._tuner.progress = trial
            tunings = self.tune(works, following)
        return self._settle(tunings)

    def tune(self, works: Sequence[Workload], following: Sequence[Workload] = ()) -> list[Tuning]:
        """What `run` does, but that nothing is written, said or kept: the records."""
        tunings = self._tuner.tune(works, self.budget_s, following)
        header = asdict(header_of(self.machine))
        return [replace(one, header=header) for one in tunings]

    def _run_elsewhere(self, child: Child, left: deque[Sequence[Workload]]) -> int:
        """`run_all`, of the shapes that come to the GPU of this child."""
        failed = 0
        shared = {"strategy": self.strategy, "budget_s": self.budget_s, "jobs": self._jobs}
        for works, following in _in_turn(left):
            asked = {"works": [work.to_dict() for work in works], "following": [work.to_dict() for work in following]}
            try:
                answer = child.ask(shared | asked, limit_s=float("inf"))  # what is measured there has its limits
            except ChildDied as death:
                raise UserError(f"{describe(works[0])}: {death.reason}") from None
            if answer["error"] is not None:
                raise UserError(answer["error"])
            failed += not self._settle([tuning_store.from_json(line) for line in answer["tunings"]])
        return failed

    def _settle(self, tunings: Sequence[Tuning]) -> bool:
        """Write, say and keep what tunings of one shape came to; whether each was decided."""
        with self._settling:
            for tuning in tunings:
                if self._lines is not None:
                    self._lines.write(tuning_store.to_json(tuning))
                self.console.print(summary(tuning), soft_wrap=True)
            if self.keep:
                self._keep(tunings)
        return all(tuning.decided for tuning in tunings)

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return self._gpu.environment()

    @cached_property
    def machine(self) -> Machine:
        """The GPU as tables know it. UserError when the measuring process cannot say, or has another than what is
        compiled for."""
        facts = self._environment
        if not facts:
            raise UserError("the measuring process does not start; `glabench doctor` says what is missing")
        capability = int(facts["capability"].replace(".", ""))
        if capability != self._capability:
            raise UserError(
                f"CUDA begins with {facts['device']} (sm_{capability}) and NVML with a GPU of sm_{self._capability}: "
                "set CUDA_VISIBLE_DEVICES to the UUID of the one to tune (nvidia-smi -L)"
            )
        return Machine(capability, facts["device"], facts["memory_bytes"])

    def _incumbent(self, work: Workload) -> Choice:
        return chosen(work, self.machine)

    def _keep(self, tunings: Sequence[Tuning]) -> None:
        entries = [entry_of(tuning) for tuning in tunings if tuning.decided]
        if not entries:
            return  # a table of nothing would be another fingerprint, by which finished cases run again
        try:
            keep(entries, self.machine)
        except TableError as error:
            raise UserError(str(error)) from None


def _in_turn(left: deque[Sequence[Workload]]) -> Iterator[tuple[Sequence[Workload], Sequence[Workload]]]:
    """Take a shape, and the one that the same GPU tunes next, until none is left."""
    works = _taken(left)
    while works:
        following = _taken(left)
        yield works, following
        works = following


def _taken(left: deque[Sequence[Workload]]) -> Sequence[Workload]:
    try:
        return left.popleft()
    except IndexError:
        return ()


def entry_of(tuning: Tuning) -> Entry:
    """A tuning's winner as a table keeps it."""
    assert tuning.winner is not None
    won = tuning.finalists[tuning.winner]
    return Entry(Workload.from_dict(tuning.workload), Plan.from_dict(won.plan), round(median(won.samples_ms), 5))


def describe(work: Workload) -> str:
    """The shape in a few words."""
    asked = "" if work.schedule is None else f", {schedule_name(work.schedule)}"
    gates = "" if work.gated else ", no gate"
    gates = f", gates in {work.gate_dtype}" if work.gate_dtype else gates
    return f"B={work.B} T={work.T} H={work.H} K={work.K} V={work.V} {work.dtype}{gates}{asked}"


def summary(tuning: Tuning) -> str:
    """One line: what won, against what was used before, and what it took to find: candidates that failed as well."""
    work = Workload.from_dict(tuning.workload)
    lost = "".join(f", {count} {status}" for status, count in tuning.failed.most_common())
    effort = f"{tuning.measured} of {tuning.feasible} measured{lost}, {tuning.wall_s:.0f} s"
    if tuning.winner is None:
        return f"{describe(work)} {work.direction}: no plan runs and is right ({effort}; {tuning.stopped})"
    if not tuning.decided:
        return f"{describe(work)} {work.direction}: not tuned, no whole plan was found ({effort}; {tuning.stopped})"
    won = tuning.finalists[tuning.winner]
    plan, ms = Plan.from_dict(won.plan), median(won.samples_ms)
    before = next((one for one in tuning.finalists if one.role == "incumbent" and one.samples_ms), None)
    against = "" if before is None else f", {median(before.samples_ms) / ms:.2f}x as fast as before ({before.origin})"
    chosen_ = f"{schedule_name(plan.schedule)}, rows of {plan.config.block_t}"
    return f"{describe(work)} {work.direction}: {ms:.3f} ms, {chosen_}{against} ({effort})"
