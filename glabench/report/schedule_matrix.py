"""The matrix of schedules, as the page shows it: each beside the fastest of its mode and shape.

Modes go across, with states and without in each, and shapes and chunks down. Where sub-chunks vary apart from chunks,
they go across instead, and each mode has lines of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.matrix import MODES, place
from glabench.analysis.schedules import Schedules, Spot, schedules
from glabench.report import text
from glabench.report.matrix import Cell, Shown, shape, shown, tick, tip, untimed, value
from glabench.report.parts import conditions
from glabench.store import Row

STATES = {True: "with states", False: "without states", None: ""}
ORDER = [True, False, None]

Line = tuple[tuple[str, ...], str, tuple[tuple[Cell | None, int], ...]]  # words, more words, (a cell, how wide it is)


@dataclass(frozen=True)
class ScheduleGrid:
    device: str
    title: str
    corner: str
    across: tuple[tuple[str, tuple[str, ...]], ...]  # (a heading, those below it)
    bodies: tuple[tuple[str, tuple[Line, ...]], ...]
    note: str

    @property
    def marked(self) -> bool:
        """Whether some case gave no result."""
        return any(cell.failed for _, lines in self.bodies for *_, cells in lines for cell, _ in cells if cell)


def grids(rows: Sequence[Row], table: pd.DataFrame) -> list[ScheduleGrid]:
    """One a device whose rows are about schedules."""
    return [_grid(rows, found) for found in schedules(table)]


def _grid(rows: Sequence[Row], found: Schedules) -> ScheduleGrid:
    asked = [spot for spot in found.spots if spot.chunk]
    across = {group: sorted({_column(s, found)[1] for s in asked if _column(s, found)[0] == group})
              for group in sorted({_column(s, found)[0] for s in asked})}  # fmt: skip
    one_shape = len({place(spot.at) for spot in found.spots}) == 1
    one_size = len({(spot.chunk, spot.sub_chunk) for spot in asked}) == 1
    bodies: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Spot]]] = {}
    for spot in sorted(found.spots, key=lambda spot: _line(spot, found)):
        body, line = _line(spot, found)
        bodies.setdefault(body, {}).setdefault(line, []).append(spot)
    at = found.spots[0].at
    common = [" ".join(shape(at))] if one_shape else ["shape"]
    common += [conditions(at), *([labels.schedule(asked[0].at)] if one_size else [])]
    return ScheduleGrid(
        found.device, f"Schedules of {labels.system_title(found.system)}", ", ".join(common),
        tuple(_heads(group, columns, found.crossed) for group, columns in across.items()),
        tuple((_title(lines, found.crossed, one_shape),
               tuple((*_words(spots[0], found.crossed, one_shape, one_size), _cells(rows, spots, across, found))
                     for spots in lines.values())) for lines in bodies.values()),
        _note(found),
    )  # fmt: skip


def _column(spot: Spot, found: Schedules) -> tuple[int, int]:
    """Where a schedule stands across: in which group, in which column of it."""
    states, mode = ORDER.index(spot.states), MODES.index(spot.at["mode"])
    return (states, spot.sub_chunk) if found.crossed else (mode, states)


def _line(spot: Spot, found: Schedules) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Where it stands down: in which body, in which line of it. What a system chose itself goes last."""
    where, chunk = place(spot.at), (spot.chunk == 0, spot.chunk)
    return ((MODES.index(spot.at["mode"]), where), chunk) if found.crossed else ((), (where, *chunk, spot.sub_chunk))


def _heads(group: int, columns: Sequence[int], crossed: bool) -> tuple[str, tuple[str, ...]]:
    if crossed:
        return ", ".join(filter(None, [STATES[ORDER[group]], "sub-chunk"])), tuple(map(str, columns))
    return text.mode(MODES[group]), tuple(STATES[ORDER[column]] for column in columns)


def _title(lines: dict[Any, list[Spot]], crossed: bool, one_shape: bool) -> str:
    at = next(iter(lines.values()))[0].at
    words = [text.mode(at["mode"]), *([] if one_shape else shape(at))]
    return ", ".join(words) if crossed else ""


def _words(spot: Spot, crossed: bool, one_shape: bool, one_size: bool) -> tuple[tuple[str, ...], str]:
    """The heading of a line, and what stands below it."""
    sub = f"sub-chunk {spot.sub_chunk}" if spot.sub_chunk and not crossed else ""
    size = (f"chunk {spot.chunk}", sub) if spot.chunk else ("default", "its own choice")
    if one_shape or crossed:
        return (size[0],), size[1]
    return shape(spot.at), "" if one_size else ", ".join(filter(None, size))


def _cells(
    rows: Sequence[Row], spots: Sequence[Spot], across: dict[int, list[int]], found: Schedules
) -> tuple[tuple[Cell | None, int], ...]:
    """Those of a line. What the system chose itself is as wide as all that it chose from."""
    if not spots[0].chunk and found.crossed:
        return ((_cell(rows, spots[0], found), sum(map(len, across.values()))),)
    if not spots[0].chunk:
        chose = {_column(spot, found)[0]: spot for spot in spots}
        return tuple((_cell(rows, chose.get(group), found), len(columns)) for group, columns in across.items())
    here = {_column(spot, found): spot for spot in spots}
    places = [(group, column) for group, columns in across.items() for column in columns]
    return tuple((_cell(rows, here.get(where), found), 1) for where in places)


def _cell(rows: Sequence[Row], spot: Spot | None, found: Schedules) -> Cell | None:
    if spot is None:
        return None
    at, row = spot.at, rows[spot.at["row"]]
    if not spot.entry.timed:
        return untimed(row, spot.entry)
    checked, said = tick(row)
    ratio = shown(spot.entry, spot.base)
    ratio = Shown("1×", "first") if ratio.said == "itself" else ratio
    lead = ["", "fastest", "tied first"][min(spot.fastest, 2)] or ["", "best", "tied best"][min(spot.best, 2)]
    memory = f"{text.number(at['beyond_mib'])} MiB" if at["beyond_mib"] > 0 and not found.crossed else ""
    return Cell((ratio,), value(at), memory, checked=checked, lead=lead, tip=tip(at, said))


def _note(found: Schedules) -> str:
    memory = "" if found.crossed else " and its peak memory beyond the inputs"
    said = [f"Each cell: how many times as fast as the fastest schedule of its mode and shape, then its median{memory}"]
    if any(spot.best for spot in found.spots):
        said.append("best: of those with states or of those without" + (", at its chunk" if found.crossed else ""))
    if any(max(spot.fastest, spot.best) > 1 for spot in found.spots):
        said.append("tied: nearer to each other than noise parts two runs, or the intervals of the medians meet")
    return ". ".join(said) + "."
