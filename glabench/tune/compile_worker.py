"""The child's side of the compile pool: one kernel a request, compiled for a GPU that need not be there; or a part of a
space, enumerated."""

from __future__ import annotations

from itertools import islice
from typing import Any

from gla_kernels import Launch, Plan, Workload
from gla_kernels.plan.apply import launches_of
from glabench import failures
from glabench.hardware.crosscompile import cross_compile
from glabench.tune.candidate import Candidate, launch_of, variants
from glabench.tune.decay_walks import walks_of
from glabench.tune.space import members_of


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Compile {"workload", "candidate", "arch"}, or one pass of a plan: {"workload", "plan", "initial_state", "step",
    "arch"}, or one launch of a call without a plan: {"workload", "mode", "initial_state", "walk", "arch"}.

    Answers {"status": "ok", "compile_error", "oom", or "crashed" for what the machine did; "reason"; "compiled": entry
    or None}.

    Of {"workload", "part": [first, step], "arch"} the members of each step-th variant: {"status", "reason", "members"}.
    """
    if "part" in request:
        return {"status": "ok", "reason": None, "members": _members(request)}
    try:
        (entry,) = cross_compile([_launch(request)], request["arch"])
    except MemoryError as error:
        return {"status": "oom", "reason": failures.reason(error), "compiled": None}
    except Exception as error:
        status = "crashed" if failures.of_machine(error) else "compile_error"
        return {"status": status, "reason": failures.one_line(error), "compiled": None}
    return {"status": "compile_error" if entry["error"] else "ok", "reason": entry["error"], "compiled": entry}


def _members(request: dict[str, Any]) -> list[dict[str, Any] | None]:
    work, capability = Workload.from_dict(request["workload"]), int(request["arch"].removeprefix("sm_"))
    first, step = request["part"]
    found = [members_of(work, variant, capability) for variant in islice(variants(work), first, None, step)]
    return [None if one is None else one.to_dict() for one in found]


def _launch(request: dict[str, Any]) -> Launch:
    work, capability = Workload.from_dict(request["workload"]), int(request["arch"].removeprefix("sm_"))
    if "candidate" in request:
        return launch_of(work, Candidate.from_dict(request["candidate"]), capability)
    if "walk" in request:
        return walks_of(work, request["mode"], request["initial_state"], capability)[request["walk"]]
    plan = Plan.from_dict(request["plan"])
    return launches_of(work, plan, request["initial_state"], few=True)[request["step"]]
