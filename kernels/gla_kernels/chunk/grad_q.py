"""dQ, and its share of the gate's gradient: one program walks forward over a segment with the state on chip.

    dQ = scale [e^G (dO S_{c-1}^T) + sum_j dA_ij K_j e^{G_i-G_j}],   dA = tril(dO V^T)
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .gates import decay, decayed_keys, load_gates
from .scores import diagonal_grad_q
from .states import advance
from .tiles import dot, load_state, load_tile, store_tile


@triton.jit
def grad_q_kernel(
    p_q, p_k, p_v, p_g, p_s, p_do, p_dq, p_qdq, scale, T, H, n_seg, seg_chunks,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, SUB: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_S: tl.constexpr, WALK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq [B, T, H, K] for one segment and one tile of K; BV covers all of V.

    p_qdq [B, T, H, K], float32: q * dq without the terms j = i, which pass through no gate (see diagonal_grad_q).
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    i_p = tl.program_id(0)
    i_k, i_seg, i_bh = i_p % NK, (i_p // NK) % n_seg, (i_p // (NK * n_seg)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    o_r = tl.arange(0, BT)
    STATE: tl.constexpr = tl.float32 if WALK else DOT  # as in grad_k_kernel
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_k, p_v, p_do, p_dq = p_k + i_row0 * K, p_v + i_row0 * V, p_do + i_row0 * V, p_dq + i_row0 * K
    if GATED:
        p_q, p_g, p_qdq = p_q + i_row0 * K, p_g + i_row0 * K, p_qdq + i_row0 * K

    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S:
        b_s += load_state(p_s + (i_bh * n_seg + i_seg) * K * V, o_k, o_v, K, V)
    for i_c in range(0, seg_chunks):
        i_chunk = (i_seg * seg_chunks + i_c) * C
        n_blocks = tl.cdiv(tl.minimum(T - i_chunk, C), BT)
        b_before = tl.zeros([BK], dtype=tl.float32)
        for i_a in range(0, n_blocks):
            i_row = i_chunk + i_a * BT
            b_do = load_tile(p_do, i_row, T, H * V, o_v, V, BT)
            b_v = load_tile(p_v, i_row, T, H * V, o_v, V, BT)
            b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT)
            if GATED:
                b_g = load_gates(p_g, i_row, T, H * K, o_k, K, BT)
                b_prefix = tl.cumsum(b_g, axis=0)
                b_total = tl.sum(b_g, axis=0)
            else:
                b_prefix = tl.zeros([BT, BK], dtype=tl.float32)
                b_total = tl.zeros([BK], dtype=tl.float32)
            # everything that enters before this row block, anchored at the block's start
            b_dq = decay(dot(b_do, tl.trans(b_s), STATE, PRECISION), b_before, GATED)
            b_between = tl.zeros([BK], dtype=tl.float32)
            for i_back in range(0, i_a):
                i_b = i_a - 1 - i_back
                i_col = i_chunk + i_b * BT
                b_kd, b_step = decayed_keys(p_k, p_g, i_col, T, H * K, o_k, K, BT, GATED)
                b_kd = decay(b_kd, b_between, GATED)
                b_da = dot(b_do, tl.trans(load_tile(p_v, i_col, T, H * V, o_v, V, BT)), DOT, PRECISION)
                if GATED and SUB > BT and (i_b * BT) // SUB == (i_a * BT) // SUB:
                    b_dq += dot(b_da, b_kd, tl.float32, PRECISION)
                else:
                    b_dq += dot(b_da, b_kd, DOT, PRECISION)
                b_between += b_step
            if GATED:
                b_dq *= tl.exp2(b_prefix)
            b_da = dot(b_do, tl.trans(b_v), DOT, PRECISION)
            b_dq += diagonal_grad_q(
                b_da, b_k, b_prefix, b_total, p_k, p_g, i_row, T, H * K, o_k, K, BT, BK, GATED, DOT, PRECISION
            )
            if GATED:
                b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT)
                store_tile(p_qdq, b_q.to(tl.float32) * b_dq * scale, i_row, T, H * K, o_k, K, BT)
            b_self = tl.sum(tl.where(o_r[:, None] == o_r[None, :], b_da, 0.0), axis=1)
            b_dq += b_self[:, None] * b_k.to(tl.float32)
            store_tile(p_dq, b_dq * scale, i_row, T, H * K, o_k, K, BT)
            b_before += b_total
        if WALK:
            for i_b in range(0, n_blocks):
                i_row = i_chunk + i_b * BT
                b_s = advance(b_s, p_k, p_v, p_g, i_row, T, H, o_k, o_v, K, V, BT, GATED, DOT, PRECISION)
