"""Products with decayed rows in the frame of a block's middle, and sums over rows as products: what the passes of the
gradients share.

With C the decay of a row counted from the middle of its block's decay, and h half of the block's decay (log2, both),
a row of q and a row of k of one block meet as (q e^C)(k e^-C), and e^h leads from the block's start to its middle, and
from there to its end. So every row is scaled once, and what remains is a factor for each feature.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .gates import row_block_limit, triangle
from .operands import cut, load_operand, load_tile, operand, split


@triton.jit
def product(b_x, b_y, b_acc, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """acc + x @ y, the operands rounded to what a tensor core reads."""
    return tl.dot(operand(b_x, DOT, PRECISION), operand(b_y, DOT, PRECISION), b_acc, input_precision=PRECISION)


@triton.jit
def dot_rows(b_ah, b_al, b_x, b_acc, GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """acc + a @ x for scores' gradients a, `tiles.cut` in two, and rows x: decayed ones in float32, or inputs as they
    are. Both enter as `tiles.fine` shows them, but for the product of their low parts."""
    if GATED and DOT == tl.bfloat16:
        b_xh, b_xl = cut(b_x, DOT, PRECISION)
        b_acc = tl.dot(b_ah, b_xh, b_acc)
        b_acc = tl.dot(b_al, b_xh, b_acc)
        b_acc = tl.dot(b_ah, b_xl, b_acc)
    elif DOT == tl.bfloat16:
        b_acc = tl.dot(b_ah, b_x, b_acc)
        b_acc = tl.dot(b_al, b_x, b_acc)
    else:
        b_acc = tl.dot(b_ah, operand(b_x, DOT, PRECISION), b_acc, input_precision=PRECISION)
    return b_acc


@triton.jit
def sums_from(b_x, BT: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Sum of each row and those after it, float32 [BT, BK]: a product with a triangle of ones, x in two halves where
    one operand would lose bits that count."""
    if DOT == tl.bfloat16:
        b_m = tl.trans(triangle(1.0, 0.0, BT, DOT))
        b_high, b_low = split(b_x, DOT)
        b_sum = tl.dot(b_m, b_high, tl.dot(b_m, b_low))
    else:
        b_m = tl.trans(triangle(1.0, 0.0, BT, tl.float32))
        b_high = operand(b_x, tl.float32, PRECISION)
        b_sum = tl.dot(b_m, b_high, input_precision=PRECISION)
        if PRECISION == "tf32":
            b_sum = tl.dot(b_m, b_x - b_high, b_sum, input_precision=PRECISION)
    return b_sum


@triton.jit
def load_half(p_h, i_block, o_k, K: tl.constexpr):
    """Log2 of half of a row block's decay, float32 [BK], from p_h [n_blocks, K]; 0 from K on."""
    return tl.load(p_h + tl.cast(i_block, tl.int64) * K + o_k, mask=o_k < K, other=0.0)


@triton.jit
def decay_over(p_h, i_block, i_end, o_k, K: tl.constexpr):
    """Log2 of the decay over the row blocks i_block .. i_end-1, float32 [BK]."""
    b_sum = tl.zeros([o_k.shape[0]], dtype=tl.float32)
    for i in tl.range(i_block, i_end, num_stages=1):
        b_sum += load_half(p_h, i, o_k, K)
    return 2.0 * b_sum


@triton.jit
def are_mild(p_h, i_block, i_end, o_k, K: tl.constexpr, SINGLE: tl.constexpr, PRECISION: tl.constexpr):
    """Whether every feature o_k decays little enough in each of the row blocks i_block .. i_end-1: the guard of all
    that is counted from a block's middle (gates.row_block_limit)."""
    b_least = tl.zeros([o_k.shape[0]], dtype=tl.float32)
    for i in range(i_block, i_end):
        b_least = tl.minimum(b_least, load_half(p_h, i, o_k, K))
    return tl.min(b_least, axis=0) > -0.5 * row_block_limit(SINGLE, PRECISION)


@triton.jit
def scores_gradient(
    p_do, p_v, scale, i_row, i_col, T, stride, V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dA = scale dO V^T of a row block and a column block, float32 [BT, BT], not masked."""
    b_da = tl.zeros([BT, BT], dtype=tl.float32)
    for i_v in tl.range(0, (V + BV - 1) // BV, num_stages=1):
        o_v = i_v * BV + tl.arange(0, BV)
        b_do = load_tile(p_do, i_row, T, stride, o_v, V, BT)
        b_v = load_tile(p_v, i_col, T, stride, o_v, V, BT)
        b_da = product(b_do, tl.trans(b_v), b_da, DOT, PRECISION)
    return b_da * scale


@triton.jit
def through_state(
    p_x, p_s, i_row, T, stride, o_k, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, V_FIRST: tl.constexpr = False,
):  # fmt: skip
    """x s^T for the rows of p_x [., V] and a state p_s [K, V], V_FIRST [V, K]: float32 [BT, BK]."""
    b_y = tl.zeros([BT, BK], dtype=tl.float32)
    for i_v in tl.range(0, (V + BV - 1) // BV, num_stages=1):
        o_v = i_v * BV + tl.arange(0, BV)
        b_x = load_tile(p_x, i_row, T, stride, o_v, V, BT)
        b_y = product(b_x, tl.trans(load_operand(p_s, o_k, o_v, K, V, V_FIRST)), b_y, DOT, PRECISION)
    return b_y


@triton.jit
def crossing(
    p_s, p_ds, o_k, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    V_FIRST: tl.constexpr = False, DS_V_FIRST: tl.constexpr = False,
):  # fmt: skip
    """Sum over V of S dS, float32 [BK]."""
    b_phi = tl.zeros([BK], dtype=tl.float32)
    for i_v in tl.range(0, (V + BV - 1) // BV, num_stages=1):
        o_v = i_v * BV + tl.arange(0, BV)
        b_s = load_operand(p_s, o_k, o_v, K, V, V_FIRST).to(tl.float32)
        b_phi += tl.sum(b_s * load_operand(p_ds, o_k, o_v, K, V, DS_V_FIRST).to(tl.float32), axis=1)
    return b_phi
