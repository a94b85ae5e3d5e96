"""The scores inside a chunk at any gate strength, and sums over them, as products of whole tiles.

Two rows j < i of a chunk lie in different halves of just one of its blocks of 2, 4, 8 .. BT rows. From the border in
that block's middle, both decays are sums of the gates between and at most 1:

    A_ij = sum_k (q_ik e^{gates from the border to i}) (k_jk e^{gates after j, up to the border})

So A is its diagonal, which no gate touches, and a sum over log2(BT) levels. At each of them every row is scaled once,

    Z_i = q_i e^{..} in a block's later half,  k_i e^{..} in its earlier one,

and of Z Z^T the pairs of that level are kept. The gradients go the same way: with B = the level's pairs of dA, and
mirrored on the diagonal, R = B Z is what the rows of either half get from those of the other, before their own decay:

    dq_i += e^{..} R_i  in a later half,  dk_j += e^{..} R_j  in an earlier one,   q dq - k dk += Z R or -Z R

No guard is needed, and no loop over rows. Where gates are mild one anchor does (products.py), at a sixth of the cost.
Gates that are too strong for that over a chunk are mostly mild over ROWS rows of it: then an anchor in the middle of
each block of ROWS (`middle_sums`) stands for all levels within it, in one product.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..launch import interpreting
from .gates import (
    CENTRED_LIMIT,
    CLOSED,
    LOG2E,
    after_rows,
    load_gates,
    row_block_limit,
    summed,
    up_to_rows,
    whole_decay,
)
from .products import dot_rows, product, sums_from
from .tiles import cut, dot_half, fine, load_operand, load_tile, store_tile

# Where products of bfloat16 are wrong (`problem.operand_type`), and no tensor core asks for them.
INTERPRETED: tl.constexpr = tl.constexpr(interpreting())

ROWS: tl.constexpr = tl.constexpr(16)  # of a block with an anchor of its own
LEVELS_IN_BLOCK: tl.constexpr = tl.constexpr(4)

# The matrices below are of rows o_i and o_s, or o_j: [BT, 1] and [1, BT], or [1, BT] and [BT, 1] for a transposed one.
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
def middle_sums(o_i, o_s):
    """m, 1/2, -1/2 or 0: m @ g are half of the gates of a row's block of ROWS up to that row, less half of those after
    it, so that differences in a block are the gates between two rows."""
    return tl.where((o_i & -ROWS) == (o_s & -ROWS), tl.where(o_s <= o_i, 0.5, -0.5), 0.0)


@triton.jit
def middle_pairs(o_i, o_j):
    """Whether rows i > j are in the same block of ROWS."""
    return ((o_i & -ROWS) == (o_j & -ROWS)) & (o_i > o_j)


@triton.jit
def blocks_are_mild(b_c, PRECISION: tl.constexpr):
    """Whether decays from the middle of each block of ROWS, in powers of two [BT, BK], are safe as factors."""
    least = tl.min(tl.min(b_c, axis=1), axis=0)
    return (least > -0.5 * CENTRED_LIMIT) & (least > -0.5 * row_block_limit(True, PRECISION))


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
def scores_by_halving(
    p_q, p_k, p_g, i_row, T, stride, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A without the scale, float32 [BT, BT], 0 above the diagonal."""
    LEVELS: tl.constexpr = BT.bit_length() - 1
    o_r = tl.arange(0, BT)
    b_a = tl.zeros([BT, BT], dtype=tl.float32)
    for i_k in tl.range(0, (K + BK - 1) // BK, num_stages=1):
        o_k = i_k * BK + tl.arange(0, BK)
        b_q = load_tile(p_q, i_row, T, stride, o_k, K, BT).to(tl.float32)
        b_k = load_tile(p_k, i_row, T, stride, o_k, K, BT).to(tl.float32)
        b_g = load_tile(p_g, i_row, T, stride, o_k, K, BT)
        b_a += tl.where(o_r[:, None] == o_r[None, :], tl.sum(b_q * b_k, axis=1)[:, None], 0.0)
        b_c = log_decay(middle_sums(o_r[:, None], o_r[None, :]), b_g)
        is_mild = blocks_are_mild(b_c, PRECISION)
        if is_mild:
            b_zh, b_zl = cut(b_q * tl.exp2(b_c), DOT, PRECISION)
            b_z = b_k * tl.exp2(-b_c)
            b_new = dot_rows(b_zh, b_zl, tl.trans(b_z), tl.zeros([BT, BT], dtype=tl.float32), True, DOT, PRECISION)
            b_a += tl.where(middle_pairs(o_r[:, None], o_r[None, :]), b_new, 0.0)
        for i_level in tl.range(0, tl.where(is_mild, LEVELS - LEVELS_IN_BLOCK, LEVELS), num_stages=1):
            half = BT >> (i_level + 1)
            b_e = tl.exp2(log_decay(level_sums(half, o_r[:, None], o_r[None, :]), b_g))
            b_z = tl.where((o_r & half != 0)[:, None], b_q, b_k) * b_e
            b_zh, b_zl = cut(b_z, DOT, PRECISION)
            b_new = dot_rows(b_zh, b_zl, tl.trans(b_z), tl.zeros([BT, BT], dtype=tl.float32), True, DOT, PRECISION)
            b_a += tl.where(level_pairs(half, o_r[:, None], o_r[None, :]), b_new, 0.0)
    return b_a


@triton.jit
def output_by_halving(
    p_q, p_k, p_v, p_g, p_s, p_o, scale, i_row, T, H, o_v, K: tl.constexpr, V: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Columns o_v [BV] of o of a chunk of one row block, output.py's equations. p_s [K, V]."""
    b_a = scores_by_halving(p_q, p_k, p_g, i_row, T, H * K, K, BT, BK, DOT, PRECISION)
    b_v = load_tile(p_v, i_row, T, H * V, o_v, V, BT)
    b_o = dot_half(b_a, b_v, tl.zeros([BT, BV], dtype=tl.float32), DOT, PRECISION)
    for i_k in tl.range(0, (K + BK - 1) // BK, num_stages=1):
        o_k = i_k * BK + tl.arange(0, BK)
        b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT).to(tl.float32)
        b_q *= tl.exp2(up_to_rows(load_tile(p_g, i_row, T, H * K, o_k, K, BT), BT, DOT))
        b_o = product(b_q, load_operand(p_s, o_k, o_v, K, V), b_o, DOT, PRECISION)
    store_tile(p_o, b_o * scale, i_row, T, H * V, o_v, V, BT)


@triton.jit
def grad_v_by_halving(
    p_q, p_k, p_g, p_do, p_ds, p_dv, scale, i_row, T, H, o_v, K: tl.constexpr, V: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Columns o_v [BV] of dv of a chunk of one row block, grad_v.py's equations. p_ds [K, V]."""
    b_at = tl.trans(scores_by_halving(p_q, p_k, p_g, i_row, T, H * K, K, BT, BK, DOT, PRECISION)) * scale
    b_do = load_tile(p_do, i_row, T, H * V, o_v, V, BT)
    b_dv = dot_half(b_at, b_do, tl.zeros([BT, BV], dtype=tl.float32), DOT, PRECISION)
    for i_k in tl.range(0, (K + BK - 1) // BK, num_stages=1):
        o_k = i_k * BK + tl.arange(0, BK)
        b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT).to(tl.float32)
        b_g = load_tile(p_g, i_row, T, H * K, o_k, K, BT)
        b_k *= tl.exp2(after_rows(b_g, p_g, i_row, T, H * K, o_k, K, BT, DOT))
        b_dv = product(b_k, load_operand(p_ds, o_k, o_v, K, V), b_dv, DOT, PRECISION)
    store_tile(p_dv, b_dv, i_row, T, H * V, o_v, V, BT)


@triton.jit
def through_states(
    p_do, p_v, p_s, p_ds, i_row, T, stride, o_k, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """do S^T and v dS^T, float32 [BT, BK], and the sum over V of S dS, float32 [BK]: each tile of V is waited for once,
    where `products.through_state` and `crossing` would wait three times."""
    b_x = tl.zeros([BT, BK], dtype=tl.float32)
    b_y = tl.zeros([BT, BK], dtype=tl.float32)
    b_phi = tl.zeros([BK], dtype=tl.float32)
    for i_v in tl.range(0, (V + BV - 1) // BV, num_stages=1):
        o_v = i_v * BV + tl.arange(0, BV)
        b_do = load_tile(p_do, i_row, T, stride, o_v, V, BT)
        b_v = load_tile(p_v, i_row, T, stride, o_v, V, BT)
        b_s, b_ds = load_operand(p_s, o_k, o_v, K, V), load_operand(p_ds, o_k, o_v, K, V)
        b_x = product(b_do, tl.trans(b_s), b_x, DOT, PRECISION)
        b_y = product(b_v, tl.trans(b_ds), b_y, DOT, PRECISION)
        b_phi += tl.sum(b_s.to(tl.float32) * b_ds.to(tl.float32), axis=1)
    return b_x, b_y, b_phi


@triton.jit
def grad_qk_by_halving(
    p_q, p_k, p_v, p_g, p_do, p_s, p_ds, p_dq, p_dk, p_dg, b_da, scale, i_row, T, H, o_k,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, dk and dg of a chunk of one row block and of BK features, grad_qk.py's equations. p_s, p_ds [K, V]; b_da:
    dA of all its rows."""
    LEVELS: tl.constexpr = BT.bit_length() - 1
    o_r = tl.arange(0, BT)
    b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT)
    b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT)
    b_g = load_tile(p_g, i_row, T, H * K, o_k, K, BT)
    # what comes through the states
    b_x, b_y, b_phi = through_states(p_do, p_v, p_s, p_ds, i_row, T, H * V, o_k, K, V, BT, BK, BV, DOT, PRECISION)
    b_x *= scale
    b_e = tl.exp2(up_to_rows(b_g, BT, DOT))
    b_dq = b_x * b_e
    b_diff = fine(b_q.to(tl.float32) * b_e, DOT, PRECISION) * b_x
    b_e = tl.exp2(after_rows(b_g, p_g, i_row, T, H * K, o_k, K, BT, DOT))
    b_dk = b_y * b_e
    b_y *= fine(b_k.to(tl.float32) * b_e, DOT, PRECISION)
    b_diff -= b_y
    b_phi = b_phi * tl.exp2(whole_decay(b_g, BT, DOT)) + tl.sum(b_y, axis=0)
    # inside the chunk; a row's own scores go through no gate
    b_self = tl.sum(tl.where(o_r[:, None] == o_r[None, :], b_da, 0.0), axis=1)[:, None]
    b_dq += b_self * b_k.to(tl.float32)
    b_dk += b_self * b_q.to(tl.float32)
    b_c = log_decay(middle_sums(o_r[:, None], o_r[None, :]), b_g)
    is_mild = blocks_are_mild(b_c, PRECISION)
    if is_mild:
        b_b = tl.where(middle_pairs(o_r[:, None], o_r[None, :]), b_da, 0.0)
        b_e = tl.exp2(-b_c)
        b_z = b_k * b_e
        b_bh, b_bl = cut(b_b, DOT, PRECISION)
        b_r = dot_rows(b_bh, b_bl, b_z, tl.zeros([BT, BK], dtype=tl.float32), True, DOT, PRECISION)
        b_u = b_q * tl.exp2(b_c)
        b_diff += fine(b_u, DOT, PRECISION) * b_r
        b_dq += b_r * tl.exp2(b_c)
        b_bh, b_bl = cut(tl.trans(b_b), DOT, PRECISION)
        b_r = dot_rows(b_bh, b_bl, b_u, tl.zeros([BT, BK], dtype=tl.float32), True, DOT, PRECISION)
        b_diff -= fine(b_z, DOT, PRECISION) * b_r
        b_dk += b_r * b_e
    for i_level in tl.range(0, tl.where(is_mild, LEVELS - LEVELS_IN_BLOCK, LEVELS), num_stages=1):
        half = BT >> (i_level + 1)
        m_later = (o_r & half != 0)[:, None]
        # q, k and g from the cache at each level: kept in registers from one to the next, they spill
        b_g = load_tile(p_g, i_row, T, H * K, o_k, K, BT)
        b_e = tl.exp2(log_decay(level_sums(half, o_r[:, None], o_r[None, :]), b_g))
        b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT)
        b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT)
        b_z = tl.where(m_later, b_q, b_k).to(tl.float32) * b_e
        b_b = tl.where(level_pairs(half, o_r[:, None], o_r[None, :]), b_da, 0.0)
        b_bh, b_bl = cut(b_b + tl.trans(b_b), DOT, PRECISION)
        b_r = dot_rows(b_bh, b_bl, b_z, tl.zeros([BT, BK], dtype=tl.float32), True, DOT, PRECISION)
        b_z = fine(b_z, DOT, PRECISION) * b_r
        b_diff += tl.where(m_later, b_z, -b_z)
        b_r *= b_e
        b_dq += tl.where(m_later, b_r, 0.0)
        b_dk += tl.where(m_later, 0.0, b_r)
    store_tile(p_dq, b_dq, i_row, T, H * K, o_k, K, BT)
    store_tile(p_dk, b_dk, i_row, T, H * K, o_k, K, BT)
    b_dg = sums_from(b_diff, BT, DOT, PRECISION) + b_phi[None, :]
    # a gate that lets nothing through has no gradient; the difference would leave rounding errors there
    b_dg = tl.where(load_gates(p_g, i_row, T, H * K, o_k, K, BT) > CLOSED, b_dg, 0.0)
    store_tile(p_dg, b_dg, i_row, T, H * K, o_k, K, BT)
