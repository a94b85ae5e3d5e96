"""Rows before and after -> one pair a case. Several rows of a case are several runs of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from glabench.store import Row


@dataclass(frozen=True)
class Pair:
    """One case with its runs on both sides, oldest first; a side without the case has none."""

    case_id: str
    case: dict[str, Any]
    before: tuple[Row, ...]
    after: tuple[Row, ...]


def pairs(before: Iterable[Row], after: Iterable[Row]) -> list[Pair]:
    """Every case of either side, in the order of ``after``, then what only ``before`` has."""
    old, new = _runs(before), _runs(after)
    cases = {case_id: runs[-1].case for case_id, runs in (old | new).items()}
    return [Pair(case_id, cases[case_id], old.get(case_id, ()), new.get(case_id, ())) for case_id in {**new, **old}]


def _runs(rows: Iterable[Row]) -> dict[str, tuple[Row, ...]]:
    """Runs by case. Those of other sources or versions than the case's last run are of other code, and left out: a
    sweep that is resumed after a change appends to the file of the code before.

    A row that is given twice, as where files lie beside what they were merged into, is one run: it shows no noise.
    """
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.started):
        runs = found.setdefault(row.case_id, [])
        if row not in runs:
            runs.append(row)
    return {
        case_id: tuple(run for run in runs if _sources(run) == _sources(runs[-1])) for case_id, runs in found.items()
    }


def _sources(row: Row) -> Any:
    return row.environment.get("fingerprint")
