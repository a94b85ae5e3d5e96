"""``glabench tune``: find the fastest plan for each workload of a sweep, and keep it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def tune(
    what: Annotated[str, typer.Argument(metavar="SWEEP|SHAPE", help="A sweep's file or name, or a shape B,T,H,K,V.")],
    strategy: Annotated[str, typer.Option(help="model, halving, exhaustive or tpe.")] = "model",
    budget: Annotated[
        str | None, typer.Option(help="Time for each shape, such as 90s or 2m; unlimited by default.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="For a shape: bf16, fp16 or fp32.")] = "bf16",
    mode: Annotated[str, typer.Option(help="For a shape: fwd, bwd or fwdbwd.")] = "fwdbwd",
    out: Annotated[
        Path | None,
        typer.Option(help="File that records are appended to.", show_default="results/local/tune-<what>-<gpu>.jsonl"),
    ] = None,
    ship: Annotated[
        bool, typer.Option("--ship", help="Also put the winners into the table that is part of the package.")
    ] = False,
) -> None:
    """Tune the chunkwise kernels on this GPU. gla() uses the winners from then on.

    Exit code: 0 done; 1 some workload has no plan that runs and is right; 2 bad input.
    """
    from glabench.hardware.environment import require_cuda
    from glabench.tune import works
    from glabench.tune.session import Session, seconds
    from glabench.tune.strategies import check_strategy

    check_strategy(strategy)
    budget_s = None if budget is None else seconds(budget)
    groups = [works.of_shape(what, dtype, mode)] if works.is_shape(what) else works.of_sweep(what)
    require_cuda("tuning measures on a GPU; `glabench compile` needs none")
    with Session(strategy, budget_s, out or _default_out(what), ship) as session:
        failed = sum(not session.run(group) for group in groups)
    if failed:
        raise typer.Exit(1)


def _default_out(what: str) -> Path:
    from glabench.hardware.environment import device_slug

    name = Path(what).stem if "," not in what else "x".join(what.split(","))
    return Path("results") / "local" / f"tune-{name}-{device_slug('cuda')}.jsonl"
