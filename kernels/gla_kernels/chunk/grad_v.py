"""dV: one program walks backward over a segment with the state's gradient on chip.

dV = scale A^T dO + (K e^{gamma-G}) dS_c
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .gates import block_decay, decay, decayed_keys, decayed_queries
from .scores import diagonal_scores
from .states import retreat
from .tiles import dot, load_state, load_tile, store_state, store_tile


@triton.jit(do_not_specialize=["T", "n_seg", "seg_chunks"])
def grad_v_kernel(
    p_q, p_k, p_g, p_ds, p_do, p_dv, p_ds0, scale, T, H, n_seg, seg_chunks, chunk,
    K: tl.constexpr, V: tl.constexpr, SINGLE: tl.constexpr, FULL: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_DS: tl.constexpr, WALK: tl.constexpr, STORE_DS0: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv [B, T, H, V] for one segment and one tile of V; BK covers all of K.

    p_ds0 [B*H, K, V]: the initial state's gradient, written by the walk over a single segment.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_seg, i_bh = i_p % NV, (i_p // NV) % n_seg, (i_p // (NV * n_seg)).to(tl.int64)
    OFF: tl.constexpr = tl.float32 if FULL and GATED else DOT  # operands of scores off the diagonal
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_q, p_k, p_do, p_dv = p_q + i_row0 * K, p_k + i_row0 * K, p_do + i_row0 * V, p_dv + i_row0 * V
    if GATED:
        p_g += i_row0 * K

    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_DS:
        b_ds += load_state(p_ds + (i_bh * n_seg + i_seg) * K * V, o_k, o_v, K, V)
    for i_c in range(0, seg_chunks):
        i_chunk = (i_seg * seg_chunks + seg_chunks - 1 - i_c) * chunk
        n_blocks = tl.cdiv(tl.minimum(T - i_chunk, chunk), BT)
        b_after = tl.zeros([BK], dtype=tl.float32)
        for i_up in range(0, n_blocks):
            i_b = n_blocks - 1 - i_up
            i_row = i_chunk + i_b * BT
            b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT)
            b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT)
            b_do = load_tile(p_do, i_row, T, H * V, o_v, V, BT)
            b_prefix, b_total = block_decay(p_g, i_row, T, H * K, o_k, K, BT, BK, GATED)
            b_kd, _ = decayed_keys(p_k, p_g, i_row, T, H * K, o_k, K, BT, GATED)
            b_a = diagonal_scores(
                b_q, b_k, b_prefix, b_total, p_k, p_g, i_row, T, H * K, o_k, K, BT, BK, GATED, DOT, PRECISION
            )
            b_dv = dot(tl.trans((b_a * scale).to(DOT)), b_do, DOT, PRECISION)
            b_dv += dot(decay(b_kd, b_after, GATED), b_ds, DOT, PRECISION)
            if not SINGLE:
                b_between = tl.zeros([BK], dtype=tl.float32)
                for i_a in range(i_b + 1, n_blocks):
                    i_col = i_chunk + i_a * BT
                    b_qd, b_step = decayed_queries(p_q, p_g, i_col, T, H * K, o_k, K, BT, GATED)
                    b_qd = decay(b_qd, b_between, GATED)
                    b_doa = load_tile(p_do, i_col, T, H * V, o_v, V, BT)
                    b_at = dot(b_kd, tl.trans(b_qd.to(OFF)), OFF, PRECISION)
                    b_dv += dot(b_at * scale, b_doa, DOT, PRECISION)
                    b_between += b_step
            store_tile(p_dv, b_dv, i_row, T, H * V, o_v, V, BT)
            b_after += b_total
        if WALK:
            for i_up in range(0, n_blocks):
                i_row = i_chunk + (n_blocks - 1 - i_up) * BT
                b_ds = retreat(b_ds, p_q, p_do, p_g, scale, i_row, T, H, o_k, o_v, K, V, BT, GATED, DOT, PRECISION)
    if STORE_DS0:
        store_state(p_ds0 + i_bh * K * V, b_ds, o_k, o_v, K, V)
