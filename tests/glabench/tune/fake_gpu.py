"""Stands in for glabench.tune.bench and compile_worker where there is no GPU: made-up times, and faults on demand.

FAKE_FAULTS in the environment names what goes wrong: JSON, from the JSON of a candidate to a fault.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import Any

from gla_kernels import Plan, Workload
from glabench.tune.candidate import Candidate, candidates_of

FAULTS: dict[str, str] = json.loads(os.environ.get("FAKE_FAULTS", "{}"))


def name_of(candidate: dict[str, Any]) -> str:
    """The candidate as a key of FAKE_FAULTS."""
    return json.dumps(candidate, sort_keys=True)


def ms_of(candidate: Candidate) -> float:
    """A made-up time: some tile, some variant is best, and every dimension matters."""
    tile, schedule = candidate.tile, candidate.variant.schedule
    text = f"{candidate.step}{tile.block_k}"
    bias = int(hashlib.sha256(text.encode()).hexdigest()[:4], 16) / 65536  # another best width for each pass
    ms = 1.0 + abs(tile.block_v - 64) / 64 + bias + 0.2 * abs(tile.num_stages - 2) + 0.1 * (tile.num_warps != 4)
    ms *= 1.0 + abs(schedule.chunk - 64) / 64 + 0.3 * (not schedule.materialize)
    return ms * (1.0 + 16 / candidate.variant.block_t) * (1.0 if schedule.rows == candidate.variant.block_t else 1.2)


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """What bench and compile_worker answer, by the request's form."""
    if "do" not in request:
        return _compile(request)
    if request["do"] == "environment":
        return {"status": "ok", "reason": None, "environment": {"device": "made up", "memory_bytes": 2**36}}
    work = Workload.from_dict(request["workload"])
    if request["do"] == "gate":
        return _gate(work, request)
    if request["do"] == "final":
        plans = [Plan.from_dict(plan) for plan in request["plans"]]
        totals = [sum(ms_of(one) for one in candidates_of(work, plan, 90)) for plan in plans]
        return {"status": "ok", "reason": None, "samples_ms": [[ms] * request["samples"] for ms in totals]}
    return _trial(request)


def _compile(request: dict[str, Any]) -> dict[str, Any]:
    fault = FAULTS.get(name_of(request["candidate"]))
    if fault == "compiler aborts":
        os.abort()
    if fault == "does not compile":
        return {"status": "compile_error", "reason": "PTXASError: made up", "compiled": None}
    return {"status": "ok", "reason": None, "compiled": {"registers": 128, "spill_bytes": 0, "shared_bytes": 1024}}


def _trial(request: dict[str, Any]) -> dict[str, Any]:
    fault = FAULTS.get(name_of(request["candidate"]))
    if fault == "hangs":
        time.sleep(60)
    if fault == "dies":
        os.abort()
    if fault == "corrupts":
        return {"status": "crashed", "reason": "AcceleratorError: CUDA error: an illegal memory access"}
    if fault == "wrong":
        return {"status": "wrong", "reason": "o is off by 5.0e-01; 1.6e-02 from the reference plan is allowed"}
    if fault == "oom":
        return {"status": "oom", "reason": "out of memory: 1 TiB more were needed"}
    ms = ms_of(Candidate.from_dict(request["candidate"])) * (0.1 if fault == "too good" else 1.0)
    return {"status": "ok", "reason": None, "samples_ms": [ms] * request["samples"]}


def _gate(work: Workload, request: dict[str, Any]) -> dict[str, Any]:
    plan = Plan.from_dict(request["plans"][work.direction])
    passes = (name_of(one.to_dict()) for one in candidates_of(work, plan, 90))
    if any(FAULTS.get(one) == "too good" for one in passes):
        return {"status": "wrong", "reason": "o is off by 1.0e+00, 1.0e-02 is allowed (relative to float64)"}
    return {"status": "ok", "reason": None}
