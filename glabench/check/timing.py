"""The verdict on time: the ratio of medians with an interval, against the noise from run to run.

For each case, in logarithms: d is the mean of the run medians after, less that before. e is its standard error from the
samples within the runs, by a bootstrap over blocks of consecutive samples, because neighbours are alike where a GPU
warms up. s is the spread from run to run (``glabench.check.noise``), and sqrt(1/before + 1/after) of it is in d. With m
cases compared, z and t are the quantiles, normal and of Student's t, at which ERROR_RATE of such checks call any case
by chance (Bonferroni: one false call fails a build, so the chance of any is what must be small; and unlike step-wise
corrections it leaves each case an interval that can be shown). Student's t, because s is an estimate from few runs: its
degrees of freedom are the case's own and, where cases are alike, those that the other cases lend it. The interval is
d ± z e; the floor is t s, times that root, MOST_FLOOR at most. With the threshold, as a logarithm:

    slower     the interval is above the floor, and d is at least the threshold less the floor
    faster     the mirror image
    same       interval and floor lie within the threshold on both sides: such a change is ruled out
    ambiguous  neither: the noise is too large for these runs to tell

So a change of just the threshold is found, although half of its measurements come out below it, and one within the
noise is not. Where the runs before are of another GPU of the model, slower and faster ask for OTHER_GPU more: two chips
are not quite as fast, and by how much is the kernel's own. Of a case that waits for its launches they ask for OTHER_CPU
more, for another GPU may be another machine's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from glabench.check.comparable import of_other_gpus
from glabench.check.noise import Noise, run_medians, waiting
from glabench.check.within import bootstrap_error
from glabench.store import Row

ERROR_RATE = 0.01
# By how much, as a logarithm, medians of the same code on two GPUs of a model may differ. So far apart lay 103 cases on
# two H100s, most of them by less than 1 % (docs/regressions.md).
OTHER_GPU = math.log(1.035)
# The same of cases that wait for their launches, on two machines with H200s: 1.9 times was the most.
OTHER_CPU = math.log(2)
# A slow-down of a hundred times is no noise. Student's t of one degree of freedom has quantiles in the thousands: where
# two runs of a case differ by 20 %, and other cases say nothing of it, the floor would be a number of 300 digits.
MOST_FLOOR = math.log(100)


@dataclass(frozen=True)
class TimeVerdict:
    """Ratios are times after over times before."""

    verdict: str  # slower, faster, same or ambiguous
    ratio: float
    low: float  # the corrected interval of the ratio, from the samples within the runs
    high: float
    floor: float  # the ratio up to which runs of the same code differ: 1.012
    before_ms: float
    after_ms: float
    needed: float  # the ratio from which on these runs would be called slower
    runs: tuple[int, int]  # before, after
    other_gpu: bool = False  # whether those before are of another GPU of the model
    waits: bool = False  # whether the case waits for its launches, on the CPU


def judge_time(
    case_id: str, before: Sequence[Row], after: Sequence[Row], noise: Noise, threshold: float, cases: int
) -> TimeVerdict | None:
    """The verdict on the runs of one case; None where a side has no time.

    threshold: the relative change that must be found, 0.03 for 3 %. cases: how many are compared in this check.
    """
    old, new = run_medians(before), run_medians(after)
    if not old or not new:
        return None
    clock = next(run.time["clock"] for run in after if run.time)
    change = fmean(new) - fmean(old)
    tail = ERROR_RATE / (2 * max(1, cases))
    z = NormalDist().inv_cdf(1 - tail)
    reach = z * math.hypot(_standard_error(before), _standard_error(after))
    floor = min(MOST_FLOOR, noise.reach(case_id, clock, tail) * math.sqrt(1 / len(old) + 1 / len(new)))
    other_gpu, waits = of_other_gpus(before, after), waiting([*before, *after])
    more = (OTHER_CPU if waits else OTHER_GPU) if other_gpu else 0.0
    return TimeVerdict(
        verdict=_call(change, reach, floor, math.log1p(threshold), more),
        ratio=math.exp(change),
        low=math.exp(change - reach),
        high=math.exp(change + reach),
        floor=math.exp(floor),
        needed=math.exp(max(reach + floor + more, math.log1p(threshold) - floor)),
        before_ms=math.exp(fmean(old)),
        after_ms=math.exp(fmean(new)),
        runs=(len(old), len(new)),
        other_gpu=other_gpu,
        waits=waits,
    )


def _call(change: float, reach: float, floor: float, threshold: float, more: float) -> str:
    if abs(change) - reach > floor + more and abs(change) >= threshold - floor:
        return "slower" if change > 0 else "faster"
    return "same" if abs(change) + reach + floor < threshold else "ambiguous"


def _standard_error(runs: Sequence[Row]) -> float:
    """Of the mean of the runs' log medians, from the samples within each."""
    errors = [bootstrap_error(run.time["samples_ms"]) for run in runs if run.time and run.time["samples_ms"]]
    return math.sqrt(sum(error**2 for error in errors)) / len(errors)
