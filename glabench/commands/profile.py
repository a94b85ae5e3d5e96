"""``glabench profile``: where the time, the bytes and the FLOPs of each case go, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glabench.commands import running
from glabench.commands.running import pick_device, rows_file, run_cases

if TYPE_CHECKING:
    from glabench.spec.case import Case
    from glabench.spec.settings import Device, Part, Settings
    from glabench.store import Row

PIPELINE = "glabench.profile.pipeline"
SHAPE_LIMIT_S = 600.0  # for a shape on the command line, which has no sweep to say it
SHAPE_OPTIONS = {"system": "--system", "mode": "--mode", "dtype": "--dtype", "gate_dtype": "--gate-dtype"}
SWEEP_OPTIONS = {"only": "--only", "case": "--case"}


def profile(
    ctx: typer.Context,
    what: Annotated[str, typer.Argument(metavar="SWEEP|SHAPE", help="A sweep's file or name, or a shape B,T,H,K,V.")],
    system: Annotated[str, typer.Option(help="For a shape: the system.")] = "gla",
    mode: Annotated[str, typer.Option(help="For a shape: fwd, bwd or fwdbwd.")] = "fwdbwd",
    dtype: Annotated[str, typer.Option(help="For a shape: bf16, fp16 or fp32.")] = "bf16",
    gate_dtype: Annotated[
        str | None, typer.Option(help="For a shape: fp32 for gates in float32.", show_default="that of q")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="SYSTEM", help="Of a sweep: these systems' cases only, between commas."),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Of a sweep: this case only (`glabench sweep --dry-run` lists them)."),
    ] = None,
    ncu: Annotated[
        bool, typer.Option("--ncu", help="Read hardware counters with Nsight Compute too, where it is allowed.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Write a trace of each case for Perfetto or chrome://tracing.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda. cpu runs nothing: the model alone.")] = "auto",
    gpu: Annotated[
        str | None,
        typer.Option(help="Without a GPU: the one whose model is wanted, such as H100.", show_default="H200"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File that rows are appended to.", show_default="results/local/profile-<what>-<gpu>.jsonl"),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: the old file is moved aside, not deleted.")
    ] = False,
) -> None:
    """Profile the cases of a sweep, or a shape. The same command again goes on where the last one stopped.

    On a GPU: each kernel's time, the work it does by the model, how far it is from what the GPU can do, and with --ncu
    what its counters say; energy and memory. Without one: the model for another GPU's ceilings, and what the compiler
    makes of the kernels. Sweeps' rows are never touched.

    Exit code: 0 done; 1 some kernel is wrong, crashed or did not compile; 2 bad input; 130 stopped by Ctrl-C.
    """
    kind = pick_device(device)
    _check(ctx, what, kind)
    target = _target(gpu)
    name, limit_s, cases = (
        _shape(what, system, mode, dtype, gate_dtype) if _is_shape(what) else _sweep(what, only or [], case or [])
    )
    if kind == "cpu":
        cases = _with_model(cases, name)
    path = rows_file(out, f"profile-{name}-{_slug(kind, target)}.jsonl")
    traces = str(path.with_suffix("")) + "-traces" if trace else None
    _run(name, limit_s, cases, _settings(kind, ncu, traces, target), path, fresh)


def _check(ctx: typer.Context, what: str, kind: Device) -> None:
    """UserError for an option that is given and would mean nothing."""
    from glabench.errors import UserError

    def given(names: dict[str, str]) -> str | None:
        sources = ((ctx.get_parameter_source(name), option) for name, option in names.items())
        return next((option for source, option in sources if source is not None and source.name == "COMMANDLINE"), None)

    wrong = given(SWEEP_OPTIONS if _is_shape(what) else SHAPE_OPTIONS)
    if wrong is not None:
        raise UserError(f"{wrong} is for {'a sweep' if _is_shape(what) else 'a shape B,T,H,K,V'}, and {what} is none")
    foreign = given({"gpu": "--gpu"}) if kind == "cuda" else given({"ncu": "--ncu", "trace": "--trace"})
    if foreign is not None:
        there = (
            "there is a GPU here, which is measured; --device cpu asks for the model alone"
            if kind == "cuda"
            else "there is no GPU to look at"
        )
        raise UserError(f"{foreign}: {there}")


def _is_shape(what: str) -> bool:
    from glabench.spec.shape import is_shape

    return is_shape(what)


def _target(gpu: str | None) -> str:
    """The short name of the GPU whose ceilings stand in; UserError for one without a datasheet."""
    from glabench.hardware.datasheet import DATASHEET, datasheet_for
    from glabench.spec.settings import Profile

    sheet = datasheet_for(Profile().target if gpu is None else gpu)
    return next(name for name, one in DATASHEET.items() if one is sheet)


def _slug(kind: Device, target: str) -> str:
    from glabench.hardware.environment import device_slug

    return device_slug(kind) if kind == "cuda" else f"model-{target.lower()}"


def _shape(
    what: str, system: str, mode: str, dtype: str, gate_dtype: str | None = None
) -> tuple[str, float, list[Case]]:
    """The one case that a shape stands for, with a name for its file and a time limit."""
    from glabench.errors import UserError, did_you_mean
    from glabench.spec.case import DTYPE_BYTES, Case
    from glabench.spec.catalog import CATALOG
    from glabench.spec.expand import fitted, gates_of
    from glabench.spec.shape import name_of, sizes

    B, T, H, K, V = sizes(what)
    for option, value, known in (
        ("--system", system, [name for name, info in CATALOG.items() if info.operator == "gla"]),
        ("--mode", mode, ("fwd", "bwd", "fwdbwd")),
        ("--dtype", dtype, DTYPE_BYTES),
    ):
        if value not in known:
            raise UserError(f"{option} {value}: expected one of {', '.join(known)}{did_you_mean(value, known)}")
    given = {"system": system, "B": B, "T": T, "H": H, "K": K, "V": V, "dtype": dtype, "mode": mode}
    given["gate_dtype"] = gates_of(dtype, gate_dtype)
    case = Case(**fitted(given))
    return name_of(what), SHAPE_LIMIT_S, [case]


def _sweep(what: str, systems: Sequence[str], ids: Sequence[str]) -> tuple[str, float, list[Case]]:
    """The wanted cases of a sweep as a GPU runs them; UserError for a system or a case that it does not have."""
    from glabench.errors import UserError
    from glabench.spec.expand import check, expand
    from glabench.spec.sweep import find, load

    chosen = load(find(what))
    check(chosen)
    cases = running.only(expand(chosen, "cuda").cases, systems, chosen.name)
    known = {case.id for case in cases}
    for one in ids:
        if one not in known:
            near = get_close_matches(one, known, n=1)
            raise UserError(
                f"--case {one}: not a case of {chosen.name}{'; did you mean ' + near[0] + '?' if near else ''}; "
                f"`glabench sweep {what} --dry-run` lists them"
            )
    return chosen.name, chosen.section("cuda").limit_s, [case for case in cases if not ids or case.id in ids]


def _with_model(cases: Sequence[Case], name: str) -> list[Case]:
    """The cases of our Triton kernels, which alone have a model; UserError when there are none."""
    from glabench.errors import UserError
    from glabench.spec.catalog import CATALOG

    found = [case for case in cases if CATALOG[case.system].triton]
    if not found:
        raise UserError(f"{name}: without a GPU only our own kernels can be profiled, and none of its cases runs them")
    return found


def _settings(kind: Device, ncu: bool, traces: str | None, target: str) -> Settings:
    from dataclasses import replace

    from glabench.spec.settings import Profile, Settings

    return replace(Settings.for_device(kind), profile=Profile(ncu, traces, target))


def _run(name: str, limit_s: float, cases: list[Case], settings: Settings, path: Path, fresh: bool) -> None:
    from glabench.hardware.environment import device_name
    from glabench.run.driver import Driver, finished
    from glabench.store import Appender

    if not fresh:
        running.refuse_others(path, profiled=True)
    running.check_cache()
    kind, asked = settings.device, settings.profile
    ids = frozenset(case.id for case in cases)

    def answers(row: Row) -> bool:
        """Whether a row of the file has all that is asked for now."""
        if row.case_id not in ids or row.profile is None:
            return row.case_id in ids and row.status != "ok"
        known = row.profile.get  # of a row that need not have all
        name = (known("target") or {}).get("name")
        same = kind == "cuda" or (name is not None and _target(name) == asked.target)
        return bool(same and (known("ncu") or not asked.ncu) and (known("trace") or not asked.traces))

    with Appender(path, fresh=fresh) as out:
        run_cases(
            cases,
            finished(path, settings, limit_s, answers),
            out,
            f"Profile of {name} on {device_name(kind)}"
            if kind == "cuda"
            else f"Model of {name} for {asked.target}, without a GPU",
            lambda progress: Driver(name, kind, settings, limit_s, ids, out, progress, pipeline=PIPELINE, split=parts),
        )


def parts(case: Case, device: Device) -> tuple[Part, ...]:
    """The parts in which a case is profiled: kernels of ours are compiled first, on all cores, and are all that there
    is without a GPU."""
    from glabench.spec.catalog import CATALOG

    if device == "cpu":
        return ("compile",)
    return ("compile", "all") if CATALOG[case.system].triton else ("all",)
