"""What kernels take in trees of this repository, in turns: ``python -m glabench.tools.trees OLD NEW``. Needs a GPU.

At the shapes of the sweep ``host``, or those given: a forward pass alone, both passes, both with all states kept, and
both with none materialized, each the median of replays of a CUDA graph; on demand each kernel's own time besides, which
says where a difference is. A tree is measured in a process of its own, with its own kernels before all others; this
file is what runs there, and asks nothing of a tree but `gla`. Rows are written after each round, so that a run that is
stopped leaves those before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import typer

SAMPLES, REPLAYS = 7, 8
CALLS = 5  # whose kernels are timed, each by itself
LIMIT = 1.01  # times as long in a new tree: more is named below the table

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Times = dict[str, float]  # ms, by shape and way, and kernel
Gates = Literal["bf16", "fp32", "none"]
WAYS = {  # -> what is said of them
    "fwd": "fwd", "both": "fwd+bwd", "kept": "fwd+bwd, all states kept", "without": "fwd+bwd, states not materialized"
}  # fmt: skip


@app.command()
def trees(
    old: Annotated[Path, typer.Argument(help="A checkout to compare with.", exists=True, file_okay=False)],
    new: Annotated[list[Path], typer.Argument(help="Checkouts in question.", exists=True, file_okay=False)],
    rounds: Annotated[int, typer.Option(help="Times that each tree has its turn.", min=1)] = 2,
    shape: Annotated[list[str] | None, typer.Option(help="B,T,H,K,V instead of those of `host`; may repeat.")] = None,
    ways: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(WAYS),
    kernels: Annotated[bool, typer.Option("--kernels", help="Each kernel's own time, too.")] = False,
    gates: Annotated[Gates, typer.Option(help="What gates are, beside q, k and v in bf16.")] = "bf16",
    strength: Annotated[float, typer.Option(help="Of gates, as in sweeps.")] = 1.0,
    closed_every: Annotated[
        int | None, typer.Option(help="Rows from one with gates of -inf to the next.", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File that rows are appended to, after each round.")] = None,
) -> None:
    """Compare kernels of trees. Exit code: 0 done; 2 bad input, or no GPU."""
    from glabench.errors import UserError
    from glabench.hardware.environment import detect_device, environment
    from glabench.spec.shape import sizes
    from glabench.tools.calls import by_shape
    from glabench.tools.rows import append

    for tree in (old, *new):
        if not (tree / "kernels" / "gla_kernels").is_dir():
            raise typer.BadParameter(f"expected kernels/gla_kernels in {tree}")
    if unknown := [way for way in ways.split(",") if way not in WAYS]:
        raise typer.BadParameter(f"--ways {unknown[0]}: expected {', '.join(WAYS)}")
    try:
        shapes = [sizes(text) for text in shape or ()]
        if detect_device() != "cuda":
            raise UserError("there is no usable NVIDIA GPU here, whose kernels are measured")
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if not shapes:
        cases = [cases["gla"] for cases in by_shape()]
        shapes = [(case.B, case.T, case.H, case.K, case.V) for case in cases]
    given = {"gates": gates, "strength": strength, "closed_every": closed_every}
    asked = {"shapes": shapes, "ways": ways.split(","), "kernels": kernels} | given
    facts = given | {"environment": environment("cuda", bandwidth=False)}
    found: list[list[Times]] = [[] for _ in (old, *new)]
    for number in range(rounds):
        turns = list(enumerate((old, *new)))
        for place, tree in turns if number % 2 == 0 else reversed(turns):
            found[place].append(in_tree(tree, asked))
        append(
            [{"kind": "kernels of trees in turns", "round": number} | facts | row for row in latest(found, new)], out
        )
    for place, tree in enumerate(new, 1):
        typer.echo("\n".join([f"new is {tree}", *report(compared(found[0], found[place]))]))


def latest(found: Sequence[Sequence[Times]], new: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Rows of the last round, one for each new tree: its folder's name, and the times of the old tree and of it."""
    for tree, times in zip(new, found[1:], strict=True):
        yield {"new": tree.resolve().name, "old_ms": found[0][-1], "new_ms": times[-1]}


