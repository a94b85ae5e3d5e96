"""How long flash-linear-attention's own autotuning takes: ``python -m glabench.tune.rival B,T,H,K,V``.

A new process, which finds nothing compiled and nothing remembered, runs chunk_gla once forward and once backward, as
the first step of a training run would. Run as a module it is the parent, imported by glabench.run.child the child.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from glabench.errors import UserError
from glabench.hardware.environment import device_name, package_version, require_cuda
from glabench.lines import RIVAL_START, Lines
from glabench.run.child import Child, ChildDied, ChildTimeout
from glabench.run.gpus import counted_as_by_nvml
from glabench.spec.case import Case
from glabench.systems.base import load
from glabench.tune.works import of_shape

LIMIT_S = 150.0
SIZES = ("B", "T", "H", "K", "V")
# Everything of Triton's and its own that could remember an earlier run.
FORGETFUL = {
    "FLA_CACHE_RESULTS": "0", "FLA_CACHE_MODE": "disabled", "FLA_CONFIG_DIR": None, "TRITON_CACHE_AUTOTUNING": "0",
    "TRITON_INTERPRET": None,
}  # fmt: skip


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """The child: the case once forward and backward, and what ran it."""
    import torch

    from glabench.systems.inputs import make_inputs

    system, case = load("fla"), Case.from_dict(request["case"])
    inputs = make_inputs(case, "gla", "cuda").with_grad()
    o, _ = system.forward(inputs, case)
    o.backward(inputs.do)
    torch.cuda.synchronize()
    return {"implementation": system.implementation(case)}


def measure(case: Case, limit_s: float, module: str = "glabench.tune.rival") -> dict[str, Any]:
    """A record: ``status`` as a row's, ``wall_s`` from the process's start to its answer, or to its end."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        child = Child(module, {**FORGETFUL, **counted_as_by_nvml(), "TRITON_CACHE_DIR": folder})
        try:
            answer = {"status": "ok", "reason": None, **child.ask({"case": case.to_dict()}, limit_s)}
        except ChildTimeout:
            answer = {"status": "timeout", "reason": f"over {limit_s:g} s"}
        except ChildDied as death:
            last = (death.detail or "").splitlines()[-1:]
            answer = {"status": "crashed", "reason": ": ".join([death.reason, *last])}
        finally:
            wall_s = time.monotonic() - began
            child.close()
    return {"kind": "rival", "schema": 1, "case": case.to_dict(), "limit_s": limit_s, "wall_s": wall_s, **answer}


def line(record: dict[str, Any]) -> str:
    """The record in a line."""
    case = record["case"]
    shape = " ".join(f"{name}={case[name]}" for name in SIZES)
    if record["status"] != "ok":
        return f"{shape} {case['dtype']}: {record['reason']}"
    took = f"{record['wall_s']:.1f} s from its start to the end of the first forward and backward"
    return f"{shape} {case['dtype']}: {record['implementation']}: {took}"


def main(arguments: list[str] | None = None) -> None:
    """Measure and say so. Exit code: 0 done or over the limit, 1 it died, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m glabench.tune.rival", description="Time FLA's autotuning.")
    parser.add_argument("shape", metavar="B,T,H,K,V")
    parser.add_argument("--dtype", default="bf16", help="bf16, fp16 or fp32")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds after which it is stopped")
    parser.add_argument("--out", type=Path, help="file that the record is appended to")
    options = parser.parse_args(arguments)
    try:
        if not options.limit > 0:
            raise UserError(f"--limit {options.limit:g}: expected seconds > 0")
        work = of_shape(options.shape, options.dtype)[0]
        sizes = {name: getattr(work, name) for name in SIZES}
        case = Case.from_dict({"system": "fla", "dtype": work.dtype, "mode": "fwdbwd", **sizes})
        require_cuda("the rival's autotuning measures on one")
        missing = load("fla").unavailable("cuda")
        if missing is not None:
            raise UserError(str(missing))
        record = measure(case, options.limit)
        record |= {"environment": {"device": device_name("cuda"), "triton": package_version("triton")}}
        print(line(record))
        if options.out is not None:
            with Lines(options.out, starts=RIVAL_START) as out:
                out.write(json.dumps(record, allow_nan=False))
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    sys.exit(record["status"] == "crashed")


if __name__ == "__main__":
    main()
