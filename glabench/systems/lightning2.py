"""Linear attention without a gate, in the manner of LightningAttention-2."""

from __future__ import annotations

from glabench.spec.case import Case
from glabench.systems.baseline import Baseline

MOST = 256


class Lightning2(Baseline):
    """`baselines.lightning2`: a head's state stays on chip, and so must not be too large for it."""

    form = "lightning2:LIGHTNING2"

    def refusal(self, case: Case) -> str | None:
        if case.gate_strength is not None:
            return "lightning2 has no gate"
        for axis, size in (("K", case.K), ("V", case.V)):
            if size > MOST:
                return f"{axis}={size}: a state with more than {MOST} does not fit on chip"
        return None
