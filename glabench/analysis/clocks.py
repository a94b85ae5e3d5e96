"""The SM clock that a row was timed at, as a share of its maximum, and whether it was held back."""

from __future__ import annotations

from glabench.store import Row

# The mean SM clock, as a share of its maximum, under which a run was held back.
FULL_CLOCK = 0.99
# It holds the clock back by what a kernel draws: that is part of what it can do, and much the same in every run.
POWER_CAP = "power cap"


def clock(row: Row) -> float | None:
    """The mean SM clock as a share of its maximum; None where it was not read."""
    clocks = row.clocks
    return clocks["sm_mhz"] / clocks["sm_mhz_max"] if clocks and clocks.get("sm_mhz_max") else None


def throttled(row: Row) -> str | None:
    """Why the run's clocks were held back, in words, or None. A cap that cost under 1 % of the clock is none, and a
    power cap is for ``check.comparable.apart`` to judge."""
    share = clock(row)
    if share is None or share >= FULL_CLOCK:
        return None
    why = (row.clocks or {}).get("throttle") or []
    if why == [POWER_CAP]:
        return None
    return f"SM clock at {share:.1%} of its maximum ({', '.join(why) or 'no reason given'})"
