"""The forward output: one program walks over a segment of chunks with the state on chip.

    O = scale [(Q e^G) S_{c-1} + A V],   then   S_c = Diag(e^gamma) S_{c-1} + (K e^{gamma-G})^T V

The output comes before the state's update (the 2024 paper's Algorithm 1 prints them the other way round, which counts
the chunk twice). With one chunk a segment the state comes from HBM and there is no update.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .gates import block_decay, decay, decayed_keys
from .scores import diagonal_scores
from .states import advance
from .tiles import dot, load_state, load_tile, store_state, store_tile


@triton.jit(do_not_specialize=["T", "n_seg", "seg_chunks"])
def output_kernel(
    p_q, p_k, p_v, p_g, p_s, p_o, p_st, scale, T, H, n_seg, seg_chunks, chunk,
    K: tl.constexpr, V: tl.constexpr, SINGLE: tl.constexpr, FULL: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_S: tl.constexpr, WALK: tl.constexpr, STORE_ST: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] for one segment and one tile of V; BK covers all of K.

    p_s [B*H, n_seg, K, V]: the state at each segment's start (one segment: the initial state, if any).
    p_st [B*H, K, V]: the final state, written by the walk over a single segment.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_seg, i_bh = i_p % NV, (i_p // NV) % n_seg, (i_p // (NV * n_seg)).to(tl.int64)
    OFF: tl.constexpr = tl.float32 if FULL and GATED else DOT  # operands of scores off the diagonal
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_q, p_k, p_v, p_o = p_q + i_row0 * K, p_k + i_row0 * K, p_v + i_row0 * V, p_o + i_row0 * V
    if GATED:
        p_g += i_row0 * K

    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S:
        b_s += load_state(p_s + (i_bh * n_seg + i_seg) * K * V, o_k, o_v, K, V)
    for i_c in range(0, seg_chunks):
        i_chunk = (i_seg * seg_chunks + i_c) * chunk
        n_blocks = tl.cdiv(tl.minimum(T - i_chunk, chunk), BT)
        b_before = tl.zeros([BK], dtype=tl.float32)  # log2 of the decay from the chunk's start to the row block
        for i_a in range(0, n_blocks):
            i_row = i_chunk + i_a * BT
            b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT)
            b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT)
            b_v = load_tile(p_v, i_row, T, H * V, o_v, V, BT)
            b_prefix, b_total = block_decay(p_g, i_row, T, H * K, o_k, K, BT, BK, GATED)
            b_qd = b_q.to(tl.float32) * tl.exp2(b_prefix) if GATED else b_q
            b_a = diagonal_scores(
                b_q, b_k, b_prefix, b_total, p_k, p_g, i_row, T, H * K, o_k, K, BT, BK, GATED, DOT, PRECISION
            )
            b_o = dot(b_a, b_v, DOT, PRECISION)
            b_o += dot(decay(b_qd, b_before, GATED), b_s, DOT, PRECISION)
            if not SINGLE:
                b_between = tl.zeros([BK], dtype=tl.float32)  # log2 of the decay from the column block to the row block
                for i_back in range(0, i_a):
                    i_b = i_a - 1 - i_back
                    i_col = i_chunk + i_b * BT
                    b_kd, b_step = decayed_keys(p_k, p_g, i_col, T, H * K, o_k, K, BT, GATED)
                    b_kd = decay(b_kd, b_between, GATED)
                    b_vb = load_tile(p_v, i_col, T, H * V, o_v, V, BT)
                    b_a = dot(b_qd, tl.trans(b_kd.to(OFF)), OFF, PRECISION)
                    b_o += dot(b_a, b_vb, DOT, PRECISION)
                    b_between += b_step
            store_tile(p_o, b_o * scale, i_row, T, H * V, o_v, V, BT)
            b_before += b_total
        if WALK:
            for i_b in range(0, n_blocks):
                i_row = i_chunk + i_b * BT
                b_s = advance(b_s, p_k, p_v, p_g, i_row, T, H, o_k, o_v, K, V, BT, GATED, DOT, PRECISION)
    if STORE_ST:
        store_state(p_st + i_bh * K * V, b_s, o_k, o_v, K, V)
