"""``glabench tune``: find the fastest plan for each workload of a sweep, keep it, and say why it won."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glabench.commands import machines
from glabench.commands.running import check_cache

if TYPE_CHECKING:
    from gla_kernels import Workload

# Options by parameter that mean something for one of the two uses alone.
TUNING = {"strategy": "--strategy", "budget": "--budget", "out": "--out", "keep": "--no-keep", "resume": "--resume",
          "gpus": "--gpus"}  # fmt: skip
EXPLAINING = {"records": "--from", "all_": "--all", "target": "--target", "format": "--format"}


def tune(
    ctx: typer.Context,
    what: Annotated[
        list[str], typer.Argument(metavar="SWEEP|SHAPE..", help="A sweep's file or name, or a shape B,T,H,K,V.")
    ],
    strategy: Annotated[str, typer.Option(help="model, halving, exhaustive or tpe.")] = "model",
    budget: Annotated[
        str | None, typer.Option(help="Time for each shape, such as 90s or 2m; unlimited by default.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="For a shape: bf16, fp16 or fp32.")] = "bf16",
    gate_dtype: Annotated[
        str | None, typer.Option(help="For a shape: fp32 for gates in float32.", show_default="that of q")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="Which directions: fwd, bwd or fwdbwd.", show_default="fwdbwd; for a sweep those of its cases"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File that records are appended to.", show_default="results/local/tune-<what>-<gpu>.jsonl"),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep/--no-keep", help="Whether gla() uses the winners from then on."),
    ] = True,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Leave out shapes that --out has already, by these kernels and this strategy."),
    ] = False,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="0,1,..|all",
            help="Tune shapes on several GPUs of one model at once, each on its own.",
            show_default=False,
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Tune nothing: say what won, and why each candidate lost. Needs no GPU.")
    ] = False,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            help="With --explain: files of records, or folders.",
            show_default="results/*/tune-*, results/*/retune",
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="With --explain: every candidate, not the best alone.")] = False,
    target: Annotated[
        str | None, typer.Option(help="With --explain: the architecture.", show_default="of this GPU, else sm_90")
    ] = None,
    format: Annotated[
        str, typer.Option("--format", help="With --explain: text, or json, an object a workload.")
    ] = "text",
) -> None:
    """Tune the chunkwise kernels on this GPU. gla() uses the winners from then on.

    A rerun tunes again, and the newest tuning counts; with --resume it goes on where the last one stopped.
    After Ctrl-C, what was tuned before is kept.

    Exit code: 0 done; 1 for some workload the search found no plan that runs and is right; 2 bad input.
    """
    from glabench.spec.shape import is_shape
    from glabench.tune import works

    _check_options(ctx, explain, any(map(is_shape, what)))
    found = [
        [works.of_shape(one, dtype, mode or "fwdbwd", gate_dtype)] if is_shape(one) else works.of_sweep(one, mode)
        for one in what
    ]
    groups = works.merged(group for groups in found for group in groups)
    if explain:
        as_json = machines.is_json(format)
        from glabench.tune.lookup import explain_all, explained, machine, read_records

        wanted = [one for group in groups for one in group], read_records(records), machine(target), all_
        if not as_json:
            explain_all(*wanted)
            return
        for told in explained(*wanted):
            machines.say(**told)
        return
    from glabench.tune.session import seconds
    from glabench.tune.strategies import check_strategy

    check_strategy(strategy)
    _tune(groups, strategy, None if budget is None else seconds(budget), out or _default_out(what), keep, resume, gpus)


def _check_options(ctx: typer.Context, explain: bool, shape: bool) -> None:
    """UserError for an option that is given and would mean nothing."""
    from glabench.errors import UserError

    def given(name: str) -> bool:
        source = ctx.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    foreign = TUNING if explain else EXPLAINING
    wrong = next((option for name, option in foreign.items() if given(name)), None)
    if wrong is not None:
        raise UserError(f"{wrong} {'says how to tune, and --explain tunes nothing' if explain else 'needs --explain'}")
    for name, option in (("dtype", "--dtype"), ("gate_dtype", "--gate-dtype")):
        if given(name) and not shape:
            raise UserError(f"{option} is for a shape B,T,H,K,V; the cases of a sweep have their own")


def _tune(
    groups: list[list[Workload]], strategy: str, budget_s: float | None, out: Path, keep: bool, resume: bool,
    gpus: str | None,
) -> None:  # fmt: skip
    from glabench.commands.running import pick_gpus
    from glabench.hardware.environment import require_cuda
    from glabench.tune.session import Session

    require_cuda("tuning measures on a GPU; `glabench compile` and `glabench tune --explain` need none")
    check_cache()
    with Session(strategy, budget_s, out, keep=keep, gpus=pick_gpus(gpus, "cuda")) as session:
        say = session.console.print
        try:
            left = session.left(groups) if resume else groups
            if len(left) < len(groups):
                say(f"{len(groups) - len(left)} of {len(groups)} shapes were tuned before", soft_wrap=True)
            failed = session.run_all(left)
        except KeyboardInterrupt:
            say("\nStopped; what was tuned before is kept" if keep else "\nStopped", soft_wrap=True)
            say(f"Records: {out}", soft_wrap=True)
            raise typer.Exit(130) from None
        say(f"Records: {out}", soft_wrap=True)
        say(f"Report:  glabench report {out}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _default_out(what: list[str]) -> Path:
    from glabench.hardware.environment import device_slug

    names = [Path(one).stem if "," not in one else "x".join(one.replace(" ", "").split(",")) for one in what]
    return Path("results") / "local" / f"tune-{'-'.join(names)}-{device_slug('cuda')}.jsonl"
