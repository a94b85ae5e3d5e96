"""``glabench compile``: what the kernels of a sweep need on GPUs that need not be there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glabench.commands.machines import Format, is_json
from glabench.commands.running import cases_of, check_cache, wide_console

if TYPE_CHECKING:
    from glabench.lines import Lines
    from glabench.spec.case import Case
    from glabench.tune.survey import Asked

TARGETS = "sm_80,sm_90,sm_100"


def compile_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME|SHAPE", help="A sweep file, the name of one (`glabench ls`), or a shape B,T,H,K,V."
        ),
    ],
    target: Annotated[str, typer.Option(help="Architectures, with commas between them.")] = TARGETS,
    space: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Compile N more candidates of each pass, at head dimensions in turn."),
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="File that is appended to.", show_default="results/local/compile-<sweep>.jsonl")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="For a shape: fwd, bwd or fwdbwd.", show_default="fwdbwd")] = None,
    dtype: Annotated[str | None, typer.Option(help="For a shape: bf16, fp16 or fp32.", show_default="bf16")] = None,
    gate_dtype: Annotated[
        str | None, typer.Option(help="For a shape: fp32 for gates in float32.", show_default="that of q")
    ] = None,
    format: Format = "text",
) -> None:
    """Compile the kernels that gla() runs for a sweep or a shape, without a GPU: registers, spills, shared memory.

    Exit code: 0 done; 1 a kernel that gla() would run does not compile or does not fit; 2 bad input.
    """
    from glabench.errors import UserError
    from glabench.hardware.environment import fingerprint, package_version
    from glabench.spec.shape import is_shape

    targets, as_json = _targets(target), is_json(format)
    if not is_shape(what):
        options = {"--mode": mode, "--dtype": dtype, "--gate-dtype": gate_dtype}
        if given := next((option for option, value in options.items() if value), None):
            raise UserError(f"{given} is for a shape B,T,H,K,V, and {what} is none")
        name, title, cases = _of_sweep(what)
    else:
        name, title, cases = _of_shape(what, mode or "fwdbwd", dtype or "bf16", gate_dtype)

    from glabench.lines import COMPILED_START, Lines
    from glabench.tune.survey import asked_of  # imports torch, which takes seconds: after mistakes are found

    asked, skipped = asked_of(cases)
    if not asked:
        raise UserError(f"{what}: has no case of the system gla that its kernels take, so there is nothing to compile")
    check_cache()
    environment = {"triton": package_version("triton"), "fingerprint": fingerprint()}
    path = out or Path("results") / "local" / f"compile-{name}.jsonl"
    with Lines(path, starts=COMPILED_START) as lines:
        others = f" ({skipped} others skipped)" if skipped else ""
        said = f"{title}: {cases_of(len(cases) - skipped)} of gla{others} for {', '.join(targets)}"
        typer.echo(said, err=as_json)
        failed = _compile(name, asked, targets, space, environment, lines, as_json)
        typer.echo(f"Rows: {lines.path}", err=as_json)
    if failed:
        raise typer.Exit(1)


def _of_sweep(what: str) -> tuple[str, str, Sequence[Case]]:
    """A sweep's name, how it is introduced, and its cases as a GPU runs them."""
    from glabench.spec.expand import check, expand
    from glabench.spec.sweep import find, load

    chosen = load(find(what))
    check(chosen)
    return chosen.name, f"{chosen.title} ({chosen.name})", expand(chosen, "cuda").cases


def _of_shape(what: str, mode: str, dtype: str, gate_dtype: str | None) -> tuple[str, str, Sequence[Case]]:
    """The same of the one case that a shape stands for. UserError where gla() does not take it."""
    from glabench.spec.shape import name_of
    from glabench.tune.works import case_of

    name = name_of(what)
    return name, name, [case_of(what, dtype, mode, gate_dtype)]


def _compile(
    name: str,
    asked: list[Asked],
    targets: list[str],
    space: int,
    environment: dict[str, Any],
    lines: Lines,
    as_json: bool,
) -> bool:
    """Compile target by target and print what came of it; whether something of gla()'s own failed."""
    from glabench.tune.survey import Kernel, survey
    from glabench.tune.survey_table import Bar, failures, summary, table

    console = wide_console(to_stderr=as_json)
    found: dict[str, list[Kernel]] = {target: [] for target in targets}
    for target, kernels in found.items():
        with Bar(target, console) as bar:
            for kernel in survey(name, asked, target, space, environment, bar.show):
                lines.write(kernel.to_json())
                kernels.append(kernel)
    for kernels in found.values():
        if as_json:
            for kernel in kernels:
                if kernel.origin == "gla":
                    typer.echo(kernel.to_json())
            continue
        console.print(table([kernel for kernel in kernels if kernel.origin == "gla"]))
        console.print()
    for kernels in found.values():
        console.print(summary(kernels), soft_wrap=True)
    bad = [line for kernels in found.values() for line in failures(kernels)]
    for line in bad:
        console.print(line, style="red", soft_wrap=True)
    return bool(bad)


def _targets(text: str) -> list[str]:
    """The architectures named, themselves or by a GPU; UserError for what is not known."""
    from glabench.hardware.targets import capability_of

    return list(dict.fromkeys(f"sm_{capability_of(name.strip())}" for name in text.split(",")))
