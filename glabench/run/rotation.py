"""Several sets of inputs in turns, so that no call finds its own in a cache."""

from __future__ import annotations

from dataclasses import replace

import torch

from glabench.hardware.environment import memory_bytes
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems.base import System
from glabench.systems.inputs import Inputs, input_bytes

CPU_CACHE_BYTES = 32 * 2**20  # a common size of a laptop's last-level cache; what is rotated on a CPU is twice this


def rotated_inputs(case: Case, settings: Settings, system: System) -> list[Inputs]:
    """As many sets of inputs as it takes that none is in a cache any more when its turn comes again.

    None has the numbers that the gate is asked. For mode bwd the first one has them but for the gradients that come
    back to it: what it returns can be judged by the gate's answer (``glabench.run.audit``).
    """
    if settings.device == "cuda":
        cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        free, _ = torch.cuda.mem_get_info()
    else:
        cache, free = CPU_CACHE_BYTES, memory_bytes()
    sets = set_count(input_bytes(case), cache, free)
    # mode bwd keeps a whole autograd graph for each of them
    count = min(sets, 2) if case.mode == "bwd" else sets
    drawn = [system.draw_inputs(case, settings.device, salt) for salt in range(1, count + 1)]
    if case.mode == "bwd":
        first = drawn[0]
        drawn[0] = replace(system.draw_inputs(case, settings.device), do=first.do, dstate=first.dstate)
    return drawn


def set_count(nbytes: int, cache_bytes: int, free_bytes: int, most: int = 8) -> int:
    """How many input sets to rotate so that none is still in the cache when its turn comes again.

    Together they hold twice the cache, at least two sets, but never more than an eighth of the free memory.
    """
    wanted = max(2, -(-2 * cache_bytes // max(nbytes, 1)))
    fits = max(1, free_bytes // (8 * max(nbytes, 1)))
    return min(wanted, fits, most)
