"""Chunkwise GLA without sub-chunks, as it was before the second level of chunking (Yang et al. 2024, Algorithms 3, 4).

A chunk of C rows; G the sum of its gates up to a row, that row's included, and e^gamma the decay of the whole chunk:

    S_c = Diag(e^gamma) S_{c-1} + (K e^{gamma-G})^T V          O = scale (Q e^G) S_{c-1} + A V
    A_ij = scale sum_k Q_ik K_jk e^{G_i-G_j}, i >= j           dA = scale tril(dO V^T)
    dS_{c-1} = Diag(e^gamma) dS_c + (scale Q e^G)^T dO         dV = A^T dO + (K e^{gamma-G}) dS_c
    dQ = scale e^G (dO S_{c-1}^T) + [sum_j dA_ij K_j e^{G_i-G_j}]_i
    dK = e^{gamma-G} (V dS_c^T) + [sum_i dA_ij Q_i e^{G_i-G_j}]_j

One pass writes decayed q and k, one walks over the chunks and writes the state before each, one computes the scores A
element by element, one puts the output together; the backward pass likewise. Every exponent is a sum of gates, built up
while a pass goes through a chunk's rows, so that gates of any strength come out right.
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
from gla_kernels.schedule import cdiv
from gla_kernels.tiles.operands import load_operand, load_state, load_tile, store_state, store_tile
from gla_kernels.tiles.products import product
from glabench.systems.baselines.form import Call, Form, Gradients, Kept
from glabench.systems.baselines.inside import (
    COLUMNS,
    by_chunks,
    grad_k_within,
    grad_q_within,
    inside_decay_kernel,
    inside_grad_scores_kernel,
    inside_scores_kernel,
    load_after,
    load_own,
    tiles_of,
)


@triton.jit(do_not_specialize=["T"])
def direct_walk_kernel(
    p_x, p_y, p_gamma, p_first, p_s, p_last, factor, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    REVERSE: tl.constexpr, GATED: tl.constexpr, HAS_FIRST: tl.constexpr, STORE_LAST: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """S <- Diag(e^gamma) S + factor x^T y from chunk to chunk, of one tile of a state.

    p_x [B, T, H, K], p_y [B, T, H, V]; p_first and p_last [B*H, K, V], float32: where it begins and ends; p_s [B*H,
    chunks, K, V]: what each chunk finds. REVERSE goes from the last chunk to the first.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    n_c = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_v, i_k, i_bh = i_p % NV, i_p // NV % NK, (i_p // (NK * NV)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_first = (i_bh // H) * T * H + i_bh % H
    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_FIRST:
        b_s += load_state(p_first + i_bh * K * V, o_k, o_v, K, V)
    for i in range(0, n_c):
        i_c = n_c - 1 - i if REVERSE else i
        store_state(p_s + (i_bh * n_c + i_c) * K * V, b_s, o_k, o_v, K, V)
        b_x = load_tile(p_x + i_first * K, i_c * BT, T, H * K, o_k, K, BT)
        b_y = load_tile(p_y + i_first * V, i_c * BT, T, H * V, o_v, V, BT)
        if GATED:
            b_s *= tl.load(p_gamma + (i_bh * n_c + i_c) * K + o_k, mask=o_k < K, other=0.0)[:, None]
        b_new = product(tl.trans(b_x), b_y, tl.zeros([BK, BV], dtype=tl.float32), DOT, PRECISION)
        b_s += factor * b_new
    if STORE_LAST:
        store_state(p_last + i_bh * K * V, b_s, o_k, o_v, K, V)


