"""Which workloads a sweep, or a shape on the command line, asks to tune."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gla_kernels import Workload
from gla_kernels.schedule import Direction
from glabench.errors import UserError, did_you_mean
from glabench.spec.case import DTYPE_BYTES, Case
from glabench.spec.catalog import CATALOG
from glabench.spec.expand import check, expand, gates_of
from glabench.spec.shape import sizes
from glabench.spec.sweep import find, load
from glabench.systems.gla import Gla

DIRECTIONS: dict[str, tuple[Direction, ...]] = {"fwd": ("fwd",), "bwd": ("bwd",), "fwdbwd": ("fwd", "bwd")}


def of_sweep(name: str, mode: str | None = None) -> list[list[Workload]]:
    """The workloads of a sweep given by file or name, by shape; of the directions of ``mode`` alone where it is given.
    UserError when there are none."""
    wanted = ("fwd", "bwd") if mode is None else directions(mode)
    chosen = load(find(name))
    check(chosen)
    groups = of_cases(expand(chosen, "cuda").cases)
    if not groups:
        raise UserError(
            f"{name}: has no case of the system gla in mode fwd, bwd or fwdbwd, so there is nothing to tune"
        )
    left = [[work for work in group if work.direction in wanted] for group in groups]
    if not any(left):
        raise UserError(f"--mode {mode}: no case of {name} runs that direction")
    return [group for group in left if group]


def of_cases(cases: Iterable[Case]) -> list[list[Workload]]:
    """The workloads of a sweep's chunkwise GLA cases, by shape: forward before backward, none twice. Schedules and
    sizes that the kernels do not take are left out, as in a sweep."""
    system = Gla(CATALOG["gla"])
    planned = (case for case in cases if is_planned(case) and system.unsupported(case, "cuda") is None)
    return merged(
        [replace(system.workload(case), direction=name) for name in DIRECTIONS[case.mode]] for case in planned
    )


def merged(groups: Iterable[Iterable[Workload]]) -> list[list[Workload]]:
    """Workloads by shape, forward before backward, none twice."""
    shapes: dict[Workload, dict[Direction, Workload]] = {}
    for work in (work for group in groups for work in group):
        shapes.setdefault(replace(work, direction="fwd"), {})[work.direction] = work
    return [[found[name] for name in ("fwd", "bwd") if name in found] for found in shapes.values()]


def is_planned(case: Case) -> bool:
    """Whether a case is a workload that plans are tuned for: of packed sequences, for one, none is."""
    return case.system == "gla" and case.mode in DIRECTIONS and not case.unplanned


def of_shape(text: str, dtype: str = "bf16", mode: str = "fwdbwd", gate_dtype: str | None = None) -> list[Workload]:
    """The workloads of "B,T,H,K,V"; UserError when that is none, or none that gla() runs."""
    work = Gla(CATALOG["gla"]).workload(case_of(text, dtype, mode, gate_dtype))
    return [replace(work, direction=direction) for direction in directions(mode)]


def case_of(text: str, dtype: str = "bf16", mode: str = "fwdbwd", gate_dtype: str | None = None) -> Case:
    """The case of gla() at "B,T,H,K,V"; UserError as ``of_shape``."""
    B, T, H, K, V = sizes(text)
    if dtype not in DTYPE_BYTES:
        raise UserError(f"--dtype {dtype}: unknown dtype{did_you_mean(dtype, DTYPE_BYTES)}")
    directions(mode)
    gates = gates_of(dtype, gate_dtype)
    case = Case("gla", B, T, H, K, V, dtype=dtype, mode=mode, gate_dtype=gates)  # type: ignore[arg-type]  # checked
    refused = Gla(CATALOG["gla"]).unsupported(case, "cuda")
    if refused is not None:
        raise UserError(f"{text}: {refused}")
    return case


def directions(mode: str) -> tuple[Direction, ...]:
    """The directions of a mode; UserError for one that does not exist."""
    if mode not in DIRECTIONS:
        raise UserError(f"--mode {mode}: unknown mode{did_you_mean(mode, DIRECTIONS)}")
    return DIRECTIONS[mode]
