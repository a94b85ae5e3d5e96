"""``glabench report``: rows, profiles, tunings or trends -> a page, figures, a table or a summary."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glabench.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from glabench.store import Row

PAGES = ("rows", "papers", "trend")
BESIDE = {"papers": "profiles", "trend": "trends"}  # what a page takes besides rows
TEXTS = ("csv", "json", "md")  # formats that can go to the terminal


def report(
    results: Annotated[
        list[Path], typer.Argument(help="Files of rows, tunings or trends (*.jsonl), or folders of them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File or folder to write; by default reports/local/NAME/. - is the terminal, for csv, json and md.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="html, png (and SVG), csv, json or md.")] = "html",
    page: Annotated[
        str | None,
        typer.Option(
            help="rows, papers or trend: the page that rows get. papers says which claims of the GLA papers hold here; "
            "rows of the sweep papers get it by themselves. trend says which commit changed which case, of rows of "
            "several.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Render results as one offline HTML page (with its figures beside it), as figures, CSV, JSON or Markdown.

    Rows of `glabench sweep`, profiles of `glabench profile`, tunings of `glabench tune` and trends of `glabench check
    --trend` give different pages, so one call takes one kind, and of a folder the first of these that it has; the
    papers page takes profiles beside rows, and the trend page trends.
    """
    from glabench.report import export

    export.check(format)
    check_page(page)
    if out == Path("-"):
        if format not in TEXTS:
            can = f"{', '.join(TEXTS[:-1])} and {TEXTS[-1]}"
            raise UserError(f"--out -: the terminal takes {can}, expected a file or folder for {format}")
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / f"report.{format}"
            _written(results, page, format, part)
            typer.echo(part.read_text(encoding="utf-8"), nl=False)
        return
    paths = _written(results, page, format, out or default_out(results))
    if format == "png":
        typer.echo(f"{paths[0].parent}: {len(paths)} files")
        return
    typer.echo(paths[0])
    if len(paths) > 1:
        typer.echo(f"{paths[-1].parent}: the same {len(paths) // 2} figures as PNG and SVG")


def _written(results: list[Path], page: str | None, format: str, where: Path) -> list[Path]:
    """What was written, the page first."""
    from glabench.analysis.load import load_tunings, located, shown_together, trend_files, tuning_files
    from glabench.report import export

    found = shown_together(results, BESIDE.get(page or ""))
    trends = trend_files(found)
    if page == "trend" or trends:
        return _trend(found, trends, page, format, where)
    if not tuning_files(found):
        return rows_page(located(found), page, format, where)
    if page is not None:
        raise UserError(f"--page {page} is for rows of `glabench sweep`; {found[0]} holds tunings")
    from glabench.report import tuning

    return export.write(load_tunings(found), format, where, tuning.FORMATS)


def _trend(found: list[Path], trends: list[Path], page: str | None, format: str, where: Path) -> list[Path]:
    """Writes the page of trends, and of rows beside them where the page was asked for."""
    from glabench.analysis.load import located, records, tuning_files
    from glabench.analysis.trend import from_json, in_order, nights_of
    from glabench.report import export, trend

    others = [path for path in found if path not in trends]
    if page not in (None, "trend"):
        raise UserError(f"--page {page} is for rows of `glabench sweep`; {trends[0]} holds a trend")
    if tunings := tuning_files(others) if others else []:
        raise UserError(f"--page trend takes rows and trends; {tunings[0]} holds tunings")
    if others and page is None:
        raise UserError(f"{trends[0]} holds a trend and {others[0]} rows; --page trend shows both")
    nights = [night for path in trends for night in records(path, from_json, "night", "glabench check --trend")]
    nights += nights_of(row for _, row in located(others)) if others else []
    return export.write(in_order(nights), format, where, trend.FORMATS)


def check_page(page: str | None) -> None:
    """UserError unless ``page`` is a page that can be asked for, or none."""
    if page is not None and page not in PAGES:
        raise UserError(
            f"unknown page {page!r}{did_you_mean(page, PAGES)}; expected {', '.join(PAGES[:-1])} or {PAGES[-1]}"
        )


def rows_page(found: list[tuple[Path, Row]], page: str | None, format: str, where: Path) -> list[Path]:
    """Writes the page of rows and their files: the papers page, that of profiles, or the one of what was measured."""
    from glabench.analysis.load import latest, profiles
    from glabench.report import export, papers, profile

    rows = [row for _, row in found]
    if page == "papers" or (page is None and papers.is_for(rows)):
        return export.write(rows, format, where, papers.FORMATS)
    if profiled := profiles(found):
        return export.write(profiled, format, where, profile.formats(len(rows) - len(profiled)))
    kept = latest(rows)
    return export.write(kept, format, where, export.formats(len(rows) - len(kept)))


def default_out(results: list[Path]) -> Path:
    """reports/local/ and the name of what was read: the file's, the folder's, or both ends of a list."""
    from glabench.store import unpacked_name

    names = list(dict.fromkeys(unpacked_name(path.resolve()).removesuffix(".jsonl") for path in results))
    return Path("reports/local") / (names[0] if len(names) == 1 else f"{names[0]}-and-{len(names) - 1}-more")
