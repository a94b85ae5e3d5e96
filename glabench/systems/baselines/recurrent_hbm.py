"""The recurrence with every state in HBM (Mao 2022, "Fine-Tuning Pre-trained Transformers into Decaying Fast Weights",
arXiv:2210.04243), which the 2023 version of the GLA paper compares with.

    S_t = Diag(e^g_t) S_{t-1} + k_t^T v_t                    o_t = scale q_t S_t
    dS_t = scale q_t^T do_t + Diag(e^g_{t+1}) dS_{t+1}       dq_t = scale S_t do_t     dk_t = dS_t v_t
    dv_t = k_t dS_t                                          dg_t = e^g_t sum_V S_{t-1} dS_t

The forward pass writes S_0 and S_t for every token, the backward pass reads them back from the last to the first.
Products are float32 on CUDA cores. A sum over K needs all of K in one program (o, dv), a sum over V all of V (dq, dk,
dg).
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from gla_kernels.launch import Launch, Launcher
from gla_kernels.tiles.operands import load_row, load_state, store_state
from glabench.systems.baselines.form import Call, Form, Gradients, Kept, blocks

# Elements of the state that one program holds: 32 float32 registers a thread.
STATE_ELEMENTS = 4096


@triton.jit(do_not_specialize=["T"])
def hbm_output_kernel(
    p_q, p_k, p_v, p_g, p_s0, p_s, p_o, p_st, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_S0: tl.constexpr, STORE_ST: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] and p_s [B*H, T+1, K, V], the first state and that after each token, of one tile of V; BK covers
    all of K."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_bh = i_p % NV, (i_p // NV).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_row = (i_bh // H) * T * H + i_bh % H
    p_s += i_bh * (T + 1) * K * V
    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S0:
        b_s += load_state(p_s0 + i_bh * K * V, o_k, o_v, K, V)
    store_state(p_s, b_s, o_k, o_v, K, V)
    for _ in range(0, T):
        b_q, b_k = load_row(p_q, i_row, True, K, o_k, K), load_row(p_k, i_row, True, K, o_k, K)
        b_v = load_row(p_v, i_row, True, V, o_v, V)
        if GATED:
            b_s *= tl.exp(load_row(p_g, i_row, True, K, o_k, K))[:, None]
        b_s += b_k[:, None] * b_v[None, :]
        p_s += K * V
        store_state(p_s, b_s, o_k, o_v, K, V)
        b_o = tl.sum(b_s * b_q[:, None], axis=0) * scale
        tl.store(p_o + i_row * V + o_v, b_o.to(p_o.dtype.element_ty), mask=o_v < V)
        i_row += H
    if STORE_ST:
        store_state(p_st + i_bh * K * V, b_s, o_k, o_v, K, V)


@triton.jit(do_not_specialize=["T"])
def hbm_grad_qk_kernel(
    p_q, p_k, p_v, p_g, p_s, p_dst, p_do, p_dq, p_dk, p_dg, p_ds0, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, HAS_S0: tl.constexpr, HAS_DST: tl.constexpr,
):  # fmt: skip
    """dq, dk and dg [B, T, H, K], and dS_0, of one tile of K, from the last token to the first; BV covers all of V."""
    NK: tl.constexpr = (K + BK - 1) // BK
    i_p = tl.program_id(0)
    i_k, i_bh = i_p % NK, (i_p // NK).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    i_row = (i_bh // H) * T * H + i_bh % H + (T - 1).to(tl.int64) * H
    p_s += (i_bh * (T + 1) + T) * K * V
    b_s = load_state(p_s, o_k, o_v, K, V)
    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_DST:
        b_ds += load_state(p_dst + i_bh * K * V, o_k, o_v, K, V)
    for _ in range(0, T):
        b_q, b_v = load_row(p_q, i_row, True, K, o_k, K), load_row(p_v, i_row, True, V, o_v, V)
        b_do = load_row(p_do, i_row, True, V, o_v, V) * scale
        b_dq = tl.sum(b_s * b_do[None, :], axis=1)
        b_ds += b_q[:, None] * b_do[None, :]
        b_dk = tl.sum(b_ds * b_v[None, :], axis=1)
        tl.store(p_dq + i_row * K + o_k, b_dq.to(p_dq.dtype.element_ty), mask=o_k < K)
        tl.store(p_dk + i_row * K + o_k, b_dk.to(p_dk.dtype.element_ty), mask=o_k < K)
        p_s -= K * V
        b_s = load_state(p_s, o_k, o_v, K, V)
        if GATED:
            b_ds *= tl.exp(load_row(p_g, i_row, True, K, o_k, K))[:, None]
            b_dg = tl.sum(b_s * b_ds, axis=1)
            tl.store(p_dg + i_row * K + o_k, b_dg.to(p_dg.dtype.element_ty), mask=o_k < K)
        i_row -= H
    if HAS_S0:
        store_state(p_ds0 + i_bh * K * V, b_ds, o_k, o_v, K, V)


@triton.jit(do_not_specialize=["T"])
def hbm_grad_v_kernel(
    p_q, p_k, p_g, p_dst, p_do, p_dv, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, GATED: tl.constexpr, HAS_DST: tl.constexpr,
):  # fmt: skip
    """dv [B, T, H, V] of one tile of V, from the last token to the first; BK covers all of K."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_bh = i_p % NV, (i_p // NV).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_row = (i_bh // H) * T * H + i_bh % H + (T - 1).to(tl.int64) * H
    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_DST:
        b_ds += load_state(p_dst + i_bh * K * V, o_k, o_v, K, V)
    for _ in range(0, T):
        b_q, b_k = load_row(p_q, i_row, True, K, o_k, K), load_row(p_k, i_row, True, K, o_k, K)
        b_do = load_row(p_do, i_row, True, V, o_v, V) * scale
        b_ds += b_q[:, None] * b_do[None, :]
        b_dv = tl.sum(b_ds * b_k[:, None], axis=0)
        tl.store(p_dv + i_row * V + o_v, b_dv.to(p_dv.dtype.element_ty), mask=o_v < V)
        if GATED:
            b_ds *= tl.exp(load_row(p_g, i_row, True, K, o_k, K))[:, None]
        i_row -= H


