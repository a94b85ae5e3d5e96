"""Linear attention in the manner of LightningAttention-2 (Qin et al. 2024, arXiv:2401.04658): no gate, or a constant
decay for each head, such as RetNet's 1 - 2^(-5-h) (Sun et al. 2023, arXiv:2307.08621). HBM sees inputs and outputs.

    S_t = e^l S_{t-1} + k_t^T v_t          o_t = scale q_t S_t          l = log of the head's decay, 0 for none

A program walks over a head's chunks of C rows with its tile of the state on chip. With D_ij = e^{l(i-j)} for i >= j and
0 above the diagonal, rows of a chunk counted from 0,

    O  = scale [((Q K^T) D) V + e^{l(i+1)} Q S]          S  <- e^{lC} S + (e^{l(C-1-j)} K)^T V
    dQ = scale [((dO V^T) D) K + e^{l(i+1)} dO S^T]      dS <- e^{lC} dS + scale (e^{l(i+1)} Q)^T dO
    dK = scale ((dO V^T) D)^T Q + e^{l(C-1-j)} V dS^T    dV = scale ((Q K^T) D)^T dO + e^{l(C-1-j)} K dS

dQ walks forward, dK and dV walk back.
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gla_kernels.launch import Launch, Launcher
from gla_kernels.schedule import cdiv, padded
from gla_kernels.tiles.operands import load_state, load_tile, store_state, store_tile
from gla_kernels.tiles.products import product
from glabench.systems.baselines.form import Call, Form, Gradients, Kept

COLUMNS = 64  # of the axis that is cut
ROWS = 64  # of a chunk
STATE_PER_WARP = 1024  # numbers of the state: 32 registers a thread
MOST_WARPS = 8


@triton.jit
def load_rate(p_rate, i_head, DECAY: tl.constexpr):
    """The head's l; 0 where there is no decay."""
    b_rate = 0.0
    if DECAY:
        b_rate = tl.load(p_rate + i_head)
    return b_rate


@triton.jit
def within(b_rate, BT: tl.constexpr, DECAY: tl.constexpr):
    """D, float32 [BT, BT]."""
    o_r = tl.arange(0, BT)
    m_d = o_r[:, None] >= o_r[None, :]
    b_d = m_d.to(tl.float32)
    if DECAY:
        b_d *= tl.exp(b_rate * tl.where(m_d, o_r[:, None] - o_r[None, :], 0).to(tl.float32))
    return b_d


@triton.jit
def to_ends(b_rate, i_row, T, BT: tl.constexpr):
    """e^{l(i+1)} [BT], e^{l(n-1-j)} [BT] and e^{ln} of a chunk's n rows; the last chunk may have fewer than BT."""
    o_r = tl.arange(0, BT)
    n_r = tl.minimum(BT, T - i_row)
    b_in = tl.exp(b_rate * (o_r + 1).to(tl.float32))
    b_out = tl.exp(b_rate * tl.maximum(n_r - 1 - o_r, 0).to(tl.float32))
    return b_in, b_out, tl.exp(b_rate * n_r.to(tl.float32))


