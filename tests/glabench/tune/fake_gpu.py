"""Stands in for glabench.tune.bench and compile_worker where there is no GPU: made-up times, and faults on demand.

FAKE_FAULTS in the environment names a file that says what goes wrong: JSON, from `name_of` a candidate to one of
FAULTS. It is read at every request. Nothing here imports torch, so that a process that dies is soon replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# What may go wrong, and the status and reason (a regular expression) that a tuner must record.
FAULTS = {
    "compiler aborts": ("crashed", r"^the process was killed by SIGABRT: LLVM ERROR: made up$"),
    "compiler hangs": ("timeout", r"^no result after [\d.]+ s; the process was killed$"),
    "does not compile": ("compile_error", r"^PTXASError: made up$"),
    "hangs": ("timeout", r"^no result after [\d.]+ s; the process was killed$"),
    "dies": ("crashed", r"^the process was killed by SIGABRT$"),
    "corrupts": ("crashed", r"^AcceleratorError: CUDA error: an illegal memory access$"),
    "wrong": ("wrong", r"^o is off by 5\.0e-01; 1\.6e-02 from the reference plan is allowed$"),
    "differs": ("wrong", r"^two runs of the same inputs differ in o$"),
    "oom": ("oom", r"^out of memory: 1 TiB more were needed$"),
    "too good": ("wrong", r"^in the finals: o is off by 1\.0e\+00, 1\.0e-02 is allowed \(relative to float64\)$"),
    "dies in a plan": ("crashed", r"^in the finals: the process was killed by SIGABRT$"),
}
STATES = {"fwd": ("states",), "bwd": ("states", "grad_states")}
WALKED = {"fwd": ("walk",), "bwd": ("states", "grad_walk", "grad_qk")}  # where there is a fused scan
OTHERS = {"fwd": ("output",), "bwd": ("grad_qk", "grad_v")}
TOO_GOOD = ("too good", "dies in a plan")  # nothing shows until whole plans run, and they look fast


def name_of(candidate: Json) -> str:
    """The candidate (``Candidate.to_dict()``) as a key of the faults."""
    return json.dumps(candidate, sort_keys=True)


def faults() -> dict[str, str]:
    """What goes wrong now."""
    path = os.environ.get("FAKE_FAULTS")
    found: dict[str, str] = json.loads(Path(path).read_text()) if path else {}
    return found


def ms_of(candidate: Json) -> float:
    """A made-up time: some tile, some variant is best, and every dimension matters."""
    (block_k, block_v, num_warps, num_stages, *_), schedule = candidate["tile"], candidate["schedule"]
    text = f"{candidate['step']}{block_k}"
    bias = int(hashlib.sha256(text.encode()).hexdigest()[:4], 16) / 65536  # another best width for each pass
    ms = 1.0 + abs(block_v - 64) / 64 + bias + 0.2 * abs(num_stages - 2) + 0.1 * (num_warps != 4)
    ms *= 1.0 + abs(schedule["chunk"] - 64) / 64 + 0.3 * (not schedule["materialize"])
    block_t = candidate["block_t"]
    ms *= (1.0 + 16 / block_t) * (1.0 if schedule["sub_chunk"] == block_t else 1.2)
    return float(ms * (0.1 if faults().get(name_of(candidate)) in TOO_GOOD else 1.0))


def handle(request: Json) -> Json:
    """What bench and compile_worker answer, by the request's form. Spaces are not enumerated here."""
    if "part" in request:
        return {"status": "crashed", "reason": "made up", "compiled": None}
    if "do" not in request:
        return _compile(request)
    if request["do"] == "environment":
        return ok(environment={"device": "made up", "memory_bytes": 2**36, "capability": "9.0"})
    return {"ready": _ready, "trial": _trial, "final": _final, "gate": _gate}[request["do"]](request)


def ok(**values: Any) -> Json:
    return {"status": "ok", "reason": None, **values}


def _ready(request: Json) -> Json:
    return ok()


def _compile(request: Json) -> Json:
    fault = faults().get(name_of(request["candidate"]))
    if fault == "compiler aborts":
        print("LLVM ERROR: made up", file=sys.stderr, flush=True)
        os.abort()
    if fault == "compiler hangs":
        time.sleep(600)
    if fault == "does not compile":
        return {"status": "compile_error", "reason": "PTXASError: made up", "compiled": None}
    return ok(compiled={"registers": 128, "spill_bytes": 0, "shared_bytes": 1024})


def _trial(request: Json) -> Json:
    fault = faults().get(name_of(request["candidate"]))
    if fault == "hangs":
        time.sleep(600)
    if fault == "dies":
        os.abort()
    if fault in ("corrupts", "wrong", "differs", "oom"):
        status, reason = FAULTS[fault]
        return {"status": status, "reason": reason.strip("^$").replace("\\", "")}
    few = request["enough_ms"] is not None and ms_of(request["candidate"]) > request["enough_ms"]
    return ok(samples_ms=[ms_of(request["candidate"])] * (2 if few else request["samples"]))


def _final(request: Json) -> Json:
    totals = []
    for plan in request["plans"]:
        passes = _passes(request["workload"], plan)
        if any(faults().get(name_of(one)) == "dies in a plan" for one in passes):
            os.abort()
        totals.append(sum(map(ms_of, passes)))
    return ok(samples_ms=[[ms] * request["samples"] for ms in totals])


def _gate(request: Json) -> Json:
    plan = request["plans"][request["workload"]["direction"]]
    found = {faults().get(name_of(one)) for one in _passes(request["workload"], plan)}
    if "dies in a plan" in found:
        os.abort()
    if "too good" in found:
        return {"status": "wrong", "reason": "o is off by 1.0e+00, 1.0e-02 is allowed (relative to float64)"}
    return ok()


def _passes(workload: Json, plan: Json) -> list[Json]:
    """The plan's candidates."""
    walks = "walk" in plan["tiles"]
    shared = {"schedule": plan["schedule"], "block_t": plan["block_t"], "walks": walks}
    direction = workload["direction"]
    steps = WALKED[direction] if walks else (*STATES[direction], *OTHERS[direction])
    return [{**shared, "step": step, "tile": plan["tiles"][step]} for step in steps]
