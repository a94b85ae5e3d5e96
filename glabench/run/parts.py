"""The parts of a case, and how their rows become the one row of the case. No torch here: the driver uses this.

Whether Triton interprets or compiles is decided when it is imported, so a case of our own Triton kernels on a CPU is
run by two processes: one compares with the reference in the interpreter, one cross-compiles. Everything else is run
by one process in one part.
"""

from __future__ import annotations

from dataclasses import replace

from glabench.run.settings import Device, Part
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.store import Row


def parts(case: Case, device: Device) -> tuple[Part, ...]:
    """The parts that the case is run in: ("gate", "compile") for our Triton kernels on a CPU, else ("all",)."""
    return ("gate", "compile") if device == "cpu" and CATALOG[case.system].triton else ("all",)


def timed(case: Case, device: Device) -> bool:
    """Whether the case is timed, and so must run with nothing beside it."""
    return parts(case, device) == ("all",)


def merge(gate: Row, compiled: Row) -> Row:
    """The one row of a case run in two parts.

    The gate's verdict comes first: a wrong kernel is wrong however well it compiles. Raises ValueError when the rows
    are of different cases.
    """
    if gate.case_id != compiled.case_id:
        raise ValueError(f"rows of two cases cannot be merged: {gate.case_id} and {compiled.case_id}")
    verdict = gate if gate.status != "ok" else compiled
    return replace(
        gate,
        status=verdict.status,
        reason=verdict.reason,
        detail=verdict.detail,
        implementation=gate.implementation or compiled.implementation,
        compiled=compiled.compiled,
        work=gate.work or compiled.work,
        environment=gate.environment or compiled.environment,
        started=min(gate.started, compiled.started),
        wall_s=gate.wall_s + compiled.wall_s,
    )
