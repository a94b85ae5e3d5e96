"""Judges of the papers' claims by rows of a sweep: who is faster, what grows, which chunk is best. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from glabench.analysis import labels
from glabench.analysis.evidence import OURS, Evidence, Line, Place, Quantity, least, ratio, within
from glabench.analysis.frame import MIB
from glabench.analysis.papers import Outcome, Value, Weighed, bounded, settle, weigh
from glabench.analysis.printed import LARGEST_THEN_BYTES
from glabench.analysis.tuned import untuned

WALL = "the wall time of calls, which is not measured"
SPARE = 1.1  # what may be grown more than the length by


def name(key: str) -> str:
    """A variant in a sentence; OURS is whichever schedule does best."""
    return labels.system_title("gla") if key == OURS else labels.title(key)


@dataclass(frozen=True)
class Compare:
    """Whether each of ``ones`` is, at each place, at least ``least`` and at most ``most`` times as fast as each of
    ``than``; or, of peak memory with its inputs, needs that share of theirs. One limit stands for every place.

    Of several schedules those are taken that are as well tuned as the other side, where there are any. ``than_places``:
    where the others stand, if it is not beside. ``wall``: eager calls are judged as well as kernels. ``tuned``: both
    sides must be tuned. ``fair``: says why numbers are shown and not judged, or nothing.
    """

    ones: tuple[str, ...]
    than: tuple[str, ...]
    places: tuple[Place, ...]
    quantity: Quantity = "ms"
    least: tuple[float, ...] = (1.0,)
    most: tuple[float, ...] = (math.inf,)
    than_places: tuple[Place, ...] = ()
    wall: bool = False
    tuned: bool = False
    fair: Callable[[Evidence], str] | None = None

    def __call__(self, evidence: Evidence) -> Outcome:
        found: list[Weighed] = []
        missing: list[str] = []
        for i, (place, beside) in enumerate(zip(self.places, self.than_places or self.places, strict=True)):
            limits = self.least[i % len(self.least)], self.most[i % len(self.most)]
            for one, other in product(self.ones, self.than):
                pair = self._pair(evidence, (one, place), (other, beside), self.quantity)
                if pair is None:
                    known = evidence.row(one, place, self.quantity) is not None
                    missing.append(missing_at(evidence, *((other, beside) if known else (one, place))))
                    continue
                at = self._at(place, one, other)
                found.append(weigh(*pair, at, self.quantity, *limits, self.tuned))
                calls = self._pair(evidence, (one, place), (other, beside), "wall_ms") if self.wall else None
                if calls:
                    found.append(weigh(*calls, f"{at}, wall", "wall_ms", *limits, self.tuned))
                elif self.wall:
                    missing.append(WALL)
        return settle(found, missing, self.fair(evidence) if self.fair else "")

    def _pair(
        self, evidence: Evidence, one: tuple[str, Place], other: tuple[str, Place], quantity: Quantity
    ) -> tuple[Line, Line] | None:
        """The best row of either; None where one has none. Where one of these is tuned and the other is not, the best
        that are as the other one, if there are any and two that are not tuned may stand beside each other."""
        ones, others = (evidence.known(*which, quantity) for which in (one, other))
        own, rival = least(ones, quantity), least(others, quantity)
        if own is None or rival is None:
            return None
        if self.tuned or quantity == "peak_mib" or untuned(own) == untuned(rival):
            return own, rival
        as_rival = least([line for line in ones if untuned(line) == untuned(rival)], quantity)
        if as_rival:
            return as_rival, rival
        return own, least([line for line in others if untuned(line) == untuned(own)], quantity) or rival

    def _at(self, place: Place, one: str, other: str) -> str:
        pair = [name(one)] * (len(self.ones) > 1) + [f"over {name(other)}"] * (len(self.than) > 1)
        return ", ".join([place.at, *([" ".join(pair)] if pair else [])])


@dataclass(frozen=True)
class AsLong:
    """Whether times of ``keys`` grow as the length does, from the first place to the last. What does not is no form of
    linear cost, and its rows say nothing of one."""

    keys: tuple[str, ...]
    first: Place
    last: Place

    def __call__(self, evidence: Evidence) -> str:
        words = []
        for key in self.keys:
            start, end = evidence.row(key, self.first), evidence.row(key, self.last)
            if start and end:
                grown = ratio(end, start, "ms", "")
                if within(grown, 0.0, SPARE * self.last.T / self.first.T) is False:
                    words.append(f"{name(key)} takes {grown.value:.3g} times as long for {self.last.T // self.first.T} "
                                 "times the tokens here, which no chunkwise form has to")  # fmt: skip
        return "; ".join(words)


@dataclass(frozen=True)
class Growth:
    """Whether a quantity of ``ones`` grows from the first place to the last no more than the length does, with a tenth
    to spare, and that of ``faster`` by more."""

    ones: tuple[str, ...]
    first: Place
    last: Place
    quantity: Quantity = "ms"
    faster: tuple[str, ...] = ()

    def __call__(self, evidence: Evidence) -> Outcome:
        found: list[Weighed] = []
        missing: list[str] = []
        limit = SPARE * self.last.T / self.first.T
        for key in (*self.ones, *self.faster):
            start, end = (evidence.row(key, place, self.quantity) for place in (self.first, self.last))
            if start is None or end is None:
                missing.append(missing_at(evidence, key, self.first if start is None else self.last))
                continue
            grown = ratio(end, start, self.quantity, name(key))
            known = grown if self.quantity == "peak_mib" else bounded(grown, end, start)
            fits = within(known, *((limit, math.inf) if key in self.faster else (0.0, limit)))
            found.append(Weighed(grown, fits, sides=(end, start), open=fits is None and known != grown))
        return settle(found, missing)


@dataclass(frozen=True)
class BestChunk:
    """Whether ``chunk`` is a variant's fastest chunk size at a place, all of them tuned."""

    key: str
    place: Place
    chunk: int

    def __call__(self, evidence: Evidence) -> Outcome:
        rows = evidence.by_chunk(self.key, self.place)
        if self.chunk not in rows or len(rows) < 2:
            return Outcome("not measured")
        own = rows[self.chunk]
        others = [chunk for chunk in rows if chunk != self.chunk]
        outcome = settle([weigh(own, rows[chunk], f"chunks of {chunk}", both_tuned=True) for chunk in others])
        best, second = sorted(rows, key=lambda chunk: float(rows[chunk]["ms"]))[:2]
        behind, ahead = (self.chunk, best) if best != self.chunk else (second, best)
        gap = ratio(rows[behind], rows[ahead], "ms", f"time at {behind} over it")
        why = "" if outcome.verdict == "not held" else outcome.why  # the best one says it
        return replace(outcome, found=(Value("chunk size", best, ""), Value(gap.at, gap.value)), why=why)


@dataclass(frozen=True)
class RunsOut:
    """Whether a variant runs out of memory at a place. Where it has room, what it needs tells whether it had any on the
    largest GPU that the 2023 version names."""

    key: str
    place: Place

    def __call__(self, evidence: Evidence) -> Outcome:
        row = evidence.row(self.key, self.place, "peak_mib")
        pairs = (f"{name(self.key)} over the memory of a GPU",)
        if row is None:
            failed = evidence.failed(self.key, self.place)
            said = failed == labels.STATUS_TITLES["oom"]
            return Outcome("held", why="here too", pairs=pairs) if said else Outcome("not measured", why=failed)
        room = LARGEST_THEN_BYTES / MIB
        found = (Value("of 80 GB", row["peak_mib"] / room),)
        if row["peak_mib"] > room:
            why = "it ran here, but needs more than the 80 GB of the largest A100"
            return Outcome("held", found, why, pairs=pairs)
        why = "it has room here; another implementation may keep more"
        return Outcome("not comparable here", found, why, pairs=pairs)


def missing_at(evidence: Evidence, key: str, place: Place) -> str:
    """Which number a claim lacks, and how it failed where it did."""
    return " ".join([f"{place.at}:", name(key), evidence.failed(key, place)]).strip()
