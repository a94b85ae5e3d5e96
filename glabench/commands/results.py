"""``glabench results``: whether files of rows are whole, several files in one, and rows as a table for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

results = typer.Typer(
    help="Check, merge and export files of rows.", context_settings={"help_option_names": ["-h", "--help"]}
)

Files = Annotated[list[Path], typer.Argument(metavar="FILES", help="Files of rows (*.jsonl), or folders of them.")]


@results.command()
def verify(files: Files) -> None:
    """Read every row and its checksum, and name each line that is not what was written.

    Exit code: 0 all are whole; 1 some line is bad; 2 a file cannot be read.
    """
    from glabench.analysis.load import only_rows
    from glabench.results import verify as verify_file

    found = [verify_file(path) for path in only_rows(files)]
    for one in found:
        for line in one.bad:
            typer.echo(line)
        typer.echo(str(one))
    if any(one.bad for one in found):
        raise typer.Exit(1)


@results.command()
def merge(
    files: Files, out: Annotated[Path, typer.Option(help="The file to write; it must not be there yet.")]
) -> None:
    """Put the rows of several files into one: as they are, in their order, equal ones once.

    Exit code: 0 done; 1 done, and some line was bad and is left out; 2 bad input, nothing written.
    """
    from glabench.analysis.load import only_rows
    from glabench.results import merge as merge_files

    rows, bad = merge_files(only_rows(files), out)
    typer.echo(f"{out}: {rows} rows")
    if bad:
        raise typer.Exit(1)


@results.command()
def export(
    files: Files,
    out: Annotated[Path, typer.Option(help="The file to write; one that is there is replaced.")],
    format: Annotated[
        str | None, typer.Option("--format", help="csv or parquet.", show_default="by the name of the file")
    ] = None,
) -> None:
    """Write every row as one line of a flat table: the case, its status, median and interval, memory, clocks.

    Units are in the names of the columns. Parquet needs pyarrow: pip install 'glabench[parquet]'.
    """
    from glabench.analysis.load import located, only_rows
    from glabench.report.export import write_table

    rows = [row for _, row in located(only_rows(files))]
    write_table(rows, format or out.suffix.removeprefix("."), out)
    typer.echo(f"{out}: {len(rows)} rows")
