"""A sum that a GPU computes, and the faults that only a GPU has. By itself: one sum, which says that there is a GPU,
and leaves in Triton's cache what the campaign's many processes would otherwise each compile.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

BLOCK = 1024
FAR = 2**40  # elements beyond the end: an address that nothing has
FOREVER = 2**62  # cycles


@triton.jit(do_not_specialize=["n"])
def total_kernel(p_total, n, scale, FAR: tl.constexpr, BROKEN: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of 0 .. n - 1 times ``scale``, float32, FAR elements after p_total."""
    tl.static_assert(not BROKEN, "as asked")
    i = tl.arange(0, BLOCK)
    tl.store(p_total + FAR, tl.sum(tl.where(i < n, i, 0)).to(tl.float32) * scale)


def total(n: int, fault: str | None) -> float:
    """The sum of 0 .. n - 1 for n up to BLOCK, unless the fault says otherwise: then what PyTorch and Triton raise."""
    if fault == "oom":
        _, there = torch.cuda.mem_get_info()
        torch.empty(there + 1, dtype=torch.uint8, device="cuda")
    if fault == "hang":
        torch.cuda._sleep(FOREVER)
    out = torch.zeros(1, device="cuda")
    scale, far = math.nan if fault == "nan" else 1.0, FAR if fault == "illegal" else 0
    total_kernel[(1,)](out, n + (fault == "wrong"), scale, FAR=far, BROKEN=fault == "compile", BLOCK=BLOCK)
    torch.cuda.synchronize()
    return out.item()


if __name__ == "__main__":
    if total(5, None) != 10.0:
        raise SystemExit("the GPU cannot add")
