"""How systems stand at each question: the lines of the table that ends a sweep and `glabench compare`.

A line is a system at its fastest schedule, or one that gave no time and says why. Ratios are to baselines: rivals of
which the fastest schedule, or the fastest division into heads, counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from glabench.analysis.compare import QUESTION, aligned, by, verdict
from glabench.analysis.frame import frame
from glabench.spec.catalog import RIVALS
from glabench.store import Row

# A baseline where none is asked for: the first of these that has a time.
USUAL = (*RIVALS, "sdpa", "chunkwise_torch", "recurrent_torch", "transformer_lm")


@dataclass(frozen=True)
class Over:
    """How many times as fast as a baseline a system is, and what its interval says: "faster", "slower", "ambiguous"."""

    times: float
    verdict: str


@dataclass(frozen=True)
class Line:
    """One system at a question. What it does not have is NaN or None; times are in ms, memory in MiB.

    kernels_ms is by the clock of the sweep, on a CPU of a whole call; eager_ms of one of many calls by the host's.
    tried: of how many schedules it is the fastest. over: by baseline. right: whether the gate passed, None where none
    was asked; checked: the shape that it compared, of the axes B, T, H, K and V, and None where that is the case's own.
    """

    system: str
    label: str
    status: str
    reason: str | None
    kernels_ms: float
    eager_ms: float
    over: Mapping[str, Over]
    over_floor: float
    peak_mib: float
    kept_mib: float
    right: bool | None
    checked: Mapping[str, int] | None
    tried: int


@dataclass(frozen=True)
class Standing:
    """A question, by the columns of `compare.QUESTION`, and the systems at it: the fastest first, those without a time
    last. clock: of kernels_ms, None without a time."""

    question: dict[str, Any]
    clock: str | None
    lines: tuple[Line, ...]


def baselines(rows: Sequence[Row]) -> tuple[str, ...]:
    """The usual baseline of these rows: FLA's where it has a time, else the first of USUAL that does; none when none
    does."""
    timed = {row.case["system"] for row in rows if row.status == "ok" and (row.time or {}).get("samples_ms")}
    return tuple(name for name in USUAL if name in timed)[:1]


def standings(rows: Sequence[Row], against: Sequence[str]) -> list[Standing]:
    """Every question of the rows, in the order of its columns. Expects what ``load.latest`` returns."""
    table = frame(rows)
    gates = {row.case_id: row.accuracy or {} for row in rows}
    if not len(table):
        return []
    return [
        _standing(dict(zip(QUESTION, key, strict=True)), group, gates, against)
        for key, group in by(aligned(table), QUESTION)
    ]


def _standing(
    question: dict[str, Any], group: pd.DataFrame, gates: Mapping[str, Mapping[str, Any]], against: Sequence[str]
) -> Standing:
    shown = _one_a_system(group)
    best = {name: _fastest(group[group["system"] == name]) for name in against}
    lines = tuple(_line(row, gates[row["case_id"]], best) for row in shown)
    return Standing(question, next((row["clock"] for row in shown if row["clock"]), None), lines)


def _one_a_system(group: pd.DataFrame) -> list[dict[Any, Any]]:
    """Of each variant the fastest schedule, or one that has no time where none has; and whatever is wrong."""
    ranked = group.sort_values(["ms", "status"], key=_last_if_missing, kind="stable")
    tried = ranked.groupby("variant")["variant"].transform("size")
    first = ~ranked.duplicated("variant") | (ranked["status"] == "wrong")
    return list(ranked.assign(tried=tried.where(ranked["status"] == "ok", 1))[first].to_dict("records"))


def _last_if_missing(column: pd.Series[Any]) -> pd.Series[Any]:
    return column.fillna(math.inf) if column.name == "ms" else column != "ok"


def _fastest(rows: pd.DataFrame) -> dict[Any, Any] | None:
    timed = rows[rows["ms"].notna()].sort_values("ms", kind="stable")
    return dict(timed.iloc[0]) if len(timed) else None


def _line(row: Mapping[str, Any], gate: Mapping[str, Any], best: Mapping[str, Mapping[str, Any] | None]) -> Line:
    over = {name: _over(row, base) for name, base in best.items() if base is not None and not math.isnan(row["ms"])}
    compulsory = math.nan if row["family"] == "attention" else row["over_floor"]  # its bound is not memory's
    return Line(
        system=row["system"],
        label=row["label"],
        status=row["status"],
        reason=row["reason"],
        kernels_ms=row["ms"],
        eager_ms=row["wall_ms"],
        over=over,
        over_floor=compulsory,
        peak_mib=row["peak_mib"],
        kept_mib=row["kept_mib"],
        right=gate.get("passed"),
        checked=_checked(row, gate.get("shape")),
        tried=int(row["tried"]),
    )


def _over(row: Mapping[str, Any], base: Mapping[str, Any]) -> Over:
    if row["case_id"] == base["case_id"]:
        return Over(1.0, "ambiguous")
    return Over(base["ms"] / row["ms"], verdict(base["ms_lo"] / row["ms_hi"], base["ms_hi"] / row["ms_lo"]))


def _checked(row: Mapping[str, Any], shape: Mapping[str, int] | None) -> dict[str, int] | None:
    """The shape that the gate compared, where it is another than the case's."""
    if shape is None or all(shape.get(axis, row[axis]) == row[axis] for axis in "BTHKV"):
        return None
    return {axis: int(shape.get(axis, row[axis])) for axis in "BTHKV"}
