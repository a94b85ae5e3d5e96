"""Draws a case night by night: its times, the levels that they keep, and the commits that changed them."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from glabench.report import style, ticks
from glabench.report.model import Panel, Series
from glabench.report.style import RULE

HEIGHT = 2.35  # inches
WIDTHS = {"night": 0.8, "level": 1.9}  # of lines, in points
MARKED = ("slower", "faster")  # series of which each point is a line down, with the night's name
NAMES = 0.16  # of the height, for those names
MOST_NAMED = 5  # nights along the axis
ROWS = 2  # that names stand in, in turns, so that neighbours do not touch


def draw(axes: Axes, panel: Panel) -> None:
    assert panel.value_range is not None
    axes.annotate(panel.value_label, (0, 1), (0, 5), "axes fraction", textcoords="offset points", fontsize=8.5)
    axes.set_xlabel(panel.at_label, fontsize=8.5)
    axes.grid(True, axis="y", color=RULE.light, linewidth=0.7)
    axes.set_axisbelow(True)
    low, high = panel.value_range
    axes.set_ylim(low, high + NAMES * (high - low))
    axes.set_xlim(-0.6, max(1, len(panel.nights) - 1) + 0.6)
    marks = sorted(p.at for s in panel.series if s.key in MARKED for p in s.points)
    for series in panel.series:
        if series.key in MARKED:
            _marks(axes, series, panel, marks)
        else:
            _line(axes, series)
    ticks.place(axes.yaxis, *ticks.round_values(low, high))
    step = math.ceil(len(panel.nights) / MOST_NAMED)
    places = list(range(len(panel.nights) - 1, -1, -step))[::-1]  # the last night is always named
    ticks.place(axes.xaxis, places, [panel.nights[i] for i in places])
    axes.tick_params(axis="x", labelsize=7.6)


def _line(axes: Axes, series: Series) -> None:
    look = style.style(series.key)
    (line,) = axes.plot(
        [p.at for p in series.points], [p.value for p in series.points], color=look.colour.light,
        linestyle="none" if series.key == "not compared" else look.line, linewidth=WIDTHS.get(series.key, 1.0),
        markerfacecolor=look.colour.light if look.filled else "white", markeredgewidth=0.8,
        marker=look.marker or "none", markersize=3.6 if look.filled else 5.0, zorder=3 if series.key == "level" else 2,
    )  # fmt: skip
    line.set_gid(f"series:{series.key}")


def _marks(axes: Axes, series: Series, panel: Panel, marks: list[float]) -> None:
    """A line before the night of each point, and the night's commit beside it, on the side that has room."""
    look = style.style(series.key)
    for point in series.points:
        line = axes.axvline(point.at - 0.5, color=look.colour.light, linestyle=look.line, linewidth=1.1, zorder=1.5)
        late = point.at > 0.6 * len(panel.nights)
        below = -1 - 9 * (marks.index(point.at) % ROWS)
        words = axes.annotate(
            panel.nights[int(point.at)].split("\n")[0], (point.at - 0.5, 1), (-3 if late else 3, below),
            ("data", "axes fraction"), textcoords="offset points", fontsize=7.6, color=look.colour.light,
            ha="right" if late else "left", va="top",
        )  # fmt: skip
        for artist in (line, words):
            artist.set_gid(f"series:{series.key}")
