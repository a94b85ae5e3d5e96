"""The parts of a case, and how their rows become the one row of the case. No torch here: the driver uses this.

Triton kernels take two parts, everything else one. On a CPU one process compares with the reference in Triton's
interpreter and another cross-compiles, because which of the two Triton does is decided when it is imported. On a GPU
kernels, ours and those that Triton tunes, are compiled first, by as many processes as there are cores, so that the one
process that times cases need not.
"""

from __future__ import annotations

from dataclasses import replace

from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Device, Part
from glabench.store import Row


def parts(case: Case, device: Device) -> tuple[Part, ...]:
    """The parts that the case is run in, the one that compiles besides the one that runs."""
    info = CATALOG[case.system]
    if device == "cpu":
        return ("gate", "compile") if info.triton else ("all",)
    return ("compile", "all") if info.triton or info.autotuned else ("all",)


def merge(run: Row, compiled: Row) -> Row:
    """The one row of a case run in two parts.

    The verdict of what ran comes first: a wrong kernel is wrong however well it compiles, and one that was timed has
    compiled, whatever became of the process that tried beforehand. Raises ValueError when the rows are of different
    cases.
    """
    if run.case_id != compiled.case_id:
        raise ValueError(f"rows of two cases cannot be merged: {run.case_id} and {compiled.case_id}")
    measured = run.time is not None or run.profile is not None
    verdict = run if run.status != "ok" or measured else compiled
    return replace(
        run,
        status=verdict.status,
        reason=verdict.reason,
        detail=verdict.detail,
        implementation=run.implementation or compiled.implementation,
        compiled=compiled.compiled,
        work=run.work or compiled.work,
        environment=verdict.environment or run.environment or compiled.environment,
        started=min(run.started, compiled.started),
        wall_s=run.wall_s + compiled.wall_s,
        deaths=[*(run.deaths or ()), *(compiled.deaths or ())] or None,
        spent=[*(compiled.spent or ()), *(run.spent or ())] or None,
    )
