"""The forward output, a program a row block and tile of V.

    O = scale [(Q e^G) S_{c-1} + A V],     A_ij = sum_k q_ik k_jk exp(G_ik - G_jk) for i >= j

Decays of a row block are counted from the middle of its decay, C, where that is safe (gates.row_block_limit):

    A = tril((q e^C) (k e^-C)^T),          q e^{prefix} = (q e^C) e^h,      h = half of the block's decay

Row blocks b of the same chunk before the row block a: A_ab = (q_a e^{prefix}) (k_b e^{to b's end + between})^T, where
both decays are sums of gates and so right at any gate strength. Where the row block is not mild its decays from the
start are sums of gates, too, and its own scores come by halving (halving.py).
"""

# mypy: disallow-untyped-defs=False
from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launcher, settle_keys
from ..schedule import cdiv
from ..tiles.descriptors import load_rows, load_state_tile, store_rows
from ..tiles.gates import (
    after_rows,
    between,
    centred_decay,
    centred_rows,
    decay,
    decayed_keys,
    limited,
    load_gates,
    mild_block,
)
from ..tiles.halving import own_scores
from ..tiles.operands import dot, dot_half, load_operand, load_tile, store_tile
from ..tiles.slices import Slice
from .strong_gates import at_once, chunk_rows_of

if TYPE_CHECKING:
    from .problem import Problem


