"""The parallel, quadratic form in log space, tile by tile (Yang et al. 2023, section 3.1; 2024, equation 4).

    o_i = sum_{j<=i} A_ij v_j          A_ij = scale sum_k q_ik k_jk exp(g_{j+1,k} + .. + g_ik)

Rows come in blocks, and no [T, T] is in memory. With P what a row of q has decayed since its block's start, N what a
row of k decays until its block's end, and m the blocks between theirs,

    A_ij = scale sum_k (q_ik e^P_ik) e^{sum of m's gates} (k_jk e^N_jk)

is a product on tensor cores whose exponents are all sums of gates, at most 0: the reference between the two is the
border of blocks. Blocks on the diagonal have none, and are computed element by element in float32.

    dq_i = sum_j dA_ij k_j e^{..}    dk_j = sum_i dA_ij q_i e^{..}    dv_j = sum_i A_ij do_i    dA = scale tril(dO V^T)
    dg_t = sum_{i>=t} (q_i dq_i - k_i dk_i)

dg is a difference of long sums: dq and dk enter it from the same rounded operands, pair of rows by pair, so that what
does not pass a gate cancels.
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gla_kernels.launch import Launch, Launcher
from gla_kernels.schedule import cdiv, padded
from gla_kernels.tiles.operands import load_tile, store_tile
from gla_kernels.tiles.products import product
from glabench.systems.baselines.form import Call, Form, Gradients, Kept
from glabench.systems.baselines.inside import (
    by_chunks,
    grad_k_within,
    grad_q_within,
    inside_decay_kernel,
    inside_grad_scores_kernel,
    inside_scores_kernel,
    load_after,
    load_own,
    warps_for,
)

ROW_BYTES = 16384  # of a block of rows, all of K
MOST_ROWS = 64
FEWEST_BLOCKS = 4
MOST_COLUMNS = 128  # of an output's tile


@triton.jit
def load_decay(p_gamma, i_block, o_k, K: tl.constexpr):
    """The decay of a whole block of rows, float32 [BK], from p_gamma [B*H * blocks, K]."""
    return tl.load(p_gamma + i_block * K + o_k, mask=o_k < K, other=0.0)


@triton.jit
def scores_gradient(
    p_do, p_v, i_first, i, j, T, H, V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dO V^T of row block i and column block j, float32 [BT, BT]."""
    b_da = tl.zeros([BT, BT], dtype=tl.float32)
    for i_v in range(0, V, BV):
        o_v = i_v + tl.arange(0, BV)
        b_do = load_tile(p_do + i_first * V, i * BT, T, H * V, o_v, V, BT)
        b_v = load_tile(p_v + i_first * V, j * BT, T, H * V, o_v, V, BT)
        b_da = product(b_do, tl.trans(b_v), b_da, DOT, PRECISION)
    return b_da


