"""What two medians of one run say of each other: which is the smaller, or that noise alone would part them as far."""

from __future__ import annotations

import math
from typing import Literal

# The spread of a run's median, as a standard deviation of its logarithm, where no case was run more than once. No
# measurement: wide enough for clocks that are not locked, narrow enough to see 3 % on a GPU in most cases.
DEFAULT_SPREAD = {"cuda_events_cold_l2": 0.003, "cpu_wall": 0.05}
# On a GPU, what the host's clock times repeats better than on a CPU. Of 200 cases whose eager calls were timed in
# several runs of one code (results/), half came out within 0.5 % from run to run, as a standard deviation, and nine in
# ten within 2.4 %. A training step waits for the GPU as much.
SPREAD = {**DEFAULT_SPREAD, "eager_wall": 0.01, "steps_wall": 0.01}
# How far two medians lie apart by chance, one pair in twenty: the difference of two has the spread sqrt(2) times.
APART = 1.96 * math.sqrt(2)

Said = Literal["faster", "slower", "tie", "unsure"]


def said(ratio: float, low: float, high: float, clock: object) -> Said:
    """What a ratio of medians says, the baseline's time over one's own, from its interval and the clock of the times.

    A tie is a ratio whose interval holds 1, or that is nearer to 1 than medians of the same code come out from run to
    run. Without an interval, of a single sample, nothing is said.
    """
    if math.isnan(low) or math.isnan(high):
        return "unsure"
    reach = APART * SPREAD.get(str(clock), max(SPREAD.values()))
    if low <= 1 <= high or abs(math.log(ratio)) <= reach:
        return "tie"
    return "faster" if ratio > 1 else "slower"
