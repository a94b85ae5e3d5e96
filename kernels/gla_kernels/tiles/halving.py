"""Scores of a block's rows at any gate strength, and decays between them, as products: the block is halved.

Rows i >= j of a block meet through the decay e^{c_i - c_j}, c the running sum of their gates. Halve the block, then
each half, and so on down to single rows. Every pair of rows is parted by exactly one of these cuts, and the decay
between them is that from j to the cut times that from the cut to i. So all pairs that the cuts of one level part are
one matrix product, whose factors are decayed by a sum of gates each: never more than 1, and never a difference of
running sums. (The two levels of Yang et al. 2024, section 4.3, carried on to the end.)

A level of its own is only needed where gates are strong. A block of rows that decays little, here a frame, takes the
middle of its decay for its one cut: the factors are then e^{+-half of it}, within float32's range, and all pairs of
rows inside the frame are one product. So a mild block is one frame and one product; else frames are smaller, behind a
level for each time that they are halved.

Exponents are products of the gates with a matrix of zeros and ones, m @ g.
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..launch import interpreting
from .gates import LEAST_GATE, LOG2E, row_block_limit, summed
from .operands import load_tile
from .products import product

# Where products of bfloat16 are wrong (`operands.operand_type`), and no tensor core asks for them.
INTERPRETED: tl.constexpr = tl.constexpr(interpreting())

# Natural logarithm: a gate that lets through 2^-29, less than is left of inputs of 16 bits. Eight rows of such gates
# are a frame.
FORGETS: tl.constexpr = tl.constexpr(-20.5)

# The matrices below are of rows o_i and o_s, or o_j: [C, 1] and [1, C], or [1, C] and [C, 1] for the transposed one.
# half: rows of half a block, a power of two.


@triton.jit
def _among(o_s, i_from, n):
    """Whether rows are among the n rows from one on: what every matrix here asks, in one comparison."""
    return (o_s - i_from).to(tl.uint32) < n.to(tl.uint32)


@triton.jit
def level_sums(half, o_i, o_s):
    """m, 0 or 1: m @ g are the gates between each row and the border in its block's middle. A later row counts its own
    gate, an earlier one those after its own."""
    i_start, m_later = o_i & -half, (o_i & half) != 0  # of the row's half
    i_from = tl.where(m_later, i_start, o_i + 1)
    return tl.where(_among(o_s, i_from, tl.where(m_later, o_i + 1, i_start + half) - i_from), 1.0, 0.0)


@triton.jit
def level_pairs(half, o_i, o_j):
    """Whether row i is in the later half of a block and row j in its earlier half."""
    return _among(o_j, (o_i & -half) - half, o_i & half)


@triton.jit
def frame_sums(rows, o_i, o_s):
    """w: w @ g is the decay of each row counted from the middle of its frame of so many rows. The first row's own gate
    is between no two rows of the frame."""
    m_in = _among(o_s, (o_i & -rows) + 1, o_i * 0 + (rows - 1))
    return tl.where(m_in, tl.where(o_s <= o_i, 0.5, -0.5), 0.0)


@triton.jit
def frame_pairs(rows, o_i, o_j):
    """Whether rows j < i are of the same frame."""
    return _among(o_j, o_i & -rows, o_i & (rows - 1))


@triton.jit
def log_decay(b_m, b_g, TURNED: tl.constexpr = False):
    """Log2 of a decay, (m @ g) log2(e), for gates [BT, BK] as they were loaded: exact products, summed in float32.
    TURNED: m transposed, as a thread makes it with least work, for it then has columns of m^T, which are rows of m."""
    if INTERPRETED and b_g.dtype != tl.float16:
        b_m = tl.trans(b_m) if TURNED else b_m
        b_e = tl.dot(b_m, b_g.to(tl.float32), input_precision="ieee")
    else:
        TYPE: tl.constexpr = tl.bfloat16 if b_g.dtype == tl.float32 else b_g.dtype
        b_m = b_m.to(TYPE)
        b_e = summed(tl.trans(b_m) if TURNED else b_m, b_g)
    return b_e * LOG2E


@triton.jit
def clamped(b_g, PRECISION: tl.constexpr):
    """Gates as halving takes them: of inputs of 16 bits none less than FORGETS. One that is no number stays none."""
    LEAST: tl.constexpr = FORGETS if PRECISION == "tf32" else LEAST_GATE
    return tl.where(b_g.to(tl.float32) < LEAST, tl.full([], LEAST, tl.float32).to(b_g.dtype), b_g)


@triton.jit
def _rows(C: tl.constexpr, i):
    """o_i and o_j, [C, 1] and [1, C], of whom the compiler does not know that they are the same for each i >= 0: what
    is made of them is made where it is used. Else it makes all matrices at first, and spills them."""
    nil = tl.minimum(i, 0)
    return tl.arange(0, C)[:, None], tl.arange(0, C)[None, :] + nil


@triton.jit
def _level_decay(half, b_g, i, C: tl.constexpr):
    """Log2 of the decay between each row and the border in its block's middle."""
    o_s, o_i = _rows(C, i)
    return log_decay(level_sums(half, o_i, o_s), b_g, True)


