"""Gradients of a chunk at any gate strength: what the passes do where a row block is not mild.

Every exponent is a sum of the gates between two rows (gates.py): from a row block's start and to its end, whole blocks
between. Inside a row block, dv comes by halving (halving.py). For dq, dk and dg row blocks have 16 rows, with an anchor
in the middle where that block is mild, and element by element elsewhere (scores.py): slower by the number of blocks,
and light in registers, for the fast path beside it in the same kernel must not lose any.

Behind `own_scores` decays are not sums by a product, as elsewhere: where two loops of a kernel have a tile of gates for
that at one address of shared memory, the ptxas of CUDA 12.8, which comes with Triton 3.6 and 3.7, loses the address for
the later one (glabench/hardware/descriptors.py).
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.descriptors import load_rows
from ..tiles.gates import (
    CLOSED,
    block_decay,
    decay_to_end,
    decayed_keys,
    decayed_queries,
    load_gates,
)
from ..tiles.halving import own_scores
from ..tiles.operands import cut, dot_half, fine, load_operand, load_tile, store_tile
from ..tiles.products import crossing, dot_rows, product, scores_gradient, sums_from, through_state
from ..tiles.scores import diagonal_grad_k, diagonal_grad_q

ROWS: tl.constexpr = tl.constexpr(16)


@triton.jit
def _phi_at_end(
    p_k, p_v, p_g, p_s, p_ds, i_chunk, n_blocks, T, H, o_k, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    V_FIRST: tl.constexpr, DS_V_FIRST: tl.constexpr,
):  # fmt: skip
    """Phi at the chunk's end [BK]: what crosses the chunk, and what its rows put into the state."""
    b_phi = tl.zeros([BK], dtype=tl.float32)
    b_after = tl.zeros([BK], dtype=tl.float32)
    for i_up in tl.range(0, n_blocks, num_stages=1):
        i_row = i_chunk + (n_blocks - 1 - i_up) * ROWS
        b_kd, b_total = decayed_keys(p_k, p_g, i_row, T, H * K, o_k, K, ROWS, True)
        b_dk = through_state(p_v, p_ds, i_row, T, H * V, o_k, K, V, ROWS, BK, BV, DOT, PRECISION, DS_V_FIRST)
        b_phi += tl.sum(fine(b_kd, DOT, PRECISION) * (b_dk * tl.exp2(b_after)[None, :]), axis=0)
        b_after += b_total
    return b_phi + crossing(p_s, p_ds, o_k, K, V, BK, BV, V_FIRST, DS_V_FIRST) * tl.exp2(b_after)


@triton.jit
def _grad_q(
    p_q, p_k, p_v, p_g, p_do, p_s, p_dq, scale, i_chunk, i_b, T, H, o_k, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, V_FIRST: tl.constexpr,
):  # fmt: skip
    """dq of a row block, stored, and q dq without the terms j = i, float32 [ROWS, BK]."""
    o_r = tl.arange(0, ROWS)
    i_row = i_chunk + i_b * ROWS
    b_in = tl.zeros([ROWS, BK], dtype=tl.float32)  # what enters from before the block, as it is at its start
    b_between = tl.zeros([BK], dtype=tl.float32)
    for i_back in tl.range(0, i_b, num_stages=1):
        i_col = i_chunk + (i_b - 1 - i_back) * ROWS
        b_kd, b_step = decayed_keys(p_k, p_g, i_col, T, H * K, o_k, K, ROWS, True)
        b_da = scores_gradient(p_do, p_v, scale, i_row, i_col, T, H * V, V, ROWS, BV, DOT, PRECISION)
        b_ah, b_al = cut(b_da, DOT, PRECISION)
        b_new = dot_rows(b_ah, b_al, b_kd, tl.zeros([ROWS, BK], dtype=tl.float32), True, DOT, PRECISION)
        b_in += b_new * tl.exp2(b_between)[None, :]
        b_between += b_step
    b_new = through_state(p_do, p_s, i_row, T, H * V, o_k, K, V, ROWS, BK, BV, DOT, PRECISION, V_FIRST)
    b_in += b_new * (scale * tl.exp2(b_between))[None, :]
    b_q = load_tile(p_q, i_row, T, H * K, o_k, K, ROWS)
    b_k = load_tile(p_k, i_row, T, H * K, o_k, K, ROWS)
    b_prefix, b_total = block_decay(p_g, i_row, T, H * K, o_k, K, ROWS, BK, True)
    b_da = scores_gradient(p_do, p_v, scale, i_row, i_row, T, H * V, V, ROWS, BV, DOT, PRECISION)
    b_own, b_qdq = diagonal_grad_q(
        b_da, b_q, b_k, b_prefix, b_total, p_k, p_g, i_row, T, H * K, o_k, K, ROWS, BK, True, DOT, PRECISION
    )
    b_decay = tl.exp2(b_prefix)
    b_qdq += fine(b_q.to(tl.float32) * b_decay, DOT, PRECISION) * b_in
    b_self = tl.sum(tl.where(o_r[:, None] == o_r[None, :], b_da, 0.0), axis=1)
    b_dq = b_in * b_decay + b_own + b_self[:, None] * b_k.to(tl.float32)
    store_tile(p_dq, b_dq, i_row, T, H * K, o_k, K, ROWS)
    return b_qdq


