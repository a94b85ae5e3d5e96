"""The Triton kernels that measure what a GPU can do at best: they read, exponentiate, or do nothing at all.

Each host function answers the `Launch`, as those of `gla_kernels` do: it can be run, or compiled for another GPU.
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from gla_kernels.launch import Launch

EXP_BLOCK = 1024  # numbers a program keeps in registers: 8 independent chains a thread
EXP_UNROLL = 8  # exponentials of each number between two looks at the loop's counter


@dataclass(frozen=True)
class Reader:
    """How memory is read: floats in flight a step of a program, its warps, and the steps that it takes."""

    block: int
    num_warps: int
    steps: int

    @property
    def floats(self) -> int:
        """What one program reads."""
        return self.block * self.steps


@triton.jit
def read_kernel(p_in, p_sum, n_blocks, n_steps, stride, BLOCK: tl.constexpr):
    """p_sum [programs] float32: the sum of n_steps blocks of p_in [n_blocks * BLOCK] float32, from block
    stride * program on and around its end. At most 2^31 elements."""
    i_p = tl.program_id(0)
    o_in = tl.arange(0, BLOCK)
    b_sum = tl.zeros((BLOCK,), dtype=tl.float32)
    for i_step in range(n_steps):
        i_block = (i_p * stride + i_step) % n_blocks
        # past the L1, where a program could find what its neighbour has read
        b_sum += tl.load(p_in + i_block * BLOCK + o_in, cache_modifier=".cg")
    tl.store(p_sum + i_p, tl.sum(b_sum))


@triton.jit
def exp2_kernel(p_x, n_rounds, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """x = 2^-x for each x of p_x [programs * BLOCK] float32, in place, n_rounds * UNROLL times over."""
    o_x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(p_x + o_x)
    for _ in range(n_rounds):
        for _ in tl.static_range(UNROLL):
            b_x = tl.exp2(-b_x)
    tl.store(p_x + o_x, b_x)


@triton.jit
def mark_kernel(p_out):
    """Writes its program's number: as little as a kernel can do."""
    i_p = tl.program_id(0)
    tl.store(p_out + i_p, i_p)


def read_once(data: torch.Tensor, reader: Reader) -> tuple[Launch, torch.Tensor]:
    """Read ``data`` (float32, a multiple of ``reader.floats``) once, each program a slice of its own; the launch and
    the sums [programs] that it writes."""
    n_blocks = data.numel() // reader.block
    return _read(data, reader, n_blocks, n_blocks // reader.steps, reader.steps)


def read_over(data: torch.Tensor, reader: Reader, times: int) -> tuple[Launch, torch.Tensor]:
    """Read ``data`` (float32, a power of two of elements) ``times * reader.steps`` times in one launch; the launch and
    the sums [programs].

    Programs begin an odd number of blocks apart, so that as many of them as there are blocks begin at different ones:
    no two SMs ask for the same bytes in step.
    """
    n_blocks = data.numel() // reader.block
    return _read(data, reader, n_blocks, n_blocks * times, reader.steps | 1)


def _read(data: torch.Tensor, reader: Reader, n_blocks: int, programs: int, stride: int) -> tuple[Launch, torch.Tensor]:
    sums = torch.empty(programs, dtype=torch.float32, device=data.device)
    args = {"p_in": data, "p_sum": sums, "n_blocks": n_blocks, "n_steps": reader.steps, "stride": stride}
    return Launch(read_kernel, (programs,), args, {"BLOCK": reader.block}, reader.num_warps), sums


def exponentiate(x: torch.Tensor, rounds: int) -> Launch:
    """``rounds * EXP_UNROLL`` exponentials of each element of x (float32, a multiple of EXP_BLOCK), in place."""
    grid = (x.numel() // EXP_BLOCK,)
    return Launch(exp2_kernel, grid, {"p_x": x, "n_rounds": rounds}, {"BLOCK": EXP_BLOCK, "UNROLL": EXP_UNROLL})


def mark(out: torch.Tensor) -> Launch:
    """A kernel of one program that does next to nothing: out[0] = 0, out int32."""
    return Launch(mark_kernel, (1,), {"p_out": out})
