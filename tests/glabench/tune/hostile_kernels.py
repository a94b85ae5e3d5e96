"""Kernels that do what no candidate should, run after a real one on what it has written."""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from gla_kernels import Launch
from gla_kernels.launch import execute

BLOCK = 128
FAR = 2**42  # elements: nothing is mapped so far behind a buffer
HOPELESS_BYTES = 10 * 2**40
SLOW_CYCLES = 10_000_000  # some 5 ms


@triton.jit
def spin_kernel(p_flag):
    """Waits for what nobody writes."""
    b_flag = tl.load(p_flag, volatile=True)
    while b_flag == 0:
        b_flag = tl.load(p_flag, volatile=True)


@triton.jit
def stray_kernel(p_x, i_far):
    """Writes far outside of x."""
    tl.store(p_x + i_far, 0.0)


@triton.jit
def scale_kernel(p_x, n, factor, BLOCK: tl.constexpr):
    """x times a factor."""
    o_x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_x = o_x < n
    b_x = tl.load(p_x + o_x, mask=m_x, other=0.0).to(tl.float32)
    tl.store(p_x + o_x, b_x * factor, mask=m_x)


@triton.jit
def nan_kernel(p_x, i_x):
    """One value that is none."""
    tl.store(p_x + i_x, float("nan"))


@triton.jit
def timer_kernel(p_x, n, BLOCK: tl.constexpr):
    """x with an error of up to 2 %, less than the screen allows, that depends on the time of day."""
    o_x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_x = o_x < n
    b_x = tl.load(p_x + o_x, mask=m_x, other=0.0).to(tl.float32)
    b_error = ((globaltimer() >> 5) & 1023).to(tl.float32) / 1024
    tl.store(p_x + o_x, b_x * (1 + 0.02 * b_error), mask=m_x)


@triton.jit
def ticket_kernel(p_x, p_ticket, n, BLOCK: tl.constexpr):
    """The same, depending on the order in which programs come by."""
    o_x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_x = o_x < n
    b_error = tl.atomic_add(p_ticket, 1).to(tl.float32) / tl.num_programs(0)
    b_x = tl.load(p_x + o_x, mask=m_x, other=0.0).to(tl.float32)
    tl.store(p_x + o_x, b_x * (1 + 0.02 * b_error), mask=m_x)


@triton.jit
def large_kernel(p_x, p_y, n, BLOCK: tl.constexpr):
    """A product of tiles that no shared memory holds."""
    o_x = tl.arange(0, BLOCK)
    o_xx = o_x[:, None] * BLOCK + o_x[None, :]
    b_y = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    for i in range(n):
        b_y += tl.dot(tl.load(p_x + i * BLOCK + o_xx), tl.load(p_x + (n + i) * BLOCK + o_xx))
    tl.store(p_y + o_xx, b_y)


def too_large() -> Launch:
    """A launch of `large_kernel`, on meta tensors."""
    x, y = (torch.empty(512, 256, dtype=dtype, device="meta") for dtype in (torch.bfloat16, torch.float32))
    return Launch(large_kernel, (1,), {"p_x": x, "p_y": y, "n": 8}, {"BLOCK": 256}, num_warps=8, num_stages=3)


# --- On the outputs of a real kernel ----------------------------------------------------------------------------------

Tensors = dict[str, torch.Tensor]


def _blocks(x: torch.Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK),)


def _hang(out: Tensors) -> None:
    spin_kernel[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"))


def _illegal(out: Tensors) -> None:
    stray_kernel[(1,)](next(iter(out.values())), FAR)


def _scaled(out: Tensors) -> None:
    for x in out.values():
        scale_kernel[_blocks(x)](x, x.numel(), 1.5, BLOCK=BLOCK)


def _nan(out: Tensors) -> None:
    x = next(iter(out.values()))
    nan_kernel[(1,)](x, x.numel() // 2)


def _timer(out: Tensors) -> None:
    for x in out.values():
        timer_kernel[_blocks(x)](x, x.numel(), BLOCK=BLOCK)


def _tickets(out: Tensors) -> None:
    for x in out.values():
        ticket_kernel[_blocks(x)](x, torch.zeros(1, dtype=torch.int32, device="cuda"), x.numel(), BLOCK=BLOCK)


def _memory(out: Tensors) -> None:
    torch.empty(HOPELESS_BYTES, dtype=torch.int8, device="cuda")


def _slow(out: Tensors) -> None:
    torch.cuda._sleep(SLOW_CYCLES)


def _abort(out: Tensors) -> None:
    os.abort()


AFTER: dict[str, Callable[[Tensors], None]] = {
    "hangs": _hang, "illegal access": _illegal, "wrong": _scaled, "nan": _nan, "by the clock": _timer,
    "by the order": _tickets, "out of memory": _memory, "slow": _slow, "dies": _abort,
}  # fmt: skip
SCREENED = 2  # calls of a candidate before it is timed


class Hostile:
    """Stands in for the kernel of ``launch``: runs that launch on the arguments given, then something else.

    outputs: the names of what the kernel writes. right: what a sound kernel wrote, by name.
    """

    def __init__(self, fault: str, launch: Launch, outputs: tuple[str, ...], right: Tensors) -> None:
        self.fault, self.launch, self.outputs, self.right = fault, launch, outputs, right
        self.arg_names = tuple(launch.args)  # no descriptors among them: the launch itself makes those
        self.pre_run_hooks = [fault]  # with any hook a kernel is called, and not kept as what the driver takes
        self.calls = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            args = {name: given[name] for name in self.arg_names}
            self.calls += 1
            if self.fault == "cheats":  # computes nothing, and knows the answer
                for name in self.outputs:
                    args[name].copy_(self.right[name])
                return
            execute(replace(self.launch, args=args))
            if self.fault == "spoils inputs":
                if self.calls > SCREENED:
                    scale_kernel[_blocks(args["p_k"])](args["p_k"], args["p_k"].numel(), 3.0, BLOCK=BLOCK)
            else:
                AFTER[self.fault]({name: args[name] for name in self.outputs})

        return run
