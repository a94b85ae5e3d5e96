"""Pages: one HTML file that needs nothing else, neither network nor other files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from matplotlib.markers import MarkerStyle
from matplotlib.transforms import Affine2D

import glabench
from glabench.report import (
    asked,
    chart,
    environments,
    headline,
    matrix,
    parts,
    schedule_matrix,
    short,
    style,
    svg,
    tables,
    text,
)
from glabench.report.draw import panel_svg
from glabench.report.model import Figure, Section
from glabench.store import Row

CHARTED = ("speed",)  # sections whose figures the chart shows: they are files of their own, but not on the page
EARLY = ("schedule", "materialize")  # the first there is comes before the chart where a page is about schedules
TEMPLATES = files("glabench.report") / "templates"


@dataclass(frozen=True)
class Drawn:
    """A figure with its panels as SVG, and its legend as (key, title, glyph)."""

    figure: Figure
    panels: tuple[Markup, ...]
    legend: tuple[tuple[str, str, Markup], ...]


def render(rows: Sequence[Row], table: pd.DataFrame, sections: Sequence[Section], older: int = 0) -> str:
    """The whole page as text. ``table`` is ``analysis.frame.frame(rows)``, ``sections`` that of ``report.figures``,
    ``older`` how many rows of the same cases were read and are not among ``rows``.

    Everything that comes out of a row is escaped by the template; only our own SVG, CSS and script pass as markup.
    """
    charts = [
        (device, [(choice, drawn("chart", f"{i}c{j}", choice.figure)) for j, choice in enumerate(found)])
        for i, (device, found) in enumerate(chart.choices(table))
        if found
    ]
    return fill("page.html.j2", charts=charts, **values(rows, table, sections, older, CHARTED))


def values(
    rows: Sequence[Row], table: pd.DataFrame, sections: Sequence[Section], older: int = 0, charted: Sequence[str] = ()
) -> dict[str, Any]:
    """What page.html.j2, and a template that extends it, is filled with; without the sections of the names
    ``charted``."""
    devices = parts.devices(table)
    found = environments.environments(rows)
    sweeps = sorted(set(table["sweep"]))
    schedules = schedule_matrix.grids(rows, table)
    figures = [(s, [drawn(s.name, i, figure) for i, figure in enumerate(s.figures)])
               for s in sections if s.figures and s.name not in charted]  # fmt: skip
    early = next(([name] for name in EARLY if schedules and any(s.name == name for s, _ in figures)), [])
    return {
        "devices": text.listing(devices),
        "asked": asked.asked(sweeps),
        "short": [short.short(table, name) for name in devices] if len(sweeps) == 1 else [],
        "sweeps": sweeps,
        "schedule_grids": schedules,
        "grids": matrix.grids(rows, table) if not schedules or table["system"].nunique() > 1 else [],
        "early": [one for one in figures if one[0].name in early],
        "started": dates(rows),
        "total": len(rows),
        "left_out": text.left_out(older),
        "timed": int(table["ms"].notna().sum()),
        "answers": [(device, headline.findings(table, device)) for device in devices],
        "systems": tables.systems(table),
        "sections": [one for one in figures if one[0].name not in early],
        "missing": [(s.title, s.missing) for s in sections if not s.figures],
        "kernels": tables.kernels(rows),
        "floors": tables.floors(rows),
        "archs": tables.archs(rows),
        "accuracy": tables.accuracy(rows),
        "measurements": tables.measurements(table),
        "failures": tables.failures(rows, table),
        "environments": found,
        "mixed": environments.mixed(found),
    }


def fill(template: str, **values: Any) -> str:
    """A page from one of templates/, with the look that all pages share."""
    page = (
        _templates()
        .get_template(template)
        .render(
            version=glabench.__version__,
            css=Markup(_asset("page.css")),
            light=style.css_variables(dark=False),
            dark=style.css_variables(dark=True),
            script=Markup(_asset("page.js")),
            **values,
        )
    )
    return svg.shared(page)


def dates(rows: Sequence[Row]) -> str:
    """The day or days on which the rows were made."""
    days = sorted({row.started[:10] for row in rows if row.started})
    if not days:
        return "date unknown"
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


@cache
def _templates() -> Environment:
    return Environment(
        loader=FunctionLoader(_asset),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def drawn(section: str, index: int | str, figure: Figure) -> Drawn:
    """The figure at ``index`` of the section of that name, ready for the page."""
    panels = tuple(
        Markup(panel_svg(panel, f"{section}{index}p{i}", figure.title)) for i, panel in enumerate(figure.panels)
    )
    return Drawn(figure, panels, legend(figure))


def legend(figure: Figure) -> tuple[tuple[str, str, Markup], ...]:
    return tuple((key, title, swatch(key) if figure.stacked else glyph(key)) for key, title in figure.keys)


def swatch(key: str) -> Markup:
    """A legend's patch of colour, for what is drawn as an area."""
    colour = f"var(--c-{style.style(key).colour.name})"
    return Markup(
        f'<svg class="glyph" viewBox="0 0 30 12" aria-hidden="true"><path d="M7 0H23V12H7Z" fill="{colour}"/></svg>'
    )


def glyph(key: str) -> Markup:
    """A legend's line and marker as a small SVG, from the same style as the figures."""
    look = style.style(key)
    colour = f"var(--c-{look.colour.name})"
    dashes = ",".join(f"{1.6 * x:.1f}" for x in look.dashes)
    fill = colour if look.filled else "var(--card)"
    marker = _marker_path(look.marker)
    return Markup(
        f'<svg class="glyph" viewBox="0 0 30 12" aria-hidden="true"><path d="M1 6H29" stroke="{colour}" '
        f'stroke-width="1.7" stroke-dasharray="{dashes}"/><path d="{marker}" fill="{fill}" '
        f'stroke="{colour}" stroke-width="1.2"/></svg>'
    )


def _marker_path(marker: str) -> str:
    """matplotlib's marker as path data around the middle of the glyph."""
    if not marker:
        return ""
    mark = MarkerStyle(marker)
    place = mark.get_transform() + Affine2D().scale(6.2, -6.2).translate(15, 6)
    outlines = [np.asarray(outline) for outline in mark.get_path().transformed(place).to_polygons()]
    return "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in outline.tolist()) + "Z" for outline in outlines)
