"""The noise floor: how far the medians of two runs of the same code lie apart, from runs that were repeated (A/A)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from glabench.store import Row

# The spread of a run's median, as a standard deviation of its logarithm, where no case was run more than once. No
# measurement: wide enough for clocks that are not locked, narrow enough to see 3 % on a GPU in most cases.
DEFAULT_SPREAD = {"cuda_events_cold_l2": 0.003, "cpu_wall": 0.05}
# No case is taken to be quieter than this: the events' clock has steps, and a handful of runs may agree by chance.
LEAST_SPREAD = 0.001
# With fewer repeats over all cases the default stands in for those that lack: a handful may agree by chance.
ENOUGH_REPEATS = 10
# How many degrees of freedom the other cases' spread counts for against the case's own.
POOL_WEIGHT = 4.0


@dataclass(frozen=True)
class Noise:
    """The spread of run medians, by case and over all; see ``spread``."""

    pooled: float | None  # None where no case has a second run
    repeats: int  # runs beyond the first, over all cases and both sides: the degrees of freedom
    cases: Mapping[str, tuple[float, int]] = field(default_factory=dict)  # id -> (sum of squares, degrees of freedom)

    def spread(self, case_id: str, clock: str) -> float:
        """Standard deviation of log(median) from run to run of the case.

        Its own runs and those of all cases, weighted by degrees of freedom: a case with few runs leans on the others.
        """
        squares, freedom = self.cases.get(case_id, (0.0, 0))
        return max(LEAST_SPREAD, math.sqrt((POOL_WEIGHT * self._common(clock) + squares) / (POOL_WEIGHT + freedom)))

    def _common(self, clock: str) -> float:
        """The variance over all cases, or the default's, or both by how many repeats there are."""
        default = DEFAULT_SPREAD.get(clock, max(DEFAULT_SPREAD.values())) ** 2
        if self.pooled is None:
            return default
        lacking = max(0, ENOUGH_REPEATS - self.repeats)
        return (self.repeats * self.pooled**2 + lacking * default) / (self.repeats + lacking)


def run_medians(runs: Iterable[Row]) -> list[float]:
    """log(median in ms) of each timed run."""
    return [math.log(median(run.time["samples_ms"])) for run in runs if run.time and run.time["samples_ms"]]


def noise(groups: Iterable[tuple[str, Sequence[Row]]]) -> Noise:
    """The spread within groups of runs of the same code: (case id, runs), two groups a case for before and after."""
    return _pooled((case_id, run_medians(runs), 1.0) for case_id, runs in groups)


def noise_of_turns(cases: Iterable[tuple[str, Sequence[Row], Sequence[Row]]]) -> Noise:
    """The spread of runs that were taken in turns: (case id, runs before, runs after), one of each a turn.

    From the differences within turns, whose variance is twice that of a run: what drifts from turn to turn cancels.
    """
    return _pooled(
        (case_id, [b - a for a, b in zip(run_medians(before), run_medians(after), strict=True)], 0.5)
        for case_id, before, after in cases
    )


def _pooled(groups: Iterable[tuple[str, Sequence[float], float]]) -> Noise:
    """The spread of the values within groups, (case id, values, the share of their variance that counts).

    Over all it is the mean square over cases, each at most three times the median case's: a few restless cases must not
    hide what the quiet ones show.
    """
    found: dict[str, tuple[float, int]] = {}
    for case_id, logs, share in groups:
        if len(logs) > 1:
            middle = fmean(logs)
            squares, freedom = found.get(case_id, (0.0, 0))
            found[case_id] = (squares + share * sum((x - middle) ** 2 for x in logs), freedom + len(logs) - 1)
    if not found:
        return Noise(None, 0)
    variances = {case_id: squares / freedom for case_id, (squares, freedom) in found.items()}
    most = 9 * median(variances.values())
    freedoms = sum(freedom for _, freedom in found.values())
    pooled = sum(min(variances[case_id], most) * freedom for case_id, (_, freedom) in found.items()) / freedoms
    return Noise(math.sqrt(pooled), freedoms, found)