@triton.jit(do_not_specialize=["T"])
def lightning_output_kernel(
    p_q, p_k, p_v, p_rate, p_s0, p_o, p_st, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DECAY: tl.constexpr,
    HAS_S0: tl.constexpr, STORE_ST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] and the final state [B*H, K, V] of one tile of V; BK covers all of K."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_bh = i_p % NV, (i_p // NV).to(tl.int64)
    i_first, o_k, o_v = (i_bh // H) * T * H + i_bh % H, tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    b_rate = load_rate(p_rate, i_bh % H, DECAY)
    b_d = within(b_rate, BT, DECAY)
    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S0:
        b_s += load_state(p_s0 + i_bh * K * V, o_k, o_v, K, V)
    for i_row in range(0, T, BT):
        b_q = load_tile(p_q + i_first * K, i_row, T, H * K, o_k, K, BT)
        b_k = load_tile(p_k + i_first * K, i_row, T, H * K, o_k, K, BT)
        b_v = load_tile(p_v + i_first * V, i_row, T, H * V, o_v, V, BT)
        b_a = b_d * product(b_q, tl.trans(b_k), tl.zeros([BT, BT], dtype=tl.float32), DOT, PRECISION)
        b_o = product(b_q, b_s, tl.zeros([BT, BV], dtype=tl.float32), DOT, PRECISION)
        if DECAY:
            b_in, b_out, b_all = to_ends(b_rate, i_row, T, BT)
            b_o *= b_in[:, None]
            b_s *= b_all
            b_k = b_k.to(tl.float32) * b_out[:, None]
        b_o = product(b_a, b_v, b_o, DOT, PRECISION)
        b_s = product(tl.trans(b_k), b_v, b_s, DOT, PRECISION)
        store_tile(p_o + i_first * V, scale * b_o, i_row, T, H * V, o_v, V, BT)
    if STORE_ST:
        store_state(p_st + i_bh * K * V, b_s, o_k, o_v, K, V)


@triton.jit(do_not_specialize=["T"])
def lightning_grad_q_kernel(
    p_k, p_v, p_rate, p_s0, p_do, p_dq, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DECAY: tl.constexpr,
    HAS_S0: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq [B, T, H, K] of one tile of K; BV covers all of V."""
    NK: tl.constexpr = (K + BK - 1) // BK
    i_p = tl.program_id(0)
    i_k, i_bh = i_p % NK, (i_p // NK).to(tl.int64)
    i_first, o_k, o_v = (i_bh // H) * T * H + i_bh % H, i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    b_rate = load_rate(p_rate, i_bh % H, DECAY)
    b_d = within(b_rate, BT, DECAY)
    b_s = tl.zeros([BV, BK], dtype=tl.float32)  # transposed
    if HAS_S0:
        b_s += tl.trans(load_state(p_s0 + i_bh * K * V, o_k, o_v, K, V))
    for i_row in range(0, T, BT):
        b_k = load_tile(p_k + i_first * K, i_row, T, H * K, o_k, K, BT)
        b_v = load_tile(p_v + i_first * V, i_row, T, H * V, o_v, V, BT)
        b_do = load_tile(p_do + i_first * V, i_row, T, H * V, o_v, V, BT)
        b_da = b_d * product(b_do, tl.trans(b_v), tl.zeros([BT, BT], dtype=tl.float32), DOT, PRECISION)
        b_dq = product(b_do, b_s, tl.zeros([BT, BK], dtype=tl.float32), DOT, PRECISION)
        if DECAY:
            b_in, b_out, b_all = to_ends(b_rate, i_row, T, BT)
            b_dq *= b_in[:, None]
            b_s *= b_all
            b_v = b_v.to(tl.float32) * b_out[:, None]
        b_dq = product(b_da, b_k, b_dq, DOT, PRECISION)
        b_s = product(tl.trans(b_v), b_k, b_s, DOT, PRECISION)
        store_tile(p_dq + i_first * K, scale * b_dq, i_row, T, H * K, o_k, K, BT)


@triton.jit(do_not_specialize=["T"])
def lightning_grad_k_kernel(
    p_q, p_v, p_rate, p_dst, p_do, p_dk, p_ds0, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DECAY: tl.constexpr,
    HAS_DST: tl.constexpr, STORE_DS0: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk [B, T, H, K] and dS_0 [B*H, K, V] of one tile of K, from the last chunk to the first; BV covers all of V."""
    NK: tl.constexpr = (K + BK - 1) // BK
    i_p = tl.program_id(0)
    i_k, i_bh = i_p % NK, (i_p // NK).to(tl.int64)
    i_first, o_k, o_v = (i_bh // H) * T * H + i_bh % H, i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    b_rate = load_rate(p_rate, i_bh % H, DECAY)
    b_d = within(b_rate, BT, DECAY)
    b_ds = tl.zeros([BV, BK], dtype=tl.float32)  # transposed, and without the scale
    if HAS_DST:
        b_ds += tl.trans(load_state(p_dst + i_bh * K * V, o_k, o_v, K, V)) / scale
    for i in range(0, tl.cdiv(T, BT)):
        i_row = (tl.cdiv(T, BT) - 1 - i) * BT
        b_q = load_tile(p_q + i_first * K, i_row, T, H * K, o_k, K, BT)
        b_v = load_tile(p_v + i_first * V, i_row, T, H * V, o_v, V, BT)
        b_do = load_tile(p_do + i_first * V, i_row, T, H * V, o_v, V, BT)
        b_da = b_d * product(b_do, tl.trans(b_v), tl.zeros([BT, BT], dtype=tl.float32), DOT, PRECISION)
        b_dk = product(b_v, b_ds, tl.zeros([BT, BK], dtype=tl.float32), DOT, PRECISION)
        if DECAY:
            b_in, b_out, b_all = to_ends(b_rate, i_row, T, BT)
            b_dk *= b_out[:, None]
            b_ds *= b_all
            b_do = b_do.to(tl.float32) * b_in[:, None]
        b_dk = product(tl.trans(b_da), b_q, b_dk, DOT, PRECISION)
        b_ds = product(tl.trans(b_do), b_q, b_ds, DOT, PRECISION)
        store_tile(p_dk + i_first * K, scale * b_dk, i_row, T, H * K, o_k, K, BT)
    if STORE_DS0:
        store_state(p_ds0 + i_bh * K * V, scale * tl.trans(b_ds), o_k, o_v, K, V)


@triton.jit(do_not_specialize=["T"])
def lightning_grad_v_kernel(
    p_q, p_k, p_rate, p_dst, p_do, p_dv, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DECAY: tl.constexpr,
    HAS_DST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv [B, T, H, V] of one tile of V, from the last chunk to the first; BK covers all of K."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_bh = i_p % NV, (i_p // NV).to(tl.int64)
    i_first, o_k, o_v = (i_bh // H) * T * H + i_bh % H, tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    b_rate = load_rate(p_rate, i_bh % H, DECAY)
    b_d = within(b_rate, BT, DECAY)
    b_ds = tl.zeros([BK, BV], dtype=tl.float32)  # without the scale
    if HAS_DST:
        b_ds += load_state(p_dst + i_bh * K * V, o_k, o_v, K, V) / scale
    for i in range(0, tl.cdiv(T, BT)):
        i_row = (tl.cdiv(T, BT) - 1 - i) * BT
        b_q = load_tile(p_q + i_first * K, i_row, T, H * K, o_k, K, BT)
        b_k = load_tile(p_k + i_first * K, i_row, T, H * K, o_k, K, BT)
        b_do = load_tile(p_do + i_first * V, i_row, T, H * V, o_v, V, BT)
        b_a = b_d * product(b_q, tl.trans(b_k), tl.zeros([BT, BT], dtype=tl.float32), DOT, PRECISION)
        b_dv = product(b_k, b_ds, tl.zeros([BT, BV], dtype=tl.float32), DOT, PRECISION)
        if DECAY:
            b_in, b_out, b_all = to_ends(b_rate, i_row, T, BT)
            b_dv *= b_out[:, None]
            b_ds *= b_all
            b_q = b_q.to(tl.float32) * b_in[:, None]
        b_dv = product(tl.trans(b_a), b_do, b_dv, DOT, PRECISION)
        b_ds = product(tl.trans(b_q), b_do, b_ds, DOT, PRECISION)
        store_tile(p_dv + i_first * V, scale * b_dv, i_row, T, H * V, o_v, V, BT)


def lightning(rate: Tensor | None) -> Form:
    """The form for these decays: float32 [H] with the log of each head's, at most 0, or None for no decay.

    It takes no gates (an AssertionError), and has no gradient for the decays, which are constants of a model.
    """
    return Form(partial(_forward, rate), partial(_backward, rate))


def _launch(call: Call, rate: Tensor | None, kernel: Any, split: str, args: dict[str, Any], **flags: bool) -> Launch:
    """A program for every tile of the axis ``split``, with all of the other one."""
    B, _, H, K, V = call.dims
    wide = call.q.dtype == torch.float32
    columns = COLUMNS // 2 if wide else COLUMNS
    dim, full = (K, padded(V)) if split == "K" else (V, padded(K))
    block = min(padded(dim), columns)
    tile = {"BK": block, "BV": full} if split == "K" else {"BK": full, "BV": block}
    # fewer than four warps keep Triton from Hopper's own product instruction; see `inside.warps_for`
    warps = 2 if min(block, full) < COLUMNS and not wide else max(4, min(MOST_WARPS, block * full // STATE_PER_WARP))
    constexprs = {"K": K, "V": V, "BT": ROWS // 4 if wide else ROWS, **tile, "DECAY": rate is not None}
    args = {"p_q": call.q, "p_k": call.k, "p_v": call.v, "p_rate": rate, "scale": call.scale, **call.sizes} | args
    return Launch(kernel, (cdiv(dim, block) * B * H,), args, constexprs | call.operands | flags, warps, num_stages=2)


def _forward(rate: Tensor | None, call: Call, launch: Launcher) -> tuple[Tensor, Tensor | None, Kept]:
    assert call.g is None  # the system refuses cases with gates
    o, final = torch.empty_like(call.v), call.one_state(call.final)
    args = {"p_s0": call.initial_state, "p_o": o, "p_st": final}
    flags = {"HAS_S0": call.initial_state is not None, "STORE_ST": call.final}
    launch(_launch(call, rate, lightning_output_kernel, "V", args, **flags))
    return o, final, ()


def _backward(
    rate: Tensor | None, call: Call, kept: Kept, do: Tensor, d_final: Tensor | None, launch: Launcher
) -> Gradients:
    d = Gradients.empty(call)
    args = {"p_s0": call.initial_state, "p_dst": d_final, "p_do": do, "p_dq": d.q, "p_dk": d.k, "p_dv": d.v}
    args |= {"p_ds0": d.initial_state}
    has_first, has_last = call.initial_state is not None, d_final is not None
    launch(_launch(call, rate, lightning_grad_q_kernel, "K", args, HAS_S0=has_first))
    launch(_launch(call, rate, lightning_grad_k_kernel, "K", args, HAS_DST=has_last, STORE_DS0=has_first))
    launch(_launch(call, rate, lightning_grad_v_kernel, "V", args, HAS_DST=has_last))
    return d


LIGHTNING2 = lightning(None)
