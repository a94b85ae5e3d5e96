"""The noise floor: how far the medians of two runs of the same code lie apart, from runs that were repeated (A/A)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean, median

from scipy import special  # not scipy.stats, which takes seconds to import

from glabench.analysis.spread import DEFAULT_SPREAD
from glabench.check.likeness import likeness
from glabench.check.within import bootstrap_error
from glabench.store import Row

# No case is taken to be quieter than this: the events' clock has steps, and a handful of runs may agree by chance.
LEAST_SPREAD = 0.001
# Standard error of a run's log(median) from which on its case is restless: an interval of 4 % either way, as corrected.
OPEN = 0.01
# With fewer repeats over all cases the default stands beside what was measured: a handful may agree by chance.
ENOUGH_REPEATS = 10


@dataclass(frozen=True)
class Noise:
    """The spread of run medians, by case and over all; see ``spread`` and ``reach``."""

    pooled: float | None  # None where no case has a second run
    repeats: int  # runs beyond the first, over all cases and both sides: the degrees of freedom
    cases: Mapping[str, tuple[float, int]] = field(default_factory=dict)  # id -> (sum of squares, degrees of freedom)
    most: float = math.inf  # what a case's variance counts for at most in ``pooled``
    alike: float = math.inf  # how many degrees of freedom ``pooled`` counts for against a case's own
    default: float = 0.0  # stands in where too few runs were repeated, if the clock's own default is less

    def spread(self, case_id: str, clock: str) -> float:
        """Standard deviation of log(median) from run to run of the case.

        Its own runs and those of the other cases, weighted by degrees of freedom: a case with few runs leans on the
        others, the more the more alike they are.
        """
        squares, freedom = self.cases.get(case_id, (0.0, 0))
        if self._unknown(freedom):
            return max(self._default(clock), self.pooled or 0.0)
        if freedom == 0:
            return max(LEAST_SPREAD, self.pooled or 0.0)
        weight = self._weight(freedom)
        variance = (weight * self._others(squares, freedom) + squares) / (weight + freedom)
        return max(LEAST_SPREAD, math.sqrt(variance))

    def reach(self, case_id: str, clock: str, tail: float) -> float:
        """How far log(median) of a run comes out above its mean with the probability ``tail``.

        Student's t, because the spread is an estimate. Where there are few repeats it is the default's at least, and
        the default is no estimate: its quantile is the normal one.
        """
        normal = NormalDist().inv_cdf(1 - tail)
        freedom = self.cases.get(case_id, (0.0, 0))[1]
        if self._unknown(freedom):
            return normal * self.spread(case_id, clock)
        effective = max(1, math.floor(freedom + self._weight(freedom)))
        found = -float(special.stdtrit(effective, tail)) * self.spread(case_id, clock)
        return max(found, normal * self._default(clock)) if self.repeats < ENOUGH_REPEATS else found

    def beside(self, others: Noise) -> Noise:
        """The noise of these cases, and that of the others where these have none."""
        return replace(_over({**others.cases, **self.cases}), default=self.default)

    def _default(self, clock: str) -> float:
        return max(self.default, DEFAULT_SPREAD.get(clock, max(DEFAULT_SPREAD.values())))

    def _unknown(self, freedom: int) -> bool:
        """Whether there is nothing but the default to go by: one repeat tells next to nothing of a spread."""
        return self.repeats < ENOUGH_REPEATS and freedom < 2

    def _weight(self, freedom: int) -> float:
        """What the other cases' spread counts for: no more than it was measured with."""
        return min(self.alike, self.repeats - freedom)

    def _others(self, squares: float, freedom: int) -> float:
        """The variance over all cases but one, which is given by its own sum of squares and degrees of freedom."""
        if self.repeats == freedom:
            return 0.0  # there is no other
        own = min(squares / freedom, self.most) * freedom
        everything = (self.pooled or 0.0) ** 2 * self.repeats
        return max(0.0, everything - own) / (self.repeats - freedom)


@dataclass(frozen=True)
class Floors:
    """The noise of steady cases, and that of restless ones, which says nothing about them: a case is restless where it
    waits for its launches, so that its time is the CPU's, or where a run's own samples leave its median open."""

    steady: Noise
    restless: Noise

    def of(self, runs: Sequence[Row]) -> Noise:
        """What stands for a case, by its runs."""
        return self.restless if restless(runs) else self.steady

    def beside(self, others: Floors) -> Floors:
        """As `Noise.beside`."""
        return Floors(self.steady.beside(others.steady), self.restless.beside(others.restless))


def restless(runs: Sequence[Row]) -> bool:
    """Whether a case is, by its timed runs: one that waits in any of them, or whose median most leave open."""
    if waiting(runs):
        return True
    times = [run.time for run in runs if run.time is not None and run.time["samples_ms"]]
    return bool(times) and median(bootstrap_error(time["samples_ms"]) for time in times) > OPEN


def waiting(runs: Iterable[Row]) -> bool:
    """Whether a case waits for its launches in any of its runs, so that its time is the CPU's."""
    return any(run.time.get("launch_bound") for run in runs if run.time is not None)


def floors(cases: Iterable[tuple[str, Sequence[Row], Sequence[Row]]], in_turns: bool = False) -> Floors:
    """The noise of each kind of cases: (case id, runs before, runs after), `noise_of_turns` of them or `noise`."""
    kinds: dict[bool, list[tuple[str, Sequence[Row], Sequence[Row]]]] = {False: [], True: []}
    for case_id, before, after in cases:
        kinds[restless([*before, *after])].append((case_id, before, after))
    if in_turns:
        found = [noise_of_turns(kinds[kind]) for kind in (False, True)]
    else:
        found = [noise((one, runs) for one, *sides in kinds[kind] for runs in sides) for kind in (False, True)]
    return Floors(found[0], replace(found[1], default=DEFAULT_SPREAD["cpu_wall"]))


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
    """The spread of the values within groups, (case id, values, the share of their variance that counts)."""
    found: dict[str, tuple[float, int]] = {}
    for case_id, logs, share in groups:
        if len(logs) > 1:
            middle = fmean(logs)
            squares, freedom = found.get(case_id, (0.0, 0))
            found[case_id] = (squares + share * sum((x - middle) ** 2 for x in logs), freedom + len(logs) - 1)
    return _over(found)


def _over(cases: Mapping[str, tuple[float, int]]) -> Noise:
    """The spread over all cases: the mean square, each at most three times the median case's, for a few restless cases
    must not hide what the quiet ones show."""
    if not cases:
        return Noise(None, 0)
    variances = {case_id: squares / freedom for case_id, (squares, freedom) in cases.items()}
    most = 9 * median(variances.values())
    freedoms = [freedom for _, freedom in cases.values()]
    repeats = sum(freedoms)
    pooled = sum(min(variances[case_id], most) * freedom for case_id, (_, freedom) in cases.items()) / repeats
    # What agrees to the last digit has no logarithm, and `spread` takes no case to be quieter than this either.
    alike = likeness([max(variance, LEAST_SPREAD**2) for variance in variances.values()], freedoms)
    return Noise(math.sqrt(pooled), repeats, cases, most, alike)
