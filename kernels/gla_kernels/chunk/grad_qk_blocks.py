"""What a program of `grad_qk_kernel` does with a row block that is mild: sums over earlier and later rows of the chunk,
and through the states before and after it. The equations are in grad_qk.py.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.descriptors import store_rows
from ..tiles.gates import centred_decay
from ..tiles.operands import cut, fine, load_operand, load_tile
from ..tiles.products import (
    crossing,
    decay_over,
    dot_rows,
    load_half,
    product,
    scores_gradient,
    sums_from,
    through_state,
)


@triton.jit
def _centred(
    p_x, p_g, i_row, T, stride, o_k, SIGN: tl.constexpr, K: tl.constexpr, BT: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Rows of q (SIGN 1) or k (SIGN -1) in the frame of their block's middle."""
    b_x = load_tile(p_x, i_row, T, stride, o_k, K, BT)
    if GATED:
        b_x = b_x.to(tl.float32) * tl.exp2(SIGN * centred_decay(p_g, i_row, T, stride, o_k, K, BT, DOT))
    return b_x


@triton.jit
def _from_earlier(
    b_x, b_half, p_k, p_v, p_g, p_do, p_h, scale, i_chunk, i_a, T, H, o_k,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X of the row block i_a plus what comes from the row blocks before it in the chunk."""
    b_between = b_half  # log2 of the decay between the middles, but for the half of the earlier block
    for i_back in tl.range(0, i_a, num_stages=1):
        i_b = i_a - 1 - i_back
        i_col = i_chunk + i_b * BT
        b_da = scores_gradient(p_do, p_v, scale, i_chunk + i_a * BT, i_col, T, H * V, V, BT, BV, DOT, PRECISION)
        b_ah, b_al = cut(b_da, DOT, PRECISION)
        b_kc = _centred(p_k, p_g, i_col, T, H * K, o_k, -1, K, BT, GATED, DOT)
        if GATED:
            b_h = load_half(p_h, i_b, o_k, K)
            b_new = dot_rows(b_ah, b_al, b_kc, tl.zeros([BT, BK], dtype=tl.float32), GATED, DOT, PRECISION)
            b_x += b_new * tl.exp2(b_between + b_h)[None, :]
            b_between += 2.0 * b_h
        else:
            b_x = dot_rows(b_ah, b_al, b_kc, b_x, GATED, DOT, PRECISION)
    return b_x


@triton.jit
def _from_later(
    b_y, b_half, p_q, p_v, p_g, p_do, p_h, scale, i_chunk, i_b, n_blocks, T, H, o_k,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Y of the row block i_b plus what comes from the row blocks after it in the chunk."""
    b_between = b_half
    for i_a in tl.range(i_b + 1, n_blocks, num_stages=1):
        i_row = i_chunk + i_a * BT
        b_da = scores_gradient(p_do, p_v, scale, i_row, i_chunk + i_b * BT, T, H * V, V, BT, BV, DOT, PRECISION)
        b_ah, b_al = cut(tl.trans(b_da), DOT, PRECISION)
        b_qc = _centred(p_q, p_g, i_row, T, H * K, o_k, 1, K, BT, GATED, DOT)
        if GATED:
            b_h = load_half(p_h, i_a, o_k, K)
            b_new = dot_rows(b_ah, b_al, b_qc, tl.zeros([BT, BK], dtype=tl.float32), GATED, DOT, PRECISION)
            b_y += b_new * tl.exp2(b_between + b_h)[None, :]
            b_between += 2.0 * b_h
        else:
            b_y = dot_rows(b_ah, b_al, b_qc, b_y, GATED, DOT, PRECISION)
    return b_y


@triton.jit
def through_states(
    p_v, p_do, p_s, p_ds, i_row, T, H, o_k,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dO V^T [BT, BT], dO S^T and V dS^T [BT, BK], and the sum of S dS over V [BK], of a chunk of one row block."""
    b_da = tl.zeros([BT, BT], dtype=tl.float32)
    b_x = tl.zeros([BT, BK], dtype=tl.float32)
    b_y = tl.zeros([BT, BK], dtype=tl.float32)
    b_phi = tl.zeros([BK], dtype=tl.float32)
    for i_v in range(0, (V + BV - 1) // BV):
        o_v = i_v * BV + tl.arange(0, BV)
        b_do = load_tile(p_do, i_row, T, H * V, o_v, V, BT)
        b_v = load_tile(p_v, i_row, T, H * V, o_v, V, BT)
        b_s = load_operand(p_s, o_k, o_v, K, V)
        b_ds = load_operand(p_ds, o_k, o_v, K, V)
        b_da = product(b_do, tl.trans(b_v), b_da, DOT, PRECISION)
        b_x = product(b_do, tl.trans(b_s), b_x, DOT, PRECISION)
        b_y = product(b_v, tl.trans(b_ds), b_y, DOT, PRECISION)
        if GATED:
            b_phi += tl.sum(b_s.to(tl.float32) * b_ds.to(tl.float32), axis=1)
    return b_da, b_x, b_y, b_phi


@triton.jit
def inside(
    b_q, b_k, b_c, b_da, b_x, b_y, b_phi, p_dq, p_dk, p_dg, d_dq, d_dk, d_dg, i_batch, i_h, i_row, T, H, i_k,
    K: tl.constexpr, WHOLE: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store dq, dk and dg of a row block: what is left to add is the block's own share of X and Y. Answers Phi at its
    start.

    b_da: dA of all its rows; b_phi: Phi at the block's end; if WHOLE, the block is the chunk, without what its rows
    add.
    """
    o_r = tl.arange(0, BT)
    b_ah, b_al = cut(tl.where(o_r[:, None] >= o_r[None, :], b_da, 0.0), DOT, PRECISION)
    if GATED:
        b_kc = b_k.to(tl.float32) * tl.exp2(-b_c)
        b_x = dot_rows(b_ah, b_al, b_kc, b_x, GATED, DOT, PRECISION)
        store_rows(d_dq, p_dq, b_x * tl.exp2(b_c), i_batch, i_h, i_row, T, H, i_k, K, BT, BK)
        b_kc = fine(b_kc, DOT, PRECISION)
        if WHOLE:
            b_phi += tl.sum(b_kc * b_y, axis=0)
        b_qc = b_q.to(tl.float32) * tl.exp2(b_c)
        b_y = dot_rows(tl.trans(b_ah), tl.trans(b_al), b_qc, b_y, GATED, DOT, PRECISION)
        store_rows(d_dk, p_dk, b_y * tl.exp2(-b_c), i_batch, i_h, i_row, T, H, i_k, K, BT, BK)
        b_diff = fine(b_qc, DOT, PRECISION) * b_x - b_kc * b_y
        store_rows(
            d_dg,
            p_dg,
            sums_from(b_diff, BT, DOT, PRECISION) + b_phi[None, :],
            i_batch,
            i_h,
            i_row,
            T,
            H,
            i_k,
            K,
            BT,
            BK,
        )
        if not WHOLE:
            b_phi += tl.sum(b_diff, axis=0)
    else:
        b_x = dot_rows(b_ah, b_al, b_k, b_x, GATED, DOT, PRECISION)
        store_rows(d_dq, p_dq, b_x, i_batch, i_h, i_row, T, H, i_k, K, BT, BK)
        b_y = dot_rows(tl.trans(b_ah), tl.trans(b_al), b_q, b_y, GATED, DOT, PRECISION)
        store_rows(d_dk, p_dk, b_y, i_batch, i_h, i_row, T, H, i_k, K, BT, BK)
    return b_phi


@triton.jit
def row_block(
    p_q, p_k, p_v, p_g, p_do, p_s, p_ds, p_h, p_dq, p_dk, p_dg, d_dq, d_dk, d_dg, b_phi, b_after,
    scale, i_batch, i_h, i_chunk, i_b, n_blocks, T, H, i_k,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, dk and dg of one of several row blocks. Answers Phi at its start, and the decay from there to the chunk's
    end.

    b_phi: Phi at the block's end; b_after: log2 of the decay from there. One product comes after another, so that few
    of them are in registers at once.
    """
    o_k = i_k + tl.arange(0, BK)
    i_row = i_chunk + i_b * BT
    b_half = tl.zeros([BK], dtype=tl.float32)
    b_x = through_state(p_do, p_s, i_row, T, H * V, o_k, K, V, BT, BK, BV, DOT, PRECISION) * scale
    b_y = through_state(p_v, p_ds, i_row, T, H * V, o_k, K, V, BT, BK, BV, DOT, PRECISION)
    if GATED:
        b_half += load_half(p_h, i_b, o_k, K)
        b_x *= tl.exp2(decay_over(p_h, 0, i_b, o_k, K) + b_half)[None, :]
        b_y *= tl.exp2(b_after + b_half)[None, :]
    b_x = _from_earlier(
        b_x, b_half, p_k, p_v, p_g, p_do, p_h, scale, i_chunk, i_b, T, H, o_k,
        K, V, BT, BK, BV, GATED, DOT, PRECISION,
    )  # fmt: skip
    b_y = _from_later(
        b_y, b_half, p_q, p_v, p_g, p_do, p_h, scale, i_chunk, i_b, n_blocks, T, H, o_k,
        K, V, BT, BK, BV, GATED, DOT, PRECISION,
    )  # fmt: skip
    b_da = scores_gradient(p_do, p_v, scale, i_row, i_row, T, H * V, V, BT, BV, DOT, PRECISION)
    b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT)
    b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT)
    b_c = b_x
    if GATED:
        b_c = centred_decay(p_g, i_row, T, H * K, o_k, K, BT, DOT)
    b_phi = inside(
        b_q, b_k, b_c, b_da, b_x, b_y, b_phi, p_dq, p_dk, p_dg, d_dq, d_dk, d_dg, i_batch, i_h, i_row, T, H, i_k,
        K, False, BT, BK, GATED, DOT, PRECISION,
    )  # fmt: skip
    return b_phi, b_after + 2.0 * b_half


@triton.jit
def phi_at_end(
    p_k, p_v, p_g, p_s, p_ds, p_h, i_chunk, n_blocks, T, H, o_k,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Phi at the end of a chunk of several row blocks [BK]."""
    b_phi = tl.zeros([BK], dtype=tl.float32)
    b_after = tl.zeros([BK], dtype=tl.float32)
    for i_up in tl.range(0, n_blocks, num_stages=1):
        i_b = n_blocks - 1 - i_up
        i_row = i_chunk + i_b * BT
        b_half = load_half(p_h, i_b, o_k, K)
        b_kc = fine(_centred(p_k, p_g, i_row, T, H * K, o_k, -1, K, BT, True, DOT), DOT, PRECISION)
        b_y = through_state(p_v, p_ds, i_row, T, H * V, o_k, K, V, BT, BK, BV, DOT, PRECISION)
        b_phi += tl.sum(b_kc * (b_y * tl.exp2(b_after + b_half)[None, :]), axis=0)
        b_after += 2.0 * b_half
    return b_phi + crossing(p_s, p_ds, o_k, K, V, BK, BV) * tl.exp2(b_after)
