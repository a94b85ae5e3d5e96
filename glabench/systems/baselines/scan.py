"""The recurrence as a parallel scan over time (GateLoop, Katsch 2023, arXiv:2311.01927).

A token is the pair (a, x) of its decay and what it adds to the state, S -> a S + x; pairs compose associatively,

    (a, x) then (b, y) = (a b, b x + y)        a = e^g_t, x = k_t^T v_t

so that a block of tokens is scanned over as a tree, for each element of the state on its own. A program scans over one
block after another of a tile of the state and carries the last one's result into the next. States are in HBM for every
token; gradients are the same scan from the other end, with (e^g_{t+1}, scale q_t^T do_t), their states dS in HBM too.
What is left is a matrix-vector product a token:

    o_t = scale q_t S_t          dq_t = scale S_t do_t          dk_t = dS_t v_t
    dv_t = k_t dS_t              dg_t = e^g_t sum_V S_{t-1} dS_t
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from gla_kernels.launch import Launch, Launcher
from gla_kernels.schedule import cdiv
from gla_kernels.tiles.operands import load_row, load_state, load_tile, store_state
from glabench.systems.baselines.form import Call, Form, Gradients, Kept, blocks

BLOCK = 16  # tokens that are scanned over at once
SCAN_ELEMENTS = 4096  # of the pairs' second halves that a program scans over
MOST_COLUMNS = 64  # of V, for rows of whole cache lines
READ_ELEMENTS = 4096  # of a state that a program reads at once


@triton.jit
def compose(b_a1, b_x1, b_a2, b_x2):
    """One pair after another: decays multiply, what came first decays with the second."""
    return b_a1 * b_a2, b_x1 * b_a2 + b_x2


@triton.jit
def scan_block(b_row, b_column, b_a, b_carry, GATED: tl.constexpr, REVERSE: tl.constexpr):
    """The states [BT, BK, BV] of a block of outer products b_row [BT, BK] x b_column [BT, BV] with decays b_a [BT, BK],
    from the state b_carry [BK, BV] that the block before leaves, and what this one leaves."""
    BT: tl.constexpr = b_row.shape[0]
    b_x = b_row[:, :, None] * b_column[:, None, :]
    if GATED:
        b_a3 = b_a[:, :, None] + tl.zeros_like(b_x)
        b_a3, b_x = tl.associative_scan((b_a3, b_x), 0, compose, reverse=REVERSE)
        b_s = b_x + b_a3 * b_carry[None, :, :]
    else:
        b_s = tl.cumsum(b_x, axis=0, reverse=REVERSE) + b_carry[None, :, :]
    m_end = tl.arange(0, BT)[:, None, None] == (0 if REVERSE else BT - 1)
    return b_s, tl.sum(tl.where(m_end, b_s, 0.0), axis=0)


@triton.jit
def store_states(p_s, b_s, i_first, T, o_k, o_v, K: tl.constexpr, V: tl.constexpr):
    """States [BT, BK, BV] into rows i_first.. of p_s [T, K, V]; those from T on are not written."""
    o_t = i_first + tl.arange(0, b_s.shape[0])
    m_s = (o_t < T)[:, None, None] & (o_k < K)[None, :, None] & (o_v < V)[None, None, :]
    p_s += o_t.to(tl.int64)[:, None, None] * (K * V) + (o_k[:, None] * V + o_v[None, :])[None, :, :]
    tl.store(p_s, b_s.to(p_s.dtype.element_ty), mask=m_s)


@triton.jit(do_not_specialize=["T"])
def scan_forward_kernel(
    p_k, p_v, p_g, p_s0, p_s, p_st, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_S0: tl.constexpr, STORE_ST: tl.constexpr,
):  # fmt: skip
    """p_s [B*H, T+1, K, V]: the first state and that after each token; p_st [B*H, K, V]."""
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_bh = i_p % NV, i_p // NV % NK, (i_p // (NK * NV)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_first = (i_bh // H) * T * H + i_bh % H
    p_s += i_bh * (T + 1) * K * V
    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S0:
        b_s += load_state(p_s0 + i_bh * K * V, o_k, o_v, K, V)
    store_state(p_s, b_s, o_k, o_v, K, V)
    for i_t in range(0, T, BT):
        b_k = load_tile(p_k + i_first * K, i_t, T, H * K, o_k, K, BT).to(tl.float32)
        b_v = load_tile(p_v + i_first * V, i_t, T, H * V, o_v, V, BT).to(tl.float32)
        b_a = b_k
        if GATED:
            b_a = tl.exp(load_tile(p_g + i_first * K, i_t, T, H * K, o_k, K, BT).to(tl.float32))
        b_states, b_s = scan_block(b_k, b_v, b_a, b_s, GATED, False)
        store_states(p_s + K * V, b_states, i_t, T, o_k, o_v, K, V)
    if STORE_ST:
        store_state(p_st + i_bh * K * V, b_s, o_k, o_v, K, V)


@triton.jit(do_not_specialize=["T"])
def scan_backward_kernel(
    p_q, p_do, p_g, p_dst, p_ds, p_ds0, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_DST: tl.constexpr, STORE_DS0: tl.constexpr,
):  # fmt: skip
    """p_ds [B*H, T, K, V]: the gradient of the state after each token; p_ds0 [B*H, K, V]."""
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_bh = i_p % NV, i_p // NV % NK, (i_p // (NK * NV)).to(tl.int64)
    o_k, o_v, o_t = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV), tl.arange(0, BT)
    i_first = (i_bh // H) * T * H + i_bh % H
    p_ds += i_bh * T * K * V
    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_DST:
        b_ds += load_state(p_dst + i_bh * K * V, o_k, o_v, K, V)
    for i_b in range(0, T, BT):
        i_t = (T - 1) // BT * BT - i_b
        b_q = load_tile(p_q + i_first * K, i_t, T, H * K, o_k, K, BT).to(tl.float32)
        b_do = load_tile(p_do + i_first * V, i_t, T, H * V, o_v, V, BT).to(tl.float32) * scale
        b_a = b_q
        if GATED:  # the gates of the tokens after; there is none after the last
            p_next = p_g + (i_first + (i_t + 1).to(tl.int64) * H) * K
            m_g = (i_t + 1 + o_t < T)[:, None] & (o_k < K)[None, :]
            b_a = tl.exp(tl.load(p_next + o_t[:, None] * H * K + o_k[None, :], mask=m_g, other=0.0).to(tl.float32))
        b_states, b_ds = scan_block(b_q, b_do, b_a, b_ds, GATED, True)
        store_states(p_ds, b_states, i_t, T, o_k, o_v, K, V)
    if STORE_DS0:
        if GATED:
            b_ds *= tl.exp(load_row(p_g, i_first, True, K, o_k, K))[:, None]
        store_state(p_ds0 + i_bh * K * V, b_ds, o_k, o_v, K, V)


@triton.jit(do_not_specialize=["T"])
def over_k_kernel(
    p_x, p_s, p_y, scale, T, H, first, count,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """y_t = scale x_t S_t: rows p_x [B, T, H, K] and states p_s [B*H, count, K, V], from ``first`` on, give p_y
    [B, T, H, V] of one block of tokens and one tile of V; BK covers all of K."""
    NV: tl.constexpr = (V + BV - 1) // BV
    n_t = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_v, i_t, i_bh = i_p % NV, i_p // NV % n_t, (i_p // (NV * n_t)).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    for i in range(i_t * BT, tl.minimum(T, i_t * BT + BT)):
        i_row = ((i_bh // H) * T + i) * H + i_bh % H
        b_s = load_state(p_s + (i_bh * count + first + i) * K * V, o_k, o_v, K, V)
        b_y = tl.sum(b_s * load_row(p_x, i_row, True, K, o_k, K)[:, None], axis=0) * scale
        tl.store(p_y + i_row * V + o_v, b_y.to(p_y.dtype.element_ty), mask=o_v < V)


@triton.jit(do_not_specialize=["T"])
def over_v_kernel(
    p_v, p_g, p_do, p_s, p_ds, p_dq, p_dk, p_dg, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """dq, dk and dg [B, T, H, K] of one block of tokens and one tile of K; BV covers all of V."""
    NK: tl.constexpr = (K + BK - 1) // BK
    n_t = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_k, i_t, i_bh = i_p % NK, i_p // NK % n_t, (i_p // (NK * n_t)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    p_s += (i_bh * (T + 1) + i_t * BT) * K * V
    p_ds += (i_bh * T + i_t * BT) * K * V
    b_s = load_state(p_s, o_k, o_v, K, V)
    for i in range(i_t * BT, tl.minimum(T, i_t * BT + BT)):
        i_row = ((i_bh // H) * T + i) * H + i_bh % H
        b_ds = load_state(p_ds, o_k, o_v, K, V)
        if GATED:
            b_dg = tl.sum(b_s * b_ds, axis=1) * tl.exp(load_row(p_g, i_row, True, K, o_k, K))
            tl.store(p_dg + i_row * K + o_k, b_dg.to(p_dg.dtype.element_ty), mask=o_k < K)
        p_s += K * V
        p_ds += K * V
        b_s = load_state(p_s, o_k, o_v, K, V)
        b_dq = tl.sum(b_s * load_row(p_do, i_row, True, V, o_v, V)[None, :], axis=1) * scale
        b_dk = tl.sum(b_ds * load_row(p_v, i_row, True, V, o_v, V)[None, :], axis=1)
        tl.store(p_dq + i_row * K + o_k, b_dq.to(p_dq.dtype.element_ty), mask=o_k < K)
        tl.store(p_dk + i_row * K + o_k, b_dk.to(p_dk.dtype.element_ty), mask=o_k < K)


def _scan(call: Call, kernel: Any, args: dict[str, Any], **flags: bool) -> Launch:
    """A scan over all tokens, of one tile of the state a program."""
    B, _, H, K, V = call.dims
    block_v = min(MOST_COLUMNS, triton.next_power_of_2(V))
    block_k = min(triton.next_power_of_2(K), SCAN_ELEMENTS // (BLOCK * block_v))
    constexprs = {"K": K, "V": V, "BT": BLOCK, "BK": block_k, "BV": block_v, "GATED": call.g is not None} | flags
    return Launch(
        kernel, (cdiv(K, block_k) * cdiv(V, block_v) * B * H,), {"p_g": call.g, **call.sizes} | args, constexprs
    )


def _products(call: Call, kernel: Any, split: str, args: dict[str, Any]) -> Launch:
    """One product a token: a program for every block of tokens and tile of the axis ``split``."""
    B, T, H, _, _ = call.dims
    tile, tiles = blocks(call, split, READ_ELEMENTS)
    args = {"p_g": call.g, "scale": call.scale, **call.sizes} | args
    return Launch(kernel, (tiles * cdiv(T, BLOCK) * B * H,), args, tile | {"BT": BLOCK, "GATED": call.g is not None})


def _forward(call: Call, launch: Launcher) -> tuple[Tensor, Tensor | None, Kept]:
    T = call.dims[1]
    o, final, states = call.v.new_empty(call.v.shape), call.one_state(call.final), call.states(T + 1)
    args = {"p_k": call.k, "p_v": call.v, "p_s0": call.initial_state, "p_s": states, "p_st": final}
    launch(_scan(call, scan_forward_kernel, args, HAS_S0=call.initial_state is not None, STORE_ST=call.final))
    launch(_products(call, over_k_kernel, "V", {"p_x": call.q, "p_s": states, "p_y": o, "first": 1, "count": T + 1}))
    return o, final, (states,)


def _backward(call: Call, kept: Kept, do: Tensor, d_final: Tensor | None, launch: Launcher) -> Gradients:
    T = call.dims[1]
    d, d_states = Gradients.empty(call), call.states(T)
    args = {"p_q": call.q, "p_do": do, "p_dst": d_final, "p_ds": d_states, "p_ds0": d.initial_state}
    flags = {"HAS_DST": d_final is not None, "STORE_DS0": d.initial_state is not None}
    launch(_scan(call, scan_backward_kernel, args | {"scale": call.scale}, **flags))
    args = {"p_v": call.v, "p_do": do, "p_s": kept[0], "p_ds": d_states, "p_dq": d.q, "p_dk": d.k, "p_dg": d.g}
    launch(_products(call, over_v_kernel, "K", args))
    given = {"scale": 1.0, "first": 0, "count": T}
    launch(_products(call, over_k_kernel, "V", {"p_x": call.k, "p_s": d_states, "p_y": d.v, **given}))
    return d


SCAN = Form(_forward, _backward)
