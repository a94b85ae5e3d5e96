"""``glabench sweep``: run what a sweep file asks for, and append one row a case."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from glabench.run.settings import Device
    from glabench.spec.case import Case
    from glabench.spec.sweep import Sweep

# Statuses that make the exit code 1. The others are answers: what does not fit, does not exist or takes too long.
BAD = ("wrong", "crashed", "compile_error")


def sweep(
    file: Annotated[str, typer.Argument(metavar="FILE|NAME", help="A sweep file, or the name of one (`glabench ls`).")],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda. auto takes the GPU where there is one.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="File that rows are appended to.", show_default="results/local/<sweep>-<device>.jsonl"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="SYSTEM", help="Run this system's cases only; may be given again.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cases and run nothing.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: the old file is moved aside, not deleted.")
    ] = False,
) -> None:
    """Run a sweep. The same command again goes on where the last one stopped.

    Exit code: 0 done; 1 some kernel is wrong, crashed or did not compile; 2 bad input; 130 stopped by Ctrl-C.
    """
    from glabench.spec.expand import check, expand
    from glabench.spec.sweep import find, load

    kind = _device(device)
    chosen = load(find(file))
    check(chosen)
    plan = expand(chosen, kind)
    cases = _only(plan.cases, only or [], chosen.name)
    path = out or _default_out(chosen.name, kind)
    if path.is_dir():
        from glabench.errors import UserError

        raise UserError(f"--out {path}: is a directory, expected a file such as {path / (chosen.name + '.jsonl')}")
    if dry_run:
        _print_plan(chosen, cases, path, kind, fresh)
        return
    _run(chosen, cases, plan.compiled, path, kind, fresh)


def _device(wanted: str) -> Device:
    """The device to run on; UserError when it is not there."""
    from glabench.errors import UserError, did_you_mean
    from glabench.hardware.environment import detect_device, package_version

    if wanted not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {wanted}: expected auto, cpu or cuda{did_you_mean(wanted, ('auto', 'cpu', 'cuda'))}")
    if wanted == "cpu":
        return "cpu"
    found = detect_device()
    if wanted == "cuda" and found != "cuda":
        torch = package_version("torch") or "not installed"
        raise UserError(
            f"--device cuda: no usable NVIDIA GPU here (torch {torch}); `glabench doctor` says what is missing"
        )
    return found


def _only(cases: tuple[Case, ...], wanted: list[str], name: str) -> list[Case]:
    """The cases of the wanted systems; UserError for a system that does not exist or has none."""
    from glabench.errors import UserError, did_you_mean
    from glabench.spec.catalog import CATALOG

    used = {case.system for case in cases}
    for system in wanted:
        if system not in CATALOG:
            raise UserError(f"--only {system}: unknown system{did_you_mean(system, CATALOG)}")
        if system not in used:
            raise UserError(f"--only {system}: {name} has no case of it here, but of {', '.join(sorted(used))}")
    return [case for case in cases if not wanted or case.system in wanted]


def _default_out(name: str, device: Device) -> Path:
    from glabench.hardware.environment import device_slug

    return Path("results") / "local" / f"{name}-{device_slug(device)}.jsonl"


def _print_plan(chosen: Sweep, cases: list[Case], path: Path, device: Device, fresh: bool) -> None:
    """The cases as a table, and how many of them are left."""
    from rich.console import Console
    from rich.table import Table

    from glabench.run.driver import finished

    done = {} if fresh else finished(path, device)
    table = Table(title=f"{chosen.title} ({chosen.name}) on {device}", box=None, pad_edge=False)
    columns = ("system", "B", "T", "H", "K", "V", "dtype", "mode", "schedule", "gate", "done")
    for column in columns:
        table.add_column(column, justify="right" if column in "BTHKV" else "left", no_wrap=True)
    for case in cases:
        attention = case.attn_heads is not None
        heads = (case.attn_heads, case.attn_dim, case.attn_dim) if attention else (case.H, case.K, case.V)
        schedule = "" if case.chunk is None else f"C{case.chunk}"
        schedule += "" if case.sub_chunk is None else f"/{case.sub_chunk}"
        schedule += "" if case.materialize is None else " w/m" if case.materialize else " w/o m"
        gate = "" if case.gate_strength is None else f"{case.gate_strength:g}"
        cells = (case.system, case.B, case.T, *heads, case.dtype, case.mode, schedule, gate, done.get(case.id, ""))
        table.add_row(*map(str, cells))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    console.print(table)
    systems = Counter(case.system for case in cases)
    left = sum(case.id not in done for case in cases)
    console.print(f"\n{len(cases)} cases: " + ", ".join(f"{name} {count}" for name, count in systems.items()))
    console.print(f"{len(cases) - left} finished, {left} to run; rows would go to {path}", soft_wrap=True)


def _run(chosen: Sweep, cases: list[Case], compiled: frozenset[str], path: Path, device: Device, fresh: bool) -> None:
    from rich.console import Console

    from glabench.run.driver import Driver, finished
    from glabench.run.progress import SweepProgress
    from glabench.store import Appender

    console = Console(highlight=False, markup=False)
    limit_s = chosen.section(device).limit_s
    with Appender(path, fresh=fresh) as out:
        if out.moved_to is not None:
            console.print(f"The old rows are in {out.moved_to}", soft_wrap=True)
        done = {key: status for key, status in finished(path, device).items() if key in {case.id for case in cases}}
        left = [case for case in cases if case.id not in done]
        console.print(_opening(chosen, device, len(cases), len(done)), soft_wrap=True)
        with SweepProgress(len(cases), len(done), console) as progress:
            settings = chosen.settings(device)
            driver = Driver(chosen.name, device, settings, limit_s, compiled, out, progress)
            outcome = driver.run(left)
    statuses = Counter(done.values()) + outcome.statuses
    _close(console, statuses, len(cases), path, outcome.interrupted)
    if outcome.interrupted:
        raise typer.Exit(130)
    if any(statuses[status] for status in BAD):
        raise typer.Exit(1)


def _opening(chosen: Sweep, device: Device, total: int, done: int) -> str:
    from glabench.hardware.environment import device_name

    resumed = f", {done} of them finished earlier" if done else ""
    return f"{chosen.title} ({chosen.name}) on {device_name(device)}: {total} cases{resumed}"


def _close(console: Console, statuses: Counter[str], total: int, path: Path, interrupted: bool) -> None:
    """What it came to, where it is, and where to go next."""
    counts = ", ".join(f"{count} {status}" for status, count in statuses.most_common()) or "none finished"
    left = total - sum(statuses.values())
    if interrupted:
        console.print(
            f"\nStopped with {left} of {total} cases left; the same command goes on from here", soft_wrap=True
        )
    console.print(f"{sum(statuses.values())} cases: {counts}", soft_wrap=True)
    console.print(f"Rows:   {path}", soft_wrap=True)
    console.print(f"Report: glabench report {path}", soft_wrap=True)
