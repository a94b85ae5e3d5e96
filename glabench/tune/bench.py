"""The process that has the GPU: it times candidates and whole plans, and gates winners.

Runs as a child that may die (glabench.run.child). Requests, by "do", with the workload as a dict in each but the last,
and perhaps the first:
    ready                                   -> {"status", "reason"}                   inputs made
    trial   candidate, samples, enough_ms   -> {"status", "reason", "samples_ms"}     one kernel, screened, then timed
    final   plans, samples                  -> {"samples_ms": [[...], ...]}           whole plans, in turns
    gate    plans by direction              -> {"status", "reason"}                   against float64, and bit for bit
    environment                             -> {"status", "reason", "environment"}    what goes into the records
A failure is an answer too: its status is a row's. After "crashed" the process is of no more use.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import torch

from gla_kernels import Plan, Workload, machine_of
from glabench import failures
from glabench.hardware.crosscompile import local_arch
from glabench.hardware.environment import environment
from glabench.run import gate
from glabench.run.cold import Call, ColdSampler
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Settings
from glabench.systems.gla import PlannedGla
from glabench.tune.candidate import Candidate
from glabench.tune.stage import STRONG_GATES, Stage, UnequalRuns, WrongResult, case_of, strong_work

SETTINGS = Settings.for_device("cuda")
FEWEST_SAMPLES = 3  # of a candidate that is far behind: one of them may be spoiled
TRIES = 3
LEAST_CLOCK = 0.75  # share of the maximal SM clock; candidates stand side by side, so that a power cap slows them alike

_stages: dict[Workload, Stage] = {}


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request. What runs out of memory beside buffers that were kept is tried once more without them."""
    crowded = _keeps_more_than_needed(request)
    answer = _answer(request)
    if answer["status"] == "oom":
        _clear_stages()  # here, where no traceback holds the tensors of what failed any more
        if crowded:
            answer = _answer(request)
            if answer["status"] == "oom":
                _clear_stages()
    return answer


def _keeps_more_than_needed(request: dict[str, Any]) -> bool:
    """Whether stages hold memory that the request can do without: for a gate all of it, for finals what trials left,
    for a trial what is another direction's."""
    if request["do"] == "trial":
        return any(work.direction != request["workload"]["direction"] for work in _stages)
    return bool(_stages)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        if request["do"] == "environment":
            here = machine_of()  # tables go by the name that torch gives this process's GPU; NVML counts all GPUs
            facts = environment("cuda") | {"device": here.device, "memory_bytes": here.memory_bytes}
            return {"status": "ok", "reason": None, "environment": facts}
        if "workload" not in request:  # "ready" for what needs no inputs: the imports are done
            return {"status": "ok", "reason": None}
        with torch.no_grad():
            return ACTIONS[request["do"]](Workload.from_dict(request["workload"]), request)
    except WrongResult as error:
        return {"status": "wrong", "reason": str(error)}
    except Exception as error:
        return {"status": failures.classify(error), "reason": failures.reason(error)}


def capability() -> int:
    """Compute capability of the current device as a number, 90 for 9.0."""
    arch = local_arch()
    assert arch is not None  # this process runs where there is a GPU
    return int(arch.removeprefix("sm_"))


def _ready(work: Workload, request: dict[str, Any]) -> dict[str, Any]:
    _stage_of(work)
    torch.cuda.synchronize()
    return {"status": "ok", "reason": None}


def _trial(work: Workload, request: dict[str, Any]) -> dict[str, Any]:
    call = _screened(work, Candidate.from_dict(request["candidate"]))
    sampler = ColdSampler([call])
    samples = _samples(sampler, FEWEST_SAMPLES)
    enough = request.get("enough_ms")
    if enough is None or min(samples) <= enough:
        samples += _samples(sampler, max(0, request["samples"] - FEWEST_SAMPLES))
    return {"status": "ok", "reason": None, "samples_ms": samples}


def _screened(work: Workload, candidate: Candidate) -> Call:
    """The candidate, ready to be timed. Raises WrongResult.

    What is off is judged again, on everything made anew: a kernel before it may have written where it must not, into
    the inputs or what all are compared with.
    """
    try:
        return _stage_of(work).trial(candidate)
    except UnequalRuns:
        raise
    except WrongResult:
        _clear_stages()
    return _stage_of(work).trial(candidate)


def _samples(sampler: ColdSampler, count: int) -> list[float]:
    """``count`` samples; a batch that a throttled clock or a held-up host spoils is taken again, as often as ``TRIES``
    says."""
    if count == 0:
        return []
    for _ in range(TRIES):
        batch = sampler.batch(count)
        clocks = batch.clocks
        if not any(batch.late) and (clocks is None or clocks.sm_mhz >= LEAST_CLOCK * clocks.sm_mhz_max):
            break
    return batch.ms


def _final(work: Workload, request: dict[str, Any]) -> dict[str, Any]:
    stage = _stage_of(work)
    plans = [Plan.from_dict(plan) for plan in request["plans"]]
    forward = None if request["forward"] is None else Plan.from_dict(request["forward"])
    calls = [stage.call(plan, forward or plan) for plan in plans]
    for call in calls:
        call()
    sampler = ColdSampler(calls)
    samples = _samples(sampler, request["samples"] * len(plans))
    return {"status": "ok", "reason": None, "samples_ms": [samples[i :: len(plans)] for i in range(len(plans))]}


def _gate(work: Workload, request: dict[str, Any]) -> dict[str, Any]:
    """The workload itself, and a short ragged one of the same kernels with gates so strong that the fast path on the
    diagonal is never taken."""
    plans = {direction: Plan.from_dict(plan) for direction, plan in request["plans"].items()}
    system = PlannedGla(CATALOG["gla"], **plans)
    case = case_of(work)
    cases = [case]
    if work.gated:
        cases.append(replace(case_of(strong_work(work)), gate_strength=STRONG_GATES))
    for one in cases:
        with torch.enable_grad():
            verdict = gate.check(system, one, SETTINGS, "cuda")
        if not verdict.passed:
            strength = "" if one is case else f" (gates of strength {STRONG_GATES:g}, T={one.T})"
            return {"status": "wrong", "reason": f"{verdict.reason}{strength}"}
    return {"status": "ok", "reason": None}


def _stage_of(work: Workload) -> Stage:
    """The workload's stage. Those of both directions of a shape are kept; a schedule asked for makes no difference."""
    work = replace(work, schedule=None)
    if work not in _stages:
        if any(replace(other, direction=work.direction) != work for other in _stages):
            _clear_stages()
        _stages[work] = Stage(work, capability())
    return _stages[work]


def _clear_stages() -> None:
    _stages.clear()
    gc.collect()
    torch.cuda.empty_cache()


ACTIONS = {"ready": _ready, "trial": _trial, "final": _final, "gate": _gate}
