"""Operands of products, rounded to tf32 before a tensor core would cut them off."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from gla_kernels.tiles.operands import operand

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# What products leave, what NumPy has, and the least and the largest of bfloat16.
NOT_A_NUMBER = [0x7FFFFFFF, 0x7FC00000, 0x7F810000, 0xFFC00000 - 2**32, 0xFFFF0000 - 2**32]


@triton.jit
def rounded_kernel(p_x, p_y, N: tl.constexpr):
    o_x = tl.arange(0, N)
    tl.store(p_y + o_x, operand(tl.load(p_x + o_x), tl.float32, "tf32"))


def rounded(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    rounded_kernel[(1,)](x, y, x.numel())
    return y


def test_numbers_are_rounded_to_eleven_bits_and_halves_away_from_0():
    x = torch.randn(1024, device=DEVICE).exp() * torch.randn(1024, device=DEVICE).sign()
    x[:5] = torch.tensor([0.0, math.inf, -math.inf, 1 + 2.0**-11, -1 - 2.0**-11])
    y, step = rounded(x), torch.ldexp(torch.ones_like(x), torch.frexp(x)[1] - 11)
    assert y[:5].tolist() == [0.0, math.inf, -math.inf, 1 + 2.0**-10, -1 - 2.0**-10]
    assert torch.equal(y[5:], (x.abs() / step + 0.5).floor()[5:] * step[5:] * x.sign()[5:])


@pytest.mark.parametrize("bits", NOT_A_NUMBER, ids=hex)
def test_what_is_no_number_stays_none(bits):
    x = torch.full((16,), bits, dtype=torch.int32, device=DEVICE).view(torch.float32)
    assert x.isnan().all()
    assert rounded(x).isnan().all()
