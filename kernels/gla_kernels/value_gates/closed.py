"""Gates of packed sequences: closed in the first row of each, on one side, and nothing passes from one to the next."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import packed
from ..launch import Launch, Launcher
from ..schedule import cdiv

BLOCK = 4096  # elements of a program

# A gate whose exponential is 0 in float32, and which no chunk or frame is mild with (gates.row_block_limit).
CLOSED: tl.constexpr = tl.constexpr(-256.0)


@triton.jit(do_not_specialize=["n"])
def gv_closed_kernel(p_gv, p_marks, p_closed, n, W: tl.constexpr, BLOCK: tl.constexpr):
    """p_closed [T, W], n numbers in all, = p_gv, but for first rows. p_marks: of `packed.marks`."""
    o_g = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    o_t = o_g // W
    b_g = tl.load(p_gv + o_g, mask=o_g < n, other=0.0).to(tl.float32)
    b_first = tl.load(p_marks + o_t, mask=o_g < n, other=0)
    b_g = tl.where(b_first == o_t, CLOSED, b_g)
    tl.store(p_closed + o_g, b_g.to(p_closed.dtype.element_ty), mask=o_g < n)


def closed(gv: Tensor, cu_seqlens: Tensor, launch: Launcher) -> Tensor:
    """A copy of gates [1, T, H, V], closed in the first rows of the sequences."""
    _, T, H, V = gv.shape
    into = torch.empty_like(gv)
    args = {"p_gv": gv, "p_marks": packed.marks(cu_seqlens, T, launch), "p_closed": into, "n": gv.numel()}
    launch(Launch(gv_closed_kernel, (cdiv(gv.numel(), BLOCK),), args, {"W": H * V, "BLOCK": BLOCK}))
    return into
