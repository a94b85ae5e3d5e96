"""``glabench compare``: one shape, ours and every rival that is installed, and a table at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glabench.commands import running
from glabench.commands.axes import with_options
from glabench.commands.machines import Format, is_json
from glabench.commands.running import pick_device, rows_file, run_cases, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from glabench.spec.case import Case
    from glabench.spec.settings import Device
    from glabench.spec.sweep import Sweep

GATES = "A number, 0 for gates that never close, or none."


@with_options
def compare(
    shape: Annotated[str, typer.Argument(metavar="SHAPE", help="B,T,H,K,V, such as 4,2048,16,128,128.")],
    against: Annotated[
        str | None,
        typer.Option(
            metavar="SYSTEM,..|all",
            help="Rivals to measure, and to name times of; all is every operator.",
            show_default="those installed, times fla",
        ),
    ] = None,
    mode: Annotated[str, typer.Option(help="fwd, bwd, fwdbwd or step, or several, with commas.")] = "fwd,fwdbwd",
    dtype: Annotated[str | None, typer.Option(help="bf16, fp16 or fp32.", show_default="bf16, on a CPU fp32")] = None,
    gate_strength: Annotated[str, typer.Option(help=GATES)] = "1",
    initial_state: Annotated[bool, typer.Option("--initial-state", help="Begin from a state, return one.")] = False,
    attention: Annotated[
        str, typer.Option(help="same: as many heads of the same size; usual: heads of 64 of the same width.")
    ] = "same",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda. auto takes the GPU where there is one.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="File that rows are appended to.", show_default="results/local/compare-<shape>-<gpu>.jsonl"),
    ] = None,
    format: Format = "text",
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what the file has.")] = False,
    **axes: Any,
) -> None:
    """Compare at your shape: who is fastest, by how much, and is it right. Few samples, nothing tuned.

    The same command again shows what was measured. Without a GPU our kernels are checked and PyTorch's forms timed.

    Exit code: 0 done; 1 some kernel is wrong, crashed or did not compile; 2 bad input; 130 stopped by Ctrl-C.
    """
    from glabench.hardware.environment import device_slug
    from glabench.spec import on_the_fly
    from glabench.spec.expand import expand
    from glabench.spec.shape import name_of

    as_json = is_json(format)
    kind, named, modes = pick_device(device), _split(against), _split(mode)
    here, missing = _here(on_the_fly.systems(named, modes, _strength(gate_strength) is not None, kind), kind)
    fields = {
        # without a GPU kernels are checked alone, which is sharpest in fp32
        "dtype": dtype if dtype is not None else ("fp32" if kind == "cpu" else "bf16"),
        "gate_strength": _strength(gate_strength),
        "initial_state": initial_state,
        **axes,
    }
    chosen = on_the_fly.sweep(shape, here, modes, attention, kind, **fields)
    cases = list(expand(chosen, kind).cases)
    path = rows_file(out, f"compare-{name_of(shape)}-{device_slug(kind)}.jsonl")
    bases = [name for name in named if name in here and name != on_the_fly.OWN]
    _run(chosen, cases, path, kind, fresh, bases, missing, as_json)


def _split(text: str | None) -> list[str]:
    return words([text]) if text is not None else []


def _strength(text: str) -> float | str | None:
    """A number as a sweep file has it, None for no gates; what is no number is left to the check of all fields."""
    if text in ("none", "null"):
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _here(wanted: Sequence[str], device: Device) -> tuple[list[str], dict[str, list[str]]]:
    """Those of the systems that can run on this machine; and why the others cannot: a reason and who shares it."""
    from glabench.systems.base import load

    here, missing = list[str](), dict[str, list[str]]()
    for name in wanted:
        reason = load(name).unavailable(device)
        if reason is None:
            here.append(name)
        else:
            missing.setdefault(str(reason), []).append(name)
    return here, missing


def _run(
    chosen: Sweep,
    cases: list[Case],
    path: Path,
    device: Device,
    fresh: bool,
    bases: list[str],
    missing: dict[str, list[str]],
    as_json: bool,
) -> None:
    from glabench.hardware.environment import device_name, device_slug
    from glabench.run.driver import Driver, finished
    from glabench.spec.catalog import CATALOG
    from glabench.store import Appender

    if not fresh:
        running.refuse_others(path, profiled=False)
    running.check_cache()
    settings, limit_s = chosen.settings(device), chosen.section(device).limit_s
    ids = {case.id for case in cases}

    def closing(console: Console) -> None:
        running.print_standing(console, path, ids, device_slug(device), bases, as_json)
        for reason, names in missing.items():
            console.print(f"Not here: {', '.join(names)}: {reason}", soft_wrap=True)

    running.ready_standing()
    with Appender(path, fresh=fresh) as out:
        done = finished(path, settings, limit_s)
        run_cases(
            cases,
            {key: status for key, status in done.items() if key in ids},
            out,
            f"{chosen.title} on {device_name(device)}",
            lambda progress: Driver(
                chosen.name,
                device,
                settings,
                limit_s,
                frozenset(),
                out,
                progress,
                later=frozenset(case.id for case in cases if CATALOG[case.system].autotuned),
                alone_s=0.0,  # what compiles is what is waited for
                beside=device == "cuda",
            ),
            closing,
            to_stderr=as_json,
        )
