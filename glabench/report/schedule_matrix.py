"""The matrix of schedules, as the page shows it: each beside the fastest of its mode and shape.

Modes go across, with states and without in each, and shapes and chunks down. Where sub-chunks vary apart from chunks,
they go across instead, and each mode has lines of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.matrix import MODES, place
from glabench.analysis.schedules import Schedules, Spot, schedules
from glabench.report import text
from glabench.report.matrix import Cell, Shown, shape, shared, shown, tick, tip, untimed, value
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
    layout = _Layout.of(found)
    bodies: dict[Any, dict[Any, list[Spot]]] = {}
    for spot in sorted(found.spots, key=layout.place):
        body, line = layout.place(spot)
        bodies.setdefault(body, {}).setdefault(line, []).append(spot)
    return ScheduleGrid(
        found.device,
        f"Schedules of {labels.system_title(found.system)}",
        layout.corner,
        tuple(layout.heads(group) for group in layout.across),
        tuple(
            (
                layout.title(*lines.values()),
                tuple((*layout.words(spots[0]), _cells(rows, spots, layout)) for spots in lines.values()),
            )
            for lines in bodies.values()
        ),
        _note(found),
    )


@dataclass(frozen=True)
class _Layout:
    """What stands where. across: columns by group, of which states kept or not are by their place in ORDER, modes by
    theirs in MODES; shared: the words of conditions that all lines share."""

    crossed: bool
    across: Mapping[int, Sequence[int]]
    shapes: Sequence[Mapping[str, Any]]
    sizes: Sequence[str]
    shared: Sequence[str]

    @classmethod
    def of(cls, found: Schedules) -> _Layout:
        asked = [spot for spot in found.spots if spot.chunk]
        columns = sorted({_column(spot, found.crossed) for spot in asked})
        across = {group: [column for _, column in pairs] for group, pairs in groupby(columns, key=itemgetter(0))}
        shapes = list({place(spot.at): spot.at for spot in found.spots}.values())
        sizes = list(dict.fromkeys(labels.schedule(spot.at) for spot in asked))
        return cls(found.crossed, across, shapes, sizes, shared({conditions(at) for at in shapes}))

    @property
    def corner(self) -> str:
        """What all lines have in common."""
        where = " ".join(shape(self.shapes[0])) if len(self.shapes) == 1 else "shape"
        return ", ".join([where, *self.shared, *(self.sizes if len(self.sizes) == 1 else [])])

    def place(self, spot: Spot) -> tuple[Any, Any]:
        """In which body it stands, and in which line there. What a system chose itself goes last."""
        mode, where, chunk = MODES.index(spot.at["mode"]), place(spot.at), (spot.chunk == 0, spot.chunk)
        return ((mode, where), chunk) if self.crossed else ((), (where, *chunk, spot.sub_chunk))

    def heads(self, group: int) -> tuple[str, tuple[str, ...]]:
        """The heading of a group of columns, and those of the columns."""
        if self.crossed:
            return ", ".join(filter(None, [STATES[ORDER[group]], "sub-chunk"])), tuple(map(str, self.across[group]))
        return text.mode(MODES[group]), tuple(STATES[ORDER[column]] for column in self.across[group])

    def title(self, first: Sequence[Spot], *_: Sequence[Spot]) -> str:
        """That of a body, from its lines; none where there is one body."""
        if not self.crossed:
            return ""
        at = first[0].at
        return ", ".join([text.mode(at["mode"]), *(self.where(at) if len(self.shapes) > 1 else [])])

    def where(self, at: Mapping[str, Any]) -> list[str]:
        """A shape among several, and in what its conditions differ."""
        return [" ".join(shape(at)), *conditions(at).split(", ")[len(self.shared) :]]

    def words(self, spot: Spot) -> tuple[tuple[str, ...], str]:
        """The heading of a line, and what stands below it."""
        sub = f"sub-chunk {spot.sub_chunk}" if spot.sub_chunk and not self.crossed else ""
        size = [f"chunk {spot.chunk}", sub] if spot.chunk else ["default", "its own choice"]
        if self.crossed or len(self.shapes) == 1:
            return (size[0],), size[1]
        more = [*self.where(spot.at)[1:], *(size if len(self.sizes) > 1 or not spot.chunk else [])]
        return shape(spot.at), ", ".join(filter(None, more))


def _column(spot: Spot, crossed: bool) -> tuple[int, int]:
    """In which group of columns a schedule stands, and in which column there."""
    states, mode = ORDER.index(spot.states), MODES.index(spot.at["mode"])
    return (states, spot.sub_chunk) if crossed else (mode, states)


def _cells(rows: Sequence[Row], spots: Sequence[Spot], layout: _Layout) -> tuple[tuple[Cell | None, int], ...]:
    """Those of a line. What the system chose itself is as wide as all that it chose from."""
    here = {_column(spot, layout.crossed): _cell(rows, spot, layout.crossed) for spot in spots}
    if spots[0].chunk:
        return tuple((here.get((group, one)), 1) for group, columns in layout.across.items() for one in columns)
    if layout.crossed:
        return ((next(iter(here.values())), sum(map(len, layout.across.values()))),)
    chosen = {group: cell for (group, _), cell in here.items()}
    return tuple((chosen.get(group), len(columns)) for group, columns in layout.across.items())


def _cell(rows: Sequence[Row], spot: Spot, crossed: bool) -> Cell:
    at, row = spot.at, rows[spot.at["row"]]
    if not spot.entry.timed:
        return untimed(row, spot.entry)
    checked, said = tick(row)
    ratio = shown(spot.entry, spot.base)
    ratio = Shown("1×", "first") if ratio.said == "itself" else ratio
    lead = ["", "fastest", "tied first"][min(spot.fastest, 2)] or ["", "best", "tied best"][min(spot.best, 2)]
    memory = f"{text.number(at['beyond_mib'])} MiB" if at["beyond_mib"] > 0 and not crossed else ""
    return Cell((ratio,), value(at), memory, checked=checked, lead=lead, tip=tip(at, said))


def _note(found: Schedules) -> str:
    memory = "" if found.crossed else " and its peak memory beyond the inputs"
    said = [f"Each cell: how many times as fast as the fastest schedule of its mode and shape, then its median{memory}"]
    if any(spot.best for spot in found.spots):
        said.append("best: of those with states or of those without" + (", at its chunk" if found.crossed else ""))
    if any(max(spot.fastest, spot.best) > 1 for spot in found.spots):
        said.append("tied: nearer to each other than noise parts two runs, or the intervals of the medians meet")
    return ". ".join(said) + "."
