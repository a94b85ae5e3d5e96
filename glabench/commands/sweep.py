"""``glabench sweep``: run what a sweep file asks for, and append one row a case."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glabench.analysis import labels
from glabench.commands import machines, running
from glabench.commands.machines import Format
from glabench.commands.running import pick_device, print_standing, rows_file, run_cases
from glabench.spec.axes import BESIDE, FURTHER

if TYPE_CHECKING:
    from glabench.spec.case import Case
    from glabench.spec.expand import Plan
    from glabench.spec.settings import Device
    from glabench.spec.sweep import Sweep


def sweep(
    file: Annotated[str, typer.Argument(metavar="FILE|NAME", help="A sweep file, or the name of one (`glabench ls`).")],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda. auto takes the GPU where there is one.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="File that rows are appended to.", show_default="results/local/<sweep>-<device>.jsonl"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="SYSTEM", help="Run these systems' cases only, between commas.")
    ] = None,
    lacking: Annotated[
        list[Path] | None,
        typer.Option(help="Run only cases without a right row in this file or folder, of this device and any version."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="0,1,..|all",
            help="Time cases on several GPUs of one model at once, each on its own.",
            show_default=False,
        ),
    ] = None,
    executor: Annotated[
        str, typer.Option(help="local, or ray: each case is a task of a Ray cluster, with one GPU.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="Of the Ray cluster: auto, or HOST:PORT.", show_default="a Ray of its own on this machine"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cases and run nothing.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: the old file is moved aside, not deleted.")
    ] = False,
    format: Format = "text",
) -> None:
    """Run a sweep. The same command again goes on where the last one stopped.

    Exit code: 0 done; 1 some kernel is wrong, crashed or did not compile; 2 bad input; 130 stopped by Ctrl-C.
    """
    from glabench.hardware.environment import device_slug
    from glabench.spec.expand import check, expand
    from glabench.spec.sweep import find, load

    as_json = machines.is_json(format)
    chosen = load(find(file))
    check(chosen)
    there = running.pick_executor(executor, address, gpus, device)
    kind = pick_device(device) if there is None else there["kind"]
    several = running.pick_gpus(gpus, kind)
    plan = expand(chosen, kind)
    slug = device_slug(kind) if there is None else there["device_slug"]
    cases = running.lacking(running.only(plan.cases, only or [], chosen.name), lacking or [], slug)
    path = rows_file(out, f"{chosen.name}-{slug}.jsonl")
    if dry_run and as_json:
        _say_plan(chosen, cases, path, kind, fresh, there)
        return
    if dry_run:
        _print_plan(chosen, plan, cases, path, kind, fresh, there)
        return
    _run(chosen, cases, plan.compiled, path, kind, fresh, several, there, as_json)


def _print_plan(
    chosen: Sweep, plan: Plan, cases: list[Case], path: Path, device: Device, fresh: bool, there: dict[str, Any] | None
) -> None:
    """The cases as a table, how many of them are left, what of them cannot run here, and about how long it takes."""
    from glabench.run.order import sweep_s
    from glabench.run.processes import cores

    done = {} if fresh else _finished(chosen, path, device, there)
    print(f"{chosen.title} ({chosen.name}) on {device}")
    _print_cases(cases, done)
    systems = Counter(case.system for case in cases)
    left = [case for case in cases if case.id not in done]
    print(f"\n{len(cases)} cases: " + ", ".join(f"{name} {count}" for name, count in systems.items()))
    run = left
    if there is None:  # what a cluster's machines have is not known here
        refused = _refused(left, device)
        for (name, reason), ids in refused.items():
            print(f"cannot run here: {name}, {running.cases_of(len(ids))}: {reason}")
        cannot = set().union(*refused.values())
        run = [case for case in left if case.id not in cannot]
    seconds = sweep_s(run, device, plan.compiled, chosen.section(device).limit_s, cores())
    takes = f", about {_duration(seconds)} by a guess" if run else ""
    print(f"{len(cases) - len(left)} finished, {len(left)} to run{takes}; rows would go to {path}")


def _say_plan(
    chosen: Sweep, cases: list[Case], path: Path, device: Device, fresh: bool, there: dict[str, Any] | None
) -> None:
    """An object a case: what it is, its status where it is finished, and why it cannot run here, where it is left."""
    done = {} if fresh else _finished(chosen, path, device, there)
    refused = {} if there is not None else _refused([case for case in cases if case.id not in done], device)
    reasons = {id: reason for (_, reason), ids in refused.items() for id in ids}
    for case in cases:
        machines.say(case_id=case.id, case=case.to_dict(), done=done.get(case.id), refused=reasons.get(case.id))


def _print_cases(cases: list[Case], done: dict[str, str]) -> None:
    """A line a case. Of thousands, too: a table of rich's would take half a minute."""
    columns = ["id", "system", "B", "T", "H", "K", "V", "dtype", "mode", "schedule", "gate", "done"]
    columns[-1:-1] = [name for name in (*FURTHER, "model", *BESIDE) if any(getattr(case, name) for case in cases)]
    lines = [columns, *(_cells(case, columns, done) for case in cases)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(columns, line, widths, strict=True)
        print(" ".join(f"{x:>{width}}" if name in "BTHKV" else f"{x:<{width}}" for name, x, width in cells).rstrip())


def _cells(case: Case, columns: list[str], done: dict[str, str]) -> list[str]:
    heads = (case.H, case.K, case.V) if case.attn_heads is None else (case.attn_heads, case.attn_dim, case.attn_dim)
    schedule = "" if case.chunk is None else f"C{case.chunk}"
    schedule += "" if case.sub_chunk is None else f"/{case.sub_chunk}"
    schedule += "" if case.materialize is None else " w/m" if case.materialize else " w/o m"
    schedule += " recomputed" if case.recompute else ""
    gate = labels.gate(vars(case)).removeprefix("none")
    said = {name: str(getattr(case, name) or "") for name in (*FURTHER, *BESIDE)}
    said["model"] = " ".join(filter(None, (case.model, case.execution)))
    cells = (
        case.id,
        case.system,
        case.B,
        case.T,
        *heads,
        case.dtype,
        case.mode,
        schedule,
        gate,
        *(said[name] for name in columns if name in said),
        done.get(case.id, ""),
    )
    return [str(cell) for cell in cells]


def _refused(cases: list[Case], device: Device) -> dict[tuple[str, str], set[str]]:
    """The ids of the cases that cannot run on this machine, by system and reason."""
    from glabench.systems.base import load

    systems = {case.system: load(case.system) for case in cases}
    missing = {name: system.unavailable(device) for name, system in systems.items()}
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for case in cases:
        system = systems[case.system]
        why = missing[case.system] or system.refusal_by_catalog(case) or system.unsupported(case, device)
        if why is not None:
            found[case.system, str(why)].add(case.id)
    return found


def _duration(seconds: float) -> str:
    """40 s, 12 min, 3 h: no more is known."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def _finished(chosen: Sweep, path: Path, device: Device, there: dict[str, Any] | None) -> dict[str, str]:
    """Cases of the file that need not run again, with their status; ``there`` is the machine that runs them, by default
    this one."""
    from glabench.run.driver import finished

    return finished(path, chosen.settings(device), chosen.section(device).limit_s, where=there)


def _run(
    chosen: Sweep,
    cases: list[Case],
    compiled: frozenset[str],
    path: Path,
    device: Device,
    fresh: bool,
    gpus: tuple[str, ...],
    there: dict[str, Any] | None,
    as_json: bool,
) -> None:
    from glabench.hardware.environment import device_name, device_slug
    from glabench.run.driver import FIRST_CASE, Driver
    from glabench.run.ray_executor import RayDriver
    from glabench.store import Appender

    if not fresh:
        running.refuse_others(path, profiled=False)
    if there is None:
        running.check_cache()
    kind_of_driver = Driver if there is None else partial(RayDriver, there=there)
    name = device_name(device) if there is None else f"{there['device']}, with Ray"
    slug = device_slug(device) if there is None else there["device_slug"]

    with Appender(path, fresh=fresh) as out:
        ids = {case.id for case in cases}
        run_cases(
            cases,
            {key: status for key, status in _finished(chosen, path, device, there).items() if key in ids},
            out,
            f"{chosen.title} ({chosen.name}) on {name}",
            lambda progress: kind_of_driver(
                chosen.name,
                device,
                chosen.settings(device),
                chosen.section(device).limit_s,
                compiled,
                out,
                progress,
                gpus=gpus,
                imports=FIRST_CASE if device == "cuda" else (),
            ),
            closing=lambda console: print_standing(console, path, ids, slug, as_json=as_json),
            to_stderr=as_json,
        )
