"""A run of ``glabench tune``: processes started once, shapes tuned one after another, records written as they come."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gla_kernels import Workload
from glabench.errors import UserError
from glabench.hardware import nvml
from glabench.store import Lines
from glabench.tune import record
from glabench.tune.compiler import CompilePool
from glabench.tune.gpu import Gpu
from glabench.tune.record import Tuning
from glabench.tune.search import Search
from glabench.tune.tuner import Tuner


def seconds(text: str) -> float:
    """ "90s", "2m" or "1.5h" as seconds; UserError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if found is None or float(found[1]) <= 0:
        raise UserError(f"--budget {text}: expected a time > 0 such as 90s, 2m or 1h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def this_arch() -> str:
    """The architecture of this machine's GPU, "sm_90", without importing torch."""
    info = nvml.gpu_info()
    if info is None:
        raise UserError("NVML does not answer, so the GPU's architecture is unknown; `glabench doctor` says more")
    major, minor = info.capability
    return f"sm_{major}{minor}"


class Session:
    """Tunes shapes and appends their records to ``out``."""

    def __init__(self, out: Path, strategy: str, budget_s: float | None, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, markup=False)
        self.budget_s = budget_s
        self._lines = Lines(out)
        arch = this_arch()
        self._gpu, self._pool = Gpu(), CompilePool(arch)
        self._gpu.start()
        self._tuner = Tuner(self._gpu, self._pool, int(arch.removeprefix("sm_")), strategy, progress=self._trial)
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._gpu.close()
        self._pool.close()
        self._lines.close()

    def run(self, works: Sequence[Workload]) -> bool:
        """Tune the workloads of one shape; whether each has a winner."""
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} measured"))
        with Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True) as progress:
            self._bar = (progress, progress.add_task(describe(works[0]), total=None))
            tunings = self._tuner.tune(works, self.budget_s)
        for tuning in tunings:
            self._lines.write(record.to_json(tuning))
            self.console.print(summary(tuning), soft_wrap=True)
        return all(tuning.winner is not None for tuning in tunings)

    def _trial(self, search: Search) -> None:
        if self._bar is not None:
            progress, task = self._bar
            progress.advance(task)


def describe(work: Workload) -> str:
    """The shape in a few words."""
    asked = "" if work.schedule is None else f", chunk {work.schedule.chunk}/{work.schedule.rows}"
    if work.schedule is not None:
        asked += " w/ m." if work.schedule.materialize else " w/o m."
    gates = "" if work.gated else ", no gate"
    return f"B={work.B} T={work.T} H={work.H} K={work.K} V={work.V} {work.dtype}{gates}{asked}"


def summary(tuning: Tuning) -> str:
    """One line: what won, and what it took."""
    work = Workload.from_dict(tuning.workload)
    effort = f"{tuning.measured} of {tuning.feasible} measured, {tuning.wall_s:.0f} s"
    if tuning.winner is None:
        return f"{describe(work)} {work.direction}: no plan runs and is right ({effort}; {tuning.stopped})"
    won = tuning.finalists[tuning.winner]
    schedule = won.plan["schedule"]
    kind = "w/ m." if schedule["materialize"] else "w/o m."
    chosen = f"chunk {schedule['chunk']}/{schedule['sub_chunk']} {kind}, rows of {won.plan['block_t']}"
    return f"{describe(work)} {work.direction}: {median(won.samples_ms):.3f} ms, {chosen} ({effort})"
