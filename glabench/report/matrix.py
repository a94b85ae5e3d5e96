"""The matrix of the first screen, as the page shows it: a cell's words, its colour, and what it tells on hover."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import pandas as pd

from glabench.analysis import labels, matrix
from glabench.analysis.matrix import Entry, Matrix, View
from glabench.report import text
from glabench.report.parts import conditions, implementation, interval
from glabench.store import Row

FULL = 3.0  # log2 of the ratio from which on a cell has its full colour
FAINT, STRONG = 0.10, 0.50  # of the colour, least and most
WORDS = {"tie": "tie", "itself": "baseline", "kept": "kept", "unsure": "one sample", "less": "does less"}
FAILED = "✗"  # of several schedules
MARKS = {"wrong": "✗ wrong", "compile_error": "✗ not compiled", "oom": "✗ out of memory", "timeout": "✗ timed out",
         "crashed": "✗ crashed", "unsupported": "– cannot run"}  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A cell beside one baseline: "2.63×", what that says (faster, slower, or one of WORDS), how much of a colour it
    gets, and the ratio's interval, "2.60 to 2.66"."""

    ratio: str
    said: str
    heat: float = 0.0
    span: str = ""

    @property
    def word(self) -> str:
        """What stands beside the ratio where its colour alone says nothing."""
        return WORDS.get(self.said, "")


@dataclass(frozen=True)
class Cell:
    """``value`` is the time or rate under the ratio; ``mark`` stands instead of both where there is no time."""

    by: tuple[Shown, ...]  # a baseline each
    value: str = ""
    floor: str = ""
    heads: str = ""  # of attention that has others than its question
    checked: str = ""  # "✓", with the shape where that is another: "✓ at B1 T165 H2 K64 V64"
    mark: str = ""
    lead: str = ""  # "fastest", or "tied first"
    failed: bool = False
    tip: str = ""
    schedule: str = ""  # where a column has several: "C64/16, best of 5"

    @property
    def first(self) -> Shown:
        return self.by[0]

    @property
    def data(self) -> str:
        """What script shows beside each baseline, none of it a row's words: "2.63×;faster;;0.41;2.60 to 2.66|..."."""
        return "|".join(f"{s.ratio};{s.said};{s.word};{s.heat:.2f};{s.span}" for s in self.by)


@dataclass(frozen=True)
class Body:
    """The lines of a view: (the words of a shape, what else is held, cells)."""

    title: str
    rows: tuple[tuple[tuple[str, ...], str, tuple[Cell | None, ...]], ...]


@dataclass(frozen=True)
class Grid:
    """``schedules``: of each column the one that all its cells have, "" where cells say theirs or there is none."""

    device: str
    corner: str  # the heading of the shapes, with what holds of all
    columns: tuple[str, ...]
    baselines: tuple[tuple[str, str], ...]  # (key, title)
    bodies: tuple[Body, ...]
    note: str
    schedules: tuple[str, ...] = ()

    @property
    def marked(self) -> bool:
        """Whether some case gave no result."""
        cells = [cell for body in self.bodies for _, _, found in body.rows for cell in found if cell]
        return any(cell.failed or FAILED in cell.schedule for cell in cells)


def grids(rows: Sequence[Row], table: pd.DataFrame) -> list[Grid]:
    """A matrix a device, ready for the page."""
    return [_grid(rows, found) for found in matrix.matrices(table)]


def _grid(rows: Sequence[Row], found: Matrix) -> Grid:
    lines = [line for view in found.views for line in view.lines]
    common = shared({conditions(line.at) for line in lines})
    entries = {key: [line.entries[key] for line in lines if key in line.entries] for key, _ in found.columns}
    asked = {key: {labels.schedule(entry.line) for entry in column} for key, column in entries.items()}
    several = {key for key in asked if len(asked[key]) > 1 or any(entry.tried > 1 for entry in entries[key])}
    bodies = tuple(_body(rows, found, view, len(common), several) for view in found.views)
    baselines = tuple((one.key, one.title) for one in found.baselines)
    titles = tuple(title for _, title in found.columns)
    schedules = tuple("" if key in several else "".join(asked[key]) for key, _ in found.columns)
    return Grid(found.device, ", ".join(["shape", *common]), titles, baselines, bodies, note(bodies), schedules)


def shared(held: set[str]) -> list[str]:
    """What all of several conditions begin with: "bf16" of "bf16" and "bf16, no gates"."""
    parts = [words.split(", ") for words in held]
    same = zip(*parts, strict=False)
    return [found[0] for found in takewhile(lambda found: len(set(found)) == 1, same)]


def _body(rows: Sequence[Row], found: Matrix, view: View, common: int, several: Collection[str]) -> Body:
    calls = ", eager calls" if view.eager else ""
    lines = []
    for line in view.lines:
        bases = [one.at(line) for one in found.baselines]
        first = [] if found.gates_across else matrix.leaders(line)  # other gates are other work
        entries = [(key, line.entries.get(key)) for key, _ in found.columns]
        cells = tuple(_cell(rows[one.line["row"]], one, bases, first, key in several) if one else None
                      for key, one in entries)  # fmt: skip
        lines.append((shape(line.at), ", ".join(conditions(line.at).split(", ")[common:]), cells))
    return Body(f"{text.mode(view.mode)}{calls}", tuple(lines))


