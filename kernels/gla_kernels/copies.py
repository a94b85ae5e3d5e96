"""What host code would ask PyTorch to do between launches, as launches: copies, zeros and sums of buffers.

So a direction of a call is launches and nothing else, and can be made again without its host code (`launch.record`).
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import Launch, settle_keys
from .schedule import cdiv

BLOCK = 4096  # elements of a program; where 16 divides how many there are, masks keep no load from being wide


@triton.jit
def copy_kernel(p_x, p_y, n, BLOCK: tl.constexpr):
    """y [n] = x [n] in the type of y, or zeros where x is None."""
    o_y = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b_y = tl.zeros([BLOCK], dtype=tl.float32)
    if p_x is not None:
        b_y += tl.load(p_x + o_y, mask=o_y < n, other=0.0).to(tl.float32)
    tl.store(p_y + o_y, b_y.to(p_y.dtype.element_ty), mask=o_y < n)


@triton.jit
def rows_kernel(p_x, p_y, stride, n, W: tl.constexpr, BLOCK: tl.constexpr):
    """y [rows, W], n numbers in all, = rows of x that lie ``stride`` numbers apart."""
    o_y = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    o_x = o_y // W * stride + o_y % W
    tl.store(p_y + o_y, tl.load(p_x + o_x, mask=o_y < n, other=0.0), mask=o_y < n)


@triton.jit
def sum_of_parts(p_x, p_y, i_p, n, factor, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """A block of y [n] = factor times the sum of x [PARTS, n], made in float32, in the type of y."""
    o_y = tl.cast(i_p, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b_y = tl.zeros([BLOCK], dtype=tl.float32)
    for i in tl.static_range(PARTS):
        b_y += tl.load(p_x + tl.cast(n, tl.int64) * i + o_y, mask=o_y < n, other=0.0)
    tl.store(p_y + o_y, (b_y * factor).to(p_y.dtype.element_ty), mask=o_y < n)


@triton.jit
def sum_kernel(p_x, p_y, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """y [n] = the sum of x [PARTS, n], of any type, in float32 and then in the type of y."""
    sum_of_parts(p_x, p_y, tl.program_id(0), n, 1.0, PARTS, BLOCK)


@triton.jit
def thin_kernel(p_x, p_y, every, n_x, n_y, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """y [heads, n_y, SIZE] = every so-many-th of x [heads, n_x, SIZE]."""
    NB: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    i_p = tl.program_id(0)
    i_b, i_y = i_p % NB, (i_p // NB).to(tl.int64)
    o_x = i_b * BLOCK + tl.arange(0, BLOCK)
    i_x = i_y // n_y * n_x + i_y % n_y * every
    tl.store(p_y + i_y * SIZE + o_x, tl.load(p_x + i_x * SIZE + o_x, mask=o_x < SIZE, other=0.0), mask=o_x < SIZE)


settle_keys(copy_kernel, rows_kernel, sum_kernel, thin_kernel)


def copied(x: Tensor | None, into: Tensor) -> Launch:
    """A launch that copies x, or zeros for None, into a tensor of as many elements; both are contiguous."""
    return Launch(
        copy_kernel, (cdiv(into.numel(), BLOCK),), {"p_x": x, "p_y": into, "n": into.numel()}, {"BLOCK": BLOCK}
    )


def rows_of(x: Tensor, into: Tensor) -> Launch:
    """A launch that copies x [B, T, H, D], columns of a matrix of B*T rows, into a contiguous tensor of its dtype."""
    sizes = {"p_x": x, "p_y": into, "stride": x.stride(1), "n": into.numel()}
    return Launch(
        rows_kernel, (cdiv(into.numel(), BLOCK),), sizes, {"W": into.shape[2] * into.shape[3], "BLOCK": BLOCK}
    )


def thinned(x: Tensor, into: Tensor, every: int) -> Launch:
    """A launch that copies every so-many-th state of x [heads, .., K, V] into a tensor of fewer, in the same type."""
    heads, n_y, K, V = into.shape
    sizes = {"p_x": x, "p_y": into, "every": every, "n_x": x.shape[1], "n_y": n_y, "n": into.numel()}
    grid = (cdiv(K * V, BLOCK) * heads * n_y,)
    return Launch(thin_kernel, grid, sizes, {"SIZE": K * V, "BLOCK": BLOCK})


def summed(x: Tensor, into: Tensor, parts: int | None = None) -> Launch:
    """A launch that adds up x [parts, ..], float32, over the parts, or [parts * B, ..] over so many."""
    sizes = {"PARTS": x.shape[0] if parts is None else parts, "BLOCK": BLOCK}
    return Launch(sum_kernel, (cdiv(into.numel(), BLOCK),), {"p_x": x, "p_y": into, "n": into.numel()}, sizes)
