"""What one device measured, as claims of the papers ask for it: rows by variant and shape, ratios with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from glabench.analysis import labels, tuned
from glabench.analysis.accuracy import Error
from glabench.analysis.load import device, modelled_for
from glabench.analysis.statistics import Estimate, estimate
from glabench.hardware.datasheet import find_datasheet
from glabench.store import Row

Quantity = Literal["ms", "wall_ms", "peak_mib"]  # of kernels, of eager calls, and memory with its inputs
Line = dict[Any, Any]  # a line of the table of analysis.frame

SHAPE = ["B", "T", "H", "K", "V", "mode"]
TIE = 0.01  # a ratio this near to a limit is on neither side of it
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
    chunk: int | None = None  # of all schedules, those with this chunk size
    sub_chunk: int | None = None  # and with these sub-chunks


@dataclass(frozen=True)
class Parts:
    """The time of the forward pass between chunks and inside them, ms; that of the whole pass as it runs where no part
    is asked; and whether that one's plan is tuned."""

    inter: Estimate
    intra: Estimate
    whole: Estimate
    tuned: bool = True


@dataclass(frozen=True)
class Evidence:
    """Of one device: the table of ``analysis.frame``, what profiles say of chunk sizes and of kernels, errors by gate
    strength."""

    table: pd.DataFrame
    split: Mapping[int, Parts] = field(default_factory=dict)  # see ``split_by_chunk``
    # of ``split``, where that is of other kernels than the rows: see ``other_commits``
    split_commits: Sequence[str] = ()
    errors: Sequence[Error] = ()  # see ``accuracy.by_strength``
    profiles: Sequence[Row] = ()  # see ``profiles_of``

    def row(self, key: str, place: Place, quantity: Quantity = "ms") -> Line | None:
        """The ok row of a variant (or OURS) at a place with the least of the quantity; None where there is none."""
        return least(self.known(key, place, quantity), quantity)

    def known(self, key: str, place: Place, quantity: Quantity = "ms") -> list[Line]:
        """The ok rows of a variant (or OURS) at a place that have the quantity."""
        return [line for line in self.rows(key, place) if line["status"] == "ok" and line[quantity] > 0]

    def by_chunk(self, key: str, place: Place) -> dict[int, Line]:
        """The fastest ok row of each chunk size, by chunk size."""
        sizes = sorted({int(line["chunk"]) for line in self.rows(key, place) if pd.notna(line["chunk"])})
        fastest = {size: self.row(key, replace(place, chunk=size)) for size in sizes}
        return {size: line for size, line in fastest.items() if line}

    def failed(self, key: str, place: Place) -> str:
        """How a variant failed at a place, in the words of a report; empty where it was not run."""
        statuses = [line["status"] for line in self.rows(key, place) if line["status"] != "ok"]
        return labels.STATUS_TITLES.get(statuses[0], statuses[0]) if statuses else ""

    def rows(self, key: str, place: Place) -> list[Line]:
        """Every line of a variant (or OURS) at a place, whatever became of it: bf16, from no state, nothing packed; of
        training steps those that are compiled."""
        here = self._by_shape.get(tuple(getattr(place, name) for name in SHAPE), [])
        return [line for line in here if _is(line, key) and _asks(line, place)]

    @cached_property
    def _by_shape(self) -> dict[tuple[Any, ...], list[Line]]:
        found: dict[tuple[Any, ...], list[Line]] = {}
        for line in self.table.to_dict("records"):
            found.setdefault(tuple(line[name] for name in SHAPE), []).append(line)
        return found


def least(lines: Sequence[Line], quantity: Quantity) -> Line | None:
    """The line with the least of the quantity; None of none."""
    return min(lines, key=lambda line: float(line[quantity]), default=None)


def _is(line: Line, key: str) -> bool:
    """Attention is found by its system: which heads it has is asked by the place."""
    if key == OURS or line["family"] == "attention":
        return bool(line["system"] == ("gla" if key == OURS else key))
    return bool(line["variant"] == key)


def _asks(line: Line, place: Place) -> bool:
    """Whether a line of the place's shape asks for what the place does."""
    if line["dtype"] != "bf16" or line["initial_state"] or line["lengths"]:
        return False
    if line["training"] and not line["training"].endswith(", compiled"):
        return False
    if any(wanted is not None and line[name] != wanted for name, wanted in _schedule(place)):
        return False
    if line["family"] == "attention":
        return bool(line["attn_dim"] == place.attn_dim)
    return bool(line["family"] != "gla" or line["gate"] == place.gate)


