"""How fast a GPU copies: the unit of every floor. Each process that writes rows measures it. Imports no torch."""

from __future__ import annotations

import statistics
from functools import cache

COPY_BYTES = 2 * 2**30  # far beyond any L2, so that every byte travels
COPY_SAMPLES = 20


@cache
def copy_bytes_per_s() -> float:
    """Bytes read plus bytes written per second of a device-to-device copy, the median of 20; CUDA only.

    The buffers are 2 GiB each, or a fifth of the free memory where that is less. Measured once per process.
    """
    import torch

    free, _ = torch.cuda.mem_get_info()
    size = min(COPY_BYTES, free // 5)
    source = torch.zeros(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    for _ in range(3):
        target.copy_(source)
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(COPY_SAMPLES)]
    for start, end in marks:
        start.record()
        target.copy_(source)
        end.record()
    torch.cuda.synchronize()
    seconds = statistics.median(start.elapsed_time(end) / 1000 for start, end in marks)
    del source, target
    torch.cuda.empty_cache()  # the memory of the next case is its own
    return 2 * size / seconds
