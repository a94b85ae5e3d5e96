"""Where a series of times changes its level, night by night: optimal partitioning, with what is no step left out.

Of one case, y_i is the logarithm of the median of night i, in units of the noise s. The nights are cut into stretches
that are level or, where they are long enough, slope. Of all partitions that one is taken whose squares around its
stretches are least when each further stretch, and each slope, costs PENALTY log(n) more. It is found in n vectors: the
best partition of the first i nights is the best of fewer and one stretch more.

    s       is how far neighbouring nights lie apart, by the median, which steps and single nights do not move; with few
            nights of its own a case leans on the other cases, and none is taken to be quieter than LEAST_NOISE
    a night that stands alone, above both its neighbours or below both, counts as LONE s beyond the nearer of them, and
            no stretch begins with one night: the last night's step is called when the next confirms it
    a step  is where two stretches do not meet: by LEAST_STEP, however quiet the nights are, and by SURE_STEP standard
            errors of the distance
    a drift is a stretch that slopes by LEAST_STEP in all

Libraries of change points (ruptures, Otava) have the partition, which is a dozen lines here, and not the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PENALTY = 5.0
SHORTEST, SLOPED = 2, 6  # nights of a stretch, and of one that may slope
LONE = 2.0
LEAST_NOISE = 0.001  # steps of the clock, and nights that agree by chance
LEAST_STEP = math.log(1.01)  # two GPUs of a model lie as far apart
SURE_STEP = 3.5
LEANS = 10  # what the other cases' noise counts for, in nights of one's own
TO_SIGMA = 1 / (math.sqrt(2) * NormalDist().inv_cdf(0.75))  # median of |difference| of two normal values -> their sigma
SURE = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Stretch:
    """Nights ``start`` to ``end``, the last not among them: the times at both ends, which differ where it slopes."""

    start: int
    end: int
    first_ms: float
    last_ms: float

    @property
    def ms(self) -> float:
        """In its middle."""
        return math.sqrt(self.first_ms * self.last_ms)

    def error(self, noise: float) -> float:
        """The standard error of the logarithm of either end."""
        sloped = self.first_ms != self.last_ms
        return noise * math.sqrt((4 if sloped else 1) / (self.end - self.start))


@dataclass(frozen=True)
class Change:
    """A step between nights ``at - 1`` and ``at``, or a drift from night ``since`` to night ``at``. Times before and
    after, and their ratio, after over before, with the interval that the noise leaves (95 %)."""

    since: int
    at: int
    before_ms: float
    after_ms: float
    ratio: float
    low: float
    high: float

    @property
    def drift(self) -> bool:
        return self.at - self.since > 1


@dataclass(frozen=True)
class Levels:
    """What a series consists of."""

    noise: float  # standard deviation of log(ms) from night to night
    stretches: tuple[Stretch, ...]
    changes: tuple[Change, ...]  # in order


def own_noise(ms: Sequence[float]) -> float:
    """The noise of a series by itself, as a standard deviation of the logarithm; NaN with less than two nights."""
    return float(np.median(np.abs(np.diff(np.log(ms))))) * TO_SIGMA if len(ms) > 1 else math.nan


def typical_noise(series: Sequence[Sequence[float]], default: float) -> float:
    """That of the median series; ``default`` at least, where all of them have few nights to tell it by."""
    found = [noise for ms in series if not math.isnan(noise := own_noise(ms))]
    middle = float(np.median(found)) if found else default
    return middle if sum(len(ms) - 1 for ms in series if ms) >= LEANS else max(middle, default)


def levels(ms: Sequence[float], typical: float) -> Levels:
    """The levels of a series of positive times, oldest first; ``typical`` is the noise of series like it."""
    noise = _noise(ms, typical)
    if not ms:
        return Levels(noise, (), ())
    y = _without_lone_nights((np.log(ms) - math.log(ms[0])) / noise)
    found = [_stretch(y, start, end, sloped, ms[0], noise) for start, end, sloped in _partition(y)]
    changes = [change for i in range(len(found)) for change in _changes(found[max(0, i - 1) : i + 1], noise)]
    return Levels(noise, tuple(found), tuple(changes))


def _noise(ms: Sequence[float], typical: float) -> float:
    count = max(0, len(ms) - 1)
    own = own_noise(ms) if count else typical
    return max(LEAST_NOISE, math.sqrt((count * own**2 + LEANS * typical**2) / (count + LEANS)))


def _without_lone_nights(y: Floats) -> Floats:
    """The series with nights that stand alone drawn in, towards the nearer of their neighbours; at either end these are
    the next two."""
    if len(y) < 3:
        return y
    one, other = np.concatenate([y[2:3], y[:-1]]), np.concatenate([y[1:], y[-3:-2]])
    return np.clip(y, np.minimum(one, other) - LONE, np.maximum(one, other) + LONE)


def _partition(y: Floats) -> list[tuple[int, int, bool]]:
    """The stretches of the best partition: (start, end, whether it slopes)."""
    n = len(y)
    penalty = PENALTY * math.log(max(n, 2))
    places = np.arange(n + 1, dtype=float)
    s_y, s_yy, s_ty = (np.concatenate([[0.0], np.cumsum(values)]) for values in (y, y * y, places[:-1] * y))
    best = np.concatenate([[0.0], np.full(n, math.inf)])
    last: list[tuple[int, int, bool]] = [(0, end, False) for end in range(n + 1)]
    for end in range(min(SHORTEST, n), n + 1):
        most = max(1, end - SHORTEST + 1)  # starts of stretches that end here, and of those that may slope
        count, total = end - places[:most], s_y[end] - s_y[:most]
        cost = best[:most] + (s_yy[end] - s_yy[:most] - total * total / count) + penalty
        first, sloped = int(cost.argmin()), False
        if (few := end - SLOPED + 1) > 0:
            count = count[:few]
            along = s_ty[end] - s_ty[:few] - total[:few] * (places[:few] + (end - 1)) / 2
            slope = cost[:few] - along * along * 12 / (count * (count * count - 1)) + penalty
            if slope[at := int(slope.argmin())] < cost[first]:
                cost, first, sloped = slope, at, True
        best[end], last[end] = cost[first], (first, end, sloped)
    found = [last[n]]
    while found[0][0] > 0:
        found.insert(0, last[found[0][0]])
    return found


def _stretch(y: Floats, start: int, end: int, sloped: bool, unit_ms: float, noise: float) -> Stretch:
    places, inside = np.arange(start, end), y[start:end]
    line = np.polyfit(places, inside, 1) if sloped else np.array([inside.mean()])
    first, last = (unit_ms * math.exp(noise * float(np.polyval(line, at))) for at in (start, end - 1))
    return Stretch(start, end, first, last)


def _changes(stretches: Sequence[Stretch], noise: float) -> list[Change]:
    """What a stretch brings, after the one before it, if there is one: a step, a drift, both or nothing."""
    now, found = stretches[-1], []
    for before, after in pairwise(stretches):
        error = math.hypot(before.error(noise), after.error(noise))
        step = _change(after.start - 1, after.start, before.last_ms, after.first_ms, error)
        if abs(math.log(step.ratio)) > SURE_STEP * error:
            found.append(step)
    if now.first_ms != now.last_ms:
        error = math.sqrt(2) * now.error(noise)
        found.append(_change(now.start, now.end - 1, now.first_ms, now.last_ms, error))
    return [change for change in found if abs(math.log(change.ratio)) >= LEAST_STEP]


def _change(since: int, at: int, before_ms: float, after_ms: float, error: float) -> Change:
    ratio, reach = after_ms / before_ms, math.exp(SURE * error)
    return Change(since, at, before_ms, after_ms, ratio, ratio / reach, ratio * reach)
