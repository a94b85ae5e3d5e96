"""What the commands that run cases share: on which device, which cases, where rows go, and what is said of them."""

from __future__ import annotations

import importlib
import shlex
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from glabench.run.driver import Driver
    from glabench.run.progress import SweepProgress
    from glabench.spec.case import Case
    from glabench.spec.settings import Device
    from glabench.store import Appender

# Statuses that make the exit code 1. The others are answers: what does not fit, does not exist or takes too long.
BAD = ("wrong", "crashed", "compile_error")


def words(given: Sequence[str]) -> list[str]:
    """Names one by one, of an option that may be given again and takes several between commas."""
    return [word.strip() for text in given for word in text.split(",")]


def pick_device(wanted: str) -> Device:
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


def pick_executor(executor: str, address: str | None, gpus: str | None, device: str) -> dict[str, Any] | None:
    """None for "local"; for "ray", joined at ``address``, what is known of the machines of its cluster that have the
    device. UserError for another one, for options that do not go together, and where there is no cluster."""
    from glabench.errors import UserError, did_you_mean

    if executor not in ("local", "ray"):
        raise UserError(f"--executor {executor}: expected local or ray{did_you_mean(executor, ('local', 'ray'))}")
    if executor == "local":
        if address is not None:
            raise UserError(f"--address {address} is for --executor ray")
        return None
    if gpus is not None:
        raise UserError(f"--gpus {gpus} is for --executor local: Ray gives each case a GPU by itself")
    from glabench.run.ray_executor import connect, environment_there

    kind: Device = "cuda" if device == "cuda" else "cpu" if device == "cpu" else pick_device(device)
    connect(address)
    return environment_there(kind)


def pick_gpus(wanted: str | None, device: Device) -> tuple[str, ...]:
    """What ``--gpus`` asks for, as ``glabench.run.gpus.choose`` has it, which this process then tells of;
    UserError when it is not there."""
    from glabench.errors import UserError
    from glabench.hardware.nvml import gpu_names
    from glabench.run.gpus import choose, tell_of

    if wanted is None:
        return ()
    if device != "cuda":
        raise UserError(f"--gpus {wanted}: there is no usable GPU here; without --gpus the sweep runs on the CPU")
    chosen = choose(wanted, gpu_names())
    tell_of(chosen)
    return chosen


def only(cases: Sequence[Case], wanted: Sequence[str], name: str) -> list[Case]:
    """The cases of the wanted systems (`words`); UserError for a system that does not exist or has none."""
    from glabench.errors import UserError, did_you_mean
    from glabench.spec.catalog import CATALOG

    wanted = words(wanted)
    used = {case.system for case in cases}
    for system in wanted:
        if system not in CATALOG:
            raise UserError(f"--only {system}: unknown system{did_you_mean(system, CATALOG)}")
        if system not in used:
            raise UserError(f"--only {system}: {name} has no case of it here, but of {', '.join(sorted(used))}")
    return [case for case in cases if not wanted or case.system in wanted]


def lacking(cases: Sequence[Case], paths: Sequence[Path], device_slug: str) -> list[Case]:
    """Those of the cases that have no right row of this device in the files behind ``paths``, whatever versions made
    it; UserError where there is none of them, or where a path is none to read."""
    from glabench import store
    from glabench.analysis.load import files, latest
    from glabench.errors import UserError

    if not paths:
        return list(cases)
    ids = {case.id for case in cases}
    found = latest(
        row
        for path in files(paths)
        for row in store.read(path)
        if row.case_id in ids and row.environment.get("device_slug") == device_slug
    )
    right = {row.case_id for row in found if row.status == "ok"}
    left = [case for case in cases if case.id not in right]
    if not left:
        raise UserError(f"--lacking {paths[0]}: each of {cases_of(len(cases))} has a right row there; nothing is left")
    return left


def rows_file(out: Path | None, default: str) -> Path:
    """``out``, or ``default`` in results/local; UserError for a folder."""
    from glabench.errors import UserError

    if out is not None and out.is_dir():
        raise UserError(f"--out {out}: is a directory, expected a file such as {out / default}")
    return out or Path("results") / "local" / default


