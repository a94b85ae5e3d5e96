"""The report of a trend: one page, its figures, its change points as CSV or JSON, or Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from glabench.analysis.trend import Night, Trend, trends
from glabench.errors import UserError
from glabench.report import markdown, page, text, trend_tables
from glabench.report.export import beside, drawn, no_formula, objects, write_text
from glabench.report.figures import all_figures
from glabench.report.model import Section
from glabench.report.tables import Table
from glabench.report.trend_figures import left_out, sections


def render(found: Sequence[Trend], figures: Sequence[Section]) -> str:
    """The whole page as text; ``figures`` are the sections of ``report.trend_figures``."""
    parts = [
        {
            "device": trend.device,
            "answer": trend_tables.answer(trend),
            "changes": trend_tables.changes(trend),
            "cases": trend_tables.cases(trend),
            "nights": trend_tables.nights(trend),
            "undrawn": left_out(trend),
            "section": section,
            "drawn": [page.drawn(section.name, i, figure) for i, figure in enumerate(section.figures)],
        }
        for trend, section in zip(found, figures, strict=True)
    ]
    days = sorted({night.day for trend in found for night in trend.nights})
    return page.fill(
        "trend.html.j2",
        title=text.listing([trend.device for trend in found]),
        days=" to ".join(dict.fromkeys([days[0], days[-1]])),
        total=sum(len(trend.nights) for trend in found),
        parts=parts,
    )


def html(nights: Sequence[Night], out: Path) -> list[Path]:
    """The page at ``out`` and its figures (see ``export.beside``); returns the page's path first."""
    found = trends(nights)
    figures = sections(found)
    return [write_text(out, render(found, figures)), *beside(figures, _devices(found), out)]


def png(nights: Sequence[Night], out: Path) -> list[Path]:
    """Every figure as PNG and SVG in the folder ``out``; UserError when there is none."""
    found = trends(nights)
    figures = sections(found)
    if not all_figures(figures):
        raise UserError("these nights give no figure: none has a time that can be compared; try --format md")
    return drawn(figures, _devices(found), out)


def csv(nights: Sequence[Night], out: Path) -> list[Path]:
    """A line a change of level, units in the names of the columns."""
    return [write_text(out, trend_tables.frame(trends(nights)).map(no_formula).to_csv(index=False))]


def json(nights: Sequence[Night], out: Path) -> list[Path]:
    """The same as JSON."""
    return [objects(trend_tables.frame(trends(nights)), out)]


def md(nights: Sequence[Night], out: Path) -> list[Path]:
    """The answer, the changes, and the cases that are not there in all nights, in GitHub's Markdown."""
    pieces = []
    for trend in trends(nights):
        pieces += [f"## {markdown.plain(trend.device)}", markdown.plain(trend_tables.answer(trend))]
        if trend_tables.moves(trend):
            pieces.append(_grid(trend_tables.changes(trend)))
        apart = [[trend_tables.name(one), trend_tables.measured(one)] for one in trend.histories if one.new or one.gone]
        if apart:
            pieces.append(markdown.grid(["case", "measured"], apart))
    return [write_text(out, "\n\n".join(pieces) + "\n")]


def _grid(found: Table) -> str:
    return markdown.grid(list(found.columns), [[cell.text for cell in row] for row in found.rows])


def _devices(found: Sequence[Trend]) -> list[str]:
    return [trend.device for trend in found]


# format -> what writes it
FORMATS: dict[str, Callable[[Sequence[Night], Path], list[Path]]] = {
    "html": html, "png": png, "csv": csv, "json": json, "md": md,
}  # fmt: skip
