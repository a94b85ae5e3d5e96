"""Eager calls of the sweep ``host`` in one process, in turns: ``python -m glabench.tools.calls``. Needs a GPU.

At each of its shapes, forward and backward: gla as it is, with its states computed again, without materialized states,
and PyTorch's FlashAttention-2. Of each how long Python takes to queue a call, what an eager call takes, what its
kernels take by themselves (a replayed CUDA graph), and what is kept between the passes. `glabench sweep host` asks the
same of each system in a process of its own; here a slow moment of the machine's is the same for all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from glabench.tools.graphs import replayed
from glabench.tools.rows import Row, append, rows_of, wide_enough

if TYPE_CHECKING:
    from glabench.run.cold import Call
    from glabench.spec.case import Case

REPLAYS, SAMPLES = 10, 7  # of a graph in a sample, and samples
WARM_CALLS = 30  # compile, and meet addresses that come back
DEFAULT, RECOMPUTED, WITHOUT, RIVAL = "gla", "gla, states recomputed", "gla, states not materialized", "fa2"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def calls(
    rounds: Annotated[int, typer.Option(help="Times that each system has its turn.", min=1)] = 3,
    shapes: Annotated[int, typer.Option(help="How many of the shapes, in the sweep's order.", min=1)] = 12,
    out: Annotated[Path | None, typer.Option(help="File that rows are appended to.")] = None,
    read: Annotated[Path | None, typer.Option(help="File of rows to show; nothing is measured.", exists=True)] = None,
) -> None:
    """Measure eager calls in turns. Exit code: 0 done; 2 bad input, or no GPU."""
    from glabench.hardware.environment import detect_device

    if read is not None:
        show(rows_of(read, "eager calls"), wide_enough())
        return
    if detect_device() != "cuda":
        typer.echo("error: there is no usable NVIDIA GPU here, whose calls are measured", err=True)
        raise typer.Exit(2)
    rows = [row for cases in by_shape()[:shapes] for row in measure(cases, rounds)]
    append(rows, out)
    show(rows, wide_enough())


def by_shape() -> list[dict[str, Case]]:
    """Of each shape of the sweep ``host``, its cases of `gla` and of attention, by what the table calls them."""
    from glabench.spec.expand import expand
    from glabench.spec.sweep import find, load

    found: dict[tuple[int, ...], dict[str, Case]] = {}
    attention = []
    for case in expand(load(find("host")), "cuda").cases:
        if case.system == "gla":
            name = WITHOUT if case.materialize is False else DEFAULT
            found.setdefault((case.B, case.T, case.H, case.K, case.V), {})[name] = case
        elif case.system == RIVAL:
            attention.append(case)
    # one of attention for each shape, in the same order
    return [cases | {RIVAL: rival} for cases, rival in zip(found.values(), attention, strict=True)]


def measure(cases: dict[str, Case], rounds: int) -> list[Row]:
    """A row for each system at one shape, measured in turns on the current CUDA device. Imports torch."""
    import torch

    from glabench.hardware.environment import environment
    from glabench.run import eager, memory
    from glabench.run.measure import calls as calls_of
    from glabench.systems.base import load

    torch.cuda.empty_cache()
    called: dict[str, tuple[Case, Call]] = {}
    kept: dict[str, int | None] = {}
    for name, case in cases.items():
        system = load(case.system)
        inputs = system.draw_inputs(case, "cuda")
        (call,) = calls_of(system, case, [inputs])
        called[name] = case, call
        call()
        kept[name] = memory.kept_bytes(system, case, inputs)
        if name == DEFAULT:
            called[RECOMPUTED] = case, recomputed(inputs)
            kept[RECOMPUTED] = None
    for _, call in called.values():
        for _ in range(WARM_CALLS):
            call()
    taken: dict[str, list[eager.Eager]] = {name: [] for name in called}
    for number in range(rounds):
        for name, (_, call) in list(called.items())[:: 1 if number % 2 == 0 else -1]:
            taken[name].append(eager.measure([call]))
    kernels = kernel_ms({name: call for name, (_, call) in called.items()})
    facts = environment("cuda", bandwidth=False)
    return [
        {"kind": "eager calls", "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "system": name}
        | {"case": asdict(case), "kernel_ms": kernels[name], "kept_bytes": kept[name]}
        | {"host_ms": [one.host_ms for one in taken[name]], "wall_ms": [one.wall_ms for one in taken[name]]}
        | {"environment": facts}
        for name, (case, _) in called.items()
    ]


def recomputed(inputs: Any) -> Call:
    """A forward and backward pass of `gla` that computes states again."""
    import torch

    from gla_kernels import gla

    given = inputs.with_grad()
    leaves = list(given.leaves().values())

    def call() -> object:
        o, _ = gla(given.q, given.k, given.v, given.g, recompute=True)
        return torch.autograd.grad(o, leaves, given.do)

    return call


def kernel_ms(calls: dict[str, Call]) -> dict[str, list[float]]:
    """What the kernels of each call take by themselves, samples in ms: replays of CUDA graphs, in turns."""
    samples = {name: replayed(call, REPLAYS) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(SAMPLES):
        for name, sample in samples.items():
            found[name].append(sample())
    return found


def show(rows: Sequence[Row], console: Console) -> None:
    """Print medians of each shape, and geometric means and worst ratios below."""
    table = Table(title=f"eager calls, fwd+bwd, bf16, {rows[0]['environment']['device']}")
    for column in (
        "B, T, H, K, V",
        "system",
        "queued ms",
        "of fa2",
        "of gla",
        "wall ms",
        "kernels ms",
        "wall",
        "kept MiB",
    ):
        table.add_column(column, justify="left" if column in ("B, T, H, K, V", "system") else "right")
    found = summary(rows)
    for one in found:
        kept = "" if one["kept_bytes"] is None else f"{one['kept_bytes'] / 2**20:.1f}"
        ratios = ("" if one[key] is None else f"{one[key]:.2f}x" for key in ("of_rival", "of_default"))
        table.add_row(
            one["shape"], one["system"], f"{one['host_ms']:.3f}", *ratios, f"{one['wall_ms']:.3f}",
            f"{one['kernel_ms']:.3f}", f"{one['wall_ms'] / one['kernel_ms']:.2f}x", kept,
        )  # fmt: skip
    console.print(table)
    for system in (DEFAULT, RECOMPUTED, WITHOUT):
        ours = [one for one in found if one["system"] == system]
        against, to_default = ([one[key] for one in ours] for key in ("of_rival", "of_default"))
        console.print(
            f"{system}: queued in {median(against):.2f}x fa2's in the median, {max(against):.2f}x at most; "
            f"{median(to_default):.2f}x gla's in the median, {max(to_default):.2f}x at most"
        )


def summary(rows: Sequence[Row]) -> list[Row]:
    """Medians of the rows, and how many times the rival's and the default's queue time each has at its shape."""
    found: list[Row] = []
    shape: tuple[int, ...] = ()
    group: dict[str, float] = {}
    for row in rows:
        case = row["case"]
        if row["system"] == DEFAULT:  # the first of its shape
            shape = tuple(case[axis] for axis in "BTHKV")
            at = rows.index(row)
            group = {one["system"]: _median(one["host_ms"]) for one in rows[at : at + 4]}
        queued = group[row["system"]]
        ours = row["system"] != RIVAL
        found.append(
            {"shape": ", ".join(map(str, shape)), "system": row["system"], "host_ms": queued}
            | {
                "of_rival": queued / group[RIVAL] if ours else None,
                "of_default": queued / group[DEFAULT] if ours else None,
            }
            | {
                "wall_ms": _median(row["wall_ms"]),
                "kernel_ms": median(row["kernel_ms"]),
                "kept_bytes": row["kept_bytes"],
            }
        )
    return found


def _median(rounds: Sequence[Sequence[float]]) -> float:
    """The median of the rounds' medians: a slow round counts once."""
    return median(median(one) for one in rounds)


if __name__ == "__main__":
    app()
