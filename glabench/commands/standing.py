"""The table that ends `glabench sweep` and `glabench compare`: a heading a question, a line a system, the fastest
first; or the same for machines, a JSON object a line."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glabench import store
from glabench.analysis import labels
from glabench.analysis.load import latest
from glabench.analysis.standings import Line, Over, Standing, baselines, standings
from glabench.commands import machines
from glabench.report import text
from glabench.spec.shape import named
from glabench.store import Row

MOST_LINES = 80  # on a terminal; the report has the rest
REASON = 160  # characters of a reason


def rows_of(path: Path, ids: Collection[str], device_slug: str) -> list[Row]:
    """The rows of these cases that count, of this device. What is wrong with a line was said when it was opened."""
    found = store.read(path, lambda message: None)
    return latest(
        row for row in found if row.case_id in ids and row.environment.get("device_slug", device_slug) == device_slug
    )


def print_table(console: Console, rows: Sequence[Row], against: Sequence[str] = ()) -> None:
    """The table; against: baselines, and where none is named the usual one. Nothing where there are no rows."""
    bases = tuple(against) or baselines(rows)
    found = standings(rows, bases)
    if not found:
        return
    shown, lines = list[Standing](), 0
    for standing in found:
        lines += len(standing.lines)
        if shown and lines > MOST_LINES:
            break
        shown.append(standing)
    console.print()
    console.print(_table(shown, bases))
    for note in (*_notes(shown), _legend(shown, bases)):
        console.print(note, soft_wrap=True)
    if left := len(found) - len(shown):
        console.print(f"and {text.count(left, 'more question')}, in the report", soft_wrap=True)
    console.print()


def _table(shown: Sequence[Standing], bases: Sequence[str]) -> Table:
    """Columns that no line fills are left out."""
    lines = [line for standing in shown for line in standing.lines]
    columns = [column for column in _columns(shown, bases) if column == "" or any(_cell(x, column) for x in lines)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        words = column in ("", RIGHT)
        table.add_column(column, justify="left" if words else "right", no_wrap=not words)
    for standing in shown:
        table.add_row(Text(_heading(standing), style="bold"))
        for line in standing.lines:
            bad = line.status == "wrong" or line.right is False
            table.add_row(*(Text(_cell(line, name), style="red" if bad else "") for name in columns))
    return table


RIGHT = "right"
MS, EAGER, FLOOR, PEAK, KEPT = "ms", "ms, eager", "× floor", "MiB, peak", "MiB, kept"


def _columns(shown: Sequence[Standing], bases: Sequence[str]) -> list[str]:
    return ["", MS, EAGER, *(f"× {base}" for base in bases), FLOOR, PEAK, KEPT, RIGHT]


def _heading(standing: Standing) -> str:
    at = standing.question
    gates = "".join(f", {words}" for words in labels.gating(at["gate"]))
    state = ", from a state" if at["initial_state"] else ""
    where = f"{named(at)}{text.further(at)} {at['dtype']}, {text.mode(at['mode'])}"
    return f"{where}{gates}{state}{', ' + at['training'] if at['training'] else ''}"


def _cell(line: Line, column: str) -> str:
    """What a column says of a line; "" for nothing."""
    if column == "":
        return f"  {line.label}{f', best of {line.tried}' if line.tried > 1 else ''}"
    if column == RIGHT:
        return _right(line)
    if column.startswith("× ") and column != FLOOR:
        return _times(line.over.get(column.removeprefix("× ")))
    values = {MS: line.kernels_ms, EAGER: line.eager_ms, FLOOR: line.over_floor, PEAK: line.peak_mib,
              KEPT: line.kept_mib}  # fmt: skip
    if column == MS and line.status == "ok" and math.isnan(line.kernels_ms):
        return "not timed"
    return "" if math.isnan(values[column]) else text.number(values[column])


def _times(over: Over | None) -> str:
    """A ratio, with a sign where the samples do not say which of the two is faster."""
    if over is None:
        return ""
    unclear = "~" if over.verdict == "ambiguous" and over.times != 1 else ""
    return f"{unclear}{text.times(over.times)}"


def _right(line: Line) -> str:
    """Whether it computes what it should, by comparison with float64 at which shape; and how it ended, where not ok."""
    where = "" if line.checked is None else f", at {named(line.checked)}"
    gate = {True: f"yes{where}", False: f"no{where}", None: ""}[line.right]
    ended = "" if line.status in ("ok", "wrong") else labels.STATUS_TITLES[line.status]
    return "; ".join(filter(None, (gate, ended)))


def _notes(shown: Sequence[Standing]) -> Iterable[str]:
    """Why there is no time, in one line for all that share a reason."""
    by_reason: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in (line for standing in shown for line in standing.lines if line.status != "ok"):
        names = by_reason[line.status, line.reason or ""]
        if line.label not in names:
            names.append(line.label)
    for (status, reason), names in by_reason.items():
        short = reason if len(reason) <= REASON else f"{reason[: REASON - 3]}..."
        yield f"{', '.join(names)}: {labels.STATUS_TITLES[status]}{': ' + short if short else ''}"


def _legend(shown: Sequence[Standing], bases: Sequence[str]) -> str:
    """What the columns are of."""
    clocks = {text.timed(standing.clock) for standing in shown if standing.clock}
    said = [f"ms: medians of {' and '.join(sorted(clocks))}"] if clocks else []
    if bases:
        named_columns = ", ".join(f"× {base}" for base in bases)
        said.append(f"{named_columns}: how many times as fast, ~ where the samples do not tell")
    if any(_cell(line, FLOOR) for standing in shown for line in standing.lines):
        said += ["× floor: times as long as to move inputs and outputs once"]
    return "; ".join([*said, "right: compared with float64"])


def json_lines(rows: Sequence[Row], against: Sequence[str] = ()) -> Iterable[str]:
    """A JSON object for each line of the table, with what its question is. A number that there is none of is null."""
    bases = tuple(against) or baselines(rows)
    for standing in standings(rows, bases):
        for line in standing.lines:
            values = {**standing.question, "clock": standing.clock, **asdict(line)}
            yield machines.line(values)
