"""Schedules of one system beside each other: which chunk and sub-chunk is fastest, with states kept and without.

Only where that is what the rows are about: where most of them are of one system, at questions at which it was asked for
several schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import QUESTION, by, competes, records_by
from glabench.analysis.matrix import Entry, first_and_ties


@dataclass(frozen=True)
class Spot:
    """A schedule at a question. base: the fastest of those that were asked for there; None without a time.

    fastest: how many that one ties with, itself among them, if this is one of them, else 0. best: the same among those
    that keep states as this one does and, where sub-chunks vary apart from chunks, have its chunk; 0 where it is alone.
    """

    entry: Entry
    base: Entry | None
    fastest: int
    best: int

    @property
    def at(self) -> Mapping[str, Any]:
        """A line of the frame."""
        return self.entry.line

    @property
    def chunk(self) -> int:
        """0 where the system chose for itself."""
        return labels.whole(self.at["chunk"])

    @property
    def sub_chunk(self) -> int:
        return labels.whole(self.at["sub_chunk"])

    @property
    def states(self) -> bool | None:
        """Whether they are kept; None where the system chose, or has no choice."""
        return None if pd.isna(self.at["materialize"]) else bool(self.at["materialize"])


@dataclass(frozen=True)
class Schedules:
    """Of one system on one device. crossed: whether sub-chunks vary apart from chunks."""

    device: str
    system: str
    crossed: bool
    spots: tuple[Spot, ...]


def schedules(table: pd.DataFrame) -> list[Schedules]:
    """One a device, GPUs first; none for a device whose rows are about something else."""
    names = dict.fromkeys(table.sort_values("kind", ascending=False, kind="stable")["device"])
    return [found for name in names if (found := _of_device(str(name), table[table["device"] == name]))]


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of one device that are of the system whose schedules are compared; none where they are about something
    else."""
    asked = table[table["chunk"].notna()]
    several = [rows for _, rows in by(asked, [*QUESTION, "system"]) if len(rows) > 1]
    counts = pd.concat(several)["system"].value_counts() if several else pd.Series(dtype=int)
    return table[table["system"].isin([system for system, count in counts.items() if 2 * count > len(table)])]


def _of_device(device: str, table: pd.DataFrame) -> Schedules | None:
    own = compared(table)
    if own.empty:
        return None
    crossed = any(rows["sub_chunk"].nunique() > 1 for _, rows in by(own, [*QUESTION, "materialize", "chunk"]))
    asked = records_by(own.assign(row=own.index, competes=competes(own)), QUESTION)
    spots = [spot for _, records in asked for spot in _spots([Entry(record) for record in records], crossed)]
    return Schedules(device, str(own["system"].iloc[0]), crossed, tuple(spots))


def _spots(entries: Sequence[Entry], crossed: bool) -> list[Spot]:
    """Of one question."""
    found = [Spot(entry, None, 0, 0) for entry in entries]
    timed = [spot for spot in found if spot.chunk and spot.entry.timed]
    first = first_and_ties([spot.entry for spot in timed]) if timed else []
    spots = []
    for spot in found:
        alike = [other.entry for other in timed if other.states == spot.states]
        alike = [entry for entry in alike if entry.line["chunk"] == spot.chunk] if crossed else alike
        best = first_and_ties(alike) if len(alike) > 1 else []
        counts = [len(group) if spot.entry in group else 0 for group in (first, best)]
        spots.append(Spot(spot.entry, first[0] if first else None, *counts))
    return spots
