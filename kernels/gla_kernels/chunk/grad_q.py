"""dQ, and its share of the gate's gradient: one program walks forward over a segment with the state on chip.

dQ = e^G (scale dO S_{c-1}^T) + [sum_j dA_ij K_j e^{G_i-G_j}]_i,   dA = scale tril(dO V^T)
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .gates import block_decay, decay, decayed_keys
from .scores import diagonal_grad_q
from .states import advance
from .tiles import dot, dot_state, load_state, load_tile, operand, store_tile


@triton.jit(do_not_specialize=["T", "n_seg", "seg_chunks"])
def grad_q_kernel(
    p_q, p_k, p_v, p_g, p_s, p_do, p_dq, p_qdq, scale, T, H, n_seg, seg_chunks, chunk,
    K: tl.constexpr, V: tl.constexpr, SINGLE: tl.constexpr, FULL: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_S: tl.constexpr, WALK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq [B, T, H, K] for one segment and one tile of K; BV covers all of V.

    p_s [B*H, n_seg, K, V]: the state at each segment's start (one segment: the initial state, if any).
    p_qdq [B, T, H, K], float32: q * dq without the terms j = i, as grad_k_kernel needs it.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    OFF: tl.constexpr = tl.float32 if FULL and GATED else DOT  # operands of products off the diagonal
    i_p = tl.program_id(0)
    i_k, i_seg, i_bh = i_p % NK, (i_p // NK) % n_seg, (i_p // (NK * n_seg)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    o_r = tl.arange(0, BT)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_q, p_k, p_v = p_q + i_row0 * K, p_k + i_row0 * K, p_v + i_row0 * V
    p_do, p_dq = p_do + i_row0 * V, p_dq + i_row0 * K
    if GATED:
        p_g, p_qdq = p_g + i_row0 * K, p_qdq + i_row0 * K

    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S:
        b_s += load_state(p_s + (i_bh * n_seg + i_seg) * K * V, o_k, o_v, K, V)
    for i_c in range(0, seg_chunks):
        i_chunk = (i_seg * seg_chunks + i_c) * chunk
        n_blocks = tl.cdiv(tl.minimum(T - i_chunk, chunk), BT)
        b_before = tl.zeros([BK], dtype=tl.float32)  # log2 of the decay from the chunk's start to the row block
        for i_a in range(0, n_blocks):
            i_row = i_chunk + i_a * BT
            b_do = load_tile(p_do, i_row, T, H * V, o_v, V, BT)
            b_v = load_tile(p_v, i_row, T, H * V, o_v, V, BT)
            b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT)
            b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT)
            # what enters from before this row block, as it is at the block's start
            b_dq = decay(dot_state(b_do, b_s, DOT, PRECISION, WALK) * scale, b_before, GATED)
            b_off = tl.zeros([BT, BK], dtype=tl.float32)
            if not SINGLE:
                b_between = tl.zeros([BK], dtype=tl.float32)  # log2 of the decay from column block to row block
                for i_back in range(0, i_a):
                    i_col = i_chunk + (i_a - 1 - i_back) * BT
                    b_kd, b_step = decayed_keys(p_k, p_g, i_col, T, H * K, o_k, K, BT, GATED)
                    b_vb = load_tile(p_v, i_col, T, H * V, o_v, V, BT)
                    b_da = operand(dot(b_do, tl.trans(b_vb), DOT, PRECISION) * scale, OFF, PRECISION)
                    b_off += decay(dot(b_da, operand(b_kd, OFF, PRECISION), OFF, PRECISION), b_between, GATED)
                    b_between += b_step
            b_prefix, b_total = block_decay(p_g, i_row, T, H * K, o_k, K, BT, BK, GATED)
            if GATED:
                b_decay = tl.exp2(b_prefix)
                b_qd = b_q.to(tl.float32) * b_decay
                b_qdq = operand(b_qd, DOT, PRECISION).to(tl.float32) * b_dq
                if not SINGLE:
                    b_qdq += operand(b_qd, OFF, PRECISION).to(tl.float32) * b_off
                b_dq = (b_dq + b_off) * b_decay
            else:
                b_dq += b_off
                b_qdq = b_dq
            b_da = dot(b_do, tl.trans(b_v), DOT, PRECISION) * scale
            b_own_dq, b_own_qdq = diagonal_grad_q(
                b_da, b_q, b_k, b_prefix, b_total, p_k, p_g, i_row, T, H * K, o_k, K, BT, BK, GATED, DOT, PRECISION
            )
            if GATED:
                store_tile(p_qdq, b_qdq + b_own_qdq, i_row, T, H * K, o_k, K, BT)
            b_self = tl.sum(tl.where(o_r[:, None] == o_r[None, :], b_da, 0.0), axis=1)
            b_dq += b_own_dq + b_self[:, None] * b_k.to(tl.float32)
            store_tile(p_dq, b_dq, i_row, T, H * K, o_k, K, BT)
            b_before += b_total
        if WALK:
            for i_b in range(0, n_blocks):
                i_row = i_chunk + i_b * BT
                b_s = advance(b_s, p_k, p_v, p_g, i_row, T, H, o_k, o_v, K, V, BT, GATED, DOT, PRECISION)
