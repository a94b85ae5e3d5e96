"""Workloads that were tuned more than once: do two tunings agree, and does a search find what measuring all finds?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from glabench.analysis.tuning import Sums, Variant, median_ms, winner, work_key
from glabench.tuning_store import Finalist, Tuning

EXHAUSTIVE = "exhaustive"
AGREE = 1.01  # two winners whose times are within this factor count as one

# How a ratio came about, the best way first.
SAME_PLAN = "the same plan"
SAME_RUN = "timed in turns"
SUMS = "sums of passes, one tuning"
TWO_RUNS = "timed in two runs"


@dataclass(frozen=True)
class Pair:
    """Two tunings of one workload.

    ratio: the time of ``second``'s winner over that of ``first``'s (NaN when one has none); basis: how that was found.
    """

    first: Tuning
    second: Tuning
    ratio: float
    basis: str

    @property
    def same_code(self) -> bool:
        """Whether both are of the same kernels and of the same tuner: what else differs is not repeatability."""
        return _code(self.first) == _code(self.second)

    @property
    def agrees(self) -> bool:
        """The same plan, or times within one per cent of each other."""
        return 1 / AGREE <= self.ratio <= AGREE


def _code(tuning: Tuning) -> tuple[str, str]:
    """The kernels and the commit of the tuner."""
    return (str(tuning.header.get("kernels")), str(tuning.environment.get("commit"))[:7])  # some are written short


def agreement(tunings: Iterable[Tuning]) -> list[Pair]:
    """Each tuning of a workload beside the one before it that used the same strategy and was of the same code: whether
    tuning comes to the same again."""
    return _in_time(tunings, lambda tuning: (*work_key(tuning), tuning.strategy, *_code(tuning)))


def across_code(tunings: Iterable[Tuning]) -> list[Pair]:
    """Each tuning of a workload beside the one before it that used the same strategy, where that was of other code."""
    found = _in_time(tunings, lambda tuning: (*work_key(tuning), tuning.strategy))
    return [one for one in found if not one.same_code]


def _in_time(tunings: Iterable[Tuning], key: Callable[[Tuning], tuple[Any, ...]]) -> list[Pair]:
    """Of tunings with the same key, each beside the one before it."""
    found: dict[tuple[Any, ...], list[Tuning]] = {}
    for tuning in tunings:
        found.setdefault(key(tuning), []).append(tuning)
    in_time = [sorted(group, key=lambda t: t.started) for group in found.values()]
    return [pair(first, second) for group in in_time for first, second in pairwise(group)]


def searched(tunings: Sequence[Tuning]) -> list[Pair]:
    """For each workload that was tuned exhaustively: each of its searches (second) beside that (first), the latest. An
    exhaustive tuning that a budget cut off says nothing of what it did not measure, and a plan that was in use already
    says nothing of a search, though it may have won."""
    whole = (one for one in tunings if one.strategy != EXHAUSTIVE or one.measured == one.feasible)
    latest = {(*work_key(t), t.strategy): t for t in sorted(whole, key=lambda t: t.started)}
    return [
        pair(latest[(*key, EXHAUSTIVE)], _by_itself(tuning))
        for (*key, strategy), tuning in latest.items()
        if strategy != EXHAUSTIVE and (*key, EXHAUSTIVE) in latest
    ]


def _by_itself(tuning: Tuning) -> Tuning:
    """The tuning as it would be without the plan in use: the fastest right one of those that it found won."""
    found = [
        (median_ms(one.samples_ms), i)
        for i, one in enumerate(tuning.finalists)
        if one.role == "candidate" and one.status == "ok" and one.samples_ms
    ]
    return replace(tuning, winner=min(found)[1] if found else None)


def pair(first: Tuning, second: Tuning) -> Pair:
    """The two winners against each other, by the best evidence that there is."""
    a, b = winner(first), winner(second)
    if a is None or b is None:
        return Pair(first, second, math.nan, "no winner")
    given = first.states_given and second.states_given
    known = Sums((*first.trials, *second.trials), given)  # which passes plans consist of
    if known.same(a.plan, b.plan):
        return Pair(first, second, 1.0, SAME_PLAN)
    for tuning in (second, first):
        times = [_in_turns(tuning, one, known) for one in (a, b)]
        if not any(map(math.isnan, times)):
            return Pair(first, second, times[1] / times[0], SAME_RUN)
    for tuning in (first, second):
        sums = Sums.of(tuning)
        totals = [_total(sums, one, known) for one in (a, b)]
        if not any(map(math.isnan, totals)):
            return Pair(first, second, totals[1] / totals[0], SUMS)
    return Pair(first, second, median_ms(b.samples_ms) / median_ms(a.samples_ms), TWO_RUNS)


def _in_turns(tuning: Tuning, wanted: Finalist, known: Sums) -> float:
    """ms of a plan among the finalists of a tuning; NaN when it is none of them."""
    same = (f for f in tuning.finalists if f.samples_ms and known.same(f.plan, wanted.plan))
    return next((median_ms(finalist.samples_ms) for finalist in same), math.nan)


def _total(sums: Sums, finalist: Finalist, known: Sums) -> float:
    """ms of a plan as the sum of its passes, NaN where one was not measured."""
    times, steps = sums.passes(finalist.plan), known.steps(Variant.of(finalist.plan))
    return sum(times.get(step, math.nan) for step in steps) if steps else math.nan
