"""Functions of tiles, sums along an axis and scans in Triton's interpreter, without work that changes nothing: the bits
that Triton's own make."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from gla_kernels.launch import interpreting
from gla_kernels.launch.interpreter import lean

if not interpreting():
    pytest.skip("about Triton's interpreter; kernels are compiled here", allow_module_level=True)


@triton.jit
def functions_kernel(p_x, p_out, N: tl.constexpr, M: tl.constexpr):
    """x [N, M] -> out [7, N, M] float32, some of it of a tile that lies in memory as its transpose does."""
    o_n, o_m = tl.arange(0, N), tl.arange(0, M)
    o_x = o_n[:, None] * M + o_m[None, :]
    b_x = tl.load(p_x + o_x)
    b_t = tl.trans(b_x)
    tl.store(p_out + o_x, tl.maximum(b_x, 0.0) + tl.minimum(b_x, 2.0) + tl.maximum(b_x, tl.max(b_t, axis=0)[:, None]))
    p_out += N * M
    b_row, b_column = tl.sum(b_x, axis=1), tl.sum(b_t, axis=1)
    tl.store(p_out + o_x, tl.minimum(b_row[:, None], b_x) + b_column[None, :] + tl.sum(b_column, axis=0))
    p_out += N * M
    tl.store(p_out + o_x, tl.min(b_x, axis=1, keep_dims=True) - tl.max(b_x, axis=0, keep_dims=True) + tl.sum(b_x))
    p_out += N * M
    tl.store(p_out + o_x, tl.trans(tl.cumsum(b_t, axis=0)) + tl.cumsum(b_x, axis=0))
    p_out += N * M
    b_last = tl.cumsum(b_x, axis=0, reverse=True)  # how it lies in memory decides in which order it is summed
    tl.store(p_out + o_x, b_last + tl.sum(b_last, axis=1)[:, None] + tl.sum(b_last, axis=0)[None, :])
    p_out += N * M
    b_most, i_most = tl.max(b_x, 1, True)  # where that is, too
    b_least, b_y = tl.min(b_x, 1, return_indices=False), b_x.to(tl.float32) / 8
    tl.store(p_out + o_x, b_most[:, None] + i_most[:, None] + b_least[:, None] + o_m[None, :])
    p_out += N * M
    tl.store(p_out + o_x, tl.exp(b_y) + tl.exp2(tl.trans(tl.exp2(tl.trans(b_y)))))


FLOATS = (torch.float32, torch.float16, torch.bfloat16)
ODD = [(dtype, odd) for dtype in FLOATS for odd in (-0.0, math.nan, -math.inf)]


@pytest.mark.parametrize(("dtype", "odd"), [*ODD, (torch.int32, 2**20)], ids=str)
def test_functions_have_the_bits_of_tritons_own(dtype, odd):
    x = (3 * torch.randn(16, 8)).to(dtype)
    x[3, 2:4] = odd
    found, right = torch.zeros(7, 16, 8), torch.zeros(7, 16, 8)
    for _ in range(2):  # the second time they are known
        found.zero_()
        with lean():
            functions_kernel[(1,)](x, found, 16, 8)
    functions_kernel[(1,)](x, right, 16, 8)
    assert torch.equal(found.view(torch.int32), right.view(torch.int32))
    assert all(part.any() for part in right)


@triton.jit
def later(a, x, b, y):
    """Two steps of a recurrence as one."""
    return a * b, x * b + y


@triton.jit
def larger(a, b):
    if a > b:
        return a
    else:  # noqa: RET505 - Triton compiles no return within a branch alone
        return b


@triton.jit
def scans_kernel(p_x, p_out, N: tl.constexpr, M: tl.constexpr):
    """x [N, M] -> out [4, N, M]: scans of two tiles forward and backward, of three axes, and by what asks a number."""
    o_n, o_m = tl.arange(0, N), tl.arange(0, M)
    o_x = o_n[:, None] * M + o_m[None, :]
    b_x = tl.load(p_x + o_x)
    b_a, b_s = tl.associative_scan((b_x, b_x + 1.0), 0, later)
    tl.store(p_out + o_x, b_a - b_s)
    p_out += N * M
    b_a, b_s = tl.associative_scan((b_x, 2.0 * b_x), 1, later, reverse=True)
    tl.store(p_out + o_x, b_a - b_s + tl.sum(b_s, axis=0)[None, :])
    p_out += N * M
    b_a, b_s = tl.associative_scan(
        (b_x[:, :, None] * tl.sum(b_x, axis=0)[None, None, :], b_x[:, :, None] + o_m), 1, later
    )
    tl.store(p_out + o_x, tl.sum(b_a - b_s, axis=2))
    p_out += N * M
    b_a, b_s = tl.associative_scan((tl.sum(b_x, axis=1), b_x.sum(1)), 0, later)
    tl.store(p_out + o_x, tl.associative_scan(b_x, 0, larger) + (b_a - b_s)[:, None])


def test_scans_have_the_bits_of_tritons_own():
    x = torch.randn(8, 4)
    found, right = torch.zeros(4, 8, 4), torch.zeros(4, 8, 4)
    with lean():
        scans_kernel[(1,)](x, found, 8, 4)
    scans_kernel[(1,)](x, right, 8, 4)
    assert torch.equal(found, right)
    assert all(len(part.unique()) > 1 for part in right)