def _schedule(place: Place) -> tuple[tuple[str, int | None], ...]:
    return (("chunk", place.chunk), ("sub_chunk", place.sub_chunk))


def profiles_of(rows: Sequence[Row], name: str) -> list[Row]:
    """Profiles of the device ``name``; then those that a model made for it where there was no GPU."""
    known = [row for row in rows if row.status == "ok" and row.profile]
    others = [row for row in known if device(row) != name]
    return [row for row in known if device(row) == name] + [row for row in others if _is_model_of(row, name)]


def _is_model_of(profile: Row, name: str) -> bool:
    """Whether a profile was predicted for that GPU, which a model knows by its own name or by that of its datasheet."""
    target = modelled_for(profile)
    sheet = find_datasheet(name)
    return target == name or (sheet is not None and target == sheet.name)


def taken_apart(rows: Sequence[Row], name: str, place: Place) -> list[Row]:
    """Rows on the device ``name`` that take the forward pass w/ m. at a place apart."""
    return [
        row for row in rows
        if _parts(row) and row.case.get("chunk") and row.case.get("materialize")
        and device(row) == name and all(row.case.get(key) == getattr(place, key) for key in SHAPE)
    ]  # fmt: skip


def _parts(row: Row) -> Mapping[str, Sequence[float]]:
    """Samples in ms of the parts that a sweep or `glabench profile` took apart; empty where there are none."""
    parts = (row.profile or row.time or {}).get("parts") or {}
    return {} if "refused" in parts else parts


def split_by_chunk(rows: Sequence[Row]) -> dict[int, Parts]:
    """chunk -> its parts, from rows of ``taken_apart``; by chunk size."""
    found = {}
    for row in rows:
        inter, intra = (estimate(_parts(row).get(f"{part}_ms") or ()) for part in ("inter", "intra"))
        whole = estimate((row.profile or row.time or {}).get("samples_ms") or ())
        found[int(row.case["chunk"])] = Parts(inter, intra, whole, not tuned.untuned(vars(row)))
    return dict(sorted(found.items()))


def other_commits(rows: Sequence[Row], lines: Sequence[Line]) -> tuple[str, ...]:
    """The commits of ``rows`` unless all ``lines`` are of the same source: then none, and their times stand beside each
    other. Of no lines there is nothing to say."""
    made = {(str(row.environment.get("commit"))[:7], row.environment.get("fingerprint")) for row in rows}
    same = {(str(line["commit"])[:7], line["fingerprint"]) for line in lines} <= made and len(made) == 1
    return () if same or not lines else tuple(sorted({commit for commit, _ in made}))


@dataclass(frozen=True)
class Ratio:
    """A ratio of two rows' medians, with the worst and the best case of their intervals; NaN where there is none."""

    at: str
    value: float
    low: float
    high: float


def over(top: Estimate, bottom: Estimate, at: str) -> Ratio:
    """The ratio of two medians."""
    return Ratio(at, top.median / bottom.median, top.low / bottom.high, top.high / bottom.low)


def ratio(top: Line, bottom: Line, quantity: Quantity, at: str) -> Ratio:
    """``top`` over ``bottom``. Memory is the same at every call, so its interval is a point."""
    value = top[quantity] / bottom[quantity]
    if quantity == "peak_mib":
        return Ratio(at, value, value, value)
    return Ratio(
        at, value, top[f"{quantity}_lo"] / bottom[f"{quantity}_hi"], top[f"{quantity}_hi"] / bottom[f"{quantity}_lo"]
    )


def speed_up(own: Line, other: Line, at: str, quantity: Quantity = "ms") -> Ratio:
    """How many times as fast ``own`` is."""
    return ratio(other, own, quantity, at)


def within(found: Ratio, least: float, most: float) -> bool | None:
    """Whether a ratio is within both limits; None where its interval does not say, where it is a tie with a limit, or
    where there is none."""
    if math.isnan(found.low) or math.isnan(found.high):
        return None
    if found.low >= least * (1 + TIE) and found.high <= most * (1 - TIE):
        return True
    return False if found.high < least * (1 - TIE) or found.low > most * (1 + TIE) else None