def refuse_others(path: Path, profiled: bool) -> None:
    """UserError for a file with rows of the other kind, profiles or measured rows: a report takes them apart."""
    from glabench import store
    from glabench.errors import UserError

    if not path.is_file():
        return
    for row in store.read(path, lambda message: None):  # whoever opens the file to write tells of broken lines
        if row.profile is not None and not profiled:
            raise UserError(f"{path}: holds profiles, expected a file of `glabench sweep` or a new one")
        if row.profile is None and row.status == "ok" and profiled:
            raise UserError(f"{path}: holds measured rows, expected a file of `glabench profile` or a new one")


def check_cache() -> None:
    """UserError where Triton cannot keep what it compiles: every case would fail of that, and count as finished."""
    from glabench.errors import UserError
    from glabench.hardware.diagnosis import unwritable
    from glabench.hardware.environment import triton_cache

    problem = unwritable(triton_cache())
    if problem is not None:
        raise UserError(f"Triton's cache {triton_cache()}: {problem}; set TRITON_CACHE_DIR to a folder of yours")


def run_cases(
    cases: Sequence[Case],
    done: dict[str, str],
    out: Appender,
    opening: str,
    driver: Callable[[SweepProgress], Driver],
    closing: Callable[[Console], None] = lambda console: None,
    to_stderr: bool = False,
) -> None:
    """Run those of the cases that are not done, and say what all came to. Exits with 1 when some row is BAD, with 130
    after Ctrl-C or SIGTERM.

    done: statuses by case id; opening: what it is, where; driver: made for the progress that it is given; closing: what
    is shown when all are done; to_stderr: where all that is said goes, so that ``closing`` has stdout for itself.
    """
    from glabench.run.progress import SweepProgress

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's way to say what Ctrl-C says
    console = wide_console(to_stderr)
    if out.moved_to is not None:
        console.print(f"The old rows are in {out.moved_to}", soft_wrap=True)
    resumed = f", {len(done)} of them finished earlier" if done else ""
    console.print(f"{opening}: {cases_of(len(cases))}{resumed}", soft_wrap=True)
    with SweepProgress(len(cases), len(done), console) as progress:
        outcome = driver(progress).run([case for case in cases if case.id not in done])
    statuses = Counter(done.values()) + outcome.statuses
    if not outcome.interrupted:
        closing(console)
    _close(console, statuses, len(cases), out.path, outcome.interrupted)
    if outcome.interrupted:
        raise typer.Exit(130)
    if any(statuses[status] for status in BAD):
        raise typer.Exit(1)


def wide_console(to_stderr: bool = False) -> Console:
    """Where a command says what it does. A pipe has no width: what is said there is as wide as on a wide terminal."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, stderr=to_stderr)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    return console


def print_standing(
    console: Console,
    path: Path,
    ids: Collection[str],
    slug: str,
    against: Sequence[str] = (),
    as_json: bool = False,
) -> None:
    """The table of what these cases of the file came to on that device, or the same as lines of JSON on stdout; see
    `glabench.commands.standing`."""
    from glabench.commands.standing import json_lines, print_table, rows_of  # brings pandas

    rows = rows_of(path, ids, slug)
    if not as_json:
        print_table(console, rows, against)
        return
    for line in json_lines(rows, against):
        typer.echo(line)


def ready_standing() -> None:
    """Import what `print_standing` will need, which is seconds of pandas, while cases run in other processes."""
    threading.Thread(target=importlib.import_module, args=("glabench.commands.standing",), daemon=True).start()


def cases_of(count: int) -> str:
    """1 case, 2 cases. `glabench.report.text` counts anything, but brings pandas, which takes a second to import."""
    return f"{count} case{'' if count == 1 else 's'}"


def _close(console: Console, statuses: Counter[str], total: int, path: Path, interrupted: bool) -> None:
    """What it came to, where it is, and where to go next."""
    counts = ", ".join(f"{count} {status}" for status, count in statuses.most_common()) or "none finished"
    left = total - sum(statuses.values())
    if interrupted:
        console.print(
            f"\nStopped with {left} of {cases_of(total)} left; the same command goes on from here", soft_wrap=True
        )
    console.print(f"{cases_of(sum(statuses.values()))}: {counts}", soft_wrap=True)
    console.print(f"Rows:   {path}", soft_wrap=True)
    console.print(f"Report: glabench report {shlex.quote(str(path))}", soft_wrap=True)
