"""What decides the right answer of a case: cases that share it share the reference, which takes longer than most
cases. No torch: the driver keeps such cases together by it, ``glabench.run.oracle`` answers it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glabench.spec.case import Case, Mode
from glabench.spec.catalog import CATALOG, Operator


@dataclass(frozen=True)
class Asked:
    """The operator, and the case without its system and schedule. Its mode is "step" or "fwdbwd": all but a step is
    asked for gradients, so that a forward and its backward are one question."""

    operator: Operator
    case: Case


def asked(case: Case) -> Asked:
    """The question of a case, the same for every system, schedule and direction."""
    mode: Mode = "step" if case.mode == "step" else "fwdbwd"
    plain = replace(case, system="", chunk=None, sub_chunk=None, materialize=None, mode=mode)
    return Asked(CATALOG[case.system].operator, plain)
