"""Packed sequences as the chunkwise form's host code sees them."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..copies import copied
from ..launch import Launch, Launcher, settle_keys
from ..packed import marks
from ..schedule import cdiv

if TYPE_CHECKING:
    from .problem import Problem

# A gate that forgets all: exp of it is 0, and a sum of those of a chunk is finite in any dtype's float32 sums.
CLOSED: tl.constexpr = tl.constexpr(-1e4)


@dataclass(frozen=True)
class Packed:
    """lengths [N+1]: where sequences begin, and T. marks: see `packed.marks`. closed: the gates, closed where a
    sequence begins, for passes that go by gates alone; None where none does."""

    lengths: Tensor
    marks: Tensor
    closed: Tensor | None = None

    @property
    def count(self) -> int:
        """Sequences."""
        return self.lengths.shape[0] - 1


@triton.jit
def close_kernel(p_g, p_marks, p_y, n, W: tl.constexpr, BLOCK: tl.constexpr):
    """y [n / W, W] = g, but for the rows that a sequence begins with: those are closed."""
    o_y = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    i_row = o_y // W
    b_g = tl.load(p_g + o_y, mask=o_y < n, other=0.0)
    begins = tl.load(p_marks + i_row, mask=o_y < n, other=-1) == i_row
    tl.store(p_y + o_y, tl.where(begins, CLOSED, b_g.to(tl.float32)).to(p_y.dtype.element_ty), mask=o_y < n)


settle_keys(close_kernel)

BLOCK = 2048


def packed(p: Problem, cu_seqlens: Tensor, native: bool, launch: Launcher) -> Problem:
    """The problem of sequences. native: whether Hopper's own kernels do all of its direction, which know marks. Without
    gates it has some that let everything through: a sequence's start is one that does not."""
    if p.g is None:
        g = torch.empty_like(p.q)
        launch(copied(None, g))
        p = replace(p, g=g)
    return replace(p, packed=Packed(cu_seqlens, marks(cu_seqlens, p.q.shape[1], launch)), native=native)


def closed(p: Problem, again: bool, launch: Launcher) -> Problem:
    """The problem with closed gates, if any of its passes asks for them. again: whether states are made again."""
    if p.packed is None or (p.native and p.n_seg == 1 and not again):
        return p
    assert p.g is not None
    gates = torch.empty_like(p.g)
    n, W = gates.numel(), gates.shape[2] * gates.shape[3]
    args = {"p_g": p.g, "p_marks": p.packed.marks, "p_y": gates, "n": n}
    launch(Launch(close_kernel, (cdiv(n, BLOCK),), args, {"W": W, "BLOCK": BLOCK}))
    return replace(p, packed=replace(p.packed, closed=gates))
