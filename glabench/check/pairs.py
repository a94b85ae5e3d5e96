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
    """Runs by case. Left out are those of other sources, versions or settings than the case's last run: a sweep that is
    resumed after a change appends to the file of before. So are those that took too long, where a later run had more
    time.

    A row that is given twice, as where files lie beside what they were merged into, is one run: it shows no noise.
    """
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.started):
        runs = found.setdefault(row.case_id, [])
        if row not in runs:
            runs.append(row)
    return {case_id: tuple(_alike(runs)) for case_id, runs in found.items()}


def _alike(runs: list[Row]) -> list[Row]:
    return [run for i, run in enumerate(runs) if _as_asked(run, runs[-1]) and not _tried_again(run, runs[i + 1 :])]


def _as_asked(run: Row, last: Row) -> bool:
    """Whether both are of the same code, and of the same settings as far as both say."""
    if run.environment.get("fingerprint") != last.environment.get("fingerprint"):
        return False
    asked = [(run.environment.get(key), last.environment.get(key)) for key in ("settings", "omp_num_threads")]
    return all(None in both or both[0] == both[1] for both in asked)


def _tried_again(run: Row, later: list[Row]) -> bool:
    """Whether the run took too long, and a later one had more time."""
    limit_s = run.environment.get("limit_s") or 0.0
    return run.status == "timeout" and any((other.environment.get("limit_s") or 0.0) > limit_s for other in later)
