"""How a sweep shows itself while it runs: a bar on a terminal, one plain line a case when piped."""

from __future__ import annotations

import statistics
import sys
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from glabench.spec.axes import AXES, later
from glabench.spec.case import Case
from glabench.spec.settings import Part
from glabench.spec.shape import named
from glabench.store import Row

COLOURS = {"ok": "green", "unsupported": "yellow", "oom": "yellow", "timeout": "yellow"}  # others: red
DOING = {"gate": "checking", "compile": "compiling", "all": "measuring"}


def describe(case: Case) -> str:
    """A case in one short line: ``gla C64/16 w/m  B1 T2048 H4 K128 V256 bf16 fwdbwd``."""
    parts = [case.system]
    if case.chunk is not None:
        parts.append(f"C{case.chunk}" if case.sub_chunk is None else f"C{case.chunk}/{case.sub_chunk}")
    if case.materialize is not None:
        parts.append("w/m" if case.materialize else "w/o m")
    parts.append(f" B{case.B} T{case.T}")
    parts.append(
        f"H{case.H} K{case.K} V{case.V}" if case.attn_heads is None else f"H{case.attn_heads} D{case.attn_dim}"
    )
    parts += [case.dtype, case.mode]
    if case.gate_strength not in (None, 1.0):
        parts.append(f"gate {case.gate_strength:g}")
    parts += [AXES[name].words(value) for name, value in later(vars(case)).items()]
    if case.initial_state:
        parts.append("state")
    return " ".join(parts)


def result(row: Row) -> str:
    """What a row came to, in a few words: its median time, what was checked, or why there is neither."""
    if row.status != "ok":
        return row.reason or ""
    if row.time and row.time.get("samples_ms"):
        return f"{statistics.median(row.time['samples_ms']):.4g} ms"
    said = []
    if row.accuracy and row.accuracy.get("passed"):
        said.append(f"matches float64{_at(row)}")
    if row.compiled:
        said.append(
            "compiles for " + ", ".join(sorted({entry["arch"] for entry in row.compiled if not entry["error"]}))
        )
    return "; ".join(said)


def _at(row: Row) -> str:
    """At which shape it was checked, where that is not the case's own."""
    shape = {axis: row.case[axis] for axis in "BTHKV"}
    checked = shape | ((row.accuracy or {}).get("shape") or {})
    return "" if checked == shape else f" at {named(checked)}"


class _Rate(ProgressColumn):
    """Cases a minute."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed * 60:.0f}/min", style="progress.data.speed")


class SweepProgress:
    """Tells of a sweep of ``total`` cases, ``done`` of which were finished earlier."""

    def __init__(self, total: int, done: int = 0, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, markup=False, file=sys.stdout)
        self.total, self.done = total, done
        self._bar: RichProgress | None = None
        self._task: Any = None
        self._measuring: dict[str, Case] = {}  # by id: one for each GPU
        if self.console.is_terminal:
            columns = (MofNCompleteColumn(), BarColumn(bar_width=20), _Rate(), TimeRemainingColumn(compact=True))
            doing = TextColumn("{task.description}", markup=False)
            self._bar = RichProgress(*columns, doing, console=self.console)
            self._task = self._bar.add_task("starting", total=total, completed=done)

    def __enter__(self) -> SweepProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def running(self, case: Case, part: Part) -> None:
        if part == "all":
            self._measuring[case.id] = case
        beside = len(self._measuring) - 1
        more = f" and {beside} more" if part == "all" and beside else ""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{DOING[part]} {describe(case)}{more}")

    def finished(self, row: Row) -> None:
        self.done += 1
        self._measuring.pop(row.case_id, None)
        count = f"[{self.done:>{len(str(self.total))}}/{self.total}]"
        line = Text(f"{count} ", no_wrap=True, overflow="ellipsis")
        line.append(f"{row.status:<11}", style=COLOURS.get(row.status, "red"))
        line.append(f" {describe(Case.from_dict(row.case))}  ")
        line.append(result(row), style="bold" if row.status == "ok" else "")
        if self._bar is not None:
            self._bar.console.print(line)
            self._bar.update(self._task, completed=self.done)
        else:  # as wide as it is: a pipe has no width
            print(line.plain, file=self.console.file, flush=True)
