"""States at the segments' boundaries, and their gradients: the two passes that walk over time.

    S_c  = Diag(e^gamma) S_{c-1} + (K e^{gamma-G})^T V            forward in time
    dS_{c-1} = Diag(e^gamma) dS_c + scale (Q e^G)^T dO            backward in time

A segment is a run of chunks that one program of the other passes walks over; with one chunk a segment, every chunk's
state is materialized in HBM (the paper's w/ m.), with a single segment none is and these passes do not run.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .gates import after_rows_transposed, decayed_keys
from .products import decay_from_start, load_half, product
from .tiles import dot, load_state, load_tile, operand, store_state


@triton.jit
def advance(
    b_s, p_k, p_v, p_g, i_row, T, H, o_k, o_v,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state [BK, BV] after the rows i_row .. i_row+BT-1, from the state before them."""
    b_kd, b_total = decayed_keys(p_k, p_g, i_row, T, H * K, o_k, K, BT, GATED)
    b_v = load_tile(p_v, i_row, T, H * V, o_v, V, BT)
    if GATED:
        b_s = b_s * tl.exp2(b_total)[:, None]
    return b_s + dot(tl.trans(operand(b_kd, DOT, PRECISION)), b_v, DOT, PRECISION)


@triton.jit(do_not_specialize=["T", "n_seg", "first_seg", "n_start", "n_stored", "n_blocks", "seg_rows", "every_rows"])
def states_kernel(
    p_k, p_v, p_g, p_s0, p_s, p_h, p_st, T, H, n_seg, first_seg, n_start, n_stored, n_blocks, seg_rows, every_rows,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    EACH: tl.constexpr, HAS_S0: tl.constexpr, STORE_H: tl.constexpr, STORE_ST: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The states before every ``every_rows``-th row of the segments from ``first_seg`` on: p_s [B*H, n_stored, K, V].

    A program walks over the rows of one segment, ``seg_rows`` of them, with a tile of the state on chip. n_seg segments
    are walked over, each from its own state in p_s0 [B*H, n_start, K, V], float32, or from zero without HAS_S0. Each
    stores seg_rows / every_rows states, the sequence's end apart; EACH: one every row block.
    p_h [B*H, n_blocks, K], float32: log2 of half of each row block's decay, which the passes after this one go by.
    p_st [B*H, K, V]: the state after the sequence's last row.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_p = i_p % NV, (i_p // NV) % NK, i_p // (NV * NK)
    i_seg, i_bh = i_p % n_seg, (i_p // n_seg).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_k, p_v = p_k + i_row0 * K, p_v + i_row0 * V
    i_first = (first_seg + i_seg) * seg_rows
    p_s += (i_bh * n_stored + i_seg * (seg_rows // every_rows)) * K * V
    if GATED:
        p_g += i_row0 * K
        if STORE_H:
            p_h += (i_bh * n_blocks + i_first // BT) * K + o_k

    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S0:
        b_s += load_state(p_s0 + (i_bh * n_start + first_seg + i_seg) * K * V, o_k, o_v, K, V)
    for i_t in range(0, tl.cdiv(tl.minimum(T - i_first, seg_rows), BT)):
        i_row = i_first + i_t * BT
        if EACH:
            store_state(p_s + tl.cast(i_t, tl.int64) * K * V, b_s, o_k, o_v, K, V)
        elif (i_t * BT) % every_rows == 0:
            store_state(p_s + tl.cast((i_t * BT) // every_rows, tl.int64) * K * V, b_s, o_k, o_v, K, V)
        # keys and their decays with a feature a row: as they enter the product, without another transposition
        b_kd = tl.trans(load_tile(p_k, i_row, T, H * K, o_k, K, BT))
        b_v = load_tile(p_v, i_row, T, H * V, o_v, V, BT)
        if GATED:
            b_d, b_total = after_rows_transposed(p_g, i_row, T, H * K, o_k, K, BT, DOT)
            if STORE_H:
                tl.store(p_h + i_t * K, 0.5 * b_total, mask=(o_k < K) & (i_v == 0))
            b_kd = b_kd.to(tl.float32) * tl.exp2(b_d)
            b_s = b_s * tl.exp2(b_total)[:, None]
        b_s = tl.dot(operand(b_kd, DOT, PRECISION), b_v.to(DOT), b_s, input_precision=PRECISION)
    if STORE_ST:
        if i_first + seg_rows >= T:
            store_state(p_st + i_bh * K * V, b_s, o_k, o_v, K, V)


@triton.jit(do_not_specialize=["T", "n_seg", "first_seg", "n_end", "n_stored", "n_blocks", "seg_rows", "every_rows"])
def grad_states_kernel(
    p_q, p_g, p_do, p_h, p_dst, p_ds, p_ds0, scale,
    T, H, n_seg, first_seg, n_end, n_stored, n_blocks, seg_rows, every_rows,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    EACH: tl.constexpr, HAS_DST: tl.constexpr, STORE_DS0: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of the states after every ``every_rows``-th row: p_ds [B*H, n_stored, K, V]. As in
    states_kernel, but from the last row of a segment to its first one.

    p_dst [B*H, n_end, K, V], float32: the gradient of the state after each segment; without HAS_DST it is zero.
    p_h [B*H, n_blocks, K], float32: log2 of half of each row block's decay. p_ds0 [B*H, K, V]: the initial state's
    gradient.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_p = i_p % NV, (i_p // NV) % NK, i_p // (NV * NK)
    i_seg, i_bh = i_p % n_seg, (i_p // n_seg).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_q, p_do = p_q + i_row0 * K, p_do + i_row0 * V
    i_first = (first_seg + i_seg) * seg_rows
    p_ds += (i_bh * n_stored + i_seg * (seg_rows // every_rows)) * K * V
    if GATED:
        p_g += i_row0 * K
        p_h += (i_bh * n_blocks + i_first // BT) * K

    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_DST:
        b_ds += load_state(p_dst + (i_bh * n_end + first_seg + i_seg) * K * V, o_k, o_v, K, V)
    n_t = tl.cdiv(tl.minimum(T - i_first, seg_rows), BT)
    for i_back in range(0, n_t):
        i_t = n_t - 1 - i_back
        i_row = i_first + i_t * BT
        if EACH:
            store_state(p_ds + tl.cast(i_t, tl.int64) * K * V, b_ds, o_k, o_v, K, V)
        elif ((i_t + 1) * BT % every_rows == 0) | (i_back == 0):
            store_state(p_ds + tl.cast((i_t * BT) // every_rows, tl.int64) * K * V, b_ds, o_k, o_v, K, V)
        # queries and their decays with a feature a row: as they enter the product, without another transposition
        b_qd = tl.trans(load_tile(p_q, i_row, T, H * K, o_k, K, BT))
        b_do = load_tile(p_do, i_row, T, H * V, o_v, V, BT)
        if GATED:
            b_d = decay_from_start(tl.trans(load_tile(p_g, i_row, T, H * K, o_k, K, BT)), BT, DOT)
            b_qd = b_qd.to(tl.float32) * (scale * tl.exp2(b_d))
            b_ds = b_ds * tl.exp2(2.0 * load_half(p_h, i_t, o_k, K))[:, None]
            b_ds = product(b_qd, b_do, b_ds, DOT, PRECISION)
        else:  # a scale that is no power of two would cost q its last bits
            b_ds += scale * dot(b_qd, b_do, DOT, PRECISION)
    if STORE_DS0:
        if i_first == 0:
            store_state(p_ds0 + i_bh * K * V, b_ds, o_k, o_v, K, V)
