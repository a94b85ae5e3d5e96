"""Decays inside a chunk of C rows, as products that are right at any gate strength: the chunk is halved.

Rows i >= j of a chunk meet through the decay e^{c_i - c_j}, c the running sum of their gates. Halve the chunk, then
each half, and so on down to single rows. Every pair of rows is parted by exactly one of these cuts, and the decay
between them is that from j to the cut times that from the cut to i. So all pairs that the cuts of one level part are
one matrix product, whose factors are decayed by a sum of gates each: never more than 1, and never a difference of
running sums. (The two levels of Yang et al. 2024, section 4.3, carried on to the end.)

A level of its own is only needed where gates are strong. A block of rows that decays little, here a frame, takes the
middle of its decay for its one cut: the factors are then e^{+-half of it}, within float32's range, and all pairs of
rows inside the frame are one product. So a mild chunk is one frame and one product; else frames are
sub-chunks, behind log2(C / SUB) levels; else single rows, behind log2(C).

Exponents are products of the gates with a matrix of zeros and ones, m @ g, and so are gradients of the gates: where a
row x e^E meets its partners' sum X, g gets m^T @ (x e^E * X). What does not pass a gate is never added to its gradient,
so nothing has to cancel there; within a frame it is, and both terms are formed from the same rounded operands.
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..launch import interpreting
from ..tiles.gates import LOG2E, row_block_limit, summed
from ..tiles.operands import split

# Where products of bfloat16 are wrong (`problem.operand_type`), and no tensor core asks for them.
INTERPRETED: tl.constexpr = tl.constexpr(interpreting())

# The matrices below are of rows o_i and o_s, or o_j: [C, 1] and [1, C], or [1, C] and [C, 1] for the transposed one.
# half: rows of half a block, a power of two.


@triton.jit
def level_sums(half, o_i, o_s):
    """m, 0 or 1: m @ g are the gates between each row and the border in its block's middle. A later row counts its own
    gate, an earlier one those after its own."""
    i_start = o_i & -half  # of the row's half
    m_later = (o_s >= i_start) & (o_s <= o_i)
    m_earlier = (o_s > o_i) & (o_s < i_start + half)
    return tl.where(tl.where((o_i & half) != 0, m_later, m_earlier), 1.0, 0.0)


@triton.jit
def level_pairs(half, o_i, o_j):
    """Whether row i is in the later half of a block and row j in its earlier half."""
    return ((o_i & (-2 * half)) == (o_j & (-2 * half))) & ((o_i & half) != 0) & ((o_j & half) == 0)


@triton.jit
def frame_sums(rows, o_i, o_s):
    """w: w @ g is the decay of each row counted from the middle of its frame of so many rows. The first row's own gate
    is between no two rows of the frame."""
    i_start = o_i & -rows
    m_in = (o_s > i_start) & (o_s < i_start + rows)
    return tl.where(m_in, tl.where(o_s <= o_i, 0.5, -0.5), 0.0)


@triton.jit
def frame_pairs(rows, o_i, o_j):
    """Whether rows j < i are of the same frame."""
    return ((o_i & -rows) == (o_j & -rows)) & (o_i > o_j)


@triton.jit
def around_sums(o_i, o_s, AFTER: tl.constexpr):
    """m, 0 or 1: m @ g are the gates up to each row, its own included, or with AFTER those after it."""
    return tl.where((o_s > o_i) == AFTER, 1.0, 0.0)


@triton.jit
def log_decay(b_m, b_g):
    """Log2 of a decay, (m @ g) log2(e), for gates [BT, BK] as they were loaded: exact products, summed in float32."""
    if INTERPRETED and b_g.dtype != tl.float16:
        b_e = tl.dot(b_m, b_g.to(tl.float32), input_precision="ieee")
    else:
        TYPE: tl.constexpr = tl.bfloat16 if b_g.dtype == tl.float32 else b_g.dtype
        b_e = summed(b_m.to(TYPE), b_g)
    return b_e * LOG2E


@triton.jit
def gate_gradient(b_mt, b_p, b_acc, PRECISION: tl.constexpr):
    """acc + m^T @ p, float32 [C, BD], from m transposed: p exactly, or for 16-bit inputs in two parts of 8 bits."""
    if INTERPRETED:
        b_acc = tl.dot(b_mt, b_p, b_acc, input_precision="ieee")
    elif PRECISION == "tf32":
        b_high, b_low = split(b_p, tl.bfloat16)
        b_acc = tl.dot(b_mt.to(tl.bfloat16), b_low, b_acc)
        b_acc = tl.dot(b_mt.to(tl.bfloat16), b_high, b_acc)
    else:
        b_acc += summed(b_mt.to(tl.bfloat16), b_p)
    return b_acc


@triton.jit
def levels(b_g, C: tl.constexpr, SUB: tl.constexpr, PRECISION: tl.constexpr):
    """How many levels come before the frames, whose rows are C >> levels: the fewest after which all frames are mild.
    Frames of one row have no pairs, and always are."""
    SUB_LEVELS: tl.constexpr = (C // SUB).bit_length() - 1
    ALL_LEVELS: tl.constexpr = C.bit_length() - 1
    o_i, o_s = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    least = -0.5 * row_block_limit(True, PRECISION)  # where a frame's last row is: half of its decay
    n_levels = tl.full([], 0, tl.int32)
    if tl.min(log_decay(frame_sums(C, o_i, o_s), b_g)) <= least:
        n_levels += SUB_LEVELS
        if tl.min(log_decay(frame_sums(SUB, o_i, o_s), b_g)) <= least:
            n_levels += ALL_LEVELS - SUB_LEVELS
    return n_levels
