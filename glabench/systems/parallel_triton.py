"""The parallel form in log space, tile by tile."""

from __future__ import annotations

from glabench.spec.case import Case
from glabench.systems.baseline import Baseline


class ParallelTriton(Baseline):
    """`baselines.parallel_triton`: quadratic in time, linear in memory."""

    form = "parallel_triton:PARALLEL_TRITON"

    def refusal(self, case: Case) -> str | None:
        return "the parallel form has no state, initial or final" if case.initial_state else None
