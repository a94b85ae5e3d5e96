"""States at the segments' boundaries, and their gradients: the two passes that walk over time.

    S_c  = Diag(e^gamma) S_{c-1} + (K e^{gamma-G})^T V            forward in time
    dS_{c-1} = Diag(e^gamma) dS_c + scale (Q e^G)^T dO            backward in time

A segment is a run of chunks that one program of the other passes walks over; with one chunk a segment, every chunk's
state is materialized in HBM (the paper's w/ m.), with a single segment none is and these passes do not run.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .gates import decayed_keys, decayed_queries
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


@triton.jit
def retreat(
    b_ds, p_q, p_do, p_g, scale, i_row, T, H, o_k, o_v,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the state [BK, BV] before the rows i_row .., from that of the state after them."""
    b_qd, b_total = decayed_queries(p_q, p_g, i_row, T, H * K, o_k, K, BT, GATED)
    b_do = load_tile(p_do, i_row, T, H * V, o_v, V, BT)
    if GATED:
        b_ds = b_ds * tl.exp2(b_total)[:, None]
    return b_ds + scale * dot(tl.trans(operand(b_qd, DOT, PRECISION)), b_do, DOT, PRECISION)


@triton.jit(do_not_specialize=["T", "n_seg"])
def states_kernel(
    p_k, p_v, p_g, p_s0, p_s, p_st, T, H, n_seg, seg_rows,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_S0: tl.constexpr, STORE_ST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """State at the start of each segment of seg_rows rows: p_s [B*H, n_seg, K, V]; at the end: p_st [B*H, K, V]."""
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_bh = i_p % NV, (i_p // NV) % NK, (i_p // (NV * NK)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_k, p_v, p_s = p_k + i_row0 * K, p_v + i_row0 * V, p_s + i_bh * n_seg * K * V
    if GATED:
        p_g += i_row0 * K

    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S0:
        b_s += load_state(p_s0 + i_bh * K * V, o_k, o_v, K, V)
    for i_t in range(0, tl.cdiv(T, BT)):
        i_row = i_t * BT
        if i_row % seg_rows == 0:
            store_state(p_s + tl.cast(i_row // seg_rows, tl.int64) * K * V, b_s, o_k, o_v, K, V)
        b_s = advance(b_s, p_k, p_v, p_g, i_row, T, H, o_k, o_v, K, V, BT, GATED, DOT, PRECISION)
    if STORE_ST:
        store_state(p_st + i_bh * K * V, b_s, o_k, o_v, K, V)


@triton.jit(do_not_specialize=["T", "n_seg"])
def grad_states_kernel(
    p_q, p_g, p_do, p_dst, p_ds, p_ds0, scale, T, H, n_seg, seg_rows,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_DST: tl.constexpr, STORE_DS0: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of the state at the end of each segment: p_ds [B*H, n_seg, K, V]; of the initial state: p_ds0."""
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_bh = i_p % NV, (i_p // NV) % NK, (i_p // (NV * NK)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_q, p_do, p_ds = p_q + i_row0 * K, p_do + i_row0 * V, p_ds + i_bh * n_seg * K * V
    if GATED:
        p_g += i_row0 * K

    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_DST:
        b_ds += load_state(p_dst + i_bh * K * V, o_k, o_v, K, V)
    n_t = tl.cdiv(T, BT)
    for i_back in range(0, n_t):
        i_row = (n_t - 1 - i_back) * BT
        if ((i_row + BT) % seg_rows == 0) | (i_back == 0):
            store_state(p_ds + tl.cast(i_row // seg_rows, tl.int64) * K * V, b_ds, o_k, o_v, K, V)
        b_ds = retreat(b_ds, p_q, p_do, p_g, scale, i_row, T, H, o_k, o_v, K, V, BT, GATED, DOT, PRECISION)
    if STORE_DS0:
        store_state(p_ds0 + i_bh * K * V, b_ds, o_k, o_v, K, V)
