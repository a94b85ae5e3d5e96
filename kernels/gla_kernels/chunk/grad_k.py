"""dK and the gate's gradient: one program walks backward over a segment with the state's gradient on chip.

    dK = e^{gamma-G} (V dS_c^T) + [sum_i dA_ij Q_i e^{G_i-G_j}]_j,   dA = scale tril(dO V^T)
    dg_t = sum_{i>=t} (q_i dq_i - k_i dk_i) + Phi,   Phi = sum_V S dS at the segment's end

The gate's gradient needs no state per step: that is the 2024 paper's memory-efficient form (section 4.3; its appendix
C has the sign wrong). What it costs is cancellation. A pair of rows (j, i) with t <= j < i adds to q_i dq_i and to
k_j dk_j alike, but has no part in dg_t; under strong gates such pairs outweigh dg_t by far. They cancel only if both
sums hold the same value for the pair, so both kernels form it from the same rounded operands (tiles.operand):

    pair (j, i) = dA_ij * [q_i e^{decay from the row block's start}] * [k_j e^{decay to the column block's end}] * rest

with the rest, the decay between the blocks, in float32. The same holds for Phi. Where a segment is one chunk, it is put
together from what crosses the whole chunk and from the very k dk that are subtracted later:

    Phi = sum_V e^gamma S_{c-1} dS_c + sum_rows k dk_inter

A walk over several chunks takes Phi from the states at the segment's end, and states enter its products unrounded.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .gates import CLOSED, block_decay, decay, decay_to_end, decayed_keys, decayed_queries, load_gates
from .scores import diagonal_grad_k
from .states import retreat
from .tiles import dot, dot_state, load_state, load_tile, operand, store_tile


@triton.jit
def _leaving(
    p_k, p_v, p_g, b_ds, i_chunk, T, H, chunk, o_k, o_v,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum over the chunk's rows of k dk_inter [BK], and log2 of the chunk's decay [BK]."""
    n_blocks = tl.cdiv(tl.minimum(T - i_chunk, chunk), BT)
    b_kdk = tl.zeros([BK], dtype=tl.float32)
    b_after = tl.zeros([BK], dtype=tl.float32)
    for i_up in range(0, n_blocks):
        i_row = i_chunk + (n_blocks - 1 - i_up) * BT
        b_kd, b_total = decayed_keys(p_k, p_g, i_row, T, H * K, o_k, K, BT, True)
        b_v = load_tile(p_v, i_row, T, H * V, o_v, V, BT)
        b_dk = decay(dot_state(b_v, b_ds, DOT, PRECISION, False), b_after, True)
        b_kdk += tl.sum(operand(b_kd, DOT, PRECISION).to(tl.float32) * b_dk, axis=0)
        b_after += b_total
    return b_kdk, b_after


