"""The gradients of q, k and g where several heads share queries and keys: grad_qk.py, summed over a group's heads.

A program goes through heads of one chunk and adds up what each of them gives, so that no head's dq and dk are ever in
memory. Inside the chunk all heads have the same A = Q K^T, and of dA = scale (dO V^T) D of each without its
diagonal only the sum over heads enters products:

    dQ += (sum dA) K        dK += (sum dA)^T Q        r_i = sum_j (A dA)_ij        u_j = sum_i (A dA)_ij

with r and u, of which each head's dg is made, from the same numbers: what cancels between them cancels. A is made again
for each head, as a product takes less than the registers that would hold it (for an H100 24 bytes are spilled, not 0).
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.descriptors import store_rows
from ..tiles.operands import load_operand, load_tile
from ..tiles.products import product
from .decays import between, from_start, load_sums, to_end
from .grad_qk import sums_from
from .heads import first_row


@triton.jit(do_not_specialize=["B", "T", "n_chunks", "first_chunk", "n_here", "n_stored"])
def simple_grad_qk_group_kernel(
    p_q, p_k, p_v, p_c, p_marks, p_do, p_s, p_ds, p_dq, p_dk, p_dg, d_dq, d_dk, scale,
    B, T, H, n_chunks, first_chunk, n_here, n_stored,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GK: tl.constexpr, SHARE: tl.constexpr, GRAD_G: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, dk [B, T, H // GK, K] of n_here chunks from first_chunk on, GK heads to one of q and k; a program has SHARE
    of them, of one chunk, and BK columns of K. Where that is not all, dq and dk are float32 [GK // SHARE, B, ..], to
    be added up. All else is as `simple_grad_qk_kernel` has it.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    PARTS: tl.constexpr = GK // SHARE
    i_p = tl.program_id(0)
    i_k, i_part, i_p = i_p % NK, i_p // NK % PARTS, i_p // (NK * PARTS)
    i_c, i_bx = i_p % n_here, (i_p // n_here).to(tl.int64)  # i_bx: of all [B, H // GK]
    i_batch, i_x, i_row = (i_bx // (H // GK)).to(tl.int32), (i_bx % (H // GK)).to(tl.int32), (first_chunk + i_c) * BT
    i_row0 = first_row(i_bx * GK, T, H, GK)
    o_r, o_k = tl.arange(0, BT), i_k * BK + tl.arange(0, BK)
    b_q = load_tile(p_q + i_row0 * K, i_row, T, H // GK * K, o_k, K, BT)
    b_k = load_tile(p_k + i_row0 * K, i_row, T, H // GK * K, o_k, K, BT)

    b_sum = tl.zeros([BT, BT], dtype=tl.float32)
    b_own = tl.zeros([BT], dtype=tl.float32)
    b_dq = tl.zeros([BT, BK], dtype=tl.float32)
    b_dk = tl.zeros([BT, BK], dtype=tl.float32)
    for i_g in range(0, SHARE):
        i_bh = i_bx * GK + i_part * SHARE + i_g
        i_of_v, i_s = first_row(i_bh, T, H, 1), i_bh * n_stored + i_c
        b_da = tl.zeros([BT, BT], dtype=tl.float32)
        b_x = tl.zeros([BT, BK], dtype=tl.float32)
        b_y = tl.zeros([BT, BK], dtype=tl.float32)
        b_phi = tl.zeros([BK], dtype=tl.float32)
        for i_v in range(0, V, BV):
            o_v = i_v + tl.arange(0, BV)
            b_do = load_tile(p_do + i_of_v * V, i_row, T, H * V, o_v, V, BT)
            b_v = load_tile(p_v + i_of_v * V, i_row, T, H * V, o_v, V, BT)
            b_s = load_operand(p_s + i_s * K * V, o_k, o_v, K, V)
            b_ds = load_operand(p_ds + i_s * K * V, o_k, o_v, K, V)
            b_da = product(b_do, tl.trans(b_v), b_da, DOT, PRECISION)
            b_x = product(b_do, tl.trans(b_s), b_x, DOT, PRECISION)
            b_y = product(b_v, tl.trans(b_ds), b_y, DOT, PRECISION)
            if GRAD_G:
                b_phi += tl.sum(b_s.to(tl.float32) * b_ds.to(tl.float32), axis=1)
        b_c, b_all = load_sums(p_c + i_bh * n_chunks * BT, i_row, BT)
        b_x *= (scale * from_start(b_c))[:, None]
        b_y *= to_end(b_c, b_all)[:, None]
        b_own += scale * tl.sum(tl.where(o_r[:, None] == o_r[None, :], b_da, 0.0), axis=1)
        b_da = tl.where(o_r[:, None] > o_r[None, :], b_da * (scale * between(b_c, BT)), 0.0)
        b_sum += b_da
        b_dq += b_x
        b_dk += b_y
        if GRAD_G:
            b_da *= product(b_q, tl.trans(b_k), tl.zeros([BT, BT], dtype=tl.float32), DOT, PRECISION)
            b_passed = tl.sum(b_q.to(tl.float32) * b_x, axis=1) + tl.sum(b_da, axis=1) - tl.sum(b_da, axis=0)
            b_y = tl.sum(b_k.to(tl.float32) * b_y, axis=1)
            b_dg = sums_from(b_passed, p_marks, i_row, BT)
            b_dg += tl.cumsum(b_y, axis=0) - b_y
            b_dg += from_start(b_all) * tl.sum(b_phi, axis=0)
            o_dg = i_k.to(tl.int64) * B * T * H + i_of_v + (i_row + o_r).to(tl.int64) * H
            tl.store(p_dg + o_dg, b_dg, mask=i_row + o_r < T)

    b_dq = product(b_sum, b_k, b_dq, DOT, PRECISION) + b_own[:, None] * b_k.to(tl.float32)
    b_dk = product(tl.trans(b_sum), b_q, b_dk, DOT, PRECISION) + b_own[:, None] * b_q.to(tl.float32)
    i_row0 += i_part.to(tl.int64) * B * T * (H // GK)
    store_rows(d_dq, p_dq + i_row0 * K, b_dq, i_part * B + i_batch, i_x, i_row, T, H // GK, i_k * BK, K, BT, BK)
    store_rows(d_dk, p_dk + i_row0 * K, b_dk, i_part * B + i_batch, i_x, i_row, T, H // GK, i_k * BK, K, BT, BK)
