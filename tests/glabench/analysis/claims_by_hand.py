"""What the tests of the papers' claims share: two questions, rows as evidence, and samples of a time."""

from __future__ import annotations

from typing import Any

from glabench.analysis.claims import CLAIMS
from glabench.analysis.evidence import Evidence, Place
from glabench.analysis.frame import frame

NEAR, FAR = (Place(f"T {T}", 1, T, 4, 128, 256, mode="fwd") for T in (1024, 8192))
GIB = 2**30
OPEN = "not comparable here"


def evidence(*rows: Any) -> Evidence:
    return Evidence(frame(list(rows)))


def ms(value: float) -> list[float]:
    """Samples whose interval is the value within 1 %."""
    return [0.99 * value, value, 1.01 * value]


def claim(name: str) -> Any:
    return next(one for one in CLAIMS if one.name == name)
