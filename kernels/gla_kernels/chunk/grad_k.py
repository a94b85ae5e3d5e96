"""dK and the gate's gradient: one program walks backward over a segment with the state's gradient on chip.

    dK = e^{gamma-G} (V dS_c^T) + scale sum_i dA_ij Q_i e^{G_i-G_j}
    dg_t = sum_{i>=t} (q_i dq_i - k_i dk_i) + Phi,   Phi = sum_V S dS at the segment's end

The gate's gradient needs no state per step: that is the 2024 paper's memory-efficient form (section 4.3; its appendix
C has the sign wrong). What it costs is cancellation: under strong gates dg is far smaller than the sums it is the
difference of. So both sums must carry the same rounding errors. Where a segment is one chunk, Phi is therefore not taken
from the end's state but put together from what crosses the whole chunk and from the very k*dk that are subtracted later:

    Phi = sum_V e^gamma S_{c-1} dS_c + sum_rows k dk_inter
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .gates import CLOSED, decay, decay_to_end, decayed_queries, load_gates
from .scores import diagonal_grad_k
from .states import retreat
from .tiles import dot, load_state, load_tile, store_tile


@triton.jit
def _phi_of_chunk(
    p_k, p_v, p_g, p_start, b_ds, i_chunk, T, H, o_k, o_v,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sum_V S dS at the chunk's end, [BK], in the form that cancels against k*dk (see the top of this file)."""
    n_blocks = tl.cdiv(tl.minimum(T - i_chunk, C), BT)
    b_phi = tl.zeros([BK], dtype=tl.float32)
    b_after = tl.zeros([BK], dtype=tl.float32)
    for i_up in range(0, n_blocks):
        i_row = i_chunk + (n_blocks - 1 - i_up) * BT
        b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT)
        b_v = load_tile(p_v, i_row, T, H * V, o_v, V, BT)
        b_dk = decay(dot(b_v, tl.trans(b_ds), DOT, PRECISION), b_after, True)
        b_dk *= tl.exp2(decay_to_end(p_g, i_row, T, H * K, o_k, K, BT))
        b_phi += tl.sum(b_k.to(tl.float32) * b_dk, axis=0)
        b_after += tl.sum(load_gates(p_g, i_row, T, H * K, o_k, K, BT), axis=0)
    return b_phi + tl.exp2(b_after) * tl.sum(load_state(p_start, o_k, o_v, K, V) * b_ds, axis=1)


@triton.jit
def grad_k_kernel(
    p_q, p_k, p_v, p_g, p_s, p_st, p_ds, p_do, p_qdq, p_dk, p_dg, scale, T, H, n_seg, seg_chunks,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, SUB: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_DS: tl.constexpr, HAS_ST: tl.constexpr, WALK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dg [B, T, H, K] for one segment and one tile of K; BV covers all of V.

    p_ds [B*H, n_seg, K, V]: the gradient of the state at each segment's end. p_s [B*H, n_seg, K, V]: the state at each
    segment's start. A walk over several chunks takes its end's state from the next segment's start, or from p_st
    [B*H, K, V] at the end of the sequence.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    i_p = tl.program_id(0)
    i_k, i_seg, i_bh = i_p % NK, (i_p // NK) % n_seg, (i_p // (NK * n_seg)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    o_r = tl.arange(0, BT)
    # in a walk, products with the state also serve the gate's running sums: float32 operands keep these together
    STATE: tl.constexpr = tl.float32 if WALK else DOT
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
        if i_seg + 1 < n_seg:
            b_phi += tl.sum(load_state(p_s + i_state + K * V, o_k, o_v, K, V) * b_ds, axis=1)
        elif HAS_ST:
            b_phi += tl.sum(load_state(p_st + i_bh * K * V, o_k, o_v, K, V) * b_ds, axis=1)
    if GATED and not WALK:
        b_phi += _phi_of_chunk(
            p_k, p_v, p_g, p_s + i_state, b_ds, i_seg * C, T, H, o_k, o_v, K, V, C, BT, BK, DOT, PRECISION
        )
    for i_c in range(0, seg_chunks):
        i_chunk = (i_seg * seg_chunks + seg_chunks - 1 - i_c) * C
        n_blocks = tl.cdiv(tl.minimum(T - i_chunk, C), BT)
        b_after = tl.zeros([BK], dtype=tl.float32)  # log2 of the decay from the row block to the chunk's end
        for i_up in range(0, n_blocks):
            i_b = n_blocks - 1 - i_up
            i_row = i_chunk + i_b * BT
            b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT)
            b_v = load_tile(p_v, i_row, T, H * V, o_v, V, BT)
            b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT)
            b_do = load_tile(p_do, i_row, T, H * V, o_v, V, BT)
            # everything that leaves through the block's end, anchored there
            b_dk = decay(dot(b_v, tl.trans(b_ds), STATE, PRECISION), b_after, GATED)
            b_between = tl.zeros([BK], dtype=tl.float32)
            for i_a in range(i_b + 1, n_blocks):
                i_col = i_chunk + i_a * BT
                b_qd, b_step = decayed_queries(p_q, p_g, i_col, T, H * K, o_k, K, BT, GATED)
                b_qd = decay(b_qd, b_between, GATED)
                b_dat = dot(b_v, tl.trans(load_tile(p_do, i_col, T, H * V, o_v, V, BT)), DOT, PRECISION) * scale
                if GATED and SUB > BT and (i_b * BT) // SUB == (i_a * BT) // SUB:
                    b_dk += dot(b_dat, b_qd, tl.float32, PRECISION)
                else:
                    b_dk += dot(b_dat, b_qd, DOT, PRECISION)
                b_between += b_step
            b_dat = dot(b_v, tl.trans(b_do), DOT, PRECISION) * scale
            if GATED:
                b_g = load_gates(p_g, i_row, T, H * K, o_k, K, BT)
                b_prefix = tl.cumsum(b_g, axis=0)
                b_total = tl.sum(b_g, axis=0)
                b_dk *= tl.exp2(decay_to_end(p_g, i_row, T, H * K, o_k, K, BT))
            else:
                b_prefix = tl.zeros([BT, BK], dtype=tl.float32)
                b_total = tl.zeros([BK], dtype=tl.float32)
            b_dk += diagonal_grad_k(
                b_dat, b_q, b_prefix, b_total, p_q, p_g, i_row, T, H * K, o_k, K, BT, BK, GATED, DOT, PRECISION
            )
            if GATED:
                b_diff = load_tile(p_qdq, i_row, T, H * K, o_k, K, BT) - b_k.to(tl.float32) * b_dk
                b_dg = tl.cumsum(b_diff, axis=0, reverse=True) + b_phi[None, :]
                b_phi += tl.sum(b_diff, axis=0)
                # a gate that lets nothing through has no gradient; the difference would leave rounding errors there
                b_dg = tl.where(b_g > CLOSED, b_dg, 0.0)
                store_tile(p_dg, b_dg, i_row, T, H * K, o_k, K, BT)
            b_self = tl.sum(tl.where(o_r[:, None] == o_r[None, :], b_dat, 0.0), axis=1)
            b_dk += b_self[:, None] * b_q.to(tl.float32)
            store_tile(p_dk, b_dk, i_row, T, H * K, o_k, K, BT)
            b_after += b_total
        if WALK:
            for i_up in range(0, n_blocks):
                i_row = i_chunk + (n_blocks - 1 - i_up) * BT
                b_ds = retreat(b_ds, p_q, p_do, p_g, scale, i_row, T, H, o_k, o_v, K, V, BT, GATED, DOT, PRECISION)
