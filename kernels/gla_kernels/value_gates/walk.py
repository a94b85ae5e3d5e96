"""States before each chunk, and gradients of the states after each: the walk over time, both ways.

    S'  = e^{sum g} S e^{sum gv}  + (k e^{sum of g after})^T (v e^{sum of gv after})         forward in time
    dS' = e^{sum g} dS e^{sum gv} + scale (q e^{sum of g until})^T (do e^{sum of gv until})  backward in time

sums over the rows of a chunk; "after" and "until" a row, its own gate counted in the latter alone.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.gates import LOG2E, after_rows, limited, up_to_rows
from ..tiles.operands import load_state, load_tile, store_state
from ..tiles.products import product


@triton.jit
def total_decay(b_g):
    """Log2 of the decay over all rows of a chunk's gates, float32 [BD]. Not `gates.whole_decay`, a product of few
    columns: see `Problem._columns`."""
    return tl.sum(b_g.to(tl.float32), axis=0) * LOG2E


@triton.jit
def decayed_rows(
    p_x, p_g, i_row, T, stride, o_d, D: tl.constexpr, C: tl.constexpr, UNTIL: tl.constexpr, GATED: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Rows decayed from the chunk's start (UNTIL) or to its end, float32 [C, BD], and log2 of the chunk's whole decay
    [BD]; without gates the rows as they are."""
    b_x = load_tile(p_x, i_row, T, stride, o_d, D, C)
    b_total = tl.zeros([o_d.shape[0]], dtype=tl.float32)
    if GATED:
        b_g = limited(load_tile(p_g, i_row, T, stride, o_d, D, C))
        b_total += total_decay(b_g)
        if UNTIL:
            b_x = b_x.to(tl.float32) * tl.exp2(up_to_rows(b_g, C, DOT))
        else:
            b_x = b_x.to(tl.float32) * tl.exp2(after_rows(b_g, p_g, i_row, T, stride, o_d, D, C, DOT))
    return b_x, b_total


@triton.jit(do_not_specialize=["T", "n_here", "first_chunk"])
def gv_walk_kernel(
    p_x, p_y, p_gx, p_gy, p_start, p_s, p_hx, p_hy, p_end, scale, T, H, n_here, first_chunk,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    REVERSE: tl.constexpr, STORE: tl.constexpr, STORE_END: tl.constexpr, GATED_K: tl.constexpr, GATED_V: tl.constexpr,
    V_FIRST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A walk over n_here chunks from first_chunk on, from their last one to their first with REVERSE.

    p_x, p_gx [B, T, H, K]: k and g, or q and g; p_y, p_gy [B, T, H, V]: v and gv, or do and gv. p_start, p_end
    [B*H, K, V], or V_FIRST [B*H, V, K], float32: where the walk starts and, with STORE_END, what it leads to. With
    STORE, p_s [B*H, n_here, K, V]: what it comes to each chunk with, and of the gated sides p_hx [B*H, n_here, K] and
    p_hy [B*H, n_here, V], float32: log2 of half of each chunk's decay.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_bh = i_p % NV, (i_p // NV) % NK, (i_p // (NV * NK)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_x, p_y = p_x + i_row0 * K, p_y + i_row0 * V
    if GATED_K:
        p_gx += i_row0 * K
    if GATED_V:
        p_gy += i_row0 * V
    b_s = load_state(p_start + i_bh * K * V, o_k, o_v, K, V, V_FIRST)
    for i_step in tl.range(0, n_here):
        i_c = n_here - 1 - i_step if REVERSE else i_step
        i_row, i_here = (first_chunk + i_c) * C, i_bh * n_here + i_c
        if STORE:
            store_state(p_s + i_here * K * V, b_s, o_k, o_v, K, V)
        b_x, b_decay_k = decayed_rows(p_x, p_gx, i_row, T, H * K, o_k, K, C, REVERSE, GATED_K, DOT)
        b_y, b_decay_v = decayed_rows(p_y, p_gy, i_row, T, H * V, o_v, V, C, REVERSE, GATED_V, DOT)
        if STORE:
            if GATED_K:
                tl.store(p_hx + i_here * K + o_k, 0.5 * b_decay_k, mask=(o_k < K) & (i_v == 0))
            if GATED_V:
                tl.store(p_hy + i_here * V + o_v, 0.5 * b_decay_v, mask=(o_v < V) & (i_k == 0))
        b_s = b_s * tl.exp2(b_decay_k)[:, None] * tl.exp2(b_decay_v)[None, :]
        b_s += scale * product(tl.trans(b_x), b_y, tl.zeros([BK, BV], dtype=tl.float32), DOT, PRECISION)
    if STORE_END:
        store_state(p_end + i_bh * K * V, b_s, o_k, o_v, K, V, V_FIRST)
