"""What axes look like: which ticks they get, and what they are called."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from glabench.report import text
from glabench.report.model import Panel
from glabench.report.style import RULE

APART = 3.0  # between the names of ticks, at least, in points


def place(axis: Axis, places: Sequence[float], names: Sequence[str]) -> None:
    axis.set_major_locator(FixedLocator(list(places)))
    axis.set_major_formatter(FixedFormatter(list(names)))
    axis.set_minor_locator(NullLocator())


def lengths(ats: list[float]) -> tuple[list[float], list[str]]:
    """A tick at each length that was measured, thinned where labels would touch (a tenth of the axis apart)."""
    if not ats:
        return [], []
    span = math.log2(ats[-1] / ats[0]) or 1.0
    kept: list[float] = []
    for at in ats:
        if not kept or math.log2(at / kept[-1]) > span / 10:
            kept.append(at)
    return kept, [text.length(at) for at in kept]


def values(low: float, high: float, most: int = 8) -> tuple[list[float], list[str]]:
    """Round values between the ends of a log axis, as many as fit but at least three; plain numbers, no exponents."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 3, 5), (1, 2, 5), (1, 3), (1,), (1, 1.5, 2, 3, 5, 7)):
        inside = [p for p in (s * 10.0**e for e in decades for s in steps) if low <= p <= high]
        if 3 <= len(inside) <= most:
            return inside, [f"{p:,.10g}" for p in inside]
    if high / low < 100:
        # Too close together for round numbers on a log axis: round on a linear one.
        return round_values(low, high)
    whole = [10.0**e for e in decades if low <= 10.0**e <= high]
    thinned = whole[:: math.ceil(len(whole) / most) or 1]
    return thinned, [f"{p:,.10g}" for p in thinned]


def round_values(low: float, high: float) -> tuple[list[float], list[str]]:
    """Round values between the ends of a linear axis."""
    inside = [float(p) for p in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high) if low <= p <= high]
    return inside, [f"{p:,.6g}" for p in inside]


def thin(axis: Axis) -> None:
    """Takes away the ticks whose names run into those before them. Which do is known once there is a layout."""
    ends = [(box.x0, box.x1) for box in (label.get_window_extent() for label in axis.get_majorticklabels())]
    kept: list[int] = []
    for i, (start, _) in enumerate(ends):
        if not kept or start > ends[kept[-1]][1] + APART:
            kept.append(i)
    if len(kept) < len(ends):
        places, names = axis.get_majorticklocs(), [label.get_text() for label in axis.get_majorticklabels()]
        place(axis, [float(places[i]) for i in kept], [names[i] for i in kept])


def log_axes(axes: Axes, panel: Panel) -> None:
    """Both axes logarithmic, named, with a grid behind what is drawn."""
    axes.annotate(panel.value_label, (0, 1), (0, 5), "axes fraction", textcoords="offset points", fontsize=8.5)
    axes.set_xlabel(panel.at_label, fontsize=8.5)
    axes.grid(True, color=RULE.light, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xscale("log")
    axes.set_yscale("log")


def widen(ends: tuple[float, float], least: float = 1.6) -> tuple[float, float]:
    """The ends of an axis of values, at least a factor of ``least`` apart: noise of a few per cent shall not look like
    news."""
    low, high = ends
    more = math.sqrt(max(1.0, least / (high / low)))
    return low / more, high * more
