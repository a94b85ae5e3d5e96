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
from ..schedule import WGMMA_ROWS, cdiv

if TYPE_CHECKING:
    from .problem import Problem

# A gate that forgets all: exp of it is 0, and a sum of those of a chunk is finite in any dtype's float32 sums.
CLOSED: tl.constexpr = tl.constexpr(-1e4)


@dataclass(frozen=True)
class Packed:
    """lengths [N+1]: where sequences begin, and T. marks: see `packed.marks`; edges: see `edges`, for Hopper's own
    kernels. closed: the gates, closed where a sequence begins, for passes that go by gates alone; None where none does.
    """

    lengths: Tensor
    marks: Tensor
    edges: Tensor | None = None
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


@triton.jit
def edges_kernel(p_marks, p_edges, n_rows, n_chunks, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """p_edges [n_chunks, 2]: see `edges`. p_marks [3, n_rows]."""
    o_c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_c = o_c < n_chunks
    i_row, i_next = o_c * ROWS, (o_c + 1) * ROWS
    b_first, b_end = tl.load(p_marks + i_row, mask=m_c, other=0), tl.load(p_marks + n_rows + i_row, mask=m_c, other=0)
    tl.store(p_edges + 2 * o_c, tl.where(b_first < i_row, tl.minimum(b_end - i_row, ROWS), 0), mask=m_c)
    b_first = tl.load(p_marks + i_next - 1, mask=m_c, other=0)
    b_end = tl.load(p_marks + n_rows + i_next - 1, mask=m_c, other=0)
    tl.store(p_edges + 2 * o_c + 1, tl.where(b_end > i_next, tl.maximum(b_first - i_row, 0), ROWS), mask=m_c)


settle_keys(close_kernel, edges_kernel)

BLOCK = 2048
CHUNKS = 128  # of a program


def edges(marks: Tensor, launch: Launcher) -> Tensor:
    """Of each chunk of 64 rows, int32 [.., 2]: how many of the first rows belong to a sequence that came from the chunk
    before; and from which row on they belong to one that goes on in the next one, 64 for none."""
    n = marks.shape[1] // WGMMA_ROWS
    found = marks.new_empty(n, 2)
    args = {"p_marks": marks, "p_edges": found, "n_rows": marks.shape[1], "n_chunks": n}
    launch(Launch(edges_kernel, (cdiv(n, CHUNKS),), args, {"ROWS": WGMMA_ROWS, "BLOCK": CHUNKS}))
    return found


def packed(p: Problem, cu_seqlens: Tensor, native: bool, launch: Launcher) -> Problem:
    """The problem of sequences. native: whether Hopper's own kernels do all of its direction, which know marks. Without
    gates it has some that let everything through: a sequence's start is one that does not."""
    if p.g is None:
        g = torch.empty_like(p.q)
        launch(copied(None, g))
        p = replace(p, g=g)
    found = marks(cu_seqlens, p.q.shape[1], launch)
    return replace(p, packed=Packed(cu_seqlens, found, edges(found, launch) if native else None), native=native)


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