def compared(old: Sequence[Times], new: Sequence[Times]) -> list[dict[str, Any]]:
    """What both trees have times of, with those of all rounds."""
    return [
        {"what": what, "old_ms": [one[what] for one in old], "new_ms": [one[what] for one in new]}
        for what in old[0]
        if all(what in one for one in (*old, *new))
    ]


def in_tree(tree: Path, asked: dict[str, Any]) -> Times:
    """The times of one tree, in a process of its own. asked: what `measure` is. CalledProcessError where it fails."""
    paths = os.pathsep.join([str((tree / "kernels").resolve()), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-P", __file__, "--here", json.dumps(asked)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=True
    )
    times: Times = json.loads(done.stdout.splitlines()[-1])
    return times


def report(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines with the median of each tree's rounds, and how many times as long the new one takes; slower ones last."""
    lines, slower = [f"{'B, T, H, K, V':<60}{'old ms':>10}{'new ms':>10}{'new / old':>11}"], []
    for row in rows:
        old, new = median(row["old_ms"]), median(row["new_ms"])
        lines.append(f"{row['what']:<60}{old:10.4f}{new:10.4f}{new / old:11.3f}")
        if new > LIMIT * old:
            slower.append(row["what"])
    return [*lines, f"more than {LIMIT:.2f} times as long: {'; '.join(slower) or 'none'}"]


def measure(
    shapes: Sequence[Sequence[int]], ways: Sequence[str], kernels: bool, gates: Gates, strength: float,
    closed_every: int | None = None,
) -> Times:  # fmt: skip
    """The times of the kernels that are imported here, on the current CUDA device."""
    import torch
    from torch.nn.functional import logsigmoid

    from gla_kernels import Schedule, gla

    def forward(x: Any) -> Any:
        with torch.no_grad():
            return gla(*x)[0]

    def both(x: Any, do: torch.Tensor, **asked: Any) -> Any:
        return torch.autograd.grad(gla(*x, **asked)[0], [one for one in x if one is not None], do)

    found: Times = {}
    for B, T, H, K, V in shapes:
        torch.manual_seed(0)
        q, k, g, v = (torch.randn(B, T, H, n, device="cuda", dtype=torch.bfloat16) for n in (K, K, K, V))
        g = (strength * logsigmoid(g.float())).to(torch.float32 if gates == "fp32" else torch.bfloat16)
        if closed_every is not None:
            g[:, ::closed_every] = -torch.inf
        x = [*(one.requires_grad_() for one in (q, k, v)), None if gates == "none" else g.requires_grad_()]
        do = torch.randn_like(v)
        kept = partial(both, x, do, recompute=False)
        without = partial(both, x, do, schedule=Schedule(materialize=False))
        calls = dict(zip(WAYS, (partial(forward, x), partial(both, x, do), kept, without), strict=True))
        for way in ways:
            what = f"{B}, {T}, {H}, {K}, {V} {WAYS[way]}"
            found[what] = _replayed_ms(calls[way])
            if kernels:
                found |= {f"{what}: {kernel}": ms for kernel, ms in _kernels_ms(calls[way]).items()}
    return found


def _kernels_ms(call: Callable[[], Any]) -> Times:
    """The time of each kernel in a call that was made before, of all its launches together."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    times = {event.key: event.self_device_time_total / 1000 / CALLS for event in profiled.key_averages()}
    return {kernel: ms for kernel, ms in times.items() if ms}


def _replayed_ms(call: Callable[[], Any]) -> float:
    import torch

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = call()
    samples, (start, end) = [], [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for _ in range(SAMPLES):
        graph.replay()
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / REPLAYS)
    del result
    return median(samples)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        print(json.dumps(measure(**json.loads(sys.argv[2]))))
    else:
        app()
