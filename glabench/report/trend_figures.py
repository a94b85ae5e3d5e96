"""Figures of trends: small multiples, a line a case, those of one shape in one figure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glabench.analysis import labels
from glabench.analysis.trend import History, Time, Trend
from glabench.report import text, trend_tables
from glabench.report.model import Figure, Panel, Point, Section, Series
from glabench.report.parts import slug

MOST_PANELS = 120  # of a device, changed cases first: what a page holds
ROOM = 0.04  # of the time, at least, above and below the levels: noise shall not look like news
NOISES = 4  # as much, in standard deviations
TITLES = {
    "night": "a night", "not compared": "not compared", "level": "its level", "slower": "slower from here",
    "faster": "faster from here",
}  # fmt: skip
UNKNOWN = "cases known by their ids alone"


def sections(trends: Sequence[Trend]) -> list[Section]:
    """A section a device; devices are never mixed in a figure."""
    return [
        Section(slug("trend", trend.device), trend.device, f"Night by night on {trend.device}", _figures(trend),
                "No night has a time that can be compared with others.")
        for trend in trends
    ]  # fmt: skip


def left_out(trend: Trend) -> int:
    """How many cases have no panel."""
    return max(0, sum(bool(history.at) for history in trend.histories) - MOST_PANELS)


def _figures(trend: Trend) -> tuple[Figure, ...]:
    timed = [history for history in trend.histories if history.at]
    drawn = sorted(timed, key=lambda history: not history.moved)[:MOST_PANELS]
    shapes: dict[str, list[History]] = {}
    for history in drawn:
        shapes.setdefault(trend_tables.where(history.case) if history.case else UNKNOWN, []).append(history)
    places = tuple(f"{night.name}\n{night.day[5:]}" for night in trend.nights)
    return tuple(
        Figure(slug("trend", trend.device, shape), shape, _caption(found),
               tuple(_panel(history, trend, places) for history in sorted(found, key=_order)))
        for shape, found in shapes.items()
    )  # fmt: skip


def _order(history: History) -> tuple[int, str]:
    mode = str((history.case or {}).get("mode"))
    modes = labels.MODE_ORDER
    return (modes.index(mode) if mode in modes else len(modes), trend_tables.system(history))


def _caption(found: Sequence[History]) -> str:
    changed = sum(bool(history.moved) for history in found)
    apart = [f"{trend_tables.system(history)}, {_mode(history)}: {trend_tables.measured(history)}." for history in found
             if history.new or history.gone]  # fmt: skip
    return " ".join([f"{changed} of {text.count(len(found), 'case')} changed.", *apart])


def _mode(history: History) -> str:
    return text.mode(str(history.case["mode"])) if history.case else "mode unknown"


def _panel(history: History, trend: Trend, places: tuple[str, ...]) -> Panel:
    low, high = _range(history)
    series = [Series("night", TITLES["night"], tuple(_night(history, trend, i, low, high) for i in range(len(places))))]
    others = [i for i, time in enumerate(history.times) if time is not None and time.ms is not None and not time.counts]
    if others:
        points = tuple(_point(history, trend, i, low, high) for i in others)
        series.append(Series("not compared", TITLES["not compared"], points))
    series.append(Series("level", TITLES["level"], _levels(history)))
    for key in ("slower", "faster"):
        changes = [one.change for one in history.moved if (one.change.ratio > 1) == (key == "slower")]
        marks = tuple(Point(history.at[one.at], one.after_ms) for one in changes if not one.drift)
        if marks:
            series.append(Series(key, TITLES[key], marks))
    title = trend_tables.system(history)
    return Panel(f"{title}, {_mode(history)}" if history.case else title, "", "median time, ms", tuple(series),
                 value_range=(low, high), nights=places)  # fmt: skip


def _range(history: History) -> tuple[float, float]:
    """Of the axis: the levels with room for the noise. It does not begin at zero, where 3 % could not be seen."""
    ends = [ms for one in history.levels.stretches for ms in (one.first_ms, one.last_ms)]
    room = math.exp(max(ROOM, NOISES * history.levels.noise))
    return min(ends) / room, max(ends) * room


def _night(history: History, trend: Trend, i: int, low: float, high: float) -> Point:
    """The point of a night that counts; one that does not interrupts the line."""
    time = history.times[i]
    return _point(history, trend, i, low, high) if time is not None and time.counts else Point(i, math.nan)


def _point(history: History, trend: Trend, i: int, low: float, high: float) -> Point:
    """The time of a night; at the edge where it lies beyond."""
    time, night = history.times[i], trend.nights[i]
    assert time is not None
    assert time.ms is not None
    lines = [f"{night.name}, {night.day}", f"{text.number(time.ms, 4)} ms{_since(history, i, time)}"]
    lines += [f"not compared: {time.why}"] if time.why else []
    lines += ["beyond this axis, drawn at its edge"] if not low <= time.ms <= high else []
    for moved in history.moved:
        if history.at[moved.change.at] == i and not moved.change.drift:
            lines += [f"{trend_tables.change(moved.change.ratio)} from here on", *moved.besides]
    return Point(i, min(max(time.ms, low), high), tip="\n".join(lines))


def _since(history: History, i: int, time: Time) -> str:
    """How far the night lies from the one before that counts."""
    before = next((history.times[j] for j in reversed(history.at) if j < i), None)
    if before is None or before.ms is None or time.ms is None:
        return ""
    return f", {trend_tables.change(time.ms / before.ms)} to the night before"


def _levels(history: History) -> tuple[Point, ...]:
    """Two points a stretch, and a gap."""
    points: list[Point] = []
    for one in history.levels.stretches:
        first, last = history.at[one.start], history.at[one.end - 1]
        points += [Point(first - 0.3, one.first_ms), Point(last + 0.3, one.last_ms), Point(last + 0.3, math.nan)]
    return tuple(points)
