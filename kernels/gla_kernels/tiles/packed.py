"""Packed sequences in kernels that walk over row blocks: which sequence a block begins and ends with. Marks are of
`packed.marks`."""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .gates import LOG2E


@triton.jit
def sequence_of(p_marks, n_rows, i_row):
    """Which sequence a row belongs to."""
    return tl.load(p_marks + 2 * n_rows + i_row).to(tl.int64)


@triton.jit
def ends_here(p_marks, n_rows, i_row, BT: tl.constexpr):
    """Whether the block's first row is of a sequence that began before the block and ends in it."""
    first, end = tl.load(p_marks + i_row), tl.load(p_marks + n_rows + i_row)
    return (first < i_row) & (end <= i_row + BT)


@triton.jit
def begins_here(p_marks, n_rows, i_row, BT: tl.constexpr):
    """Whether the block's last row is of a sequence that begins in the block and goes on after it."""
    i_last = i_row + BT - 1
    first, end = tl.load(p_marks + i_last), tl.load(p_marks + n_rows + i_last)
    return (first >= i_row) & (end > i_row + BT)


@triton.jit
def decay_of_rows(p_g, i_row, i_from, i_to, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr):
    """The decay over the rows i_from .. i_to-1 of the block that begins at i_row, float32 [BK]."""
    o_t = i_row + tl.arange(0, BT)
    m_g = ((o_t >= i_from) & (o_t < tl.minimum(i_to, T)))[:, None] & (o_k < K)[None, :]
    b_g = tl.load(p_g + o_t.to(tl.int64)[:, None] * stride + o_k[None, :], mask=m_g, other=0.0)
    return tl.exp2(tl.sum(b_g.to(tl.float32), axis=0) * LOG2E)
