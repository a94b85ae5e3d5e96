"""``glabench report``: rows, profiles or tunings -> a page, figures, a table or a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[list[Path], typer.Argument(help="Files of rows or of tunings (*.jsonl), or folders of them.")],
    out: Annotated[
        Path | None, typer.Option(help="File or folder to write; by default reports/local/NAME/.", show_default=False)
    ] = None,
    format: Annotated[str, typer.Option("--format", help="html, png (and SVG), csv or md.")] = "html",
) -> None:
    """Render results as one offline HTML page (with its figures beside it), as figures, CSV or Markdown.

    Rows of `glabench sweep`, profiles of `glabench profile` and tunings of `glabench tune` give different pages, so one
    call takes one kind.
    """
    from glabench.analysis.load import files, latest, load_tunings, located, profiles, tuning_files
    from glabench.report import export

    export.check(format)
    where = out or default_out(results)
    found = files(results)
    if tuning_files(found):
        from glabench.report import tuning

        paths = export.write(load_tunings(found), format, where, tuning.FORMATS)
    elif profiled := profiles(rows := located(found)):
        from glabench.report import profile

        paths = export.write(profiled, format, where, profile.FORMATS)
    else:
        paths = export.write(latest(row for _, row in rows), format, where, export.FORMATS)
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
