"""Judges what the papers say of speed and memory. No torch.

A judge is called with the evidence of one device and returns an outcome; ``analysis.claims`` says which claim has which
judge. Milliseconds of another GPU are never compared, only ratios and orders, and where samples do not bear a verdict
out there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from glabench.analysis import labels
from glabench.analysis.evidence import OURS, Evidence, Line, Place, Quantity, Ratio, over, ratio, speed_up, within
from glabench.analysis.frame import MIB
from glabench.analysis.printed import LARGEST_THEN_BYTES, Paper

Verdict = Literal["held", "not held", "too close to call", "not comparable here", "not measured"]
FAILED = tuple(title for status, title in labels.STATUS_TITLES.items() if status != "ok")
VERDICTS: tuple[Verdict, ...] = ("held", "not held", "too close to call", "not comparable here", "not measured")


@dataclass(frozen=True)
class Value:
    """A number and what it is of ("T 4k, GLA w/o m."); ``unit`` is "×", or "" for a count."""

    at: str
    value: float
    unit: str = "×"


@dataclass(frozen=True)
class Outcome:
    """What rows say of a claim; ``why`` is what numbers and verdict do not tell, and may be empty."""

    verdict: Verdict
    found: tuple[Value, ...] = ()
    why: str = ""
    better: bool = False  # not held only because what was measured is better than claimed


@dataclass(frozen=True)
class Claim:
    """A claim of a paper: where it stands, what is printed for it, what gives rows for it, and who judges them."""

    name: str
    says: str
    paper: Paper
    where: str
    judge: Callable[[Evidence], Outcome]
    printed: tuple[Value, ...] = ()
    needs: str = "glabench sweep papers"


@dataclass(frozen=True)
class Judged:
    claim: Claim
    outcome: Outcome


def judged(claims: Iterable[Claim], evidence: Evidence) -> list[Judged]:
    """Every claim with what the evidence says of it, in the order of the claims."""
    return [Judged(claim, claim.judge(evidence)) for claim in claims]


@dataclass(frozen=True)
class Weighed:
    """A ratio, whether it is as claimed (None: its interval does not tell), and whether it errs on the better side."""

    ratio: Ratio
    fits: bool | None
    better: bool = False


def name(key: str) -> str:
    """A variant in a sentence; OURS is whichever schedule does best."""
    return labels.system_title("gla") if key == OURS else labels.title(key)


@dataclass(frozen=True)
class Compare:
    """Whether each of ``ones`` is, at each place, at least ``least`` and at most ``most`` times as fast as each of
    ``than``; or, of peak memory with its inputs, needs that share of theirs. One limit stands for every place.

    ``apart`` says why numbers are shown and not judged.
    """

    ones: tuple[str, ...]
    than: tuple[str, ...]
    places: tuple[Place, ...]
    quantity: Quantity = "ms"
    least: tuple[float, ...] = (1.0,)
    most: tuple[float, ...] = (math.inf,)
    apart: str = ""

    def __call__(self, evidence: Evidence) -> Outcome:
        found: list[Weighed] = []
        missing: list[str] = []
        pairs = [(one, other) for one in self.ones for other in self.than]
        for i, place in enumerate(self.places):
            limits = self.least[i % len(self.least)], self.most[i % len(self.most)]
            for one, other in pairs:
                own, rival = evidence.row(one, place, self.quantity), evidence.row(other, place, self.quantity)
                if own is None or rival is None:
                    missing.append(_missing(evidence, one if own is None else other, place))
                else:
                    found.append(self._weigh(own, rival, self._at(place, one, other), *limits))
        return settle(found, missing, self.apart)

    def _weigh(self, own: Line, rival: Line, at: str, least: float, most: float) -> Weighed:
        """Faster than claimed, or leaner, misses the claim too, and is said to be better."""
        if self.quantity == "ms":
            faster = speed_up(own, rival, at)
            return Weighed(faster, within(faster, least, most), better=faster.low > most)
        used = ratio(own, rival, self.quantity, at)
        return Weighed(used, within(used, least, most), better=used.high < least)

    def _at(self, place: Place, one: str, other: str) -> str:
        pair = [name(one)] * (len(self.ones) > 1) + [f"over {name(other)}"] * (len(self.than) > 1)
        return ", ".join([place.at, *([" ".join(pair)] if pair else [])])


@dataclass(frozen=True)
class Growth:
    """Whether a quantity of ``ones`` grows from the first place to the last no more than the length does, with a tenth
    to spare, and that of ``faster`` by more."""

    ones: tuple[str, ...]
    first: Place
    last: Place
    quantity: Quantity = "ms"
    faster: tuple[str, ...] = ()
    spare: float = 1.1

    def __call__(self, evidence: Evidence) -> Outcome:
        found: list[Weighed] = []
        missing: list[str] = []
        limit = self.spare * self.last.T / self.first.T
        for key in (*self.ones, *self.faster):
            start, end = (evidence.row(key, place, self.quantity) for place in (self.first, self.last))
            if start is None or end is None:
                missing.append(_missing(evidence, key, self.first if start is None else self.last))
                continue
            grown = ratio(end, start, self.quantity, name(key))
            least, most = (limit, math.inf) if key in self.faster else (0.0, limit)
            found.append(Weighed(grown, within(grown, least, most)))
        return settle(found, missing)


@dataclass(frozen=True)
class BestChunk:
    """Whether ``chunk`` is a variant's fastest chunk size at a place."""

    key: str
    place: Place
    chunk: int

    def __call__(self, evidence: Evidence) -> Outcome:
        rows = evidence.by_chunk(self.key, self.place)
        if self.chunk not in rows or len(rows) < 2:
            return Outcome("not measured")
        best, second = sorted(rows, key=lambda chunk: float(rows[chunk]["ms"]))[:2]
        value = Value("chunk size", best, "")
        if best == self.chunk:
            ahead = ratio(rows[second], rows[best], "ms", f"time at {second} over it")
            return Outcome("held" if _clear(ahead) else "too close to call", (value, Value(ahead.at, ahead.value)))
        behind = ratio(rows[self.chunk], rows[best], "ms", f"time at {self.chunk} over it")
        return Outcome("not held" if _clear(behind) else "too close to call", (value, Value(behind.at, behind.value)))


