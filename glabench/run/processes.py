"""The environment of the processes in which cases run, and how many there may be. No torch."""

from __future__ import annotations

import os

from glabench.hardware import environment
from glabench.run.gpus import counted_as_by_nvml
from glabench.spec.settings import Part

# Untimed work runs in as many processes as there are cores, each with one thread.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def worker_env(part: Part, timing: int = 1) -> dict[str, str | None]:
    """The environment of a process for this kind of part: Triton reads TRITON_INTERPRET once, when it is imported.

    What is timed on a CPU leaves one core to the rest of the machine, unless OMP_NUM_THREADS says otherwise: a team
    of threads waits for its slowest, and where another program takes a core the times come out ten times too long.
    Where ``timing`` processes time cases at once, each on its own GPU, they divide the cores.

    Triton's cache is named: torch.compile and Helion move it for their whole process where it is not, and whatever is
    timed there after them would be compiled again.
    """
    env: dict[str, str | None] = {"TRITON_CACHE_DIR": str(environment.triton_cache()), **counted_as_by_nvml()}
    if part == "gate":
        return env | {"TRITON_INTERPRET": "1", **ONE_THREAD}
    env["TRITON_INTERPRET"] = None
    if part == "compile":
        return env | ONE_THREAD
    return env | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, (cores() - 1) // timing))}


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