@triton.jit(do_not_specialize=["T"])
def parallel_output_kernel(
    p_qg, p_kg, p_v, p_gamma, p_a, p_o, factor, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of one block of rows and one tile of V, from the diagonal to the first block; BK covers all of K.

    p_qg, p_kg [B, T, H, K]: decayed rows; p_gamma [B*H, blocks, K]; p_a [B, T, H, BT]: scores on the diagonal.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    n_t = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_v, i_t, i_bh = i_p % NV, n_t - 1 - i_p // NV % n_t, (i_p // (NV * n_t)).to(tl.int64)
    i_first, o_k, o_v = (i_bh // H) * T * H + i_bh % H, tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    b_qg = load_tile(p_qg + i_first * K, i_t * BT, T, H * K, o_k, K, BT)
    b_past = tl.full([BK], 1.0, dtype=tl.float32)
    b_o = tl.zeros([BT, BV], dtype=tl.float32)
    for i in range(0, i_t):
        j = i_t - 1 - i
        b_kg = load_tile(p_kg + i_first * K, j * BT, T, H * K, o_k, K, BT)
        b_v = load_tile(p_v + i_first * V, j * BT, T, H * V, o_v, V, BT)
        b_x = b_qg
        if GATED:
            b_x = b_qg.to(tl.float32) * b_past[None, :]
            b_past *= load_decay(p_gamma, i_bh * n_t + j, o_k, K)
        b_a = product(b_x, tl.trans(b_kg), tl.zeros([BT, BT], dtype=tl.float32), DOT, PRECISION)
        b_o = product(b_a, b_v, b_o, DOT, PRECISION)
    b_a = load_tile(p_a + i_first * BT, i_t * BT, T, H * BT, tl.arange(0, BT), BT, BT)
    b_v = load_tile(p_v + i_first * V, i_t * BT, T, H * V, o_v, V, BT)
    b_o = product(b_a, b_v, factor * b_o, DOT, PRECISION)
    store_tile(p_o + i_first * V, b_o, i_t * BT, T, H * V, o_v, V, BT)


@triton.jit(do_not_specialize=["T"])
def parallel_grad_v_kernel(
    p_qg, p_kg, p_do, p_gamma, p_a, p_dv, factor, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv [B, T, H, V] of one block of rows and one tile of V, from the diagonal to the last block."""
    NV: tl.constexpr = (V + BV - 1) // BV
    n_t = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_v, j_t, i_bh = i_p % NV, i_p // NV % n_t, (i_p // (NV * n_t)).to(tl.int64)
    i_first, o_k, o_v = (i_bh // H) * T * H + i_bh % H, tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    b_kg = load_tile(p_kg + i_first * K, j_t * BT, T, H * K, o_k, K, BT)
    b_past = tl.full([BK], 1.0, dtype=tl.float32)
    b_dv = tl.zeros([BT, BV], dtype=tl.float32)
    for i in range(j_t + 1, n_t):
        b_qg = load_tile(p_qg + i_first * K, i * BT, T, H * K, o_k, K, BT)
        b_do = load_tile(p_do + i_first * V, i * BT, T, H * V, o_v, V, BT)
        b_x = b_kg
        if GATED:
            b_x = b_kg.to(tl.float32) * b_past[None, :]
            b_past *= load_decay(p_gamma, i_bh * n_t + i, o_k, K)
        b_a = product(b_x, tl.trans(b_qg), tl.zeros([BT, BT], dtype=tl.float32), DOT, PRECISION)
        b_dv = product(b_a, b_do, b_dv, DOT, PRECISION)
    b_a = load_tile(p_a + i_first * BT, j_t * BT, T, H * BT, tl.arange(0, BT), BT, BT)
    b_do = load_tile(p_do + i_first * V, j_t * BT, T, H * V, o_v, V, BT)
    b_dv = product(tl.trans(b_a), b_do, factor * b_dv, DOT, PRECISION)
    store_tile(p_dv + i_first * V, b_dv, j_t * BT, T, H * V, o_v, V, BT)


@triton.jit(do_not_specialize=["T"])
def parallel_grad_q_kernel(
    p_q, p_k, p_v, p_g, p_qg, p_kg, p_do, p_gamma, p_da, p_dq, p_part, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq [B, T, H, K] of one block of rows and one tile of K, and its part q dq of dg, p_part [B, T, H, K] float32,
    without each row's own."""
    NK: tl.constexpr = (K + BK - 1) // BK
    n_t = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_k, i_t, i_bh = i_p % NK, n_t - 1 - i_p // NK % n_t, (i_p // (NK * n_t)).to(tl.int64)
    i_first, o_k, i_row = (i_bh // H) * T * H + i_bh % H, i_k * BK + tl.arange(0, BK), i_t * BT
    p_q, p_k, p_kg, p_da = p_q + i_first * K, p_k + i_first * K, p_kg + i_first * K, p_da + i_first * BT
    b_past = tl.full([BK], 1.0, dtype=tl.float32)
    b_sum = tl.zeros([BT, BK], dtype=tl.float32)
    for i in range(0, i_t):
        j = i_t - 1 - i
        b_da = scores_gradient(p_do, p_v, i_first, i_t, j, T, H, V, BT, BV, DOT, PRECISION)
        b_kg = load_tile(p_kg, j * BT, T, H * K, o_k, K, BT)
        if GATED:
            b_sum += b_past[None, :] * product(b_da, b_kg, tl.zeros([BT, BK], dtype=tl.float32), DOT, PRECISION)
            b_past *= load_decay(p_gamma, i_bh * n_t + j, o_k, K)
        else:
            b_sum = product(b_da, b_kg, b_sum, DOT, PRECISION)
    if GATED:
        p_g += i_first * K
    b_dq = grad_q_within(p_k, p_g, p_da, i_row, T, H, o_k, K, BT, BK, GATED)
    if GATED:
        b_part = b_dq * load_tile(p_q, i_row, T, H * K, o_k, K, BT).to(tl.float32)
        b_part += b_sum * load_tile(p_qg + i_first * K, i_row, T, H * K, o_k, K, BT).to(tl.float32)
        store_tile(p_part + i_first * K, b_part, i_row, T, H * K, o_k, K, BT)
        b_sum *= tl.exp(tl.cumsum(load_tile(p_g, i_row, T, H * K, o_k, K, BT).to(tl.float32), axis=0))
    b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT).to(tl.float32)
    b_dq += scale * b_sum + load_own(p_da, i_row, T, H, BT) * b_k
    store_tile(p_dq + i_first * K, b_dq, i_row, T, H * K, o_k, K, BT)


@triton.jit(do_not_specialize=["T"])
def parallel_grad_k_kernel(
    p_q, p_k, p_v, p_g, p_qg, p_kg, p_do, p_gamma, p_da, p_dk, p_part, factor, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk [B, T, H, K] of one block of rows and one tile of K; from p_part goes k dk without each row's own."""
    NK: tl.constexpr = (K + BK - 1) // BK
    n_t = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_k, j_t, i_bh = i_p % NK, i_p // NK % n_t, (i_p // (NK * n_t)).to(tl.int64)
    i_first, o_k, i_row = (i_bh // H) * T * H + i_bh % H, i_k * BK + tl.arange(0, BK), j_t * BT
    p_q, p_k, p_qg, p_da = p_q + i_first * K, p_k + i_first * K, p_qg + i_first * K, p_da + i_first * BT
    b_past = tl.full([BK], 1.0, dtype=tl.float32)
    b_sum = tl.zeros([BT, BK], dtype=tl.float32)
    for i in range(j_t + 1, n_t):
        b_da = tl.trans(scores_gradient(p_do, p_v, i_first, i, j_t, T, H, V, BT, BV, DOT, PRECISION))
        b_qg = load_tile(p_qg, i * BT, T, H * K, o_k, K, BT)
        if GATED:
            b_sum += b_past[None, :] * product(b_da, b_qg, tl.zeros([BT, BK], dtype=tl.float32), DOT, PRECISION)
            b_past *= load_decay(p_gamma, i_bh * n_t + i, o_k, K)
        else:
            b_sum = product(b_da, b_qg, b_sum, DOT, PRECISION)
    if GATED:
        p_g += i_first * K
        p_part += i_first * K
    b_dk = grad_k_within(p_q, p_g, p_da, i_row, T, H, o_k, K, BT, BK, GATED)
    if GATED:
        b_part = load_tile(p_part, i_row, T, H * K, o_k, K, BT)
        b_part -= b_dk * load_tile(p_k, i_row, T, H * K, o_k, K, BT).to(tl.float32)
        b_part -= b_sum * load_tile(p_kg + i_first * K, i_row, T, H * K, o_k, K, BT).to(tl.float32)
        store_tile(p_part, b_part, i_row, T, H * K, o_k, K, BT)
        b_sum *= tl.exp(tl.cumsum(load_after(p_g, i_row, T, H * K, o_k, K, BT), axis=0, reverse=True))
    b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT).to(tl.float32)
    b_dk += factor * b_sum + load_own(p_da, i_row, T, H, BT) * b_q
    store_tile(p_dk + i_first * K, b_dk, i_row, T, H * K, o_k, K, BT)


@triton.jit(do_not_specialize=["T"])
def parallel_grad_g_kernel(p_g, p_part, p_dg, T, H, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr):
    """dg [B, T, H, K]: for each row the sum of p_part over it and all rows after it, of one tile of K."""
    NK: tl.constexpr = (K + BK - 1) // BK
    n_t = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_k, i_bh = i_p % NK, (i_p // NK).to(tl.int64)
    i_first, o_k = ((i_bh // H) * T * H + i_bh % H) * K, i_k * BK + tl.arange(0, BK)
    b_later = tl.zeros([BK], dtype=tl.float32)
    for i in range(0, n_t):
        i_row = (n_t - 1 - i) * BT
        b_part = load_tile(p_part + i_first, i_row, T, H * K, o_k, K, BT)
        b_dg = tl.cumsum(b_part, axis=0, reverse=True) + b_later[None, :]
        # a gate that lets nothing through has no gradient, and neither do rounding errors pass it
        b_open = tl.exp(load_tile(p_g + i_first, i_row, T, H * K, o_k, K, BT).to(tl.float32)) > 0.0
        store_tile(p_dg + i_first, tl.where(b_open, b_dg, 0.0), i_row, T, H * K, o_k, K, BT)
        b_later += tl.sum(b_part, axis=0)


def _in_blocks(call: Call) -> Call:
    """The call with its rows in blocks: of which a program holds all of K, and a short sequence has several."""
    _, T, _, K, _ = call.dims
    most = MOST_ROWS if call.q.dtype != torch.float32 else MOST_ROWS // 2
    rows = ROW_BYTES // (padded(K) * call.q.itemsize)
    return replace(call, chunk=max(16, min(most, rows, padded(T) // FEWEST_BLOCKS)))


def _launch(call: Call, kernel: Any, split: str, args: dict[str, Any]) -> Launch:
    """One program a block of rows and tile of the axis ``split``; all of K in one tile where V is split."""
    _, _, _, K, V = call.dims
    assert call.chunk is not None  # of `_in_blocks`
    most = MOST_COLUMNS if call.q.dtype != torch.float32 else MOST_COLUMNS // 2
    tile = {"BK": padded(K) if split == "V" else min(padded(K), most // 2), "BV": min(padded(V), most)}
    dim, block = (V, tile["BV"]) if split == "V" else (K, tile["BK"])
    launch = by_chunks(call, kernel, args)
    warps = warps_for(call.chunk, min(tile.values()), split == "V" and tile["BV"] == MOST_COLUMNS)
    if split == "V" and tile["BK"] > MOST_COLUMNS:
        warps = 8  # for a row of q or k that long
    grid = (cdiv(dim, block) * launch.grid[0],)
    return replace(launch, grid=grid, constexprs={**launch.constexprs, **tile}, num_warps=warps)


def _forward(call: Call, launch: Launcher) -> tuple[Tensor, Tensor | None, Kept]:
    call = _in_blocks(call)
    B, T, H, K, _ = call.dims
    assert call.chunk is not None  # of `_in_blocks`
    qg, kg, gamma = call.q, call.k, None
    if call.g is not None:
        qg, kg = torch.empty_like(call.q), torch.empty_like(call.k)
        gamma = call.q.new_empty(B * H, cdiv(T, call.chunk), K, dtype=torch.float32)
        launch(by_chunks(call, inside_decay_kernel, {"p_qg": qg, "p_kg": kg, "p_gamma": gamma}, "K"))
    scores, o = call.q.new_empty(B, T, H, call.chunk), torch.empty_like(call.v)
    launch(by_chunks(call, inside_scores_kernel, {"p_a": scores}))
    rows = {"p_qg": qg, "p_kg": kg, "p_gamma": gamma, "p_a": scores, "p_o": o}
    launch(_launch(call, parallel_output_kernel, "V", {**rows, "factor": _left_out(call)}))
    return o, None, (qg, kg, gamma, scores)


def _backward(call: Call, kept: Kept, do: Tensor, d_final: Tensor | None, launch: Launcher) -> Gradients:
    call = _in_blocks(call)
    assert call.chunk is not None  # of `_in_blocks`
    qg, kg, gamma, scores = kept
    d, d_scores = Gradients.empty(call), call.wide(call.chunk)
    part = None if call.g is None else call.wide(call.dims[3])
    rows = {"p_qg": qg, "p_kg": kg, "p_gamma": gamma, "p_do": do, "factor": _left_out(call)}
    launch(_launch(call, parallel_grad_v_kernel, "V", {**rows, "p_a": scores, "p_dv": d.v}))
    launch(by_chunks(call, inside_grad_scores_kernel, {"p_do": do, "p_da": d_scores}))
    rows |= {"p_da": d_scores, "p_dq": d.q, "p_dk": d.k, "p_part": part}
    launch(_launch(call, parallel_grad_q_kernel, "K", rows))
    launch(_launch(call, parallel_grad_k_kernel, "K", rows))
    if call.g is not None:
        by_columns = by_chunks(call, parallel_grad_g_kernel, {"p_part": part, "p_dg": d.g}, "K")
        launch(replace(by_columns, grid=(by_columns.grid[0] // cdiv(call.dims[1], call.chunk),)))
    return d


def _left_out(call: Call) -> float:
    """The factor that the rows of q still want: decayed ones have the scale in them."""
    return call.scale if call.g is None else 1.0


PARALLEL_TRITON = Form(_forward, _backward)
