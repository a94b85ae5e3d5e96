"""How long cases take, by a guess that needs no GPU: with several GPUs, the longest go first, and a dry run says how
long all would take."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from glabench.run.question import Asked, asked
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Device
from glabench.spec.work import DEFAULT_CHUNK, work

# Of a large GPU of today, to the nearest power of ten: the order of cases depends on no more.
FLOP_PER_S = 1e14
BYTES_PER_S = 1e12
STEP_S = 1e-4  # a turn of a loop in Python: a few launches
CASE_S = 1.0  # sampling, and what comes with it
CALLS = 15  # at least: the gate's, the samples, those for the peak of memory
# What a sweep's case takes besides on a GPU, and what a rival that tunes itself takes first at each head dimension: of
# one core to compile its configs, and of the GPU to measure them. As on H100s and H200s with 16 cores, where seven
# sweeps took 0.95 to 1.34 times what this comes to, and one twice as long.
BESIDE_S = 2.0
CONFIGS_CORE_S, CONFIGS_S = 1500.0, 30.0
# On a CPU: of a core; and a check in Triton's interpreter, and a compilation for two GPUs.
CPU_FLOP_PER_S = 1e10
INTERPRETED_S, CROSS_COMPILED_S = 3.0, 4.0
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


def sweep_s(cases: Sequence[Case], device: Device, compiled: Collection[str], limit_s: float, cores: int) -> float:
    """Seconds of a sweep of these cases on one device, of the ``compiled`` ids cross-compiled on a CPU: within two
    times, mostly, on a GPU; on a CPU, whose speed nobody says, an order of magnitude."""
    references = sum(map(reference_s, {asked(case) for case in cases}))
    if device == "cpu":
        return references + sum(_on_cpu_s(case, case.id in compiled, limit_s, cores) for case in cases)
    tuned = {(case.system, case.K, case.V, case.dtype) for case in cases if CATALOG[case.system].autotuned}
    first = len(tuned) * (CONFIGS_CORE_S / cores + CONFIGS_S)
    return references + first + sum(min(BESIDE_S + case_s(case), limit_s) for case in cases)


def _on_cpu_s(case: Case, compiled: bool, limit_s: float, cores: int) -> float:
    if CATALOG[case.system].triton:
        return (INTERPRETED_S + CROSS_COMPILED_S * compiled) / cores
    call = (work(case.to_dict())["flops"] or 0) / (CPU_FLOP_PER_S * cores) + _turns(case) * STEP_S
    return min(CASE_S + CALLS * call, limit_s)
