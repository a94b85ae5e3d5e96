"""``glabench check``: rows against a baseline -> what became slower, and an exit code for CI."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glabench.commands.running import words
from glabench.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from glabench.check.verdict import Check
    from glabench.spec.settings import Device
    from glabench.store import Row

# What --out writes, by the file's suffix.
SUFFIXES = {".txt": "text", ".md": "github", ".json": "json", ".xml": "junit", ".html": "page"}


def check(
    results: Annotated[
        list[Path], typer.Argument(help="Files of rows, or folders of them. Several rows of a case are several runs.")
    ],
    baseline: Annotated[
        str, typer.Option(metavar="FILE|auto", help="What to compare with. auto is results/baselines/<gpu>.jsonl.")
    ] = "auto",
    threshold: Annotated[str, typer.Option(help="The smallest slow-down that must be found.")] = "3%",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV|baseline", help="Measure suspicious cases in turns with this commit, or the baseline's."
        ),
    ] = None,
    remeasure: Annotated[bool, typer.Option(help="Measure slow-downs again where this is the rows' machine.")] = True,
    only: Annotated[
        list[str] | None, typer.Option(metavar="SYSTEM", help="Check these systems' cases only, between commas.")
    ] = None,
    format: Annotated[str, typer.Option("--format", help="What is printed: text, github, junit or json.")] = "text",
    out: Annotated[
        list[Path] | None,
        typer.Option(help="Write a file too: .txt, .md, .json, .xml (JUnit) or a page, .html; may be given again."),
    ] = None,
    trend: Annotated[Path | None, typer.Option(help="Append one line of JSON to this file.")] = None,
    accept: Annotated[
        str | None, typer.Option(metavar="WHY", help="Make all these rows the GPU's baseline, for this reason.")
    ] = None,
) -> None:
    """Compare rows with a baseline, and fail when a case became slower, wrong or more wasteful, or is missing.

    Exit code: 0 fine; 1 a regression or a missing case; 2 bad input; 3 something could not be compared.
    """
    from glabench.check import formats

    share = parse_share(threshold, "--threshold")
    if format not in formats.FORMATS:
        raise UserError(f"unknown format {format!r}{did_you_mean(format, formats.FORMATS)}")
    check_suffixes(out or [])
    if accept is not None:
        # A baseline is all rows that are given: with --only it would lose its other systems.
        _refuse_beside_accept({"--only": only, "--out": out, "--trend": trend, "--against": against,
                               "--baseline": baseline != "auto", "--format": format != "text"})  # fmt: skip
        _accept(load(results, [], _damaged), accept)
        return
    if against is not None and not remeasure:
        raise UserError(
            f"--against {against} is there to measure again, which --no-remeasure forbids: give one of them"
        )
    rows = load(results, only or [])
    found = _check(rows, baseline, share, against, remeasure, only or [])
    _write(found, out or [], trend)
    typer.echo(formats.FORMATS[format](found))
    if format == "github":
        _summarise(found)
    raise typer.Exit(found.exit_code)


def parse_share(given: str, option: str) -> float:
    """0.03 from "3%" or "0.03". UserError, which names the option, for what is no share between 0 and 1."""
    number = given.strip().removesuffix("%")
    try:
        share = float(number) / (100 if given.strip().endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise UserError(f"{option} {given}: expected a share between 0 and 100 %, such as 3% or 0.03")
    return share


def load(paths: list[Path], systems: list[str], warn: Callable[[str], None] | None = None) -> list[Row]:
    """The measured rows of the files, of the systems asked for; what else a folder holds is left out, with a warning.
    ``warn`` is told of lines that are no rows. UserError when there are none."""
    from glabench.analysis.load import located, only_rows
    from glabench.lines import warn_on_stderr
    from glabench.spec.catalog import CATALOG

    systems = words(systems)
    for system in systems:
        if system not in CATALOG:
            raise UserError(f"--only {system}: unknown system{did_you_mean(system, CATALOG)}")
    everything = [row for _, row in located(only_rows(paths), warn or warn_on_stderr) if row.profile is None]
    rows = [row for row in everything if not systems or row.case["system"] in systems]
    if not rows:
        used = ", ".join(sorted({str(row.case["system"]) for row in everything})) or "none"
        raise UserError(f"{paths[0]}: no row to check; the systems that it has rows of: {used}")
    return rows


def _refuse_beside_accept(given: dict[str, object]) -> None:
    """UserError when there is an option that --accept would ignore."""
    if found := [option for option, value in given.items() if value]:
        raise UserError(f"--accept compares nothing and takes all rows: leave out {', '.join(found)}")


def _accept(rows: list[Row], why: str) -> None:
    from glabench.check.baseline import accept

    path, entry = accept(rows, why)
    dirty = ", with changes that are not committed" if entry["dirty"] else ""
    typer.echo(f"{path}: {entry['cases']} cases in {entry['rows']} rows of commit {entry['commit']}{dirty}")
    typer.echo(f"accepted by {entry['who']}: {entry['why']}")
    if entry["kept"]:
        typer.echo(f"rows of other sweeps stay as they were: {', '.join(entry['kept'])}")


def _check(
    rows: list[Row], baseline: str, share: float, against: str | None, remeasure: bool, systems: list[str]
) -> Check:
    from glabench.check.baseline import COMMIT, FOLDER, commit_of, device_slug, find, relevant
    from glabench.check.verdict import check

    slug = device_slug(rows)
    file = find(baseline, rows)
    if file is None and against in (None, COMMIT):
        raise UserError(
            f"no baseline for {slug} in {FOLDER}; accept one (`glabench check RESULTS --accept WHY`), name a file "
            "(--baseline FILE), or run a commit in turns with this one (--against REV)"
        )
    # A system that is new to the baseline has no row there, which is no mistake.
    known = load([file], [], _damaged) if file is not None else []
    if baseline == "auto":  # which has the rows of every sweep
        known = relevant(known, rows)
    before = [row for row in known if not systems or row.case["system"] in systems]
    if against == COMMIT and file is not None:
        against = commit_of(known, file)
    found = check(before, rows, share)
    return _settled(found, rows, against) if remeasure or against is not None else found


def _damaged(message: str) -> None:
    """A case whose row is lost would be new, and so no regression."""
    raise UserError(f"{message}; a baseline must be whole: `glabench results verify` names its bad lines")


def _settled(found: Check, rows: list[Row], against: str | None) -> Check:
    """The check after its re-measurement, which needs the machine that the rows are of."""
    from contextlib import nullcontext

    from glabench.check.remeasure import Turns, checkout, settle
    from glabench.hardware.environment import device_slug, fingerprint

    now = rows[-1].environment
    kind: Device = "cuda" if now.get("kind") == "cuda" else "cpu"
    here = device_slug(kind) == now.get("device_slug")
    if not here and against is not None:
        raise UserError(f"--against {against}: the rows are of {now.get('device')}, which is not this machine")
    same = fingerprint() == now.get("fingerprint")
    if not same and against is not None:
        raise UserError(f"--against {against}: the rows are of other sources or versions than this checkout runs with")
    if not here or not same:
        return found  # a re-measurement would be of other code
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the checkout below is to be taken away
    turns = Turns(kind, lambda words: typer.echo(words, err=True))
    with checkout(against) if against is not None else nullcontext() as tree:
        return settle(found, turns, tree)


def check_suffixes(paths: list[Path]) -> None:
    """UserError unless each file's suffix says what to write into it."""
    for path in paths:
        if path.suffix not in SUFFIXES:
            raise UserError(f"--out {path}: expected a file that ends in {', '.join(SUFFIXES)}")


def _write(found: Check, out: list[Path], trend: Path | None) -> None:
    from glabench.check import formats
    from glabench.lines import TREND_START, keep_results
    from glabench.report.export import write_text

    try:
        for path in out:
            write_text(path, _rendered(found, path.suffix))
        if trend is not None:
            keep_results(trend, TREND_START)
            trend.parent.mkdir(parents=True, exist_ok=True)
            with trend.open("a", encoding="utf-8") as file:
                file.write(formats.trend_line(found) + "\n")
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written ({error.strerror})") from None


def _rendered(found: Check, suffix: str) -> str:
    from glabench.check import formats

    if suffix == ".html":
        from glabench.check import page  # brings matplotlib, which the rest does without

        return page.render(found)
    if suffix == ".md":
        return formats.step_summary(found)
    return formats.FORMATS[SUFFIXES[suffix]](found) + "\n"


def _summarise(found: Check) -> None:
    """Onto the page of the run, inside GitHub Actions."""
    from glabench.check import formats

    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(formats.step_summary(found))
        except OSError as error:
            raise UserError(f"GITHUB_STEP_SUMMARY: {summary}: cannot be written ({error.strerror})") from None
