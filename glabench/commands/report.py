"""``glabench report``: rows -> a page, figures, a table or a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[list[Path], typer.Argument(help="Files of rows (*.jsonl), or folders of them.")],
    out: Annotated[
        Path | None, typer.Option(help="File or folder to write; by default reports/local/NAME/.", show_default=False)
    ] = None,
    format: Annotated[str, typer.Option("--format", help="html, png (and SVG), csv or md.")] = "html",
) -> None:
    """Render rows as one offline HTML page (with its figures beside it), as figures, CSV or Markdown."""
    from glabench.analysis.load import load
    from glabench.report.export import check, write

    check(format)
    rows = load(results)
    paths = write(rows, format, out or default_out(results))
    if format == "png":
        typer.echo(f"{paths[0].parent}: {len(paths)} files")
        return
    typer.echo(paths[0])
    if len(paths) > 1:
        typer.echo(f"{paths[-1].parent}: the same {len(paths) // 2} figures as PNG and SVG")


def default_out(results: list[Path]) -> Path:
    """reports/local/ and the name of what was read: the file's, the folder's, or both ends of a list."""
    names = list(dict.fromkeys(path.resolve().name.removesuffix(".jsonl") for path in results))
    return Path("reports/local") / (names[0] if len(names) == 1 else f"{names[0]}-and-{len(names) - 1}-more")
