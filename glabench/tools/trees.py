"""What kernels take in two trees of this repository, in turns: ``python -m glabench.tools.trees OLD NEW``. Needs a GPU.

At the shapes of the sweep ``host``, or those given: a forward pass alone, both passes, both with all states kept, and
both with none materialized, each the median of replays of a CUDA graph. A tree is measured in a process of its own,
with its own kernels before all others; this file is what runs there, and asks nothing of a tree but `gla`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import typer

SAMPLES, REPLAYS = 7, 8
WAYS = ("fwd", "fwd+bwd", "fwd+bwd, all states kept", "fwd+bwd, states not materialized")
LIMIT = 1.01  # times as long in NEW: more is named below the table

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Times = dict[str, float]  # ms, by shape and way
Gates = Literal["bf16", "fp32", "none"]


@app.command()
def trees(
    old: Annotated[Path, typer.Argument(help="A checkout to compare with.", exists=True, file_okay=False)],
    new: Annotated[Path, typer.Argument(help="The checkout in question.", exists=True, file_okay=False)],
    rounds: Annotated[int, typer.Option(help="Times that each tree has its turn.", min=1)] = 2,
    shape: Annotated[list[str] | None, typer.Option(help="B,T,H,K,V instead of those of `host`; may repeat.")] = None,
    gates: Annotated[Gates, typer.Option(help="What gates are, beside q, k and v in bf16.")] = "bf16",
    strength: Annotated[float, typer.Option(help="Of gates, as in sweeps.")] = 1.0,
    out: Annotated[Path | None, typer.Option(help="File that rows are appended to.")] = None,
) -> None:
    """Compare kernels of two trees. Exit code: 0 done; 2 bad input, or no GPU."""
    from glabench.errors import UserError
    from glabench.hardware.environment import detect_device, environment
    from glabench.spec.shape import sizes
    from glabench.tools.calls import by_shape
    from glabench.tools.rows import append

    for tree in (old, new):
        if not (tree / "kernels" / "gla_kernels").is_dir():
            raise typer.BadParameter(f"expected kernels/gla_kernels in {tree}")
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
    asked = {"shapes": shapes, "gates": gates, "strength": strength}
    found: dict[Path, list[Times]] = {old: [], new: []}
    for number in range(rounds):
        for tree in (old, new) if number % 2 == 0 else (new, old):
            found[tree].append(in_tree(tree, asked))
    facts = environment("cuda", bandwidth=False)
    rows = [
        {"kind": "kernels of two trees", "what": what, "gates": gates, "strength": strength, "environment": facts}
        | {"old_ms": [one[what] for one in found[old]], "new_ms": [one[what] for one in found[new]]}
        for what in found[old][0]
    ]
    append(rows, out)
    typer.echo("\n".join(report(rows)))


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


def measure(shapes: Sequence[Sequence[int]], gates: Gates, strength: float) -> Times:
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
        x = [*(one.requires_grad_() for one in (q, k, v)), None if gates == "none" else g.requires_grad_()]
        do = torch.randn_like(v)
        kept = partial(both, x, do, recompute=False)
        without = partial(both, x, do, schedule=Schedule(materialize=False))
        for way, call in zip(WAYS, (partial(forward, x), partial(both, x, do), kept, without), strict=True):
            found[f"{B}, {T}, {H}, {K}, {V} {way}"] = _replayed_ms(call)
    return found


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
