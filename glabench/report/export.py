"""Writes a report: an HTML page with its figures beside it, figures alone, a table as CSV or JSON, or Markdown."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pandas as pd

from glabench.analysis.frame import frame
from glabench.errors import UserError, did_you_mean
from glabench.lines import keep_results, whole
from glabench.report import draw, markdown, page
from glabench.report.figures import all_figures, sections
from glabench.report.model import Section
from glabench.report.parts import devices
from glabench.store import Row


def html(rows: Sequence[Row], out: Path, older: int = 0) -> list[Path]:
    """The page at ``out`` and its figures (see ``beside``); returns the page's path first."""
    table = frame(rows)
    found = sections(table)
    return [write_text(out, page.render(rows, table, found, older)), *beside(found, devices(table), out)]


def beside(found: Sequence[Section], names: Sequence[str], out: Path) -> list[Path]:
    """Every figure of the page at ``out`` in figures/<name of the page>/ beside it: pages of one folder have figures of
    the same names."""
    return drawn(found, names, out.parent / "figures" / out.stem)


def drawn(found: Sequence[Section], names: Sequence[str], folder: Path) -> list[Path]:
    """Every figure as PNG and SVG in the folder. Away from its page each says its device, as titles do where ``names``
    of devices are several."""
    prefix = f"{names[0]}: " if len(names) == 1 else ""
    titled = (replace(figure, title=f"{prefix}{figure.title}") for figure in all_figures(found))
    return [path for figure in titled for path in draw.write(figure, folder)]


def png(rows: Sequence[Row], out: Path) -> list[Path]:
    """Every figure as PNG and SVG in the folder ``out``; UserError when the rows give none."""
    table = frame(rows)
    found = sections(table)
    if not all_figures(found):
        raise UserError("these rows give no figure: no case has a time that can be compared; try --format md")
    return drawn(found, devices(table), out)


def csv(rows: Sequence[Row], out: Path) -> list[Path]:
    """The flat table of ``analysis.frame``, one line a row; units are in the names of the columns."""
    return [write_text(out, _by_row(rows).map(no_formula).to_csv(index=False))]


def json(rows: Sequence[Row], out: Path) -> list[Path]:
    """The same table as JSON."""
    return [objects(_by_row(rows), out)]


def objects(table: pd.DataFrame, out: Path) -> Path:
    """A table as a JSON array of an object a line of it, its columns' names the keys; what is not known is null."""
    lines = (one.to_json(double_precision=15, force_ascii=False) for _, one in table.astype(object).iterrows())
    return write_text(out, "[" + ",\n ".join(lines) + "]\n")


def _by_row(rows: Sequence[Row]) -> pd.DataFrame:
    """The table without what is said of all rows together."""
    return frame(rows).drop(columns="gates_vary")


def no_formula(cell: object) -> object:
    """A text that a spreadsheet would run as a formula gets an apostrophe, by which it stays a text; see
    https://owasp.org/www-community/attacks/CSV_Injection."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def parquet(rows: Sequence[Row], out: Path) -> list[Path]:
    """The same table as a Parquet file. Raises UserError where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError("--format parquet needs pyarrow: pip install 'glabench[parquet]'; csv needs nothing")
    keep_results(out)
    with whole(out) as part:
        _by_row(rows).to_parquet(part, index=False)
    return [out]


def md(rows: Sequence[Row], out: Path, older: int = 0) -> list[Path]:
    """A summary in GitHub's Markdown: the answer, times by question, failures, environment."""
    return [write_text(out, markdown.render(rows, frame(rows), older))]


Result = TypeVar("Result")


def formats(older: int) -> dict[str, Callable[[Sequence[Row], Path], list[Path]]]:
    """format -> what writes it, where ``older`` rows of the same cases were read besides."""
    return {"html": partial(html, older=older), "png": png, "csv": csv, "json": json, "md": partial(md, older=older)}


# The formats of a table alone, for other tools.
TABLES: dict[str, Callable[[Sequence[Row], Path], list[Path]]] = {"csv": csv, "json": json, "parquet": parquet}

# The file or folder that a format writes by default inside the report's folder.
DEFAULTS = {"html": "index.html", "png": "figures", "csv": "table.csv", "json": "table.json", "md": "summary.md"}


def write(
    results: Sequence[Result],
    form: str,
    out: Path,
    formats: Mapping[str, Callable[[Sequence[Result], Path], list[Path]]],
) -> list[Path]:
    """Writes ``results`` in the format ``form`` of ``formats`` and returns the paths, the one to open first.

    ``out`` with the format's own suffix is the file to write; otherwise it is the folder that it goes into.

    Raises:
        UserError: the format is unknown, or ``out`` cannot be written.
    """
    check(form)
    target = out if form == "png" or out.suffix == f".{form}" else out / DEFAULTS[form]
    try:
        return formats[form](results, target)
    except OSError as error:
        raise UserError(f"{error.filename or target}: cannot be written ({error.strerror})") from None


def write_table(rows: Sequence[Row], form: str, out: Path) -> None:
    """Writes rows as a table in one of the formats of TABLES, to the file ``out``.

    Raises:
        UserError: the format is unknown or needs a package that is not installed, or ``out`` cannot be written.
    """
    if form not in TABLES:
        raise UserError(f"unknown format {form!r}{did_you_mean(form, TABLES)}; expected {' or '.join(TABLES)}")
    try:
        TABLES[form](rows, out)
    except OSError as error:
        raise UserError(f"{error.filename or out}: cannot be written ({error.strerror})") from None


def check(form: str) -> None:
    """UserError unless ``form`` is a known format."""
    if form not in DEFAULTS:
        raise UserError(f"unknown format {form!r}{did_you_mean(form, DEFAULTS)}; expected {', '.join(DEFAULTS)}")


def write_text(path: Path, text: str) -> Path:
    """Writes ``text`` so that the file is either the old one or the whole new one. UserError where it holds results."""
    keep_results(path)
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
    return path
