"""A figure as data: what is drawn, before anyone draws it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One mark. ``value`` is what is measured; ``at`` is where: a length, or the index of a category."""

    at: float
    value: float
    low: float = math.nan  # the interval of value; NaN draws none
    high: float = math.nan
    tip: str = ""  # shown on hover, one fact a line


@dataclass(frozen=True)
class Series:
    """The points of one variant, in its style everywhere (report/style.py)."""

    key: str
    title: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Roof:
    """A ceiling over a scatter: ``rate`` itself, or, where it is ``sloped``, ``rate`` times what is along x."""

    title: str
    rate: float
    sloped: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes, values on a log scale; with ``categories`` a dot plot, a line a category, values along x.

    scatter: marks without lines, both axes values of one unit, with the line on which they are equal.
    front: marks without lines, each axis with a unit of its own; the series called "front" is a line.
    stacked: with categories, bars that add up instead of dots, from zero on a linear scale.
    linear: lines with values on a linear scale, from one end of value_range to the other.
    roofs: marks without lines under these ceilings: a roofline plot.
    nights: lines over nights of these names, in equal steps, on a linear scale between the ends of value_range.
    """

    title: str
    at_label: str
    value_label: str  # with its unit
    series: tuple[Series, ...]
    categories: tuple[str, ...] = ()
    reference: tuple[float, str] | None = None  # a line across, and what it stands for
    value_range: tuple[float, float] | None = None  # shared by panels that are to be compared with each other
    scatter: bool = False
    front: bool = False
    stacked: bool = False
    linear: bool = False
    roofs: tuple[Roof, ...] = ()
    nights: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """Panels that answer one question together, with the sentence that says what to see."""

    name: str  # file name and anchor, without extension
    title: str
    caption: str
    panels: tuple[Panel, ...]

    @property
    def keys(self) -> list[tuple[str, str]]:
        """(key, title) of every series, in the order they first appear."""
        return list(dict.fromkeys((s.key, s.title) for panel in self.panels for s in panel.series))

    @property
    def stacked(self) -> bool:
        """Whether series are areas, and not marks."""
        return any(panel.stacked for panel in self.panels)


@dataclass(frozen=True)
class Section:
    """Figures under one heading, or the sentence that says which sweep would give them."""

    name: str
    short: str  # in the navigation
    title: str
    figures: tuple[Figure, ...]
    missing: str
