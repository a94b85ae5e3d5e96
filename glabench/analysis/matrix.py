"""The answer as a matrix: questions down, systems across, and what each came to beside a baseline.

Of several schedules of a system the fastest stands in its cell; `analysis.schedules` has them all. Where a single
system reads gates, and ran with several kinds of them, the gates go across.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.columns import FLA, OURS, RIVALS, columns, gates_across, in_columns
from glabench.analysis.compare import QUESTION, aligned, competes, eager, records_by
from glabench.analysis.spread import Said, said
from glabench.spec.axes import BESIDE, FURTHER

MODES = ("fwdbwd", "train", "bwd", "fwd", "step")  # what does most comes first
FASTEST = "fastest"


@dataclass(frozen=True)
class Entry:
    """What a system came to at a question: ``line`` is a line of the frame, with its place in the rows as "row", the
    fastest of as many schedules as ``tried``, of which so many ``failed``."""

    line: Mapping[str, Any]
    tried: int = 1
    failed: int = 0

    @property
    def timed(self) -> bool:
        return bool(self.line["status"] == "ok" and not math.isnan(self.line["ms"]))

    @property
    def ms(self) -> float:
        """The median, infinite where there is none."""
        return float(self.line["ms"]) if self.timed else math.inf

    @property
    def competes(self) -> bool:
        """Whether it did all that was asked: see `compare.competes`."""
        return bool(self.line["competes"])


@dataclass(frozen=True)
class Line:
    """A question with what each column came to."""

    question: tuple[Any, ...]
    at: Mapping[str, Any]  # a line of the frame, for the words of the shape
    entries: Mapping[str, Entry]


@dataclass(frozen=True)
class View:
    """The lines of one mode, by the time of kernels or, ``eager``, of eager calls."""

    mode: str
    eager: bool
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Baseline:
    """What others are compared with: at a question the fastest entry of the first of ``columns`` that has a time there;
    without columns the fastest of all that do what was asked."""

    key: str
    title: str
    columns: tuple[str, ...] = ()

    def at(self, line: Line) -> Entry | None:
        """The entry that stands for it at a question; None where it has no time."""
        timed = {key: entry for key, entry in line.entries.items() if entry.timed and entry.competes}
        if not self.columns:
            return min(timed.values(), key=lambda entry: entry.ms, default=None)
        return next((timed[key] for key in self.columns if key in timed), None)


@dataclass(frozen=True)
class Matrix:
    """Of one device. The first of ``views`` and of ``baselines`` are those that are shown first."""

    device: str
    columns: tuple[tuple[str, str], ...]  # (key, title)
    views: tuple[View, ...]
    baselines: tuple[Baseline, ...]
    gates_across: tuple[str, ...] = ()  # the kinds of gates that the columns of the one system that has any are of


@dataclass(frozen=True)
class Beside:
    """How many times as fast as the baseline, its interval, and what that says; "itself" of the baseline."""

    ratio: float
    low: float
    high: float
    said: Said | str


def beside(entry: Entry, base: Entry | None) -> Beside | None:
    """None where either has no time."""
    if base is None or not (entry.timed and base.timed):
        return None
    if entry is base:
        return Beside(1.0, 1.0, 1.0, "itself")
    one, other = entry.line, base.line
    ratio, low, high = other["ms"] / one["ms"], other["ms_lo"] / one["ms_hi"], other["ms_hi"] / one["ms_lo"]
    return Beside(ratio, low, high, said(ratio, low, high, one["clock"]))


def leaders(line: Line) -> list[Entry]:
    """The fastest of a question and what ties with it; where only one system ran, nothing: schedules of one system do
    not compete with each other."""
    asked = [entry for entry in line.entries.values() if entry.timed and entry.competes]
    return first_and_ties(asked) if len({entry.line["system"] for entry in asked}) > 1 else []


def first_and_ties(entries: Sequence[Entry]) -> list[Entry]:
    """The fastest and what ties with it."""
    first, *rest = sorted(entries, key=lambda entry: entry.ms)
    apart = [(entry, beside(entry, first)) for entry in rest]
    return [first, *(entry for entry, found in apart if found and found.said in ("tie", "unsure"))]


def matrices(table: pd.DataFrame) -> list[Matrix]:
    """A matrix a device, GPUs first, from the table of ``frame``."""
    names = dict.fromkeys(table.sort_values("kind", ascending=False, kind="stable")["device"])
    return [_matrix(str(name), table[table["device"] == name]) for name in names]


def _matrix(device: str, table: pd.DataFrame) -> Matrix:
    gates = gates_across(table)
    whole = aligned(table.assign(row=table.index))
    whole = in_columns(whole.assign(competes=competes(whole)), gates)
    titled = columns(whole, gates)
    views = [View(mode, False, _lines(whole[whole["mode"] == mode])) for mode in _modes(whole)]
    called = eager(whole)
    views += [View(mode, True, _lines(called[called["mode"] == mode])) for mode in _modes(called)]
    return Matrix(device, titled, tuple(views), _baselines(titled, views, gates), gates)


def _modes(table: pd.DataFrame) -> list[str]:
    present = set(table["mode"])
    return [*(mode for mode in MODES if mode in present), *sorted(present - set(MODES))]


def _lines(table: pd.DataFrame) -> tuple[Line, ...]:
    asked = [name for name in QUESTION if name not in ("device", "mode")]
    lines = (Line(key, records[0], _entries(records)) for key, records in records_by(table, asked))
    return tuple(sorted(lines, key=lambda one: place(one.at)))


def _entries(records: Sequence[Mapping[Any, Any]]) -> dict[str, Entry]:
    """Of several rows of a column the fastest; else one that was only checked, else one that failed."""
    tried = Counter(record["column"] for record in records)
    found: dict[str, Entry] = {}
    failed = Counter(record["column"] for record in records if record["status"] != "ok")
    entries = [Entry(record, tried[record["column"]], failed[record["column"]]) for record in records]
    for entry in sorted(entries, key=lambda e: (not e.timed, e.ms, e.line["status"] != "ok")):
        found.setdefault(entry.line["column"], entry)
    return found


def place(at: Mapping[str, Any]) -> tuple[Any, ...]:
    """Shapes of one width stand together, narrow heads first and last those that share keys, by length, and then by
    gates; decoding steps by batch, which makes the state."""
    gate = (labels.strength(at["gate"]), at["gate"])
    length = (at["B"], at["T"]) if at["mode"] == "step" else (at["T"], at["B"])
    beside, further = ([at[name] for name in names] for names in (BESIDE, FURTHER))
    return (at["training"], at["H"] * at["V"], *beside, at["K"], at["V"], at["H"], at["dtype"],
            bool(at["initial_state"]), *length, gate, *further)  # fmt: skip


def _baselines(titled: Sequence[tuple[str, str]], views: Sequence[View], gates: Sequence[str]) -> tuple[Baseline, ...]:
    """Those that have a time beside which another stands; the fastest of a question goes last, and first where there is
    no rival."""
    titles = dict(titled)
    fastest = Baseline(FASTEST, "the fastest")
    if gates:
        return (*(Baseline(key, title, (key,)) for key, title in titled), fastest)
    fla = tuple(key for key in FLA if key in titles)
    rivals = [Baseline("fla", titles[fla[0]] if len(fla) == 1 else "FLA", fla)] if fla else []
    rivals += [Baseline(key, titles[key], (key,)) for key in RIVALS if key in titles]
    ours = [Baseline(key, titles[key], (key,)) for key in OURS if key in titles]
    known = {key for one in (*rivals, *ours) for key in one.columns}
    others = [Baseline(key, titles[key], (key,)) for key in titles if key not in known and not key.startswith("gla:")]
    rivals, others = (rivals, others) if rivals else (others, [])
    offered = [one for one in (*rivals, *ours, *others) if _stands_beside(one, views)]
    return (*offered, fastest) if any(one in rivals for one in offered) else (fastest, *offered)


def _stands_beside(one: Baseline, views: Sequence[View]) -> bool:
    """Whether some entry can be compared with the baseline."""
    lines = [(line, one.at(line)) for view in views for line in view.lines]
    return any(entry.timed and entry is not base for line, base in lines if base for entry in line.entries.values())
