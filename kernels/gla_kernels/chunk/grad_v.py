"""dV: a program for each row block and tile of V.

    dV = scale A^T dO + (K e^{gamma-G}) dS_c

In the frame of the row block's middle (products.py), Q = q e^C and K = k e^-C: A^T of the block is K Q^T, and the later
row blocks of the chunk, and its end, are a decay per feature away: (K e^{h + between + h_a}) Q_a^T, K e^{h + after}.
"""

# mypy: disallow-untyped-defs=False
from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launcher, settle_keys
from ..schedule import cdiv
from ..tiles.descriptors import load_rows, load_state_tile, store_rows
from ..tiles.gates import centred_decay, centred_rows
from ..tiles.operands import dot_half, load_tile
from ..tiles.products import are_mild, load_half, product
from ..tiles.slices import Slice
from .any_gate import any_gate_grad_v
from .strong_gates import at_once, chunk_rows_of

if TYPE_CHECKING:
    from .problem import Problem


@triton.jit(do_not_specialize=["T", "n_blocks", "first_block", "n_here", "n_stored", "chunk"])
def grad_v_kernel(
    p_q, p_k, p_g, p_do, p_ds, p_h, p_dv, d_q, d_k, d_g, d_do, d_ds, d_dv,
    scale, T, H, n_blocks, first_block, n_here, n_stored, chunk,
    K: tl.constexpr, V: tl.constexpr, SINGLE: tl.constexpr, FULL: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv [B, T, H, V] of n_here row blocks from first_block on, where a chunk starts.

    p_ds [B*H, n_stored, K, V]: the gradient of the state after each chunk, from that chunk on. p_h [B*H, n_blocks, K]:
    log2 of half of each row block's decay, from the sequence's start.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    OWN_BK: tl.constexpr = 32 if SINGLE and BK > 32 else BK  # of a block's own scores: for registers
    OFF: tl.constexpr = tl.float32 if FULL and GATED else DOT  # operands of scores off the diagonal
    i_p = tl.program_id(0)
    i_v, i_here, i_bh = i_p % NV, (i_p // NV) % n_here, (i_p // (NV * n_here)).to(tl.int64)
    o_v, o_r = i_v * BV + tl.arange(0, BV), tl.arange(0, BT)
    i_batch, i_h = (i_bh // H).to(tl.int32), (i_bh % H).to(tl.int32)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_q, p_k, p_do, p_dv = p_q + i_row0 * K, p_k + i_row0 * K, p_do + i_row0 * V, p_dv + i_row0 * V
    i_c = i_here * BT // chunk
    i_s = i_bh * n_stored + i_c
    i_b = first_block + i_here
    i_row = i_b * BT
    i_last = i_b + 1  # behind the chunk's last row block
    if not SINGLE:
        i_last = tl.minimum(first_block + (i_c + 1) * (chunk // BT), n_blocks)
    mild = True
    if GATED:
        p_g += i_row0 * K
        p_h += i_bh * n_blocks * K
        mild = are_mild(p_h, i_b, i_last, tl.arange(0, triton.next_power_of_2(K)), K, SINGLE, PRECISION)
    if mild:
        b_at = tl.zeros([BT, BT], dtype=tl.float32)
        b_dv = tl.zeros([BT, BV], dtype=tl.float32)
        for i_k in range(0, NK):
            o_k = i_k * BK + tl.arange(0, BK)
            b_q = load_rows(d_q, p_q, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK)
            b_k = load_rows(d_k, p_k, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK)
            b_ds = load_state_tile(d_ds, p_ds, i_s, i_k * BK, i_v * BV, K, V, BK, BV)
            b_after = tl.zeros([BK], dtype=tl.float32)  # log2 of the decay from the block's middle on
            if GATED:
                b_c = centred_rows(load_rows(d_g, p_g, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK), BT, DOT)
                b_k = b_k.to(tl.float32) * tl.exp2(-b_c)
                b_q = b_q.to(tl.float32) * tl.exp2(b_c)
                b_at = product(b_k, tl.trans(b_q), b_at, tl.float32, PRECISION)
                b_after += load_half(p_h, i_b, o_k, K)
            else:
                b_at = product(b_k, tl.trans(b_q), b_at, DOT, PRECISION)
            if not SINGLE:
                for i_a in tl.range(i_b + 1, i_last, num_stages=1):
                    i_col = i_a * BT
                    b_qa = load_tile(p_q, i_col, T, H * K, o_k, K, BT)
                    b_doa = load_tile(p_do, i_col, T, H * V, o_v, V, BT)
                    b_ka = b_k
                    if GATED:
                        b_ca = centred_decay(p_g, i_col, T, H * K, o_k, K, BT, DOT)
                        b_h = load_half(p_h, i_a, o_k, K)
                        b_qa = b_qa.to(tl.float32) * tl.exp2(b_ca)
                        b_ka = b_k * tl.exp2(b_after + b_h)[None, :]
                        b_after += 2.0 * b_h
                    b_off = product(b_ka, tl.trans(b_qa), tl.zeros([BT, BT], dtype=tl.float32), OFF, PRECISION)
                    b_dv = dot_half(b_off * scale, b_doa, b_dv, DOT, PRECISION)
            if GATED:
                b_k = b_k * tl.exp2(b_after)[None, :]
            b_dv = product(b_k, b_ds, b_dv, DOT, PRECISION)
        b_do = load_rows(d_do, p_do, i_batch, i_h, i_row, T, H, i_v * BV, V, BT, BV)
        b_at = tl.where(o_r[:, None] <= o_r[None, :], b_at, 0.0) * scale
        b_dv = dot_half(b_at, b_do, b_dv, DOT, PRECISION)
        store_rows(d_dv, p_dv, b_dv, i_batch, i_h, i_row, T, H, i_v * BV, V, BT, BV)
    elif GATED:
        any_gate_grad_v(
            p_q, p_k, p_g, p_do, p_ds + i_s * K * V, p_dv, d_do,
            scale, i_batch, i_h, i_row, tl.minimum(T, i_last * BT), T, H, i_v * BV,
            K, V, BT, BK, BV, OWN_BK, DOT, PRECISION,
        )  # fmt: skip


settle_keys(grad_v_kernel)


def make_grad_v(
    p: "Problem", piece: Slice, do: Tensor, grads: Tensor, halves: Tensor | None, dv: Tensor, launch: Launcher
) -> None:
    """Fill the slice's rows of dv."""
    _, _, _, _, V = p.dims
    tile = p.config.grad_v
    args = {"p_q": p.q, "p_k": p.k, "p_g": p.gates, "p_do": do, "p_ds": grads, "p_h": halves, "p_dv": dv}
    native = chunk_rows_of(p, True, args, piece, grads) if at_once(p) else None
    launch(native or p.blocks_of(grad_v_kernel, tile, cdiv(V, tile.block_v), args, piece, grads))
