"""The median of a handful of timings, and how sure we are of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median


@dataclass(frozen=True)
class Estimate:
    """A median with an interval, in the unit of the samples."""

    median: float
    low: float
    high: float
    samples: int
    kind: str  # "95 %" (order statistics), "range" (too few samples for 95 %) or "none" (one sample or no sample)


NOTHING = Estimate(math.nan, math.nan, math.nan, 0, "none")
COVERAGE = 0.95


@cache
def interval_rank(samples: int) -> int | None:
    """The largest rank r such that [x_(r), x_(n+1-r)] covers the median with at least 95 %; None when no rank does.

    The number of samples below the true median is Binomial(n, 1/2) whatever the distribution of the samples, so
    the interval misses with probability 2 * P(Binomial(n, 1/2) < r) (David and Nagaraja, Order Statistics, 7.1).
    """
    ways, tail, rank = 1, 0, None  # to have r - 1 samples below, or fewer than r; each from the last, of hundreds
    for r in range(1, samples // 2 + 1):
        tail += ways
        if 2 * tail / 2**samples > 1 - COVERAGE:
            break
        ways, rank = ways * (samples - r + 1) // r, r
    return rank


def estimate(samples: Sequence[float]) -> Estimate:
    """The median of ``samples`` and its interval by order statistics, without assuming a distribution.

    Below six samples no pair of order statistics reaches 95 %; then the interval is the range, and says so. One
    sample has a median and no interval (NaN). Samples that are not finite are left out.
    """
    values = sorted(float(x) for x in samples if math.isfinite(x))
    count = len(values)
    if count == 0:
        return NOTHING
    if count == 1:
        return Estimate(values[0], math.nan, math.nan, 1, "none")
    rank = interval_rank(count)
    if rank is None:
        return Estimate(median(values), values[0], values[-1], count, "range")
    return Estimate(median(values), values[rank - 1], values[count - rank], count, "95 %")


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log x)) over the positive finite values; NaN when there is none."""
    logs = [math.log(x) for x in values if math.isfinite(x) and x > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def log_log_crossing(x0: float, x1: float, ratio0: float, ratio1: float) -> float | None:
    """Where a ratio passes 1 between two points, straight in log-log; None when it does not change sides."""
    a, b = math.log(ratio0), math.log(ratio1)
    if a == b or (a > 0) == (b > 0):
        return None
    return math.exp(math.log(x0) + (math.log(x1) - math.log(x0)) * a / (a - b))
