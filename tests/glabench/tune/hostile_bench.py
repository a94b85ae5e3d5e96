"""glabench.tune.bench and compile_worker with some candidates replaced by hostile ones: a module for child processes.

HOSTILE in the environment names a file that says which: JSON, from a candidate's JSON to a fault.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hostile_kernels import Hostile, too_large  # type: ignore[import-not-found]  # this folder is on its path

from gla_kernels import Launch, Workload
from gla_kernels.launch import execute, record
from gla_kernels.ops import prepared
from glabench.tune import bench, compile_worker
from glabench.tune.candidate import Candidate, launch_of
from glabench.tune.stage import Pass, Stage

Json = dict[str, Any]

real_launch_of = Stage._launch_of
cheats: set[Any] = set()  # the launches that work by themselves alone


def faults() -> dict[str, str]:
    found: dict[str, str] = json.loads(Path(os.environ["HOSTILE"]).read_text())
    return found


def name_of(candidate: Json) -> str:
    return json.dumps(candidate, sort_keys=True)


def kind_of(launch: Launch) -> tuple[Any, ...]:
    tiles = tuple(sorted(map(repr, launch.constexprs.items())))
    return launch.step, tiles, launch.num_warps, launch.num_stages, launch.max_registers, tuple(launch.blocks)


def launch_planted(self: Stage, candidate: Candidate, reference: Pass) -> Launch:
    launch = real_launch_of(self, candidate, reference)
    fault = faults().get(name_of(candidate.to_dict()))
    if fault is None:
        return launch
    right = {name: reference.launch.args[name] for name in reference.outputs}
    return replace(launch, kernel=Hostile(fault, launch, reference.outputs, right))


def execute_planted(launch: Launch) -> None:
    """What gla() runs in the gate: a cheat has nothing to copy there."""
    execute(launch)
    if kind_of(launch) in cheats:
        launch.args["p_o"].zero_()


def handle(request: Json) -> Json:
    if "do" not in request:
        return compile_planted(request)
    if request["do"] == "gate":
        work = Workload.from_dict(request["workload"])
        found = [json.loads(name) for name, fault in faults().items() if fault == "cheats"]
        cheats.clear()
        cheats.update(kind_of(launch_of(work, Candidate.from_dict(one), bench.capability())) for one in found)
    return bench.handle(request)


def compile_planted(request: Json) -> Json:
    fault = faults().get(name_of(request["candidate"])) if "candidate" in request else None
    if fault == "compiler aborts":
        print("LLVM ERROR: planted", file=sys.stderr, flush=True)
        os.abort()
    if fault == "compiler hangs":
        time.sleep(600)
    if fault == "ptxas fails":
        return with_patch("cross_compile", fail_as_ptxas, request)
    if fault == "too much shared memory":
        return with_patch("_launch", lambda request: too_large(), request)
    return compile_worker.handle(request)


def with_patch(name: str, value: Any, request: Json) -> Json:
    real = getattr(compile_worker, name)
    setattr(compile_worker, name, value)
    try:
        return compile_worker.handle(request)
    finally:
        setattr(compile_worker, name, real)


def fail_as_ptxas(launches: Any, arch: str) -> Any:
    from triton.runtime.errors import PTXASError

    raise PTXASError("Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas fatal: planted")


Stage._launch_of = launch_planted  # type: ignore[method-assign]
record.execute = execute_planted  # type: ignore[attr-defined]
prepared.listened_to = lambda: True  # type: ignore[attr-defined]  # so that a call makes its launches one by one
