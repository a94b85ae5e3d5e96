"""Draws bars that add up: a bar a category, a piece a point, on a linear scale from zero."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from glabench.report import style, ticks
from glabench.report.model import Panel, Point, Series
from glabench.report.style import AXIS, RULE
from glabench.report.svg import Hit, hit

THICK = 0.66  # of the room of a category
APART = 18.0  # between the places of a piece that answer a pointer, in units of the SVG


def height(panel: Panel) -> float:
    """Of the panel, in inches."""
    return max(1.5, 0.95 + 0.27 * len(panel.categories))


def pieces(panel: Panel) -> Iterator[tuple[Series, Point, float]]:
    """(series, point, where the piece begins), in the order of the series; pieces of one category add up."""
    ends = [0.0] * len(panel.categories)
    for series in panel.series:
        for point in series.points:
            yield series, point, ends[int(point.at)]
            ends[int(point.at)] += point.value


def draw(axes: Axes, panel: Panel) -> None:
    axes.set_xlabel(panel.value_label, fontsize=8.5)
    axes.grid(True, axis="x", color=RULE.light, linewidth=0.7)
    axes.set_axisbelow(True)
    end = 0.0
    for series, point, start in pieces(panel):
        (bar,) = axes.barh(point.at, point.value, THICK, left=start, color=style.style(series.key).colour.light,
                           edgecolor="white", linewidth=0.5)  # fmt: skip
        bar.set_gid(f"series:{series.key}")
        end = max(end, start + point.value)
    if panel.reference:
        axes.axvline(panel.reference[0], color=AXIS.light, linewidth=1.1, zorder=1)
    axes.set_ylim(len(panel.categories) - 0.5, -0.5)  # the first category on top
    axes.set_xlim(0, end * 1.03 or 1.0)
    ticks.place(axes.yaxis, list(range(len(panel.categories))), list(panel.categories))
    places = [float(x) for x in MaxNLocator(5).tick_values(0, end * 1.03 or 1.0) if 0 <= x <= (end * 1.03 or 1.0)]
    ticks.place(axes.xaxis, places, [f"{x:,.6g}" for x in places])
    axes.tick_params(axis="y", labelsize=8)


def hits(axes: Axes, panel: Panel) -> list[Hit]:
    """Places all along each piece, so that a pointer need not meet its middle."""
    unit = float(axes.transData.transform((1, 0))[0] - axes.transData.transform((0, 0))[0])
    found = []
    for series, point, start in pieces(panel):
        count = max(1, round(point.value * unit / APART))
        for i in range(count):
            x = start + point.value * (i + 0.5) / count
            found.append(hit(axes, x, point.at, series.key, point.tip))
    return found
