"""Peak memory of one call, what of it is beyond the inputs, and what a forward call keeps for its backward pass."""

from __future__ import annotations

import gc
import re
import resource
from collections.abc import Iterable, Iterator
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


def measure(system: System, case: Case, settings: Settings) -> dict[str, Any] | None:
    """Bytes of PyTorch's allocator, or None on a CPU, whose allocator keeps no count of its peak, and where the
    process's own peak would be that of torch.

    The peak of one call: in all, of the inputs, and beyond the inputs. Outputs and gradients count as beyond the
    inputs, and so does what a forward keeps for its backward: modes bwd and fwdbwd have the same peak. A figure that
    cannot be, less than what the call gave back, is ``{"refused": why}``. Where there is a backward pass,
    kept_bytes besides.
    """
    if settings.device == "cpu":
        return None
    inputs = system.draw_inputs(case, settings.device)
    gradients = case.mode in ("bwd", "fwdbwd")
    found = _peak(system, case, inputs, gradients)
    return {**found, "kept_bytes": kept_bytes(system, case, inputs)} if gradients else found


def _peak(system: System, case: Case, inputs: Inputs, gradients: bool) -> dict[str, Any]:
    """The second call is measured: the first may autotune."""
    run_once(system, inputs, case, gradients)
    torch.cuda.synchronize()
    with no_collection():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = run_once(system, inputs, case, gradients)
        torch.cuda.synchronize()
        beyond = torch.cuda.max_memory_allocated() - before
    least = _given_back(found, inputs)
    if beyond < least:
        return {"refused": f"a peak of {beyond} bytes beyond the inputs cannot be: the call gave back {least}"}
    return {"peak_bytes": beyond + inputs.nbytes, "inputs_bytes": inputs.nbytes, "beyond_inputs_bytes": beyond}


def kept_bytes(system: System, case: Case, inputs: Inputs) -> int | None:
    """Bytes that a forward call leaves allocated for its backward pass, beyond its inputs and outputs.

    What is still allocated when the call has returned, less the outputs: it does not matter who holds it, so that a
    system cannot keep what is not counted. Of outputs their own bytes, for what is kept may be cut from one allocation
    with them. Bytes as they were asked for: those of the blocks that they are in depend on which blocks were free. None
    where the allocator does not count these. The system has run the case before.
    """
    given = inputs.with_grad()
    with no_collection(), torch.enable_grad():
        before = _requested_bytes()
        o, state = system.forward(given, case)
        torch.cuda.synchronize()
        held = _requested_bytes() - before
    kept = held - _own_bytes([o] if state is None else [o, state], inputs)
    return kept if kept >= 0 else None


def _requested_bytes() -> int:
    """Bytes that are allocated now, without what blocks were rounded up by; 0 of an allocator that does not say."""
    return int(torch.cuda.memory_stats().get("requested_bytes.all.current", 0))


def _own_bytes(outputs: Iterable[torch.Tensor], inputs: Inputs) -> int:
    """Bytes of tensors that were allocated for them: not of what is the inputs', nor more than there is memory."""
    given = {x.untyped_storage().data_ptr() for _, x in inputs.tensors()}
    own = [x for x in outputs if x.untyped_storage().data_ptr() not in given]
    return sum(min(x.numel() * x.element_size(), x.untyped_storage().nbytes()) for x in own)


@contextmanager
def no_collection() -> Iterator[None]:
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