@dataclass(frozen=True)
class Split:
    """Whether from the smallest chunk to the largest the time between chunks falls and that inside chunks grows."""

    def __call__(self, evidence: Evidence) -> Outcome:
        if len(evidence.split) < 2:
            return Outcome("not measured")
        first, last = min(evidence.split), max(evidence.split)
        start, end = evidence.split[first], evidence.split[last]
        falls = over(end.inter, start.inter, f"between chunks, {first} to {last}")
        grows = over(end.intra, start.intra, "inside chunks")
        found = settle([Weighed(falls, within(falls, 0.0, 1.0)), Weighed(grows, within(grows, 1.0, math.inf))], ())
        if not evidence.split_commits:
            return found
        other = f"of a profile of other kernels (commit {', '.join(evidence.split_commits)})"
        return replace(found, why="; ".join(filter(None, (found.why, other))))


@dataclass(frozen=True)
class RunsOut:
    """Whether a variant runs out of memory at a place. Where it has room, what it needs tells whether it had any on the
    largest GPU that the 2023 version names."""

    key: str
    place: Place

    def __call__(self, evidence: Evidence) -> Outcome:
        row = evidence.row(self.key, self.place, "peak_mib")
        if row is None:
            failed = evidence.failed(self.key, self.place)
            said = failed == labels.STATUS_TITLES["oom"]
            return Outcome("held", why="here too") if said else Outcome("not measured", why=failed)
        room = LARGEST_THEN_BYTES / MIB
        found = (Value("of 80 GB", row["peak_mib"] / room),)
        if row["peak_mib"] > room:
            return Outcome("held", found, "it ran here, but needs more than the 80 GB of the largest A100")
        return Outcome("not comparable here", found, "it has room here; another implementation may keep more")


def _clear(slower: Ratio) -> bool:
    """Whether the intervals of two times do not meet; False where there is none."""
    return slower.low > 1.0


def _missing(evidence: Evidence, key: str, place: Place) -> str:
    """Which number a claim lacks, and how it failed where it did."""
    return " ".join([f"{place.at}:", name(key), evidence.failed(key, place)]).strip()


def settle(found: Sequence[Weighed], missing: Sequence[str], apart: str = "") -> Outcome:
    """The outcome of all that a claim asks: one ratio that is not as claimed decides, then one that does not tell."""
    values = tuple(Value(one.ratio.at, one.ratio.value) for one in found)
    if not found:
        return Outcome("not measured", why="; ".join(words for words in missing if words.endswith(FAILED)))
    without = f"without {'; '.join(dict.fromkeys(missing))}" if missing else ""
    if apart:
        return Outcome("not comparable here", values, "; ".join(filter(None, (apart, without))))
    wrong = [one for one in found if one.fits is False]
    unsure = any(one.fits is None for one in found)
    verdict: Verdict = "not held" if wrong else "too close to call" if unsure else "held"
    which = "; ".join(one.ratio.at for one in wrong) if len(wrong) < len(found) else ""
    better = bool(wrong) and all(one.better for one in wrong)
    said = "it is better than that" if better else f"not at {which}" if which else ""
    return Outcome(verdict, values, "; ".join(filter(None, (said, without))), better)
