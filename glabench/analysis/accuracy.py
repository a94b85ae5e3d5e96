"""Errors against float64 over the strength of the gates, from what the gate of each row kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glabench.analysis import labels
from glabench.analysis.frame import label
from glabench.spec.axes import later
from glabench.store import Row

SHAPE = ("B", "T", "H", "K", "V", "dtype")


@dataclass(frozen=True)
class Error:
    """Of one case: relative errors ||x - reference|| / ||reference||; infinite where values are not finite."""

    case: dict[str, Any]
    strength: float
    output: float
    gradients: float  # the worst of dq, dk, dv and dg; NaN where none was asked for
    passed: bool

    @property
    def key(self) -> str:
        return labels.variant(self.case)

    @property
    def label(self) -> str:
        return label(self.case)


def by_strength(rows: Sequence[Row]) -> list[Error]:
    """The errors of every system with gates at the shape that was asked at the most gate strengths, two at least; of
    several schedules of a variant the first. What was wrong is among them."""
    asked: dict[tuple[Any, ...], dict[tuple[str, float], Error]] = {}
    for row in rows:
        found = _error(row)
        if found:
            shape = (*(row.case.get(name) for name in SHAPE), *later(row.case).items())
            asked.setdefault(shape, {}).setdefault((found.key, found.strength), found)
    most = max(asked.values(), key=lambda errors: len({strength for _, strength in errors}), default={})
    if len({strength for _, strength in most}) < 2:
        return []
    return sorted(most.values(), key=lambda one: (labels.order(one.key), one.strength))


def _error(row: Row) -> Error | None:
    outputs = (row.accuracy or {}).get("outputs") or {}
    strength = row.case.get("gate_strength")
    if not outputs.get("o") or not strength or labels.family(labels.variant(row.case)) != "gla":
        return None
    slopes = [_finite(outputs[name]) for name in ("dq", "dk", "dv", "dg") if name in outputs]
    passed = bool((row.accuracy or {}).get("passed"))
    return Error(row.case, float(strength), _finite(outputs["o"]), max(slopes, default=math.nan), passed)


def _finite(output: dict[str, Any]) -> float:
    error = output.get("error")
    return math.inf if error is None or not math.isfinite(error) else float(error)
