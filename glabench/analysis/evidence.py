"""What one device measured, as claims of the papers ask for it: rows by variant and shape, ratios with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.accuracy import Error
from glabench.analysis.load import device
from glabench.analysis.statistics import estimate
from glabench.store import Row

Quantity = Literal["ms", "peak_mib"]
Line = dict[Any, Any]  # a line of the table of analysis.frame

OURS = "ours"  # as a key: our chunkwise kernels, at whichever of their schedules does best


@dataclass(frozen=True)
class Place:
    """A shape at which claims are judged, and what it is called in a sentence."""

    at: str
    B: int
    T: int
    H: int
    K: int
    V: int
    mode: str = "fwdbwd"
    gate: str = "1"  # as analysis.labels.gate writes it; systems without gates are found at any
    attn_dim: int = 64  # head dimension of attention


@dataclass(frozen=True)
class Evidence:
    """Of one device: the table of ``analysis.frame``, what profiles say of chunk sizes, errors by gate strength."""

    table: pd.DataFrame
    split: Mapping[int, tuple[float, float]] = field(default_factory=dict)  # see ``split_by_chunk``
    errors: Sequence[Error] = ()  # see ``accuracy.by_strength``

    def row(self, key: str, place: Place, quantity: Quantity = "ms") -> Line | None:
        """The ok row of a variant (or OURS) at a place with the least of the quantity; None where there is none."""
        rows = self.rows(key, place)
        known = rows[(rows["status"] == "ok") & (rows[quantity] > 0)].sort_values(quantity, kind="stable")
        return known.iloc[0].to_dict() if len(known) else None

    def by_chunk(self, key: str, place: Place) -> dict[int, Line]:
        """The fastest ok row of each chunk size, by chunk size."""
        rows = self.rows(key, place)
        known = rows[(rows["status"] == "ok") & (rows["ms"] > 0) & rows["chunk"].notna()].sort_values(
            "ms", kind="stable"
        )
        fastest = known.drop_duplicates("chunk").sort_values("chunk").to_dict("records")
        return {int(row["chunk"]): row for row in fastest}

    def failed(self, key: str, place: Place) -> str:
        """How a variant failed at a place, in the words of a report; empty where it was not run."""
        statuses = [s for s in self.rows(key, place)["status"] if s != "ok"]
        return labels.STATUS_TITLES.get(statuses[0], statuses[0]) if statuses else ""

    def rows(self, key: str, place: Place) -> pd.DataFrame:
        """Every row of a variant (or OURS) at a place, whatever became of it: bf16, from no state."""
        table = self.table
        chosen = (table["system"] == "gla") if key == OURS else (table["variant"] == key)
        chosen &= (table["family"] != "gla") | (table["gate"] == place.gate)
        chosen &= (table["family"] != "attention") | (table["attn_dim"] == place.attn_dim)
        chosen &= (table["dtype"] == "bf16") & ~table["initial_state"].astype(bool)
        for name in ("B", "T", "H", "K", "V", "mode"):
            chosen &= table[name] == getattr(place, name)
        return table[chosen]


def split_by_chunk(rows: Sequence[Row], name: str, place: Place) -> dict[int, tuple[float, float]]:
    """chunk -> median ms (between chunks, inside chunks) of the forward pass w/ m. at a place, on the device ``name``,
    from rows of `glabench profile`; by chunk size."""
    found = {}
    for row in rows:
        case, parts = row.case, (row.profile or {}).get("parts")
        same = all(case.get(key) == getattr(place, key) for key in ("B", "T", "H", "K", "V", "mode"))
        if parts and same and case.get("chunk") and case.get("materialize") and device(row) == name:
            inter, intra = (estimate(parts.get(f"{part}_ms") or ()).median for part in ("inter", "intra"))
            found[int(case["chunk"])] = (inter, intra)
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Ratio:
    """A ratio of two rows' medians, with the worst and the best case of their intervals; NaN where there is none."""

    at: str
    value: float
    low: float
    high: float


def ratio(top: Line, bottom: Line, quantity: Quantity, at: str) -> Ratio:
    """``top`` over ``bottom``. Memory is the same at every call, so its interval is a point."""
    value = top[quantity] / bottom[quantity]
    if quantity != "ms":
        return Ratio(at, value, value, value)
    return Ratio(at, value, top["ms_lo"] / bottom["ms_hi"], top["ms_hi"] / bottom["ms_lo"])


def speed_up(own: Line, other: Line, at: str) -> Ratio:
    """How many times as fast ``own`` is."""
    return ratio(other, own, "ms", at)


def within(found: Ratio, least: float, most: float) -> bool | None:
    """Whether a ratio is within both limits; None where its interval does not say, or there is none."""
    if math.isnan(found.low) or math.isnan(found.high):
        return None
    if found.low >= least and found.high <= most:
        return True
    return False if found.high < least or found.low > most else None
