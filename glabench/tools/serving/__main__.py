"""Steps of decoding with states in a pool (`gla_kernels.serving`), beside `gla_step` and rivals: what they take, and
how far states of each dtype are from float64's after thousands of steps. Needs a GPU; --tiny tries it on a CPU.

A step's time is its share of a CUDA graph of steps on the states of as many layers as fill several times the L2
cache, all variants in turns: a launch is in it, Python is not. A step with a tail is the mean of those between two
folds. Times are over those of the bytes that a step reads and writes, at the bandwidth of a copy of the same GPU.
Errors after many steps are of tokens in float32, so that they are those of the states.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from glabench.spec.settings import Device
from glabench.tools.rows import Row, append, rows_of, wide_enough
from glabench.tools.serving.measure import KIND, drift, times
from glabench.tools.serving.variants import OURS, RIVALS, Shape, Variant

SHAPES = "1,16,128,128 8,16,128,128 64,16,128,128 256,16,128,128"
DRIFT = (64, 512, 4096)
DRIFTING = (*(Variant(states) for states in ("fp32", "bf16", "fp16", "fp8")),
            *(Variant(states, stochastic=True) for states in ("bf16", "fp16", "fp8")),
            *(Variant(states, tail=8) for states in ("bf16", "fp8")))  # fmt: skip
# Strengths of gates, and means of k and v. A state remembers some 20 tokens, or 2,000, as a sum in which what is
# rounded away cancels out, or as one that grows, of which small parts are rounded away for good.
DRIFTS = ((1.0, 0.0), (0.01, 0.0), (0.01, 0.5))

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def serving(
    shapes: Annotated[str, typer.Option(help="B,H,K,V of steps, with blanks between.")] = SHAPES,
    gates: Annotated[str, typer.Option(help="key, a gate of each feature, head, one a head, or both.")] = "key,head",
    samples: Annotated[int, typer.Option(help="Of each variant.", min=1)] = 15,
    drifts: Annotated[bool, typer.Option("--drift/--no-drift", help="Errors after 64 to 4096 steps, too.")] = True,
    tiny: Annotated[bool, typer.Option("--tiny", help="A small shape on the CPU, without times.")] = False,
    out: Annotated[Path | None, typer.Option(help="File that rows are appended to.", dir_okay=False)] = None,
    read: Annotated[
        Path | None, typer.Option(help="File of rows to show; nothing is run.", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Measure steps of decoding. Exit code: 0 done; 1 something was wrong; 2 bad input, or no GPU."""
    if read is not None:
        show(rows_of(read, KIND), wide_enough())
        return
    kinds = gates.split(",")
    if not kinds or not set(kinds) <= {"key", "head"}:
        raise typer.BadParameter(f"expected key, head or key,head, got {gates!r}", param_hint="--gates")
    asked = [shape_of(words, kind) for words in shapes.split() for kind in kinds]
    if not asked:
        raise typer.BadParameter("expected a shape, got none", param_hint="--shapes")
    asked = [Shape(2, 1, 16, 16, kind) for kind in kinds] if tiny else asked
    device: Device = "cpu" if tiny else "cuda"
    if tiny:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton
    from glabench.hardware.environment import detect_device, environment

    if device == "cuda" and detect_device() != "cuda":
        typer.echo("error: there is no usable NVIDIA GPU here, whose steps are measured; --tiny needs none", err=True)
        raise typer.Exit(2)
    facts = environment(device) | {"recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    rate = facts.get("copy_bytes_per_s") or 1.0
    rows = list[Row]()

    def note(found: Row) -> None:
        found["environment"] = facts
        append([found], out)
        rows.append(found)

    for shape in asked:
        for row in times(shape, (*OURS, *RIVALS), device, samples, rate):
            note(row)
    if drifts:
        kept, at = (Shape(2, 1, 16, 16), (4, 16)) if tiny else (Shape(4, 4, 128, 128), DRIFT)
        for strength, mean in DRIFTS:
            for row in drift(kept, DRIFTING, device, at, strength, mean):
                note(row)
    show(rows, wide_enough())
    raise typer.Exit(1 if any(row["status"] == "wrong" for row in rows) else 0)


def shape_of(text: str, gates: str) -> Shape:
    """BadParameter for what is none."""
    words = text.split(",")
    if len(words) != 4 or not all(word.isdecimal() and int(word) for word in words):
        raise typer.BadParameter(f"expected B,H,K,V, four numbers above 0, got {text!r}", param_hint="--shapes")
    B, H, K, V = map(int, words)
    return Shape(B, H, K, V, gates)


def show(rows: Sequence[Row], console: Console) -> None:
    """Print a table of times for each shape, and one of errors for each kind of tokens."""
    timed = [row for row in rows if row["asked"] == "time"]
    for shape in dict.fromkeys(_shape(row) for row in timed):
        console.print(_times(shape, [row for row in timed if _shape(row) == shape]))
    drifted = [row for row in rows if row["asked"] == "drift"]
    for drawn in dict.fromkeys((row["strength"], row["mean"]) for row in drifted):
        console.print(_errors([row for row in drifted if (row["strength"], row["mean"]) == drawn]))
    for row in rows:
        if row["reason"]:
            console.print(f"{_shape(row)}, {row['variant']}: {row['reason']}", soft_wrap=True)


def _shape(row: Row) -> Shape:
    B, H, K, V = (row[axis] for axis in "BHKV")
    return Shape(B, H, K, V, row["gates"])


def _times(shape: Shape, rows: Sequence[Row]) -> Table:
    table = Table("states", title=f"A step, {shape}, {rows[0]['environment']['device']}")
    for column in ("µs", "times its bytes", "times fp32", "error"):
        table.add_column(column, justify="right")
    first = next((row for row in rows if row["variant"] == "fp32" and row.get("ms")), None)
    for row in rows:
        ms = median(row["ms"]) if row.get("ms") else None
        table.add_row(
            row["variant"],
            "-" if ms is None else f"{1e3 * ms:.2f}",
            "-" if ms is None else f"{ms / row['floor_ms']:.2f}",
            "-" if ms is None or first is None else f"{ms / median(first['ms']):.2f}",
            f"{row['error']:.1e}" if "error" in row else row["status"],
        )
    return table


def _errors(rows: Sequence[Row]) -> Table:
    at = list(rows[0]["errors"])
    table = Table("states", title=f"Error of o, gates x{rows[0]['strength']:g}, mean {rows[0]['mean']:g}")
    for steps in at:
        table.add_column(f"{steps} steps", justify="right")
    for row in rows:
        table.add_row(row["variant"], *(f"{row['errors'][steps]:.1e}" for steps in at))
    return table


if __name__ == "__main__":
    app()