@triton.jit
def _grad_k(
    p_q, p_k, p_v, p_g, p_do, p_ds, p_dk, b_after, scale, i_chunk, i_b, n_blocks, T, H, o_k,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    V_FIRST: tl.constexpr,
):  # fmt: skip
    """dk of a row block, stored; k dk without the terms i = j, float32 [ROWS, BK]; log2 of the block's decay [BK]."""
    o_r = tl.arange(0, ROWS)
    i_row = i_chunk + i_b * ROWS
    # what leaves through the block's end, as it is there
    b_out = through_state(p_v, p_ds, i_row, T, H * V, o_k, K, V, ROWS, BK, BV, DOT, PRECISION, V_FIRST)
    b_out *= tl.exp2(b_after)[None, :]
    b_between = tl.zeros([BK], dtype=tl.float32)
    for i_a in tl.range(i_b + 1, n_blocks, num_stages=1):
        i_col = i_chunk + i_a * ROWS
        b_qd, b_step = decayed_queries(p_q, p_g, i_col, T, H * K, o_k, K, ROWS, True)
        b_da = scores_gradient(p_do, p_v, scale, i_col, i_row, T, H * V, V, ROWS, BV, DOT, PRECISION)
        b_ah, b_al = cut(tl.trans(b_da), DOT, PRECISION)
        b_new = dot_rows(b_ah, b_al, b_qd, tl.zeros([ROWS, BK], dtype=tl.float32), True, DOT, PRECISION)
        b_out += b_new * tl.exp2(b_between)[None, :]
        b_between += b_step
    b_q = load_tile(p_q, i_row, T, H * K, o_k, K, ROWS)
    b_k = load_tile(p_k, i_row, T, H * K, o_k, K, ROWS)
    b_prefix, b_total = block_decay(p_g, i_row, T, H * K, o_k, K, ROWS, BK, True)
    b_dat = tl.trans(scores_gradient(p_do, p_v, scale, i_row, i_row, T, H * V, V, ROWS, BV, DOT, PRECISION))
    b_own, b_kdk = diagonal_grad_k(
        b_dat, b_q, b_k, b_prefix, b_total, p_q, p_g, i_row, T, H * K, o_k, K, ROWS, BK, True, DOT, PRECISION
    )
    b_decay = tl.exp2(decay_to_end(p_g, i_row, T, H * K, o_k, K, ROWS))
    b_kdk += fine(b_k.to(tl.float32) * b_decay, DOT, PRECISION) * b_out
    b_self = tl.sum(tl.where(o_r[:, None] == o_r[None, :], b_dat, 0.0), axis=1)
    b_dk = b_out * b_decay + b_own + b_self[:, None] * b_q.to(tl.float32)
    store_tile(p_dk, b_dk, i_row, T, H * K, o_k, K, ROWS)
    return b_kdk, b_total


