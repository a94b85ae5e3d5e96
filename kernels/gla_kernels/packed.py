"""Packed sequences: which one each row belongs to, worked out on the GPU, where nothing waits for it.

N sequences lie one after another in the T rows of a batch of one, from cu_seqlens[n] to cu_seqlens[n + 1]. Chunks stay
where they would be in one sequence of T rows, so that grids go by sizes alone, and a chunk may have rows of several.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launch, Launcher, settle_keys
from .schedule import cdiv

ROWS = 256  # of a program, and what the rows of marks are a multiple of: no chunk is longer

BLOCK = 4096  # numbers of a program

# A gate whose exponential is 0 in float32, and which no chunk is mild with (gates.row_block_limit).
CLOSED: tl.constexpr = tl.constexpr(-256.0)


@triton.jit(do_not_specialize=["T", "N", "n_rows"])
def marks_kernel(p_lengths, p_marks, T, N, n_rows, BLOCK: tl.constexpr):
    """p_marks [3, n_rows]: see `marks`. p_lengths [N+1]."""
    o_t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_t = tl.minimum(o_t, T - 1)
    # the last sequence that does not begin after the row: what an empty one begins at, another one does, too
    b_low, b_high = tl.zeros([BLOCK], dtype=tl.int32), tl.zeros([BLOCK], dtype=tl.int32) + N
    left = N
    while left > 0:
        b_mid = (b_low + b_high) // 2
        m_before = tl.load(p_lengths + b_mid).to(tl.int32) <= b_t
        b_low, b_high = tl.where(m_before, b_mid, b_low), tl.where(m_before, b_high, b_mid)
        left = left // 2
    b_low = tl.minimum(b_low, N - 1)
    tl.store(p_marks + o_t, tl.load(p_lengths + b_low).to(tl.int32))
    tl.store(p_marks + n_rows + o_t, tl.load(p_lengths + b_low + 1).to(tl.int32))
    tl.store(p_marks + 2 * n_rows + o_t, b_low)


@triton.jit(do_not_specialize=["n"])
def close_kernel(p_g, p_marks, p_closed, n, W: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """p_closed [T, W], n numbers in all: see `closed`. p_marks [3, n_rows]."""
    o_g = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    o_t = o_g // W
    b_g = tl.load(p_g + o_g, mask=o_g < n, other=0.0).to(tl.float32)
    m_close = tl.load(p_marks + o_t, mask=o_g < n, other=-1) == o_t
    if CHUNK > 0:
        m_close &= o_t % CHUNK != 0
    tl.store(p_closed + o_g, tl.where(m_close, CLOSED, b_g).to(p_closed.dtype.element_ty), mask=o_g < n)


settle_keys(marks_kernel, close_kernel)


def marks(cu_seqlens: Tensor, T: int, launch: Launcher) -> Tensor:
    """Of each of T rows the first row of its sequence, the row after its last one, and which sequence it is: int32
    [3, T], padded to a multiple of `ROWS` by rows like the last one."""
    n_rows = max(1, cdiv(T, ROWS)) * ROWS
    found = cu_seqlens.new_empty(3, n_rows, dtype=torch.int32)
    args = {"p_lengths": cu_seqlens, "p_marks": found, "T": T, "N": cu_seqlens.shape[0] - 1, "n_rows": n_rows}
    launch(Launch(marks_kernel, (n_rows // ROWS,), args, {"BLOCK": ROWS}))
    return found


def closed(g: Tensor, marks: Tensor, launch: Launcher, chunk: int = 0) -> Tensor:
    """A copy of gates [1, T, H, D], closed in the row that a sequence begins with, for passes that go by gates alone:
    nothing passes from one sequence to the next. chunk: but for the first rows of chunks of so many, where the state
    before the chunk says so."""
    into = torch.empty_like(g)
    args = {"p_g": g, "p_marks": marks, "p_closed": into, "n": g.numel()}
    sizes = {"W": g.shape[2] * g.shape[3], "CHUNK": chunk, "BLOCK": BLOCK}
    launch(Launch(close_kernel, (cdiv(g.numel(), BLOCK),), args, sizes))
    return into
