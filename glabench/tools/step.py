"""A step of training, gated linear attention against softmax attention: ``python -m glabench.tools.step``.

One language model in plain PyTorch for all, but for the layer that mixes tokens; one process, in turns. Says for each
system, as it is and with each block and the loss compiled, how long a step takes, how long Python takes to queue it,
what memory it needs, and whether the model trains. A CPU is for trying the program: its times are in the rows, and not
shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from glabench.errors import did_you_mean
from glabench.spec.settings import Device
from glabench.tools.rows import Row, append, rows_of, wide_enough

RIVAL = "fa2"
MODES = {"none": (False,), "blocks": (True,), "both": (False, True)}
GIB = 2**30

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Question:
    """What is measured: every system, compiled or not as ``modes`` says, on a batch of B sequences of T tokens.

    steps: of a sample of wall time; rounds: samples of each; warmup: steps before the first, at least 2.
    """

    systems: Sequence[str]
    modes: Sequence[bool]
    model: str
    B: int
    T: int
    steps: int
    rounds: int
    warmup: int
    profile: bool = False


@app.command()
def step(
    systems: Annotated[
        str, typer.Option(help="Comma-separated names of docs/models.md, as gla, fla, retnet, fa2.")
    ] = "gla,gla-recompute,fa2",
    compile_: Annotated[str, typer.Option("--compile", help="none, blocks or both.")] = "both",
    model: Annotated[str, typer.Option(help="340m, 1.3b or tiny.")] = "340m",
    batch: Annotated[int, typer.Option("--B", help="Sequences.", min=1)] = 8,
    length: Annotated[int, typer.Option("--T", help="Tokens of a sequence.", min=1)] = 2048,
    steps: Annotated[int, typer.Option(help="Steps of a sample of wall time.", min=1)] = 10,
    rounds: Annotated[int, typer.Option(help="Samples of each.", min=1)] = 7,
    warmup: Annotated[int, typer.Option(help="Steps before the first sample.", min=2)] = 5,
    profile: Annotated[bool, typer.Option("--profile", help="Also the GPU time of a step by kind of kernel.")] = False,
    out: Annotated[Path | None, typer.Option(help="File that rows are appended to.")] = None,
    read: Annotated[Path | None, typer.Option(help="File of rows to show; nothing is measured.", exists=True)] = None,
) -> None:
    """Measure steps of training. Exit code: 0 done; 1 a model did not train; 2 bad input."""
    if read is not None:
        show(rows_of(read, "training step"), wide_enough())
        return
    import torch

    from glabench.systems.models.model import CONFIGS, SYSTEMS, missing

    names = systems.split(",")
    check_names(names, SYSTEMS, "--systems")
    for name in names:
        if why := missing(name):
            raise typer.BadParameter(f"{name!r} cannot run here: {why}", param_hint="--systems")
    check_names([model], CONFIGS, "--model")
    check_names([compile_], MODES, "--compile")
    device: Device = "cuda" if torch.cuda.is_available() else "cpu"
    if profile and device == "cpu":
        raise typer.BadParameter("there is no GPU here to profile", param_hint="--profile")
    rows = measure(Question(names, MODES[compile_], model, batch, length, steps, rounds, warmup, profile), device)
    append(rows, out)
    show(rows, wide_enough())
    raise typer.Exit(0 if all(row["trains"] for row in rows) else 1)


def check_names(names: Sequence[str], known: Iterable[str], option: str) -> None:
    """BadParameter for a name that is not known."""
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"unknown {name!r}{did_you_mean(name, known)}", param_hint=option)


def measure(asked: Question, device: Device) -> list[Row]:
    """A row for each system and mode, all measured in turns in this process. Imports torch."""
    import torch

    from glabench.hardware.environment import environment
    from glabench.run.step_kernels import kernel_ms, our_kernels
    from glabench.run.train import Variant, measure_in_turns, warmed_up
    from glabench.systems.models.attention import backend
    from glabench.systems.models.model import CONFIGS, implementation

    config, place = CONFIGS[asked.model], torch.device(device)
    variants = [Variant(system, compiled) for compiled in asked.modes for system in asked.systems]
    runs = [warmed_up(variant, config, asked.B, asked.T, place, asked.warmup) for variant in variants]
    measure_in_turns(runs, asked.steps, asked.rounds)
    rows = []
    for trainer, found in runs:
        # what else the machine does only adds to Python's time, and comes and goes: the lower quartile
        wall, queued = statistics.median(found.wall_ms), statistics.quantiles(found.queue_ms, n=4)[0]
        row: Row = {"kind": "training step", "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        row |= {"model": asked.model, "config": asdict(config), "B": asked.B, "T": asked.T, "dtype": "bf16"}
        row |= {"attention": f"SDPA {backend(place).name}", "steps": asked.steps}
        row["implementation"] = implementation(found.system, place)
        row |= asdict(found) | {"trains": found.trains}
        row |= {"median_wall_ms": wall, "quartile_queue_ms": queued, "tokens_per_s": asked.B * asked.T / wall * 1e3}
        row["kernel_ms"] = None
        if asked.profile:
            row["kernel_ms"] = kernel_ms(trainer, our_kernels())
        rows.append(row | {"environment": environment(device, bandwidth=False)})
    return rows


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the rows as a table, each beside the rival in its mode, and where the GPU time went."""
    first = rows[0]
    table = Table(title=f"{first['model']}, B{first['B']} T{first['T']}, bf16, {first['environment']['device']}")
    for column in ("system", "blocks", "parameters", "step ms", "", "queued ms", "", "tokens/s", "GiB", "loss"):
        table.add_column(column, justify="left" if column in ("system", "blocks") else "right")
    for row in rows:
        rival = next((other for other in rows if other["system"] == RIVAL and _mode(other) == _mode(row)), None)
        parameters = f"{row['parameters'] / 1e6:.1f}M"
        loss = f"{row['loss_first']:.2f} -> {row['loss_last']:.2f}" + ("" if row["trains"] else ", does not train")
        table.add_row(row["system"], _mode(row), parameters, *_costs(row, rival), loss)
    console.print(table)
    for row in rows:
        if row["kernel_ms"]:
            groups = ", ".join(f"{group} {ms:.1f}" for group, ms in row["kernel_ms"].items())
            console.print(f"{row['system']}, {_mode(row)}: GPU ms of a step: {groups}", soft_wrap=True)


def _costs(row: Row, rival: Row | None) -> list[str]:
    """Step and queue, each with how many times the rival's it is, tokens a second, memory; dashes on a CPU."""
    if row["environment"]["kind"] == "cpu":
        return ["-"] * 6
    cells = []
    for key in ("median_wall_ms", "quartile_queue_ms"):
        cells += [f"{row[key]:.1f}", "" if rival is None else f"{row[key] / rival[key]:.2f}x"]
    return [*cells, f"{row['tokens_per_s']:,.0f}", f"{row['peak_bytes'] / GIB:.1f}"]


def _mode(row: Row) -> str:
    return "compiled" if row["compiled"] else "eager"


if __name__ == "__main__":
    app()