@triton.jit(do_not_specialize=["T"])
def direct_combine_kernel(
    p_a, p_y, p_x, p_s, p_o, factor, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    TRANSPOSED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """p_o = A y + factor x S [B, T, H, V] of one chunk and one tile of V, A^T in A's place where TRANSPOSED.

    p_a [B, T, H, BT], p_y [B, T, H, V], p_x [B, T, H, K], p_s [B*H, chunks, K, V].
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    n_c = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_v, i_c, i_bh = i_p % NV, i_p // NV % n_c, (i_p // (NV * n_c)).to(tl.int64)
    i_first, i_row, o_v = (i_bh // H) * T * H + i_bh % H, i_c * BT, i_v * BV + tl.arange(0, BV)
    p_s += (i_bh * n_c + i_c) * K * V
    b_o = tl.zeros([BT, BV], dtype=tl.float32)
    for i_k in range(0, K, BK):
        o_k = i_k + tl.arange(0, BK)
        b_x = load_tile(p_x + i_first * K, i_row, T, H * K, o_k, K, BT)
        b_o = product(b_x, load_operand(p_s, o_k, o_v, K, V), b_o, DOT, PRECISION)
    b_a = load_tile(p_a + i_first * BT, i_row, T, H * BT, tl.arange(0, BT), BT, BT)
    if TRANSPOSED:
        b_a = tl.trans(b_a)
    b_y = load_tile(p_y + i_first * V, i_row, T, H * V, o_v, V, BT)
    b_o = product(b_a, b_y, factor * b_o, DOT, PRECISION)
    store_tile(p_o + i_first * V, b_o, i_row, T, H * V, o_v, V, BT)


@triton.jit(do_not_specialize=["T"])
def direct_grad_qk_kernel(
    p_q, p_k, p_v, p_g, p_do, p_da, p_s, p_ds, p_dq, p_dk, p_dg, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, dk and dg [B, T, H, K] of one chunk and one tile of K.

    dg_t is the sum over all that passes row t's gate: pairs of rows on both sides of it, rows after it and the state
    before the chunk, rows before it and the state after, and both states.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    n_c = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_k, i_c, i_bh = i_p % NK, i_p // NK % n_c, (i_p // (NK * n_c)).to(tl.int64)
    i_first, i_row = (i_bh // H) * T * H + i_bh % H, i_c * BT
    o_k = i_k * BK + tl.arange(0, BK)
    p_q, p_k, p_da = p_q + i_first * K, p_k + i_first * K, p_da + i_first * BT
    if GATED:
        p_g += i_first * K
    p_s, p_ds = p_s + (i_bh * n_c + i_c) * K * V, p_ds + (i_bh * n_c + i_c) * K * V
    b_dq_state, b_dk_state = tl.zeros([BT, BK], dtype=tl.float32), tl.zeros([BT, BK], dtype=tl.float32)
    b_both = tl.zeros([BK], dtype=tl.float32)
    for i_v in range(0, V, BV):
        o_v = i_v + tl.arange(0, BV)
        b_s, b_ds = load_operand(p_s, o_k, o_v, K, V), load_operand(p_ds, o_k, o_v, K, V)
        b_do = load_tile(p_do + i_first * V, i_row, T, H * V, o_v, V, BT)
        b_v = load_tile(p_v + i_first * V, i_row, T, H * V, o_v, V, BT)
        b_dq_state = product(b_do, tl.trans(b_s), b_dq_state, DOT, PRECISION)
        b_dk_state = product(b_v, tl.trans(b_ds), b_dk_state, DOT, PRECISION)
        b_both += tl.sum(b_s.to(tl.float32) * b_ds.to(tl.float32), axis=1)
    b_dq_state *= scale
    if GATED:
        b_g = load_tile(p_g, i_row, T, H * K, o_k, K, BT).to(tl.float32)
        b_dq_state *= tl.exp(tl.cumsum(b_g, axis=0))
        b_after = load_after(p_g, i_row, T, H * K, o_k, K, BT)
        b_dk_state *= tl.exp(tl.cumsum(b_after, axis=0, reverse=True))
        b_both *= tl.exp(tl.sum(b_g, axis=0))
    b_dq = grad_q_within(p_k, p_g, p_da, i_row, T, H, o_k, K, BT, BK, GATED)
    b_dk = grad_k_within(p_q, p_g, p_da, i_row, T, H, o_k, K, BT, BK, GATED)
    b_q = load_tile(p_q, i_row, T, H * K, o_k, K, BT).to(tl.float32)
    b_k = load_tile(p_k, i_row, T, H * K, o_k, K, BT).to(tl.float32)
    if GATED:
        b_after_it = tl.cumsum(b_q * (b_dq + b_dq_state) - b_k * b_dk, axis=0, reverse=True)
        b_passing = b_k * b_dk_state
        b_before_it = tl.cumsum(b_passing, axis=0) - b_passing
        b_dg = b_after_it + b_before_it + b_both[None, :]
        store_tile(p_dg + i_first * K, b_dg, i_row, T, H * K, o_k, K, BT)
    b_own = load_own(p_da, i_row, T, H, BT)
    store_tile(p_dq + i_first * K, b_dq + b_dq_state + b_own * b_k, i_row, T, H * K, o_k, K, BT)
    store_tile(p_dk + i_first * K, b_dk + b_dk_state + b_own * b_q, i_row, T, H * K, o_k, K, BT)


def _walk(call: Call, args: dict[str, Any], reverse: bool) -> Launch:
    """A walk over the chunks that writes the states ``p_s`` [B*H, chunks, K, V]."""
    B, _, H, K, V = call.dims
    _, block_k, block_v = tiles_of(call)
    has_first, store_last = args["p_first"] is not None, args["p_last"] is not None
    launch = by_chunks(
        call, direct_walk_kernel, args, REVERSE=reverse, HAS_FIRST=has_first, STORE_LAST=store_last
    )  # fmt: skip
    grid = (cdiv(K, block_k) * cdiv(V, block_v) * B * H,)
    return replace(launch, grid=grid, num_warps=4 if min(block_k, block_v) >= COLUMNS else 2, num_stages=3)


def _forward(call: Call, launch: Launcher) -> tuple[Tensor, Tensor | None, Kept]:
    B, T, H, K, _ = call.dims
    chunk = tiles_of(call)[0]
    n_chunks = cdiv(T, chunk)
    qg, kg, gamma = call.q, call.k, None
    if call.g is not None:
        qg, kg = torch.empty_like(call.q), torch.empty_like(call.k)
        gamma = call.q.new_empty(B * H, n_chunks, K, dtype=torch.float32)
        launch(by_chunks(call, inside_decay_kernel, {"p_qg": qg, "p_kg": kg, "p_gamma": gamma}, "K"))
    states, final, factor = call.states(n_chunks), call.one_state(call.final), _left_out(call)
    ends = {"p_first": call.initial_state, "p_last": final}
    launch(_walk(call, {"p_x": kg, "p_y": call.v, "p_gamma": gamma, "p_s": states, "factor": 1.0, **ends}, False))
    scores, o = call.q.new_empty(B, T, H, chunk), torch.empty_like(call.v)
    launch(by_chunks(call, inside_scores_kernel, {"p_a": scores}))
    rows = {"p_a": scores, "p_y": call.v, "p_x": qg, "p_s": states, "p_o": o}
    launch(by_chunks(call, direct_combine_kernel, {**rows, "factor": factor}, "V", TRANSPOSED=False))
    return o, final, (qg, kg, gamma, states, scores)


def _backward(call: Call, kept: Kept, do: Tensor, d_final: Tensor | None, launch: Launcher) -> Gradients:
    chunk, (qg, kg, gamma, states, scores) = tiles_of(call)[0], kept
    assert states is not None  # the forward pass has kept them
    d, d_states, d_scores = Gradients.empty(call), torch.empty_like(states), call.wide(chunk)
    ends = {"p_first": d_final, "p_last": d.initial_state, "factor": _left_out(call)}
    launch(_walk(call, {"p_x": qg, "p_y": do, "p_gamma": gamma, "p_s": d_states, **ends}, True))
    launch(by_chunks(call, inside_grad_scores_kernel, {"p_do": do, "p_da": d_scores}))
    rows = {"p_a": scores, "p_y": do, "p_x": kg, "p_s": d_states, "p_o": d.v}
    launch(by_chunks(call, direct_combine_kernel, {**rows, "factor": 1.0}, "V", TRANSPOSED=True))
    args = {"p_do": do, "p_da": d_scores, "p_s": states, "p_ds": d_states, "p_dq": d.q, "p_dk": d.k, "p_dg": d.g}
    launch(by_chunks(call, direct_grad_qk_kernel, args, "K"))
    return d


def _left_out(call: Call) -> float:
    """The factor that the rows of q still want: decayed ones have the scale in them."""
    return call.scale if call.g is None else 1.0


CHUNKWISE_DIRECT = Form(_forward, _backward)