@triton.jit
def _frame_decay(rows, b_g, i, C: tl.constexpr):
    """Log2 of the decay of each row, counted from the middle of its frame."""
    o_s, o_i = _rows(C, i)
    return log_decay(frame_sums(rows, o_i, o_s), b_g, True)


@triton.jit
def levels_of(b_g, i_row, C: tl.constexpr, PRECISION: tl.constexpr):
    """How many levels come before the frames, whose rows are C >> levels: the fewest after which all frames are mild.
    Of `clamped` gates frames of 8 rows are, of inputs of 16 bits; frames of one row have no pairs. Where smaller
    frames would decay too much even if all rows decayed alike, nobody looks at them."""
    LEAST: tl.constexpr = 8 if PRECISION == "tf32" else 1
    limit = -0.5 * row_block_limit(True, PRECISION)  # where a frame's last row is: half of its decay
    n_levels, strong = tl.full([], 0, tl.int32), True
    while strong & (C >> n_levels > LEAST):
        least = tl.min(_frame_decay(C >> n_levels, b_g, i_row + n_levels, C))
        strong = least <= limit
        while (least <= limit) & (C >> n_levels > LEAST):
            n_levels += 1
            least *= 0.5
    return n_levels


@triton.jit
def decayed_scores(b_a, b_x, b_y, b_g, n_levels, i_row, C: tl.constexpr, PRECISION: tl.constexpr):
    """a, float32 [C, C], plus scores of rows x [C, BD] with rows y, decayed by gates [C, BD] as they were loaded, 0
    above the diagonal. Operands are float32, or tf32: decayed ones in bfloat16 would cost the scores bits that count.
    i_row: the first row, or another number >= 0 of which the compiler does not know that. Frames come first, which
    takes least registers."""
    b_zero = tl.zeros([C, C], dtype=tl.float32)
    b_c = _frame_decay(C >> n_levels, b_g, i_row + n_levels, C)
    b_new = product(b_x * tl.exp2(b_c), tl.trans(b_y * tl.exp2(-b_c)), b_zero, tl.float32, PRECISION)
    o_i, o_j = _rows(C, i_row + n_levels + 1)
    # outside the frames and above the diagonal the product may overflow, and is thrown away here
    b_a += tl.where(frame_pairs(C >> n_levels, o_i, o_j), b_new, 0.0)
    b_self = tl.sum(b_x.to(tl.float32) * b_y.to(tl.float32), axis=1)  # no gate between
    b_a = tl.where(o_i == o_j, b_a + b_self[:, None], b_a)
    for i_level in tl.range(0, n_levels, num_stages=1, disable_licm=True):
        o_i, o_j = _rows(C, i_row + i_level)
        half = C >> (i_level + 1)
        # of a block's later half rows of x, of its earlier half rows of y: the pairs that are wanted are among its own
        b_z = tl.where((o_i & half) != 0, b_x, b_y) * tl.exp2(_level_decay(half, b_g, i_row + i_level, C))
        b_new = product(b_z, tl.trans(b_z), b_zero, tl.float32, PRECISION)
        b_a += tl.where(level_pairs(half, o_i, o_j), b_new, 0.0)
    return b_a


@triton.jit
def own_scores(
    p_q, p_k, p_g, i_row, T, stride, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr
):
    """Scores of BT rows from i_row on among themselves, without the scale: float32 [BT, BT], 0 above the diagonal.

    BK: features at once. Twice as many take a third less instructions, and more registers.
    """
    b_a = tl.zeros([BT, BT], dtype=tl.float32)
    for i_k in tl.range(0, (K + BK - 1) // BK, num_stages=1, disable_licm=True):
        o_k = i_k * BK + tl.arange(0, BK)
        b_q = load_tile(p_q, i_row, T, stride, o_k, K, BT)
        b_k = load_tile(p_k, i_row, T, stride, o_k, K, BT)
        b_g = clamped(load_tile(p_g, i_row, T, stride, o_k, K, BT), PRECISION)
        n_levels = levels_of(b_g, i_row + i_k, BT, PRECISION)
        b_a = decayed_scores(b_a, b_q, b_k, b_g, n_levels, i_row + i_k, BT, PRECISION)
    return b_a
