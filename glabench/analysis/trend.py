"""Trends: what each case took night by night, and where that changed.

A night is a line that `glabench check --trend` appended, or the rows of one commit. Lines did not always have all of
this: one without its cases' fields is read by their ids, which later lines and rows explain.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import fmean, median
from typing import Any

from glabench import nested
from glabench.analysis.clocks import clock, throttled
from glabench.analysis.load import device, device_name
from glabench.analysis.spread import DEFAULT_SPREAD
from glabench.analysis.steps import Change, Levels, levels, typical_noise
from glabench.store import Row

# What of a night's environment may change times besides the commit: key -> what it is called.
CONDITIONS = {"driver": "driver", "cuda": "CUDA", "torch": "torch", "triton": "triton", "gpu_uuid": "GPU"}
CLOCKS_APART = 0.03  # shares of the clock's maximum; mean clocks read twice differ by up to 2.7 %
HASH = 7  # characters of a commit


@dataclass(frozen=True)
class Time:
    """What a case came to in one night."""

    ms: float | None  # the geometric mean of its runs' medians; None where it has none
    status: str = "ok"  # that of its rows, or "missing"
    clock: float | None = None  # the SM clock as a share of its maximum
    why: str | None = None  # why the time cannot be compared with other nights'

    @property
    def counts(self) -> bool:
        return self.ms is not None and self.why is None


@dataclass(frozen=True)
class Night:
    """One point of the x axis."""

    when: str  # ISO 8601, UTC
    device: str
    commit: str
    dirty: bool = False
    conditions: Mapping[str, str] = field(default_factory=dict)  # of CONDITIONS
    times: Mapping[str, Time] = field(default_factory=dict)  # by case id
    cases: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # their fields, where they are known

    @property
    def name(self) -> str:
        """The commit in short, with a "+" for changes that it does not have."""
        return f"{self.commit[:HASH] or 'unknown'}{'+' if self.dirty else ''}"

    @property
    def day(self) -> str:
        return self.when[:10]


@dataclass(frozen=True)
class Moved:
    """A change of a case: between which nights, whether it is still so, and what else changed between them."""

    change: Change
    before: Night
    after: Night
    still: bool | None  # None where the case is no longer measured
    besides: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """A case over all nights of its device."""

    case_id: str
    case: dict[str, Any] | None
    times: tuple[Time | None, ...]  # by night
    at: tuple[int, ...]  # the nights that count: those of ``levels``
    levels: Levels
    moved: tuple[Moved, ...]
    new: Night | None  # the first night that has it, where there is one before that would
    gone: Night | None  # the first night that has no time of it any more
    status: str  # of the last night

    @property
    def ms(self) -> tuple[float, ...]:
        """The times that count."""
        return tuple(time.ms for i in self.at if (time := self.times[i]) and time.ms)


@dataclass(frozen=True)
class Trend:
    """All nights of one device, oldest first, and all cases that were timed."""

    device: str
    nights: tuple[Night, ...]
    histories: tuple[History, ...]


def time_of(runs: Sequence[Row]) -> Time:
    """What the runs of one case in one night came to; held back by their clocks, they count where no other run is."""
    if not runs:
        return Time(None, "missing")
    status = next((run.status for run in runs if run.status != "ok"), "ok")
    timed = [run for run in runs if run.status == "ok" and run.time and run.time["samples_ms"]]
    if status != "ok" or not timed:
        return Time(None, status)
    free = [run for run in timed if throttled(run) is None]
    used = free or timed
    ms = math.exp(fmean(math.log(median(run.time["samples_ms"])) for run in used if run.time))
    shares = [share for run in used if (share := clock(run)) is not None]
    return Time(ms, "ok", fmean(shares) if shares else None, None if free else throttled(timed[-1]))


def conditions(environment: Mapping[str, Any]) -> dict[str, str]:
    """What of CONDITIONS an environment says."""
    return {key: str(environment[key]) for key in CONDITIONS if environment.get(key) is not None}


def from_json(text: str) -> Night:
    """A line of `glabench check --trend`. ValueError when the text is none."""
    try:
        line = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(line, dict) or not isinstance(line.get("when"), str) or not isinstance(line.get("cases"), dict):
        raise ValueError("a line of a trend is a JSON object with when, device, commit and cases")
    facts = line.get("conditions") or {}
    if not isinstance(facts, dict) or not all(isinstance(one, dict) for one in line["cases"].values()):
        raise ValueError("conditions and each of cases are JSON objects")
    known = {case_id: one["case"] for case_id, one in line["cases"].items() if one.get("case") is not None}
    for case_id, case in known.items():
        if (odd := nested.fault({"case": case})) is not None:
            raise ValueError(f"{case_id}: {odd}")
    return Night(
        line["when"],
        device_name(line),
        str(line.get("commit") or ""),
        bool(line.get("dirty")),
        conditions(facts),
        {case_id: _time(case_id, one) for case_id, one in line["cases"].items()},
        known,
    )


def _time(case_id: str, one: Mapping[str, Any]) -> Time:
    ms, share, why = one.get("ms"), one.get("clock"), one.get("why")
    number = isinstance(ms, int | float) and not isinstance(ms, bool) and 0 < ms < math.inf
    if not number and ms is not None:
        raise ValueError(f"{case_id}: ms is {ms!r}, expected a positive number or null")
    share = share if isinstance(share, int | float) else None
    return Time(ms, str(one.get("status") or "ok"), share, None if why is None else str(why))


def nights_of(rows: Iterable[Row]) -> list[Night]:
    """A night for each commit, device and set of conditions that rows were measured under."""
    measured = sorted((row for row in rows if row.profile is None), key=_made_by)
    return [_night([*group]) for _, group in groupby(measured, _made_by)]


def _made_by(row: Row) -> tuple[str, ...]:
    """What rows of one night have in common. Changes that no commit has are told apart by what they come to."""
    at = row.environment
    tree = str(at.get("fingerprint")) if at.get("dirty") else ""
    return device(row), str(at.get("commit") or ""), tree, *(str(at.get(key)) for key in CONDITIONS)


def _night(rows: Sequence[Row]) -> Night:
    runs: dict[str, list[Row]] = {}
    for row in rows:
        runs.setdefault(row.case_id, []).append(row)
    at = rows[0].environment
    return Night(
        min(row.started for row in rows),
        device(rows[0]),
        str(at.get("commit") or ""),
        bool(at.get("dirty")),
        conditions(at),
        {case_id: time_of(found) for case_id, found in runs.items()},
        {case_id: found[-1].case for case_id, found in runs.items()},
    )


def in_order(nights: Iterable[Night]) -> list[Night]:
    """By the time of their commits, where the repository that this runs in has all of them: older ones may have been
    measured later. Else, and of one commit, by when they were measured."""
    found = sorted(nights, key=lambda night: night.when)
    committed = _committed({night.commit for night in found})
    return sorted(found, key=lambda night: committed[night.commit]) if committed else found


def _committed(commits: set[str]) -> dict[str, int]:
    """When each commit was made, in seconds since 1970; nothing where one of them is not known here."""
    if not all(re.fullmatch("[0-9a-f]{40}", commit) for commit in commits):
        return {}
    command = ["git", "log", "--no-walk=unsorted", "--format=%H %ct", *sorted(commits)]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = {commit: int(seconds) for commit, seconds in map(str.split, done.stdout.splitlines())}
        return found if found.keys() == commits else {}
    return {}


def trends(nights: Iterable[Night]) -> list[Trend]:
    """The nights by device, in their order."""
    found: dict[str, list[Night]] = {}
    for night in nights:
        found.setdefault(night.device, []).append(night)
    return [_trend(name, tuple(ours)) for name, ours in found.items()]


def _trend(name: str, nights: tuple[Night, ...]) -> Trend:
    known = {case_id: case for night in nights for case_id, case in night.cases.items()}
    ids = dict.fromkeys(case_id for night in nights for case_id, time in night.times.items() if time.ms is not None)
    counted = {case_id: [i for i, night in enumerate(nights) if _counts(night, case_id)] for case_id in ids}
    series = {case_id: [nights[i].times[case_id].ms or math.nan for i in at] for case_id, at in counted.items()}
    typical = typical_noise(list(series.values()), DEFAULT_SPREAD["cuda_events_cold_l2"])
    alike: dict[str, set[str]] = {}  # of each system its cases, and all for what is of an unknown one
    for case_id, case in known.items():
        alike.setdefault(str(case["system"]), set()).add(case_id)
    histories = tuple(
        _history(case_id, known.get(case_id), nights, tuple(at), levels(series[case_id], typical),
                 alike[str(known[case_id]["system"])] if case_id in known else set(ids))
        for case_id, at in counted.items()
    )  # fmt: skip
    return Trend(name, nights, histories)


def _counts(night: Night, case_id: str) -> bool:
    return case_id in night.times and night.times[case_id].counts


def _history(
    case_id: str,
    case: dict[str, Any] | None,
    nights: Sequence[Night],
    at: tuple[int, ...],
    found: Levels,
    alike: set[str],
) -> History:
    times = tuple(night.times.get(case_id) for night in nights)
    timed = [i for i, time in enumerate(times) if time is not None and time.ms is not None]
    first, last = timed[0], timed[-1]
    new = any(_would_have(night, nights[first], alike - {case_id}) for night in nights[:first])
    after = [
        night
        for night in nights[last + 1 :]
        if case_id in night.times or _would_have(night, nights[last], alike - {case_id})
    ]
    now = next((time.status for time in reversed(times) if time is not None), "ok")
    gone = after[0] if after else None
    moved = tuple(_moved(case_id, one, [nights[i] for i in at], found, gone is not None) for one in found.changes)
    status = ("missing" if now == "ok" else now) if gone is not None else now
    return History(case_id, case, times, at, found, moved, nights[first] if new else None, gone, status)


def _would_have(night: Night, other: Night, alike: set[str]) -> bool:
    """Whether a night measured what the other did of ``alike`` cases: half at least. Other sweeps, and sweeps of other
    systems, say nothing of a case."""
    there = other.times.keys() & alike
    return bool(there) and 2 * len(there & night.times.keys()) >= len(there)


def _moved(case_id: str, change: Change, nights: Sequence[Night], found: Levels, gone: bool) -> Moved:
    before, after = nights[change.since], nights[change.at]
    today = math.log(found.stretches[-1].last_ms)
    still = abs(today - math.log(change.after_ms)) < abs(today - math.log(change.before_ms))
    return Moved(change, before, after, None if gone else still, tuple(_besides(case_id, before, after)))


def _besides(case_id: str, before: Night, after: Night) -> Iterable[str]:
    """What else is different after a change: "triton 3.6.0 -> 3.7.0"; or that nothing of the sources is."""
    if before.commit and (before.commit, before.dirty, after.dirty) == (after.commit, False, False):
        yield "the same commit"
    for key, title in CONDITIONS.items():
        old, new = before.conditions.get(key), after.conditions.get(key)
        if old and new and old != new:
            yield "another GPU of this model" if key == "gpu_uuid" else f"{title} {old} -> {new}"
    clocks = before.times[case_id].clock, after.times[case_id].clock
    if clocks[0] is not None and clocks[1] is not None and abs(clocks[0] - clocks[1]) > CLOCKS_APART:
        yield f"SM clock {clocks[0]:.0%} -> {clocks[1]:.0%} of its maximum"
