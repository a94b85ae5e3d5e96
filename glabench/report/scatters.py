"""Draws marks without lines: two measures of one thing against each other."""

from __future__ import annotations

from matplotlib.axes import Axes

from glabench.report import style, ticks
from glabench.report.model import Panel
from glabench.report.style import AXIS


def scatter(axes: Axes, panel: Panel) -> None:
    """Both axes of one unit, with the line on which they are equal."""
    ticks.log_axes(axes, panel)
    for series in panel.series:
        look = style.style(series.key)
        (line,) = axes.plot(
            [p.at for p in series.points], [p.value for p in series.points], color=look.colour.light, linestyle="none",
            marker=look.marker, markersize=2.6, markeredgewidth=0,
        )  # fmt: skip
        line.set_gid(f"series:{series.key}")
    axes.axline((1, 1), (2, 2), color=AXIS.light, linewidth=1.1, zorder=1)
    ticks.place(axes.xaxis, *ticks.values(*axes.get_xlim(), most=6))
    ticks.place(axes.yaxis, *ticks.values(*axes.get_ylim()))


def front(axes: Axes, panel: Panel) -> None:
    """Each axis with a unit of its own; the series called "front" is a line."""
    ticks.log_axes(axes, panel)
    for series in panel.series:
        look = style.style(series.key)
        (line,) = axes.plot(
            [p.at for p in series.points], [p.value for p in series.points], color=look.colour.light,
            linestyle=look.line if series.key == "front" else "none", drawstyle="steps-post",
            marker=look.marker or "none", markerfacecolor=look.colour.light if look.filled else "white",
        )  # fmt: skip
        line.set_gid(f"series:{series.key}")
    axes.margins(0.08)
    axes.set_ylim(ticks.widen(axes.get_ylim()))
    ticks.place(axes.xaxis, *ticks.values(*axes.get_xlim(), most=6))
    ticks.place(axes.yaxis, *ticks.values(*axes.get_ylim()))