@triton.jit(do_not_specialize=["T", "n_seg", "seg_chunks"])
def grad_k_kernel(
    p_q, p_k, p_v, p_g, p_s, p_st, p_ds, p_do, p_qdq, p_dk, p_dg, scale, T, H, n_seg, seg_chunks, chunk,
    K: tl.constexpr, V: tl.constexpr, SINGLE: tl.constexpr, FULL: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_S: tl.constexpr, HAS_DS: tl.constexpr, HAS_ST: tl.constexpr, WALK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dg [B, T, H, K] for one segment and one tile of K; BV covers all of V.

    p_ds [B*H, n_seg, K, V]: the gradient of the state at each segment's end. p_s [B*H, n_seg, K, V]: the state at each
    segment's start. A walk over several chunks takes its end's state from the next segment's start, or from p_st
    [B*H, K, V] at the end of the sequence.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    OFF: tl.constexpr = tl.float32 if FULL and GATED else DOT  # operands of products off the diagonal
    i_p = tl.program_id(0)
    i_k, i_seg, i_bh = i_p % NK, (i_p // NK) % n_seg, (i_p // (NK * n_seg)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    o_r = tl.arange(0, BT)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_q, p_k, p_v = p_q + i_row0 * K, p_k + i_row0 * K, p_v + i_row0 * V
    p_do, p_dk = p_do + i_row0 * V, p_dk + i_row0 * K
    if GATED:
        p_g, p_qdq, p_dg = p_g + i_row0 * K, p_qdq + i_row0 * K, p_dg + i_row0 * K

    i_state = (i_bh * n_seg + i_seg) * K * V
    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    b_phi = tl.zeros([BK], dtype=tl.float32)
    if HAS_DS:
        b_ds += load_state(p_ds + i_state, o_k, o_v, K, V)
    if GATED and WALK and HAS_DS:
        if HAS_S:
            if i_seg + 1 < n_seg:
                b_phi += tl.sum(load_state(p_s + i_state + K * V, o_k, o_v, K, V) * b_ds, axis=1)
        if HAS_ST:
            if i_seg + 1 == n_seg:
                b_phi += tl.sum(load_state(p_st + i_bh * K * V, o_k, o_v, K, V) * b_ds, axis=1)
    if GATED and not WALK:
        b_crossing = tl.sum(load_state(p_s + i_state, o_k, o_v, K, V) * b_ds, axis=1)
        if SINGLE:
            b_phi += b_crossing  # completed in the loop, where the only block's k dk_inter are at hand
        else:
            b_leaving, b_gamma = _leaving(
                p_k, p_v, p_g, b_ds, i_seg * chunk, T, H, chunk, o_k, o_v, K, V, BT, BK, DOT, PRECISION
            )
            b_phi += b_crossing * tl.exp2(b_gamma) + b_leaving
    for i_c in range(0, seg_chunks):
        i_chunk = (i_seg * seg_chunks + seg_chunks - 1 - i_c) * chunk
        n_blocks = tl.cdiv(tl.minimum(T - i_chunk, chunk), BT)
        b_after = tl.zeros([BK], dtype=tl.float32)  # log2 of the decay from the row block to the chunk's end
        for i_up in range(0, n_blocks):
            i_b = n_blocks - 1 - i_up
            i_row = i_chunk + i_b * BT
            b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT)
            b_v = load_tile(p_v, i_row, T, H * V, o_v, V, BT)
            b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT)
            b_do = load_tile(p_do, i_row, T, H * V, o_v, V, BT)
            # what leaves through the block's end, as it is there
            b_dk = decay(dot_state(b_v, b_ds, DOT, PRECISION, WALK), b_after, GATED)
            b_off = tl.zeros([BT, BK], dtype=tl.float32)
            if not SINGLE:
                b_between = tl.zeros([BK], dtype=tl.float32)  # log2 of the decay from column block to row block
                for i_a in range(i_b + 1, n_blocks):
                    i_col = i_chunk + i_a * BT
                    b_qd, b_step = decayed_queries(p_q, p_g, i_col, T, H * K, o_k, K, BT, GATED)
                    b_doa = load_tile(p_do, i_col, T, H * V, o_v, V, BT)
                    b_dat = operand(dot(b_v, tl.trans(b_doa), DOT, PRECISION) * scale, OFF, PRECISION)
                    b_off += decay(dot(b_dat, operand(b_qd, OFF, PRECISION), OFF, PRECISION), b_between, GATED)
                    b_between += b_step
            b_prefix, b_total = block_decay(p_g, i_row, T, H * K, o_k, K, BT, BK, GATED)
            if GATED:
                b_decay = tl.exp2(decay_to_end(p_g, i_row, T, H * K, o_k, K, BT))
                b_kd = b_k.to(tl.float32) * b_decay
                b_kdk = operand(b_kd, DOT, PRECISION).to(tl.float32) * b_dk
                if not SINGLE:
                    b_kdk += operand(b_kd, OFF, PRECISION).to(tl.float32) * b_off
                elif not WALK:
                    b_phi = b_phi * tl.exp2(b_total) + tl.sum(b_kdk, axis=0)
                b_dk = (b_dk + b_off) * b_decay
            else:
                b_dk += b_off
                b_kdk = b_dk
            b_dat = dot(b_v, tl.trans(b_do), DOT, PRECISION) * scale
            b_own_dk, b_own_kdk = diagonal_grad_k(
                b_dat, b_q, b_k, b_prefix, b_total, p_q, p_g, i_row, T, H * K, o_k, K, BT, BK, GATED, DOT, PRECISION
            )
            if GATED:
                b_diff = load_tile(p_qdq, i_row, T, H * K, o_k, K, BT) - (b_kdk + b_own_kdk)
                b_dg = tl.cumsum(b_diff, axis=0, reverse=True) + b_phi[None, :]
                b_phi += tl.sum(b_diff, axis=0)
                # a gate that lets nothing through has no gradient; the difference would leave rounding errors there
                b_dg = tl.where(load_gates(p_g, i_row, T, H * K, o_k, K, BT) > CLOSED, b_dg, 0.0)
                store_tile(p_dg, b_dg, i_row, T, H * K, o_k, K, BT)
            b_self = tl.sum(tl.where(o_r[:, None] == o_r[None, :], b_dat, 0.0), axis=1)
            b_dk += b_own_dk + b_self[:, None] * b_q.to(tl.float32)
            store_tile(p_dk, b_dk, i_row, T, H * K, o_k, K, BT)
            b_after += b_total
        if WALK:
            for i_up in range(0, n_blocks):
                i_row = i_chunk + (n_blocks - 1 - i_up) * BT
                b_ds = retreat(b_ds, p_q, p_do, p_g, scale, i_row, T, H, o_k, o_v, K, V, BT, GATED, DOT, PRECISION)
