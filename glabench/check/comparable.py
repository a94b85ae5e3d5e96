"""Whether times can be compared: which runs of a pair were made under the same conditions, and why others were not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from glabench.check.pairs import Pair
from glabench.store import Row

# What of the environment must be equal: key -> (what it is called, how much of a version counts). A driver counts in
# full. Of torch and Triton the first two numbers do: 3.6 to 3.7 brings another compiler, 3.6.0 to 3.6.1 repairs.
CONDITIONS: dict[str, tuple[str, int | None]] = {
    "device": ("GPU", None),
    "memory_bytes": ("memory", None),
    "driver": ("driver", None),
    "cuda": ("CUDA", 2),
    "torch": ("torch", 2),
    "triton": ("triton", 2),
}
CPU_CONDITIONS = {**CONDITIONS, "device": ("CPU", None), "threads": ("threads", None)}
# The mean SM clock, as a share of its maximum, under which a run counts as throttled.
FULL_CLOCK = 0.99


@dataclass(frozen=True)
class Compared:
    """A pair with the runs that can be compared; ``reason`` says in one line why there are none."""

    pair: Pair
    reason: str | None
    left_out: tuple[str, ...] = ()  # why runs were left out although others remain


def comparable(pair: Pair) -> Compared:
    """The runs of the pair whose times can be compared.

    Throttled runs are left out; so are runs made under other conditions than the last of those that remain after the
    change. Where that leaves a side empty, ``reason`` says why.
    """
    notes: list[str] = []
    after = _unthrottled(pair.after, notes)
    if not after:
        return Compared(pair, notes[-1])
    before = _unthrottled(pair.before, notes)
    if not before:
        return Compared(pair, notes[-1])
    here = after[-1]
    kept = {side: [run for run in runs if difference(run, here) is None] for side, runs in _sides(before, after)}
    for run in (*before, *after):
        if (other := difference(run, here)) is not None:
            notes.append(other)
    if not kept["before"]:
        return Compared(pair, notes[-1])
    chosen = replace(pair, before=tuple(kept["before"]), after=tuple(kept["after"]))
    return Compared(chosen, None, tuple(dict.fromkeys(notes)))


def _sides(before: Sequence[Row], after: Sequence[Row]) -> tuple[tuple[str, Sequence[Row]], ...]:
    return ("before", before), ("after", after)


def _unthrottled(runs: Sequence[Row], notes: list[str]) -> list[Row]:
    """The runs at full clock; why the others were not goes to ``notes``."""
    reasons = [throttled(run) for run in runs]
    notes += [reason for reason in reasons if reason is not None]
    return [run for run, reason in zip(runs, reasons, strict=True) if reason is None]


def throttled(row: Row) -> str | None:
    """Why the run's clocks were held back, in words, or None. A cap that cost under 1 % of the clock is none."""
    clocks = row.clocks
    if not clocks or not clocks.get("sm_mhz_max"):
        return None
    share = clocks["sm_mhz"] / clocks["sm_mhz_max"]
    if share >= FULL_CLOCK:
        return None
    why = ", ".join(clocks.get("throttle") or ()) or "no reason given"
    return f"SM clock at {share:.1%} of its maximum ({why})"


def difference(one: Row, other: Row) -> str | None:
    """The first condition in which two runs differ: "driver 570.1 before, 580.2 now". None when there is none.

    What one of them does not know is no difference: a process that died tells little of its machine.
    """
    conditions = CPU_CONDITIONS if other.environment.get("kind") == "cpu" else CONDITIONS
    for key, (title, parts) in conditions.items():
        if key in one.environment and key in other.environment:
            a, b = one.environment[key], other.environment[key]
            if _counts(a, parts) != _counts(b, parts):
                return f"{title} {a} before, {b} now"
    if one.time and other.time and one.time["clock"] != other.time["clock"]:
        return f"timed by {one.time['clock']} before, {other.time['clock']} now"
    return None


def _counts(value: object, parts: int | None) -> object:
    """What counts of a version: its first ``parts`` numbers; anything else as it is."""
    if parts is None or not isinstance(value, str):
        return value
    return tuple(re.findall(r"\d+", value)[:parts])