@triton.jit
def any_gate_grad_qk(
    p_q, p_k, p_v, p_g, p_do, p_s, p_ds, p_dq, p_dk, p_dg, scale, i_chunk, T, H, o_k,
    K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, V_FIRST: tl.constexpr = False, DS_V_FIRST: tl.constexpr = False,
):  # fmt: skip
    """dq, dk and dg of one chunk: grad_qk.py's equations, but every row in its block's own frame. p_s, p_ds [K, V], or
    each [V, K]."""
    n_blocks = tl.cdiv(tl.minimum(T - i_chunk, CHUNK), ROWS)
    b_phi = _phi_at_end(
        p_k, p_v, p_g, p_s, p_ds, i_chunk, n_blocks, T, H, o_k, K, V, BK, BV, DOT, PRECISION, V_FIRST, DS_V_FIRST
    )
    b_after = tl.zeros([BK], dtype=tl.float32)  # log2 of the decay from the row block to the chunk's end
    for i_up in tl.range(0, n_blocks, num_stages=1):
        i_b = n_blocks - 1 - i_up
        i_row = i_chunk + i_b * ROWS
        b_diff = _grad_q(
            p_q, p_k, p_v, p_g, p_do, p_s, p_dq, scale, i_chunk, i_b, T, H, o_k, K, V, BK, BV, DOT, PRECISION, V_FIRST
        )
        b_kdk, b_total = _grad_k(
            p_q, p_k, p_v, p_g, p_do, p_ds, p_dk, b_after, scale, i_chunk, i_b, n_blocks, T, H, o_k,
            K, V, BK, BV, DOT, PRECISION, DS_V_FIRST,
        )  # fmt: skip
        b_diff -= b_kdk
        b_dg = sums_from(b_diff, ROWS, DOT, PRECISION) + b_phi[None, :]
        # a gate that lets nothing through has no gradient; the difference would leave rounding errors there
        b_dg = tl.where(load_gates(p_g, i_row, T, H * K, o_k, K, ROWS) > CLOSED, b_dg, 0.0)
        store_tile(p_dg, b_dg, i_row, T, H * K, o_k, K, ROWS)
        b_phi += tl.sum(b_diff, axis=0)
        b_after += b_total


@triton.jit
def any_gate_grad_v(
    p_q, p_k, p_g, p_do, p_ds, p_dv, d_do, scale, i_batch, i_h, i_row, i_end, T, H, i_v,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, OWN_BK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, V_FIRST: tl.constexpr = False,
):  # fmt: skip
    """dv of a row block, from row i_row on, in a chunk that ends before row i_end: columns i_v .. i_v+BV-1. i_batch,
    i_h: sequence and head, for d_do."""
    b_a = own_scores(p_q, p_k, p_g, i_row, T, H * K, K, BT, OWN_BK, PRECISION)
    o_v = i_v + tl.arange(0, BV)
    b_do = load_rows(d_do, p_do, i_batch, i_h, i_row, T, H, i_v, V, BT, BV)
    b_dv = dot_half(tl.trans(b_a) * scale, b_do, tl.zeros([BT, BV], dtype=tl.float32), DOT, PRECISION)
    for i_k in tl.range(0, (K + BK - 1) // BK, num_stages=1):
        o_k = i_k * BK + tl.arange(0, BK)
        b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT)
        b_kd = b_k.to(tl.float32) * tl.exp2(decay_to_end(p_g, i_row, T, H * K, o_k, K, BT))
        b_after = tl.zeros([BK], dtype=tl.float32)  # log2 of the decay from the block's end on
        for i_col in tl.range(i_row + BT, i_end, BT, num_stages=1):
            b_qd, b_step = decayed_queries(p_q, p_g, i_col, T, H * K, o_k, K, BT, True)
            b_qd *= tl.exp2(b_after)[None, :]
            b_at = product(b_kd, tl.trans(b_qd), tl.zeros([BT, BT], dtype=tl.float32), tl.float32, PRECISION)
            b_do = load_tile(p_do, i_col, T, H * V, o_v, V, BT)
            b_dv = dot_half(b_at * scale, b_do, b_dv, DOT, PRECISION)
            b_after += b_step
        b_ds = load_operand(p_ds, o_k, o_v, K, V, V_FIRST)
        b_dv = product(b_kd * tl.exp2(b_after)[None, :], b_ds, b_dv, DOT, PRECISION)
    store_tile(p_dv, b_dv, i_row, T, H * V, o_v, V, BT)
