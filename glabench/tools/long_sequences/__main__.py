"""Truncated backpropagation through time: a GLA model's step on a long sequence by segments, and on it whole.

The 2024 GLA paper trains on 24K tokens as 12 segments of 2K, whose last states are carried over and through which no
gradient goes. Says for each way what a step takes in time and memory, and how far the forward pass by segments is from
the whole one. One process, a model at a time. Needs a GPU; --tiny tries the program on a CPU.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from glabench.spec.models import CONFIGS
from glabench.tools.rows import Row, append, rows_of, wide_enough
from glabench.tools.step import check_names

if TYPE_CHECKING:
    from glabench.tools.long_sequences.training import Way

KIND = "long sequences"
GIB = 2**30
WORSE = 2.0  # times the error of whole logits in bf16 those by segments may have
FINER = 0.1  # times that error those in float32 may have
LEAST = 1e-5  # where nothing runs in bf16

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def long_sequences(
    models: Annotated[str, typer.Option(help="Comma-separated: 340m, 1.3b.")] = "340m,1.3b",
    batch: Annotated[int, typer.Option("--B", help="Sequences.", min=1)] = 1,
    length: Annotated[int, typer.Option("--T", help="Tokens of a sequence.", min=2)] = 24_576,
    segments: Annotated[int, typer.Option(help="That it is cut into.", min=2)] = 12,
    shorter: Annotated[int, typer.Option(help="Tokens of a whole sequence to compare with.", min=1)] = 8192,
    compiled: Annotated[bool, typer.Option("--compiled", help="Blocks compiled, and not eager.")] = False,
    steps: Annotated[int, typer.Option(help="Steps of a sample of wall time.", min=1)] = 3,
    rounds: Annotated[int, typer.Option(help="Samples of each way.", min=1)] = 5,
    tiny: Annotated[bool, typer.Option("--tiny", help="A tiny model, on a CPU too: tries the program.")] = False,
    out: Annotated[Path | None, typer.Option(help="File that rows are appended to.")] = None,
    read: Annotated[Path | None, typer.Option(help="File of rows to show; nothing is measured.", exists=True)] = None,
) -> None:
    """Measure steps whole and by segments. Exit code: 0 done; 1 a model does not train, or its forward pass by segments
    is another; 2 bad input or no GPU."""
    if read is not None:
        show(rows_of(read, KIND), wide_enough())
        return
    import torch

    from glabench.tools.long_sequences.training import Way

    names = models.split(",")
    check_names(names, [name for name in CONFIGS if name != "tiny"], "--models")
    if not tiny and not torch.cuda.is_available():
        raise typer.BadParameter("there is no GPU here; only --tiny needs none", param_hint="--models")
    if tiny:
        names, length, segments, shorter, steps, rounds = ["tiny"], 40, 2, 20, 1, 2
    if length % segments:
        raise typer.BadParameter(f"expected a divisor of the length, {length}, got {segments}", param_hint="--segments")
    ways = [Way(batch, length, 1), Way(batch, length, segments), Way(batch, shorter, 1)]
    rows = []
    for name in names:
        for way in ways:
            row = measure(name, way, compiled, steps, rounds)
            append([row], out)
            rows.append(row)
    show(rows, wide_enough())
    raise typer.Exit(0 if all(sound(row) for row in rows) else 1)


def measure(name: str, way: Way, compiled: bool, steps: int, rounds: int) -> Row:
    """A row of a model and way; by segments with what the forward pass makes of logits. Imports torch."""
    import torch

    from glabench.hardware.environment import environment
    from glabench.systems.models.model import implementation
    from glabench.tools.long_sequences.training import SYSTEM, forward, timed

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # Triton's interpreter has no products in bf16
    row: Row = {"kind": KIND, "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "model": name}
    row |= asdict(way) | {"config": asdict(CONFIGS[name]), "dtype": str(dtype).removeprefix("torch.")}
    row |= {"compiled": compiled, "steps": steps, "implementation": implementation(SYSTEM, device)}
    row |= {"environment": environment(device.type, bandwidth=False), "oom": False, "forward": None}
    try:
        _give_back(device)
        row |= timed(name, way, device, dtype, compiled, steps, rounds)
        if way.segments > 1:
            _give_back(device)
            row["forward"] = forward(name, way, device, (torch.float32, dtype))
    except torch.OutOfMemoryError:
        row["oom"] = True  # which is an answer, too
    return row


def _give_back(device: Any) -> None:
    """Memory of what was before, so that a peak is a model's own."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def sound(row: Row) -> bool:
    """Whether the loss is finite and fell on its one batch, and logits by segments are the whole ones but for
    rounding; or there was no memory for it."""
    if row["oom"]:
        return True
    if not (math.isfinite(row["loss_last"]) and row["loss_last"] < row["loss_first"]):
        return False
    found = row["forward"] or {}
    in_bf16 = found.get("bfloat16")
    if in_bf16 is None:
        return all(one["segments"]["error"] <= LEAST for one in found.values())
    error, fine = in_bf16["whole"]["error"], found["float32"]["segments"]["error"]
    return bool(in_bf16["segments"]["error"] <= WORSE * error and fine <= FINER * error)


def show(rows: Sequence[Row], console: Console) -> None:
    """Print what a step takes, and how far logits by segments are from whole ones."""
    table = Table(title=f"GLA models, a step, {rows[0]['dtype']}, {rows[0]['environment']['device']}")
    for column in ("model", "blocks", "B", "sequence", "step, ms", "tokens/s", "GiB", "loss"):
        table.add_column(column, justify="left" if column in ("model", "blocks", "sequence") else "right")
    for row in rows:
        how = "compiled" if row["compiled"] else "eager"
        what = row["model"], how, str(row["B"]), way_of(row)
        if row["oom"]:
            table.add_row(*what, "-", "-", "-", "out of memory")
            continue
        table.add_row(*what, *_costs(row), f"{row['loss_first']:.2f} -> {row['loss_last']:.2f}")
    console.print(table)
    for row in rows:
        for dtype, both in (row["forward"] or {}).items():
            console.print(f"{row['model']}, logits {way_of(row)}, {dtype}: {_said(both, dtype)}", soft_wrap=True)


def way_of(row: Row) -> str:
    """ "24,576 tokens whole", "24,576 tokens in 12 segments"."""
    return f"{row['T']:,} tokens " + ("whole" if row["segments"] == 1 else f"in {row['segments']} segments")


def _costs(row: Row) -> list[str]:
    """Time, tokens a second and memory; dashes on a CPU."""
    if row["environment"]["kind"] == "cpu":
        return ["-"] * 3
    wall = statistics.median(row["wall_ms"])
    return [f"{wall:.1f}", f"{row['B'] * row['T'] * 1e3 / wall:,.0f}", f"{row['peak_bytes'] / GIB:.1f}"]


def _said(both: dict[str, Any], dtype: str) -> str:
    """Errors of logits, and how far apart the losses of segments are."""
    own, whole = both["segments"], both["whole"]
    apart = max(abs(a - b) for a, b in zip(own["losses"], whole["losses"], strict=True))
    beside = "" if dtype == "float32" else f", whole {whole['error']:.1e} and {whole['most']:.1e}"
    text = f"error {own['error']:.1e} of float32's whole ones, at most {own['most']:.1e}{beside}"
    return f"{text}; losses of segments at most {apart:.1e} apart"


if __name__ == "__main__":
    app()
