"""Peak memory of one call, and what of it is beyond the inputs."""

from __future__ import annotations

import torch

from glabench.run.gate import run_once
from glabench.run.inputs import make_inputs
from glabench.run.settings import Settings
from glabench.spec.case import Case
from glabench.systems.base import System


def peak_memory(system: System, case: Case, settings: Settings) -> dict[str, int] | None:
    """Bytes of PyTorch's allocator at the peak of one call: in all, of the inputs, and beyond the inputs.

    Outputs and gradients count as beyond the inputs, and so does what a forward keeps for its backward: modes bwd
    and fwdbwd have the same peak. The second call is measured: the first may autotune. None on a CPU, whose
    allocator keeps no count of its peak, and where the process's own peak would be that of torch.
    """
    if settings.device == "cpu":
        return None
    inputs = make_inputs(case, system.info.operator, settings.device)
    gradients = case.mode in ("bwd", "fwdbwd")
    run_once(system, inputs, case, gradients)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run_once(system, inputs, case, gradients)
    torch.cuda.synchronize()
    beyond = torch.cuda.max_memory_allocated() - before
    return {"peak_bytes": beyond + inputs.nbytes, "inputs_bytes": inputs.nbytes, "beyond_inputs_bytes": beyond}
