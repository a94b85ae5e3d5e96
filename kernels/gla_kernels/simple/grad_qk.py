"""The gradients of q, k and g, of all chunks at once. With dA = scale (dO V^T) D and its diagonal a apart,

    dQ = scale (dO S^T) e^c + dA K        dK = (V dS^T) e^{c_C - c} + dA^T Q

A gate decays what passes it: g_t reaches all that comes from before t and is read at t or later. With x and y the sums
over a row of q dq and of k dk through the states, and r and u the same inside the chunk,

    dg_t = sum_{i >= t} (x_i + r_i - u_i) + sum_{j < t} y_j + e^{c_C} sum(S dS)

where r and u are without the diagonal, which passes no gate: it is the largest term where gates are strong, and would
only leave its rounding error. r and u go by the same rounded dA, so that what cancels between them cancels.

Of packed sequences each sums up its own rows alone, so that no rounding error of a later one is left in its gates; the
gate of its first row passes nothing here (see edges.py for the state before it).
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.descriptors import store_rows
from ..tiles.operands import load_operand, load_tile, operand
from ..tiles.products import product
from .decays import between, from_start, load_sums, to_end
from .heads import first_row


@triton.jit
def sums_from(b_x, p_marks, i_row, BT: tl.constexpr):
    """Sum of each row and those after it, float32 [BT], of packed sequences of the same one, without those of first
    rows."""
    if p_marks is None:
        b_sum = tl.cumsum(b_x, axis=0, reverse=True)
    else:
        o_t = i_row + tl.arange(0, BT)
        b_first = tl.load(p_marks + o_t)
        m_sum = (o_t[:, None] <= o_t[None, :]) & (b_first[:, None] == b_first[None, :]) & (o_t != b_first)[:, None]
        b_sum = tl.sum(tl.where(m_sum, b_x[None, :], 0.0), axis=1)
    return b_sum


@triton.jit(do_not_specialize=["T", "n_chunks", "first_chunk", "n_here", "n_stored"])
def simple_grad_qk_kernel(
    p_q, p_k, p_v, p_c, p_marks, p_do, p_s, p_ds, p_dq, p_dk, p_dg, d_dq, d_dk, scale,
    B, T, H, n_chunks, first_chunk, n_here, n_stored,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GV: tl.constexpr, GRAD_G: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, dk [B, T, H, K] of n_here chunks from first_chunk on; a program has one of them, and BK columns of K.

    GRAD_G: p_dg [tiles of K, B, T, H] float32, what these columns add to dg. p_s, p_ds [B*H, n_stored, K, V]: states
    before the chunks and gradients of those after them. p_marks: as `simple_decays_kernel` has them. GV heads share
    each one of p_v.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    i_p = tl.program_id(0)
    i_k, i_c, i_bh = i_p % NK, (i_p // NK) % n_here, (i_p // NK // n_here).to(tl.int64)
    i_batch, i_h = (i_bh // H).to(tl.int32), (i_bh % H).to(tl.int32)
    i_row0, i_row, i_s = first_row(i_bh, T, H, 1), (first_chunk + i_c) * BT, i_bh * n_stored + i_c
    p_q, p_k, p_v, p_do = p_q + i_row0 * K, p_k + i_row0 * K, p_v + first_row(i_bh, T, H, GV) * V, p_do + i_row0 * V
    p_dq, p_dk, p_s, p_ds = p_dq + i_row0 * K, p_dk + i_row0 * K, p_s + i_s * K * V, p_ds + i_s * K * V
    o_r, o_k = tl.arange(0, BT), i_k * BK + tl.arange(0, BK)

    b_da = tl.zeros([BT, BT], dtype=tl.float32)
    b_dq = tl.zeros([BT, BK], dtype=tl.float32)
    b_dk = tl.zeros([BT, BK], dtype=tl.float32)
    b_phi = tl.zeros([BK], dtype=tl.float32)
    for i_v in range(0, V, BV):
        o_v = i_v + tl.arange(0, BV)
        b_do = load_tile(p_do, i_row, T, H * V, o_v, V, BT)
        b_v = load_tile(p_v, i_row, T, H // GV * V, o_v, V, BT)
        b_s, b_ds = load_operand(p_s, o_k, o_v, K, V), load_operand(p_ds, o_k, o_v, K, V)
        b_da = product(b_do, tl.trans(b_v), b_da, DOT, PRECISION)
        b_dq = product(b_do, tl.trans(b_s), b_dq, DOT, PRECISION)
        b_dk = product(b_v, tl.trans(b_ds), b_dk, DOT, PRECISION)
        if GRAD_G:
            b_phi += tl.sum(b_s.to(tl.float32) * b_ds.to(tl.float32), axis=1)

    b_c, b_all = load_sums(p_c + i_bh * n_chunks * BT, i_row, BT)
    b_dq *= (scale * from_start(b_c))[:, None]
    b_dk *= to_end(b_c, b_all)[:, None]
    b_own = scale * tl.sum(tl.where(o_r[:, None] == o_r[None, :], b_da, 0.0), axis=1)
    b_da = tl.where(o_r[:, None] > o_r[None, :], b_da * (scale * between(b_c, BT)), 0.0)
    b_da = operand(b_da, DOT, PRECISION)
    b_q, b_k = load_tile(p_q, i_row, T, H * K, o_k, K, BT), load_tile(p_k, i_row, T, H * K, o_k, K, BT)
    b_inside = product(tl.trans(b_da), b_q, tl.zeros([BT, BK], dtype=tl.float32), DOT, PRECISION)
    b_dq = product(b_da, b_k, b_dq, DOT, PRECISION)
    b_q, b_k = b_q.to(tl.float32), b_k.to(tl.float32)
    if GRAD_G:
        b_passed = tl.sum(b_q * b_dq, axis=1) - tl.sum(b_k * b_inside, axis=1)
        b_y = tl.sum(b_k * b_dk, axis=1)
        b_dg = sums_from(b_passed, p_marks, i_row, BT)
        b_dg += tl.cumsum(b_y, axis=0) - b_y
        b_dg += from_start(b_all) * tl.sum(b_phi, axis=0)
        p_dg += i_k.to(tl.int64) * B * T * H + i_row0 + (i_row + o_r).to(tl.int64) * H
        tl.store(p_dg, b_dg, mask=i_row + o_r < T)
    b_dq += b_own[:, None] * b_k
    b_dk += b_inside + b_own[:, None] * b_q
    store_rows(d_dq, p_dq, b_dq, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK)
    store_rows(d_dk, p_dk, b_dk, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK)