def shape(at: Mapping[str, Any]) -> tuple[str, ...]:
    """A shape in two parts, "B4 T2k" and "H16 128", and what is said of it besides."""
    batch, length, *heads = text.plain(at).split()
    return (f"{batch} {length}", " ".join(heads), *filter(None, [text.further(at).strip()]))


def _cell(row: Row, entry: Entry, bases: Sequence[Entry | None], first: Sequence[Entry], several: bool) -> Cell:
    if not entry.timed:
        return untimed(row, entry, len(bases))
    at, (checked, said) = entry.line, tick(row)
    alone = len({one.line["system"] for one in first}) == 1
    lead = "" if entry not in first else "fastest" if alone else "tied first"
    by = tuple(shown(entry, base) for base in bases)
    over = text.times(at["over_floor"]) if at["over_floor"] > 0 and at["family"] != "attention" else ""
    heads = labels.title(at["variant"]).partition(", ")[2] if at["family"] == "attention" else ""
    words = [labels.schedule(at), f"best of {entry.tried}" if entry.tried > 1 else ""]
    words += [f"{entry.failed} {FAILED}"] if entry.failed else []
    schedule = ", ".join(filter(None, words)) if several else ""
    return Cell(by, value(at), f"{over} floor" if over else "", heads, checked, lead=lead, tip=tip(at, said),
                schedule=schedule)  # fmt: skip


def untimed(row: Row, entry: Entry, baselines: int = 1) -> Cell:
    """The cell of what was checked alone, or failed."""
    at, (checked, said) = entry.line, tick(row)
    failed = at["status"] != "ok"
    mark = MARKS.get(at["status"], f"✗ {at['status']}") if failed else "not timed"
    words = "\n".join(filter(None, (at["label"], at["reason"] if failed else said)))
    nothing = (Shown("", ""),) * baselines
    return Cell(nothing, checked="" if failed else checked, mark=mark, failed=failed, tip=words)


def value(at: Mapping[str, Any]) -> str:
    """Of training steps tokens a second, else the median time."""
    return f"{text.rate(at['tokens_per_s'])} tok/s" if at["mode"] == "train" else text.duration(at["ms"])


def tip(at: Mapping[str, Any], checked: str) -> str:
    """The schedule, the shape, the time with its interval, what follows from it, and what was checked."""
    facts = [f"{text.rate(at['tokens_per_s'])} tokens/s"]
    if at["beyond_mib"] > 0:
        facts.append(f"{text.number(at['beyond_mib'])} MiB beyond inputs")
    if at["lengths"]:
        facts.append(f"padded to the longest {at['padding']:.0%} would be padding")
    where = f"{text.shape(at)}, {conditions(at)}, {text.mode(at['mode'])}"
    time = f"{text.number(at['ms'])} ms{interval(at)}"
    less = () if at["competes"] else ("It does less than is asked here.",)
    return "\n".join([at["label"], where, time, ", ".join(facts), *filter(None, [checked]), *less, *implementation(at)])


def shown(entry: Entry, base: Entry | None) -> Shown:
    found = matrix.beside(entry, base)
    if found is None:
        return Shown("–", "")
    if found.said == "itself":
        return Shown("1×", "itself")
    said = found.said if entry.competes else "less"
    span = "" if math.isnan(found.low) else f"{text.number(found.low)} to {text.number(found.high)}"
    return Shown(text.times(found.ratio), said, heat(said, found.ratio), span)


def heat(said: str, ratio: float) -> float:
    """How much of the colour a ratio gets; none where it is no news."""
    if said not in ("faster", "slower"):
        return 0.0
    return FAINT + (STRONG - FAINT) * min(1.0, abs(math.log2(ratio)) / FULL)


def tick(row: Row) -> tuple[str, str]:
    """The tick and the words of what a row was checked against; empty where it was not, or did not pass."""
    accuracy = row.accuracy or {}
    if not accuracy.get("passed"):
        return "", ""
    at = accuracy.get("shape") or {}
    named = " ".join(f"{axis}{at[axis]}" for axis in "BTHKV" if axis in at)
    own = all(at.get(axis) == row.case[axis] for axis in "BTHKV")
    what = accuracy.get("reference") or "the float64 reference"
    where = named or "a shape that was not recorded"
    return "✓" if own else f"✓ at {where}", f"matches {what}, checked at {where}"


def note(bodies: Sequence[Body]) -> str:
    """What the signs mean that the matrix has."""
    cells = [cell for body in bodies for _, _, row in body.rows for cell in row if cell]
    value = "tokens a second" if all(cell.value.endswith("tok/s") for cell in cells if cell.value) else "median"
    said = [f"Each cell: how many times as fast as the baseline at the same question, then its {value}"]
    if any(cell.floor for cell in cells):
        said[0] += " and how many times as long that is as moving inputs and outputs alone"
    ticks = {cell.checked for cell in cells if cell.checked}
    if "✓" in ticks:
        said.append("✓ matches float64, checked at the row's own shape")
    if len(ticks) > ("✓" in ticks):
        said.append("✓ at B T H K V: checked at that shape")
    if any("best of" in cell.schedule for cell in cells):
        said.append("best of: the fastest of so many schedules, of which those with ✗ gave no result")
    if any(one.said == "tie" for cell in cells for one in cell.by):
        said.append("tie: nearer to 1 than noise parts two runs, or the intervals of the medians meet")
    if any(one.said == "less" for cell in cells for one in cell.by):
        said.append("does less: no gates, or one decay a head, where gates are asked for")
    return ". ".join(said) + "."