@triton.jit(do_not_specialize=["T", "n_blocks", "first_block", "n_here", "n_stored"])
def output_kernel(
    p_q, p_k, p_v, p_g, p_s, p_h, p_o, d_q, d_k, d_v, d_g, d_s, d_o,
    scale, T, H, n_blocks, first_block, n_here, n_stored, chunk,
    K: tl.constexpr, V: tl.constexpr, SINGLE: tl.constexpr, FULL: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] for n_here row blocks from first_block on, which starts a chunk.

    p_s [B*H, n_stored, K, V]: the states before these chunks; None for o of each chunk by itself. p_h [B*H, n_blocks,
    K]: log2 of half of every row block's decay, see states_kernel.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    OWN_BK: tl.constexpr = 32 if SINGLE and BK > 32 else BK  # of a block's own scores: for registers
    i_p = tl.program_id(0)
    i_v, i_here, i_bh = i_p % NV, (i_p // NV) % n_here, (i_p // (NV * n_here)).to(tl.int64)
    i_batch, i_h = (i_bh // H).to(tl.int32), (i_bh % H).to(tl.int32)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_q, p_k, p_v, p_o = p_q + i_row0 * K, p_k + i_row0 * K, p_v + i_row0 * V, p_o + i_row0 * V
    if SINGLE:
        i_c, i_a = i_here, 0
    else:
        i_c, i_a = i_here // (chunk // BT), i_here % (chunk // BT)
    i_s = i_bh * n_stored + i_c
    i_chunk = (first_block + i_here - i_a) * BT
    if GATED:
        p_g += i_row0 * K
        p_h += (i_bh * n_blocks + first_block + i_here - i_a) * K  # of the chunk's first row block
        if mild_block(p_h + i_a * K, K, PRECISION):
            _row_block(
                p_q, p_k, p_v, p_g, p_s, p_h, p_o, d_q, d_k, d_v, d_g, d_s, d_o,
                scale, T, H, i_batch, i_h, i_s, i_chunk, i_a, i_v * BV,
                K, V, SINGLE, FULL, BT, BK, BV, GATED, DOT, PRECISION,
            )  # fmt: skip
        else:
            if p_s is not None:
                p_s += i_s * K * V
            any_gate_output(
                p_q,
                p_k,
                p_v,
                p_g,
                p_s,
                p_o,
                d_v,
                scale,
                T,
                H,
                i_batch,
                i_h,
                i_chunk,
                i_a,
                i_v * BV,
                K,
                V,
                BT,
                BK,
                BV,
                OWN_BK,
                DOT,
                PRECISION,
            )
    else:
        _row_block(
            p_q, p_k, p_v, p_g, p_s, p_h, p_o, d_q, d_k, d_v, d_g, d_s, d_o,
            scale, T, H, i_batch, i_h, i_s, i_chunk, i_a, i_v * BV,
            K, V, SINGLE, FULL, BT, BK, BV, GATED, DOT, PRECISION,
        )  # fmt: skip


@triton.jit
def _row_block(
    p_q, p_k, p_v, p_g, p_s, p_h, p_o, d_q, d_k, d_v, d_g, d_s, d_o,
    scale, T, H, i_batch, i_h, i_s, i_chunk, i_a, i_v,
    K: tl.constexpr, V: tl.constexpr, SINGLE: tl.constexpr, FULL: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o of the chunk's row block i_a, if that is mild: columns i_v .. i_v+BV-1. i_batch, i_h: sequence
    and head. i_s: the state before the chunk."""
    NK: tl.constexpr = (K + BK - 1) // BK
    OWN: tl.constexpr = tl.float32 if GATED else DOT  # operands of the block's own scores
    OFF: tl.constexpr = tl.float32 if FULL and GATED else DOT  # and of those with the blocks before it
    o_r, o_v = tl.arange(0, BT), i_v + tl.arange(0, BV)
    i_row = i_chunk + i_a * BT
    b_a = tl.zeros([BT, BT], dtype=tl.float32)
    b_o = tl.zeros([BT, BV], dtype=tl.float32)
    for i_k in range(0, NK):
        o_k = i_k * BK + tl.arange(0, BK)
        b_q = load_rows(d_q, p_q, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK)
        b_k = load_rows(d_k, p_k, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK)
        if p_s is not None:
            b_s = load_state_tile(d_s, p_s, i_s, i_k * BK, i_v, K, V, BK, BV).to(DOT)
        b_qd = b_q
        if GATED:
            b_c = centred_rows(load_rows(d_g, p_g, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK), BT, DOT)
            b_q = b_q.to(tl.float32) * tl.exp2(b_c)
            b_k = b_k.to(tl.float32) * tl.exp2(-b_c)
            b_before = tl.load(p_h + i_a * K + o_k, mask=o_k < K, other=0.0)
            if not SINGLE:
                b_before += between(p_h, 0, i_a, o_k, K, BK)
            b_qd = b_q * tl.exp2(b_before)[None, :]
        b_a = tl.dot(b_q.to(OWN), tl.trans(b_k.to(OWN)), b_a, input_precision=PRECISION)
        if p_s is not None:
            b_o = tl.dot(b_qd.to(DOT), b_s, b_o, input_precision=PRECISION)
    # above the diagonal the product grows instead of decaying; it may overflow and is thrown away here
    b_a = tl.where(o_r[:, None] >= o_r[None, :], b_a, 0.0)
    b_v = load_rows(d_v, p_v, i_batch, i_h, i_row, T, H, i_v, V, BT, BV)
    b_o = dot_half(b_a, b_v, b_o, DOT, PRECISION)
    if not SINGLE:
        for i_before in range(0, i_a):
            i_col = i_chunk + i_before * BT
            b_a = tl.zeros([BT, BT], dtype=tl.float32)
            for i_k in range(0, NK):
                o_k = i_k * BK + tl.arange(0, BK)
                b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT)
                b_k = load_tile(p_k, i_col, T, H * K, o_k, K, BT)
                if GATED:
                    b_h = tl.load(p_h + i_a * K + o_k, mask=o_k < K, other=0.0)
                    b_c = centred_decay(p_g, i_row, T, H * K, o_k, K, BT, DOT)
                    b_q = b_q.to(tl.float32) * tl.exp2(b_c + b_h[None, :])
                    b_g = limited(load_tile(p_g, i_col, T, H * K, o_k, K, BT))
                    b_d = after_rows(b_g, p_g, i_col, T, H * K, o_k, K, BT, DOT)
                    b_d += between(p_h, i_before + 1, i_a, o_k, K, BK)[None, :]
                    b_k = b_k.to(tl.float32) * tl.exp2(b_d)
                b_a = tl.dot(b_q.to(OFF), tl.trans(b_k.to(OFF)), b_a, input_precision=PRECISION)
            b_v = load_tile(p_v, i_col, T, H * V, o_v, V, BT)
            b_o = dot_half(b_a, b_v, b_o, DOT, PRECISION)
    store_rows(d_o, p_o, b_o * scale, i_batch, i_h, i_row, T, H, i_v, V, BT, BV)


@triton.jit
def any_gate_output(
    p_q, p_k, p_v, p_g, p_s, p_o, d_v, scale, T, H, i_batch, i_h, i_chunk, i_a, i_v,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, OWN_BK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, V_FIRST: tl.constexpr = False,
):  # fmt: skip
    """o of the chunk's row block i_a at any gate strength: columns i_v .. i_v+BV-1. p_s: [K, V], V_FIRST [V, K].
    i_batch, i_h: sequence and head, for d_v."""
    i_row = i_chunk + i_a * BT
    b_a = own_scores(p_q, p_k, p_g, i_row, T, H * K, K, BT, OWN_BK, PRECISION)
    o_v = i_v + tl.arange(0, BV)
    b_v = load_rows(d_v, p_v, i_batch, i_h, i_row, T, H, i_v, V, BT, BV)
    b_o = dot_half(b_a, b_v, tl.zeros([BT, BV], dtype=tl.float32), DOT, PRECISION)
    for i_k in tl.range(0, (K + BK - 1) // BK, num_stages=1):
        o_k = i_k * BK + tl.arange(0, BK)
        b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT)
        # not `up_to_rows`: see any_gate.py
        b_qd = b_q.to(tl.float32) * tl.exp2(tl.cumsum(load_gates(p_g, i_row, T, H * K, o_k, K, BT), axis=0))
        b_between = tl.zeros([BK], dtype=tl.float32)  # log2 of the decay from the column block to these rows
        for i_back in tl.range(0, i_a, num_stages=1):
            i_col = i_row - (i_back + 1) * BT
            b_kd, b_step = decayed_keys(p_k, p_g, i_col, T, H * K, o_k, K, BT, True)
            b_a = dot(b_qd, tl.trans(decay(b_kd, b_between, True)), tl.float32, PRECISION)
            b_vb = load_tile(p_v, i_col, T, H * V, o_v, V, BT)
            b_o = dot_half(b_a, b_vb, b_o, DOT, PRECISION)
            b_between += b_step
        if p_s is not None:
            b_s = load_operand(p_s, o_k, o_v, K, V, V_FIRST)
            b_o += dot(decay(b_qd, b_between, True), b_s, DOT, PRECISION)
    store_tile(p_o, b_o * scale, i_row, T, H * V, o_v, V, BT)


settle_keys(output_kernel)


def make_output(p: "Problem", piece: Slice, states: Tensor, halves: Tensor | None, o: Tensor, launch: Launcher) -> None:
    """Fill the slice's rows of o [B, T, H, V], from the states before its chunks."""
    tile = p.config.output
    args = {"p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.gates, "p_s": states, "p_h": halves, "p_o": o}
    native = chunk_rows_of(p, False, args, piece, states) if at_once(p) else None
    launch(native or p.blocks_of(output_kernel, tile, cdiv(p.dims[-1], tile.block_v), args, piece, states))
