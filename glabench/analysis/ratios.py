"""How well ratios of two systems repeat: two runs of the same cases, an hour or a machine apart.

A time moves with the machine, its clocks and its heat; of two systems at the same question both move. What a reader
takes home, "twice as fast", is the ratio of their medians, and it should come out the same in either run. Where
it does not, rows that say at which SM clock the samples ran (``glabench.run.sm_clock``) tell whether the clock was the
cause: the ratio of SM cycles, time by clock, is then the same. That is for calls of half a millisecond and longer: the
clock of shorter ones differs from run to run where their time does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from glabench.analysis.compare import QUESTION, aligned, by
from glabench.analysis.frame import frame
from glabench.analysis.load import latest
from glabench.errors import UserError
from glabench.spec.axes import AXES, BLANKS
from glabench.store import Row

LEAST_SHARE = 0.95  # of the ratios that must be alike
ENTRANT = ["label", "attn_heads", "attn_dim", "seed"]  # what tells the answers to one question apart

# What a time may depend on beside the GPU's work: the CPU, and how good the chip and its cooling are.
LAUNCH_BOUND = "that waits for its launches, on the CPU"
HELD_BACK = "whose clock was held back, by the power cap or heat"

Entrant = tuple[Any, ...]  # the values of ENTRANT


@dataclass(frozen=True)
class Timed:
    """One system's answer to a question: the median of its kernels in ms, what disturbed it, of LAUNCH_BOUND and
    HELD_BACK, the SM clock in MHz as the GPU counted it during the samples, and the median of an eager call in ms; NaN
    where the row does not say."""

    system: str
    ms: float
    disturbed: frozenset[str]
    mhz: float = math.nan
    wall_ms: float = math.nan

    @property
    def cycles(self) -> float:
        """Thousands of SM cycles."""
        return self.ms * self.mhz


Times = dict[Entrant, Timed]


@dataclass(frozen=True)
class Ratio:
    """ms of ``one`` over ms of ``other`` at a question, in either run; ``disturbed``: what disturbed any of them;
    ``cycles``: the same two ratios of SM cycles, NaN where a row does not say how fast its clock was; ``calls``: those
    of eager calls, NaN where a row does not have their time."""

    question: dict[str, Any]
    one: str
    other: str
    before: float
    after: float
    disturbed: frozenset[str] = frozenset()
    cycles: tuple[float, float] = (math.nan, math.nan)
    calls: tuple[float, float] = (math.nan, math.nan)

    @property
    def change(self) -> float:
        """By how much it differs, as a share: 0.01 for 1 %. The same whichever of the two systems is named first, and
        whichever run came first."""
        return _change(self.before, self.after)

    @property
    def change_in_cycles(self) -> float:
        """The same of the ratio of SM cycles; NaN where one is not known."""
        return _change(*self.cycles)

    @property
    def change_in_calls(self) -> float:
        """The same of the ratio of eager calls; NaN where one is not known."""
        return _change(*self.calls)

    def __str__(self) -> str:
        at = self.question
        said = [AXES[name].words(at[name]) for name in BLANKS if at[name]]
        shape = ", ".join([*(str(int(at[axis])) for axis in "BTHKV"), *said])
        gate = "" if at["gate"] == "1" else f", gates {at['gate']}"
        where = f"({shape}) {at['dtype']} {at['mode']}{gate}"
        return f"{where}: {self.one} over {self.other} {self.before:.3f} and {self.after:.3f}, {self.change:.1%} apart"


def ratios(before: Sequence[Row], after: Sequence[Row]) -> list[Ratio]:
    """Every ratio of two systems that both runs have at a question (``compare.QUESTION``), the least alike first.

    Systems without gates stand beside every gate strength of their shape. Two schedules of a system are no two systems.
    UserError when there is no such ratio.
    """
    old, new = _times(before), _times(after)
    found = []
    for question, times in old.items():
        both = {key: (times[key], new[question][key]) for key in times if key in new.get(question, {})}
        for one, other in combinations(both, 2):
            (was_one, now_one), (was_other, now_other) = both[one], both[other]
            if was_one.system != was_other.system:
                named = dict(zip(QUESTION, question, strict=True))
                disturbed = was_one.disturbed | now_one.disturbed | was_other.disturbed | now_other.disturbed
                values = was_one.ms / was_other.ms, now_one.ms / now_other.ms
                cycles = was_one.cycles / was_other.cycles, now_one.cycles / now_other.cycles
                calls = was_one.wall_ms / was_other.wall_ms, now_one.wall_ms / now_other.wall_ms
                found.append(Ratio(named, str(one[0]), str(other[0]), *values, disturbed, cycles, calls))
    if not found:
        raise UserError("no two systems were timed at the same shape, mode and device in both; nothing to compare")
    return sorted(found, key=lambda ratio: ratio.change, reverse=True)


def _change(before: float, after: float) -> float:
    return math.expm1(abs(math.log(after / before)))


def share_within(found: Sequence[Ratio], most: float) -> float:
    """The share of the ratios that differ by no more than ``most``, itself a share."""
    return sum(ratio.change <= most for ratio in found) / len(found)


def shares_by_system(found: Sequence[Ratio], most: float) -> dict[str, float]:
    """``share_within`` of each system's ratios, the lowest first: one system that does not repeat spoils all of its
    ratios, and some of every other's."""
    systems = dict.fromkeys(name for ratio in found for name in (ratio.one, ratio.other))
    shares = {name: share_within([one for one in found if name in (one.one, one.other)], most) for name in systems}
    return dict(sorted(shares.items(), key=lambda item: item[1]))


def _times(rows: Sequence[Row]) -> dict[tuple[Any, ...], Times]:
    table = frame(latest(rows))
    timed = aligned(table[(table["status"] == "ok") & table["ms"].notna()])
    return {question: _entrants(group) for question, group in by(timed, QUESTION)}


def _entrants(group: pd.DataFrame) -> Times:
    numbers = group[ENTRANT].astype(object).where(group[ENTRANT].notna(), None)
    keys = numbers.itertuples(index=False, name=None)
    return {
        key: Timed(
            str(line["system"]),
            float(line["ms"]),
            _disturbed(line),
            float(line["sm_mhz_counted"]),
            float(line["wall_ms"]),
        )
        for key, (_, line) in zip(keys, group.iterrows(), strict=True)
    }


def _disturbed(line: pd.Series) -> frozenset[str]:
    said = {LAUNCH_BOUND: bool(line["launch_bound"]), HELD_BACK: isinstance(line["throttle"], str)}
    return frozenset(reason for reason, holds in said.items() if holds)
