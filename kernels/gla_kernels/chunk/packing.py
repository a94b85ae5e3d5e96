"""Packed sequences as the chunkwise form's host code sees them."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import packed
from ..copies import copied
from ..launch import Launch, Launcher, settle_keys
from ..schedule import WGMMA_ROWS, cdiv

if TYPE_CHECKING:
    from .problem import Problem


@dataclass(frozen=True)
class Packed:
    """lengths [N+1]: where sequences begin, and T. marks: see `packed.marks`; edges and borders: see `edges`, for
    Hopper's own kernels. closed: the gates, closed where a sequence begins inside a chunk, for passes that go by gates
    alone; None where none does. One that begins with a chunk is told by the state before it, which is zero.
    """

    lengths: Tensor
    marks: Tensor
    edges: Tensor | None = None
    borders: Tensor | None = None
    closed: Tensor | None = None

    @property
    def count(self) -> int:
        """Sequences."""
        return self.lengths.shape[0] - 1


@triton.jit
def edges_kernel(p_marks, p_edges, p_borders, n_rows, n_chunks, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """p_edges, p_borders [n_chunks, 2]: see `edges`. p_marks [3, n_rows]."""
    o_c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_c = o_c < n_chunks
    i_row, i_next = o_c * ROWS, (o_c + 1) * ROWS
    b_first, b_end = tl.load(p_marks + i_row, mask=m_c, other=0), tl.load(p_marks + n_rows + i_row, mask=m_c, other=0)
    tl.store(p_edges + 2 * o_c, tl.where(b_first < i_row, tl.minimum(b_end - i_row, ROWS), 0), mask=m_c)
    b_n = tl.load(p_marks + 2 * n_rows + i_row, mask=m_c, other=0)
    tl.store(p_borders + 2 * o_c, tl.where((b_first < i_row) & (b_end <= i_next), b_n, -1), mask=m_c)
    b_first = tl.load(p_marks + i_next - 1, mask=m_c, other=0)
    b_end = tl.load(p_marks + n_rows + i_next - 1, mask=m_c, other=0)
    tl.store(p_edges + 2 * o_c + 1, tl.where(b_end > i_next, tl.maximum(b_first - i_row, 0), ROWS), mask=m_c)
    b_n = tl.load(p_marks + 2 * n_rows + i_next - 1, mask=m_c, other=0)
    tl.store(p_borders + 2 * o_c + 1, tl.where((b_first >= i_row) & (b_end > i_next), b_n, -1), mask=m_c)


settle_keys(edges_kernel)

CHUNKS = 128  # of a program


def edges(marks: Tensor, launch: Launcher) -> tuple[Tensor, Tensor]:
    """Of each chunk of 64 rows, int32 [.., 2] each. How many of the first rows belong to a sequence that came from the
    chunk before; and from which row on they belong to one that goes on in the next one, 64 for none. And borders: which
    sequence came from before and ends in the chunk, and which one begins in it and goes on, -1 for none."""
    n = marks.shape[1] // WGMMA_ROWS
    found, borders = marks.new_empty(n, 2), marks.new_empty(n, 2)
    args = {"p_marks": marks, "p_edges": found, "p_borders": borders, "n_rows": marks.shape[1], "n_chunks": n}
    launch(Launch(edges_kernel, (cdiv(n, CHUNKS),), args, {"ROWS": WGMMA_ROWS, "BLOCK": CHUNKS}))
    return found, borders


def of_sequences(p: Problem, cu_seqlens: Tensor, native: bool, launch: Launcher) -> Problem:
    """The problem of sequences. native: whether Hopper's own kernels do all of its direction, which know marks. Without
    gates it has some that let everything through: a sequence's start is one that does not."""
    if p.g is None:
        g = torch.empty_like(p.q)
        launch(copied(None, g))
        p = replace(p, g=g)
    found = packed.marks(cu_seqlens, p.q.shape[1], launch)
    return replace(p, packed=Packed(cu_seqlens, found, *(edges(found, launch) if native else ())), native=native)


def closed(p: Problem, again: bool, launch: Launcher) -> Problem:
    """The problem with closed gates, if any of its passes asks for them. again: whether states are made again."""
    if p.packed is None or (p.native and p.n_seg == 1 and not again):
        return p
    assert p.g is not None
    gates = packed.closed(p.g, p.packed.marks, launch, p.schedule.chunk)
    return replace(p, packed=replace(p.packed, closed=gates))