def _launch(call: Call, kernel: Any, split: str, args: dict[str, Any], **flags: bool) -> Launch:
    B, _, H, _, _ = call.dims
    tile, tiles = blocks(call, split, STATE_ELEMENTS)
    given = {"p_q": call.q, "p_k": call.k, "p_v": call.v, "p_g": call.g, "p_s0": call.initial_state}
    args = given | {"scale": call.scale, **call.sizes} | args
    constexprs = tile | {"GATED": call.g is not None, "HAS_S0": call.initial_state is not None} | flags
    return Launch(kernel, (tiles * B * H,), args, constexprs)


def _forward(call: Call, launch: Launcher) -> tuple[Tensor, Tensor | None, Kept]:
    o, final, states = call.v.new_empty(call.v.shape), call.one_state(call.final), call.states(call.dims[1] + 1)
    args = {"p_s": states, "p_o": o, "p_st": final}
    launch(_launch(call, hbm_output_kernel, "V", args, STORE_ST=call.final))
    return o, final, (states,)


def _backward(call: Call, kept: Kept, do: Tensor, d_final: Tensor | None, launch: Launcher) -> Gradients:
    d, has = Gradients.empty(call), d_final is not None
    args = {"p_s": kept[0], "p_dst": d_final, "p_do": do, "p_dv": d.v}
    args |= {"p_dq": d.q, "p_dk": d.k, "p_dg": d.g, "p_ds0": d.initial_state}
    launch(_launch(call, hbm_grad_qk_kernel, "K", args, HAS_DST=has))
    launch(_launch(call, hbm_grad_v_kernel, "V", args, HAS_DST=has))
    return d


RECURRENT_HBM = Form(_forward, _backward)
