"""Peak memory of one call, and what of it is beyond the inputs."""

from __future__ import annotations

import gc
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from glabench.run.gate import run_once
from glabench.run.oracle import Outputs
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems.base import System
from glabench.systems.inputs import Inputs


def peak_memory(system: System, case: Case, settings: Settings) -> dict[str, Any] | None:
    """Bytes of PyTorch's allocator at the peak of one call: in all, of the inputs, and beyond the inputs.

    Outputs and gradients count as beyond the inputs, and so does what a forward keeps for its backward: modes bwd
    and fwdbwd have the same peak. The second call is measured: the first may autotune. None on a CPU, whose
    allocator keeps no count of its peak, and where the process's own peak would be that of torch. A figure that cannot
    be, less than what the call gave back, is ``{"refused": why}``.
    """
    if settings.device == "cpu":
        return None
    inputs = system.draw_inputs(case, settings.device)
    gradients = case.mode in ("bwd", "fwdbwd")
    run_once(system, inputs, case, gradients)
    torch.cuda.synchronize()
    with _no_collection():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = run_once(system, inputs, case, gradients)
        torch.cuda.synchronize()
        beyond = torch.cuda.max_memory_allocated() - before
    least = _given_back(found, inputs)
    if beyond < least:
        return {"refused": f"a peak of {beyond} bytes beyond the inputs cannot be: the call gave back {least}"}
    return {"peak_bytes": beyond + inputs.nbytes, "inputs_bytes": inputs.nbytes, "beyond_inputs_bytes": beyond}


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection by itself meanwhile.

    What an earlier call left in cycles of references is allocated until then: the frames of an error that Triton's
    autotuner caught, say, with all tensors in them. Freed between two readings, it would be taken off the peak.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _given_back(found: Outputs, inputs: Inputs) -> int:
    """Bytes that hold what a call returned, without those that are the inputs'."""
    held = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in found.values()}
    given = {x.untyped_storage().data_ptr() for _, x in inputs.tensors()}
    return sum(size for address, size in held.items() if address not in given)


def _proc_bytes(file: str, key: str) -> int | None:
    """A "Key:   123 kB" line of a /proc file, in bytes."""
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB", Path(file).read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


@contextmanager
def cpu_memory_limit(share: float = 0.9) -> Iterator[None]:
    """Let the process allocate no more than ``share`` of the memory that is free now; the limit ends with the block.

    Without it Linux promises memory that it does not have and kills the process that touches it; with it the
    allocation fails, and the case ends as oom with what it asked for. Does nothing where /proc does not tell.
    """
    free, used = _proc_bytes("/proc/meminfo", "MemAvailable"), _proc_bytes("/proc/self/status", "VmData")
    if free is None or used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + int(share * free)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
