"""``glabench results``: whether files of rows are whole, several in one, rows as a table, where time went, how well two
runs agree."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glabench.commands import machines
from glabench.commands.machines import Format

if TYPE_CHECKING:
    from glabench.analysis.overhead import Account
    from glabench.analysis.ratios import Ratio

results = typer.Typer(
    help="Check, merge and export files of rows, say where their time went, and how well two runs agree.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Files = Annotated[list[Path], typer.Argument(metavar="FILES", help="Files of rows (*.jsonl), or folders of them.")]


@results.command()
def verify(files: Files, format: Format = "text") -> None:
    """Read every row and its checksum, and name each line that is not what was written.

    Exit code: 0 all are whole; 1 some line is bad; 2 a file cannot be read.
    """
    from glabench.analysis.load import only_rows
    from glabench.results import verify as verify_file

    as_json = machines.is_json(format)
    found = [verify_file(path) for path in only_rows(files)]
    for one in found:
        if as_json:
            machines.say(file=str(one.path), rows=one.rows, without_checksum=one.without_checksum, bad=one.bad)
            continue
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
        str | None, typer.Option("--format", help="csv, json or parquet.", show_default="by the name of the file")
    ] = None,
) -> None:
    """Write every row as one line of a flat table: the case, its status, median and interval, memory, clocks.

    Units are in the names of the columns. Parquet needs pyarrow: pip install 'glabench\\[parquet]'.
    """
    from glabench.analysis.load import located, only_rows
    from glabench.report.export import write_table

    rows = [row for _, row in located(only_rows(files))]
    write_table(rows, format or out.suffix.removeprefix("."), out)
    typer.echo(f"{out}: {len(rows)} rows")


@results.command()
def spent(files: Files, format: Format = "text") -> None:
    """Say where the time of a sweep went: seconds and share by phase, a line for each system, and the overhead.

    Overhead is what is none of reference, compilation, gate and samples, in percent of the time from the first start
    to the last end. What runs side by side counts as often as it runs in the table, and once in the overhead.
    """
    from glabench.analysis.load import located, only_rows
    from glabench.analysis.overhead import account

    as_json = machines.is_json(format)
    found = account([row for _, row in located(only_rows(files))])
    if as_json:
        for one in found.lines:
            machines.say(kind="system", system=one.system, cases=one.cases, total_s=one.total_s, seconds=one.seconds)
        wall = found.wall
        machines.say(
            kind="wall", seconds=wall.seconds, needed_s=wall.needed_s, idle_s=wall.idle_s, overhead=wall.overhead,
            rows_without=found.without,
        )  # fmt: skip
        return
    if found.without:
        typer.echo(f"{found.without} rows, of an older glabench, do not say where their time went; left out")
    _print_account(found)


@results.command()
def ratios(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Rows of one run: a file, or a folder of them.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Rows of the other run.")],
    within: Annotated[str, typer.Option(help="By how much a ratio may differ.")] = "1.5%",
    worst: Annotated[int, typer.Option(min=0, help="How many of the least alike are named.")] = 10,
    only: Annotated[
        list[str] | None, typer.Option(metavar="SYSTEM", help="Compare these systems' cases only, between commas.")
    ] = None,
    format: Format = "text",
) -> None:
    """Compare the ratios of two systems in two runs of the same cases, an hour or a machine apart.

    Of every two systems that both runs have at a shape, mode and gate strength: the ratio of their medians. Apart from
    the others are counted those with a system that waits for its launches, or whose clock was held back. On a GPU
    medians are of kernels; ratios of eager calls, which depend on the CPU as well, are told besides. Where rows say
    how fast the SM clock was during the samples, ratios of SM cycles are judged, too: one chip lowers its clock further
    under the same load than another. Of calls under half a millisecond they repeat less well than ratios of times.

    Exit code: 0 95 % of the ratios or more are alike; 1 fewer are; 2 bad input, or no ratio is in both.
    """
    from glabench.analysis.ratios import LEAST_SHARE
    from glabench.analysis.ratios import ratios as ratios_of
    from glabench.commands.check import load, parse_share

    as_json, most = machines.is_json(format), parse_share(within, "--within")
    runs = [load([path], only or []) for path in (before, after)]
    found = ratios_of(*runs)
    sources = [{row.environment.get("fingerprint") for row in run} for run in runs]
    same, agreed = sources[0] == sources[1], _agreed(found, most)
    if as_json:
        for ratio in found[:worst]:
            machines.say(kind="ratio", change=ratio.change, **asdict(ratio))
        machines.say(kind="all", same_sources=same, **agreed)
    else:
        if not same:
            typer.echo("note: the runs are of different sources or versions")
        for ratio in found[:worst]:
            typer.echo(str(ratio))
        _print_agreed(agreed)
    if agreed["share"] < LEAST_SHARE:
        raise typer.Exit(1)


def _agreed(found: list[Ratio], most: float) -> dict[str, Any]:
    """How many of the ratios are alike, of all, by system, of those that something disturbed and of the others, in SM
    cycles and of eager calls. None where there are none of a kind, or no others."""
    from glabench.analysis.ratios import share_within, shares_by_system

    def alike(some: list[Ratio]) -> dict[str, Any]:
        return {"ratios": len(some), "share": share_within(some, most), "worst": some[0].change}

    def changes(every: Iterable[float]) -> dict[str, Any] | None:
        known = [change for change in every if not math.isnan(change)]
        share = sum(change <= most for change in known) / len(known) if known else math.nan
        return {"ratios": len(known), "share": share, "worst": max(known)} if known else None

    reasons = sorted({reason for ratio in found for reason in ratio.disturbed})
    calm = [ratio for ratio in found if not ratio.disturbed]
    return {
        "within": most,
        **alike(found),
        "by_system": shares_by_system(found, most),
        "disturbed": {reason: alike([one for one in found if reason in one.disturbed]) for reason in reasons},
        "undisturbed": alike(calm) if 0 < len(calm) < len(found) else None,
        "cycles": changes(ratio.change_in_cycles for ratio in found),
        "calls": changes(ratio.change_in_calls for ratio in found),
    }


def _print_agreed(agreed: dict[str, Any]) -> None:
    most = f"{agreed['within']:.1%}"
    for system, share in agreed["by_system"].items():
        typer.echo(f"{system}: {share:.1%} of its ratios within {most}")
    typer.echo(
        f"{agreed['ratios']} ratios, {agreed['share']:.1%} of them within {most}; the worst {agreed['worst']:.1%} apart"
    )
    for reason, some in agreed["disturbed"].items():
        typer.echo(f"  {some['ratios']} with a system {reason}: {some['share']:.1%}")
    if (calm := agreed["undisturbed"]) is not None:
        typer.echo(f"  {calm['ratios']} undisturbed: {calm['share']:.1%}; the worst {calm['worst']:.1%} apart")
    for key, said in (("cycles", "in SM cycles"), ("calls", "of eager calls")):
        if (some := agreed[key]) is not None:
            typer.echo(
                f"{said}, {some['share']:.1%} of {some['ratios']} within {most}; the worst {some['worst']:.1%} apart"
            )


def _print_account(found: Account) -> None:
    """The table of systems and phases, all phases that took any time, and the wall time."""
    from rich.console import Console
    from rich.table import Table

    from glabench.phases import PHASES

    phases = [phase for phase in PHASES if any(line.seconds.get(phase) for line in found.lines)]
    table = Table(box=None, pad_edge=False)
    for column in ("system", "cases", "s", *phases):
        table.add_column(column, justify="left" if column == "system" else "right", no_wrap=True)
    for line in found.lines:
        shares = (_seconds_and_share(line.seconds.get(phase, 0.0), line.total_s) for phase in phases)
        table.add_row(line.system, str(line.cases), f"{line.total_s:.1f}", *shares)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, 200)
    console.print(table)
    wall = found.wall
    console.print(
        f"\n{wall.seconds:.1f} s of wall time, {wall.needed_s:.1f} s of it reference, compilation, gate and samples: "
        f"overhead {wall.overhead:.1%}, {wall.idle_s:.1f} s of it between cases",
        soft_wrap=True,
    )


def _seconds_and_share(seconds: float, total_s: float) -> str:
    """A phase of a system: "3.2 18%"; a dash for none."""
    return f"{seconds:.1f} {seconds / total_s:.0%}" if seconds else "–"
