"""Which case takes longest, by a guess that needs no GPU: with several GPUs, the longest go first."""

from __future__ import annotations

from collections.abc import Sequence

from glabench.run.question import Asked
from glabench.spec.case import Case
from glabench.spec.work import DEFAULT_CHUNK, work

# Of a large GPU of today, to the nearest power of ten: the order of cases depends on no more.
FLOP_PER_S = 1e14
BYTES_PER_S = 1e12
STEP_S = 1e-4  # a turn of a loop in Python: a few launches
CASE_S = 1.0  # sampling, and what comes with it
CALLS = 15  # at least: the gate's, the samples, those for the peak of memory
REFERENCE_TURNS = 5  # a token: forward, forward again and backward, which is as much as two or three forwards


def longest_first(cases: Sequence[Case]) -> list[Case]:
    """The cases by how long one call of them is expected to take; equal ones keep their order."""
    return sorted(cases, key=expected_s, reverse=True)


def expected_s(case: Case) -> float:
    """Seconds of one call: its FLOP, its bytes, and its turns where Python loops over time."""
    done = work(case.to_dict())
    return (done["flops"] or 0) / FLOP_PER_S + (done["hbm_bytes"] or 0) / BYTES_PER_S + _turns(case) * STEP_S


def case_s(case: Case) -> float:
    """Seconds of a case, without its reference."""
    return CASE_S + CALLS * expected_s(case)


def reference_s(question: Asked) -> float:
    """Seconds of a question's reference: a loop over time, but for one token and for attention, which has none."""
    if question.case.mode == "step" or question.operator == "attention":
        return 0.0
    return REFERENCE_TURNS * question.case.T * STEP_S


def _turns(case: Case) -> float:
    if case.mode == "step":
        return 1
    if case.system == "recurrent_torch":
        return case.T
    return case.T / (case.chunk or DEFAULT_CHUNK) if case.system == "chunkwise_torch" else 1
