"""Draws a roofline: what kernels reach over their arithmetic intensity, under what the hardware can do at most."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from glabench.report import style, ticks
from glabench.report.model import Panel, Roof
from glabench.report.style import AXIS, INK

HEIGHT = 3.6  # inches
NAME = 0.45  # of the width, for the name of a roof


def draw(axes: Axes, panel: Panel) -> None:
    ticks.log_axes(axes, panel)
    for series in panel.series:
        look = style.style(series.key)
        colour = look.colour.light
        (line,) = axes.plot(
            [p.at for p in series.points], [p.value for p in series.points], color=colour, linestyle="none",
            marker=look.marker or "o", markersize=5.4, markerfacecolor=colour if look.filled else "white",
            markeredgecolor="white", markeredgewidth=0.4, zorder=3,
        )  # fmt: skip
        line.set_gid(f"series:{series.key}")
    left, right, low, high = _limits(panel)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    for roof in panel.roofs:
        _roof(axes, roof, panel.roofs, left, right, low)
    ticks.place(axes.xaxis, *ticks.values(left, right, most=6))
    ticks.place(axes.yaxis, *ticks.values(low, high))


def _limits(panel: Panel) -> tuple[float, float, float, float]:
    """Room for all points, the highest ridge and the roofs' names: left, right, low, high."""
    points = [p for s in panel.series for p in s.points]
    flat = [roof.rate for roof in panel.roofs if not roof.sloped]
    ridges = [top / roof.rate for roof in panel.roofs if roof.sloped for top in flat]
    ats, values = [p.at for p in points] + ridges, [p.value for p in points] + flat
    right = max(ats) * 2
    # The name of the lowest roof ends at its ridge: what is left of that is NAME of the width at least.
    names = [(ridge / right**NAME) ** (1 / (1 - NAME)) for ridge in ridges]
    left = min([min(ats) / 2.5, *names])
    slopes = [roof.rate * left for roof in panel.roofs if roof.sloped]
    return left, right, min([*(v / 2 for v in values), *slopes]), max(values) * 1.9


def _roof(axes: Axes, roof: Roof, roofs: Sequence[Roof], left: float, right: float, low: float) -> None:
    """A line up to where another kind of roof takes over, with its name on it."""
    if roof.sloped:
        top = max((other.rate for other in roofs if not other.sloped), default=roof.rate * right)
        start = max(left, low / roof.rate)
        axes.plot([start, top / roof.rate], [start * roof.rate, top], color=INK.light, linewidth=1.1, zorder=1)
        # The angle of the line in data, which the axes turn into that on paper.
        angle = math.degrees(math.atan(roof.rate))
        ridge = min((other.rate for other in roofs if not other.sloped), default=top) / roof.rate
        at = math.sqrt(start * ridge)  # half way up to the lowest roof: kernels crowd at either end
        axes.text(at, at * roof.rate * 1.12, roof.title, fontsize=7.8, rotation=angle, va="bottom", ha="center",
                  rotation_mode="anchor", transform_rotates_text=True)  # fmt: skip
        return
    slopes = [other.rate for other in roofs if other.sloped]
    start = roof.rate / max(slopes) if slopes else left
    axes.plot([start, right], [roof.rate] * 2, color=AXIS.light, linewidth=1.1, zorder=1)
    if slopes:  # its name stands over the slope, where no kernel can be
        axes.annotate(roof.title, (start, roof.rate), (-4, 0), textcoords="offset points", fontsize=7.8, ha="right",
                      va="center")  # fmt: skip
    else:
        axes.text(right, roof.rate * 1.04, roof.title, fontsize=7.8, ha="right", va="bottom")
