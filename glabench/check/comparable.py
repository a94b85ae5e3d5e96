"""Whether times can be compared: which runs of a pair were made under the same conditions, and why others were not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from glabench.analysis.clocks import clock, throttled
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
# A power cap holds the clock back by what a kernel draws: that is part of what it can do, and much the same in every
# run. It counts where the clocks of two runs lie further apart than this; mean clocks read twice differ by up to 2.7 %.
CLOCKS_APART = 0.03


@dataclass(frozen=True)
class Compared:
    """A pair with the runs that can be compared; ``reason`` says in one line why there are none."""

    pair: Pair
    reason: str | None
    left_out: tuple[str, ...] = ()  # why runs were left out although others remain


def comparable(pair: Pair) -> Compared:
    """The runs of the pair whose times can be compared.

    Throttled runs are left out; so are runs made under other conditions, or at another clock, than the last run after
    the change that there is a run before it to compare with. Where there is none, ``reason`` says why. Of runs on
    several GPUs of a model, those on one that both sides have count, where there is such a GPU.
    """
    notes: list[str] = []
    after = _unthrottled(pair.after, notes)
    if not after:
        return Compared(pair, notes[-1])
    before = _unthrottled(pair.before, notes)
    if not before:
        return Compared(pair, notes[-1])
    here = next((run for run in reversed(after) if any(apart(old, run) is None for old in before)), None)
    if here is None:
        return Compared(pair, apart(before[-1], after[-1]))
    chosen = replace(pair, before=_like(before, here, notes), after=_like(after, here, notes))
    shared = _shared_gpu(chosen)
    if shared is not None:
        chosen = replace(chosen, before=_on(shared, chosen.before, notes), after=_on(shared, chosen.after, notes))
    return Compared(chosen, None, tuple(dict.fromkeys(notes)))


def of_other_gpus(before: Sequence[Row], after: Sequence[Row]) -> bool:
    """Whether the runs before are of other GPUs than those after; not where a row does not say."""
    old, new = ({_gpu(run) for run in runs} for runs in (before, after))
    return None not in old | new and not old & new


def _shared_gpu(pair: Pair) -> str | None:
    """The GPU of the last run now that there is a run before on, too; None where there is none, or no row says."""
    known = {_gpu(run) for run in pair.before}
    return next((gpu for run in reversed(pair.after) if (gpu := _gpu(run)) and gpu in known), None)


def _gpu(row: Row) -> str | None:
    """Which GPU the row was measured on, of rows that say so."""
    return row.environment.get("gpu_uuid")


def _unthrottled(runs: Sequence[Row], notes: list[str]) -> tuple[Row, ...]:
    """The runs at full clock; why the others were not goes to ``notes``."""
    return _without(runs, [throttled(run) for run in runs], notes)


def _like(runs: Sequence[Row], here: Row, notes: list[str]) -> tuple[Row, ...]:
    """The runs made as ``here`` was; how the others were not goes to ``notes``."""
    return _without(runs, [apart(run, here) for run in runs], notes)


def _on(gpu: str, runs: Sequence[Row], notes: list[str]) -> tuple[Row, ...]:
    """The runs on this GPU; that there were others goes to ``notes``."""
    why = "on another GPU of this model, while both sides have runs on one"
    return _without(runs, [None if _gpu(run) == gpu else why for run in runs], notes)


def _without(runs: Sequence[Row], reasons: Sequence[str | None], notes: list[str]) -> tuple[Row, ...]:
    notes += [reason for reason in reasons if reason is not None]
    return tuple(run for run, reason in zip(runs, reasons, strict=True) if reason is None)


def apart(one: Row, other: Row) -> str | None:
    """Why the times of two runs say nothing of each other, or None: other conditions, or another clock."""
    return difference(one, other) or _clocks_apart(one, other)


def _clocks_apart(one: Row, other: Row) -> str | None:
    """How the clocks of two runs differ, where that alone could look like a change: "SM clock at 85.9% of its maximum
    before, 100.0% now"."""
    before, now = clock(one), clock(other)
    if before is None or now is None or abs(before - now) <= CLOCKS_APART:
        return None
    return f"SM clock at {before:.1%} of its maximum before, {now:.1%} now"


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
