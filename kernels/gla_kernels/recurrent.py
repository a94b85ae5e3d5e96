"""The fused recurrent form: one program walks over time, token by token, with its tile of the state in registers.

    S_t = Diag(e^g_t) S_{t-1} Diag(e^gv_t) + k_t^T v_t          o_t = scale q_t S_t

Products are float32 on CUDA cores; HBM sees inputs and outputs only. A sum over K needs all of K in one program (o and
dv), a sum over V all of V (dq and dk): hence one kernel each. `step_kernel` is one token, with the state in HBM. GATED
and GATED_V: whether there are gates g and gv. V_FIRST: whether states lie as [V, K].

p_lengths [N+1], or None: where each of N sequences that lie in the T rows of a batch of one begins, and T. There is a
program for each of them then, in place of each one of the batch, and states are [N, H, K, V].
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launch, Launcher
from .schedule import cdiv, padded
from .tiles.operands import load_state, store_state

# Elements of the state that one program holds: 32 float32 registers a thread.
STATE_ELEMENTS = 4096
NUM_WARPS = 4


@triton.jit
def _load(p_x, o_x, D: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton's language is not typed
    return tl.load(p_x + o_x, mask=o_x < D, other=0.0).to(tl.float32)


@triton.jit
def _sequence(p_lengths, i_bh, T, H):  # type: ignore[no-untyped-def]
    """The first row of a sequence and head, and how many rows it has, H rows apart."""
    i_first, n_rows = (i_bh // H) * T, T
    if p_lengths is not None:
        p_lengths += i_bh // H
        i_first = tl.load(p_lengths).to(tl.int64)
        n_rows = (tl.load(p_lengths + 1) - i_first).to(tl.int32)
    return i_first * H + i_bh % H, n_rows


@triton.jit(do_not_specialize=["T"])
def recurrent_output_kernel(  # type: ignore[no-untyped-def]
    p_q, p_k, p_v, p_g, p_gv, p_s0, p_do, p_o, p_st, p_lengths, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, GATED_V: tl.constexpr, HAS_S0: tl.constexpr, STORE_ST: tl.constexpr, TIMES_DO: tl.constexpr,
    V_FIRST: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of one tile of V, and the final state [B*H, K, V]; BK covers all of K.

    TIMES_DO: p_o is float32 and gets o * do without a token's own k v^T, which has passed through no gate.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_bh = i_p % NV, (i_p // NV).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_row, n_rows = _sequence(p_lengths, i_bh, T, H)
    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S0:
        b_s += load_state(p_s0 + i_bh * K * V, o_k, o_v, K, V, V_FIRST)
    for _ in range(0, n_rows):
        b_q, b_k = _load(p_q + i_row * K, o_k, K), _load(p_k + i_row * K, o_k, K)
        b_v = _load(p_v + i_row * V, o_v, V)
        if GATED:
            b_s *= tl.exp(_load(p_g + i_row * K, o_k, K))[:, None]
        if GATED_V:
            b_s *= tl.exp(_load(p_gv + i_row * V, o_v, V))[None, :]
        if TIMES_DO:
            b_odo = tl.sum(b_s * b_q[:, None], axis=0) * scale * _load(p_do + i_row * V, o_v, V)
            tl.store(p_o + i_row * V + o_v, b_odo, mask=o_v < V)
        b_s += b_k[:, None] * b_v[None, :]
        if not TIMES_DO:
            b_o = tl.sum(b_s * b_q[:, None], axis=0) * scale
            tl.store(p_o + i_row * V + o_v, b_o.to(p_o.dtype.element_ty), mask=o_v < V)
        i_row += H
    if STORE_ST:
        store_state(p_st + i_bh * K * V, b_s, o_k, o_v, K, V, V_FIRST)


@triton.jit(do_not_specialize=["T"])
def recurrent_grad_q_kernel(  # type: ignore[no-untyped-def]
    p_q, p_k, p_v, p_g, p_gv, p_s0, p_do, p_dq, p_qdq, p_lengths, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, GATED_V: tl.constexpr, HAS_S0: tl.constexpr, V_FIRST: tl.constexpr,
):  # fmt: skip
    """dq_t = scale S_t do_t for one tile of K; BV covers all of V.

    p_qdq [B, T, H, K] float32: q * dq without a token's own k v^T, which has passed through no gate.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    i_p = tl.program_id(0)
    i_k, i_bh = i_p % NK, (i_p // NK).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    i_row, n_rows = _sequence(p_lengths, i_bh, T, H)
    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S0:
        b_s += load_state(p_s0 + i_bh * K * V, o_k, o_v, K, V, V_FIRST)
    for _ in range(0, n_rows):
        b_k, b_v = _load(p_k + i_row * K, o_k, K), _load(p_v + i_row * V, o_v, V)
        b_do = _load(p_do + i_row * V, o_v, V) * scale
        if GATED:
            b_s *= tl.exp(_load(p_g + i_row * K, o_k, K))[:, None]
        if GATED_V:
            b_s *= tl.exp(_load(p_gv + i_row * V, o_v, V))[None, :]
        b_dq = tl.sum(b_s * b_do[None, :], axis=1)
        if GATED:
            tl.store(p_qdq + i_row * K + o_k, _load(p_q + i_row * K, o_k, K) * b_dq, mask=o_k < K)
        b_dq += b_k * tl.sum(b_v * b_do, axis=0)
        tl.store(p_dq + i_row * K + o_k, b_dq.to(p_dq.dtype.element_ty), mask=o_k < K)
        b_s += b_k[:, None] * b_v[None, :]
        i_row += H


@triton.jit(do_not_specialize=["T"])
def recurrent_grad_k_kernel(  # type: ignore[no-untyped-def]
    p_q, p_k, p_v, p_g, p_gv, p_st, p_dst, p_do, p_qdq, p_dk, p_dg, p_ds0, p_lengths, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, GATED_V: tl.constexpr, HAS_DST: tl.constexpr, STORE_DS0: tl.constexpr,
    V_FIRST: tl.constexpr,
):  # fmt: skip
    """dk_t = dS_t v_t, dg_t = sum_{i>=t} (q dq - k dk)_i + sum_V S_T dS_T, and dS_0, for one tile of K."""
    NK: tl.constexpr = (K + BK - 1) // BK
    i_p = tl.program_id(0)
    i_k, i_bh = i_p % NK, (i_p // NK).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    i_row, n_rows = _sequence(p_lengths, i_bh, T, H)
    i_row += (n_rows - 1).to(tl.int64) * H
    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    b_dg = tl.zeros([BK], dtype=tl.float32)
    if HAS_DST:
        b_ds += load_state(p_dst + i_bh * K * V, o_k, o_v, K, V, V_FIRST)
        if GATED:
            b_dg += tl.sum(b_ds * load_state(p_st + i_bh * K * V, o_k, o_v, K, V, V_FIRST), axis=1)
    for _ in range(0, n_rows):
        b_q, b_v = _load(p_q + i_row * K, o_k, K), _load(p_v + i_row * V, o_v, V)
        b_do = _load(p_do + i_row * V, o_v, V) * scale
        b_dk = tl.sum(b_ds * b_v[None, :], axis=1)
        if GATED:
            b_dg += _load(p_qdq + i_row * K, o_k, K) - _load(p_k + i_row * K, o_k, K) * b_dk
            # a gate that lets nothing through has no gradient, and neither do rounding errors pass it
            b_dg = tl.where(tl.exp(_load(p_g + i_row * K, o_k, K)) > 0.0, b_dg, 0.0)
            tl.store(p_dg + i_row * K + o_k, b_dg.to(p_dg.dtype.element_ty), mask=o_k < K)
        b_dk += b_q * tl.sum(b_v * b_do, axis=0)
        tl.store(p_dk + i_row * K + o_k, b_dk.to(p_dk.dtype.element_ty), mask=o_k < K)
        b_ds += b_q[:, None] * b_do[None, :]
        if GATED:
            b_ds *= tl.exp(_load(p_g + i_row * K, o_k, K))[:, None]
        if GATED_V:
            b_ds *= tl.exp(_load(p_gv + i_row * V, o_v, V))[None, :]
        i_row -= H
    if STORE_DS0:
        store_state(p_ds0 + i_bh * K * V, b_ds, o_k, o_v, K, V, V_FIRST)


@triton.jit(do_not_specialize=["T"])
def recurrent_grad_v_kernel(  # type: ignore[no-untyped-def]
    p_q, p_k, p_v, p_g, p_gv, p_st, p_dst, p_do, p_odo, p_dv, p_dgv, p_lengths, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, GATED_V: tl.constexpr, HAS_DST: tl.constexpr, V_FIRST: tl.constexpr,
):  # fmt: skip
    """dv_t = k_t dS_t and dgv_t = sum_{i>=t} (o do - v dv)_i + sum_K S_T dS_T for one tile of V; BK covers all of K."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_bh = i_p % NV, (i_p // NV).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_row, n_rows = _sequence(p_lengths, i_bh, T, H)
    i_row += (n_rows - 1).to(tl.int64) * H
    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    b_dgv = tl.zeros([BV], dtype=tl.float32)
    if HAS_DST:
        b_ds += load_state(p_dst + i_bh * K * V, o_k, o_v, K, V, V_FIRST)
        if GATED_V:
            b_dgv += tl.sum(b_ds * load_state(p_st + i_bh * K * V, o_k, o_v, K, V, V_FIRST), axis=0)
    for _ in range(0, n_rows):
        b_q, b_k = _load(p_q + i_row * K, o_k, K), _load(p_k + i_row * K, o_k, K)
        b_do = _load(p_do + i_row * V, o_v, V) * scale
        if GATED_V:
            b_vdv = _load(p_v + i_row * V, o_v, V) * tl.sum(b_ds * b_k[:, None], axis=0)
            b_dgv += _load(p_odo + i_row * V, o_v, V) - b_vdv
            b_gate = tl.exp(_load(p_gv + i_row * V, o_v, V))
            b_dgv = tl.where(b_gate > 0.0, b_dgv, 0.0)  # as in recurrent_grad_k_kernel
            tl.store(p_dgv + i_row * V + o_v, b_dgv.to(p_dgv.dtype.element_ty), mask=o_v < V)
        b_ds += b_q[:, None] * b_do[None, :]
        b_dv = tl.sum(b_ds * b_k[:, None], axis=0)
        tl.store(p_dv + i_row * V + o_v, b_dv.to(p_dv.dtype.element_ty), mask=o_v < V)
        if GATED:
            b_ds *= tl.exp(_load(p_g + i_row * K, o_k, K))[:, None]
        if GATED_V:
            b_ds *= b_gate[None, :]
        i_row -= H


@triton.jit
def step_kernel(  # type: ignore[no-untyped-def]
    p_q, p_k, p_v, p_g, p_gv, p_s, p_o, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, GATED: tl.constexpr, GATED_V: tl.constexpr,
    V_FIRST: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One token: the state [B*H, K, V], or V_FIRST [B*H, V, K], is updated in place, o [B*H, V]. GROUP heads share each
    one of q, k and g."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_bh = i_p % NV, (i_p // NV).to(tl.int64)
    i_qh = i_bh // GROUP
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    b_s = load_state(p_s + i_bh * K * V, o_k, o_v, K, V, V_FIRST)
    if GATED:
        b_s *= tl.exp(_load(p_g + i_qh * K, o_k, K))[:, None]
    if GATED_V:
        b_s *= tl.exp(_load(p_gv + i_bh * V, o_v, V))[None, :]
    b_s += _load(p_k + i_qh * K, o_k, K)[:, None] * _load(p_v + i_bh * V, o_v, V)[None, :]
    b_o = tl.sum(b_s * _load(p_q + i_qh * K, o_k, K)[:, None], axis=0) * scale
    tl.store(p_o + i_bh * V + o_v, b_o.to(p_o.dtype.element_ty), mask=o_v < V)
    store_state(p_s + i_bh * K * V, b_s, o_k, o_v, K, V, V_FIRST)


def _blocks(K: int, V: int, split: str) -> tuple[dict[str, int], int]:
    """Tile sizes with the head dimension ``split`` ("K" or "V") cut into tiles, and the number of those tiles."""
    full = padded(V if split == "K" else K)
    dim = K if split == "K" else V
    block = max(8, min(padded(dim), STATE_ELEMENTS // full))
    blocks = {"BK": block, "BV": full} if split == "K" else {"BK": full, "BV": block}
    return {"K": K, "V": V} | blocks, cdiv(dim, block)


def _launch(kernel: Any, split: str, args: dict[str, Any], shape: tuple[int, int, int, int], **flags: int) -> Launch:
    """``shape`` is N sequences, H, K, V."""
    N, H, K, V = shape
    constexprs, tiles = _blocks(K, V, split)
    return Launch(kernel, (tiles * N * H,), args, constexprs | flags, num_warps=NUM_WARPS)


def _shape(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> tuple[int, int, int, int]:
    """How many sequences there are, of the batch or packed, H, K and V."""
    B, _, H, K = q.shape
    return B if cu_seqlens is None else cu_seqlens.shape[0] - 1, H, K, v.shape[-1]


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, scale: float, initial_state: Tensor | None,
    output_final_state: bool, launch: Launcher, gv: Tensor | None = None, cu_seqlens: Tensor | None = None,
    v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """o [B, T, H, V], and the final state in float32 if asked for: [B, H, K, V], or of the sequences that cu_seqlens
    tells apart, [N, H, K, V]; v_first: [.., V, K], as the initial one."""
    N, H, K, V = _shape(q, v, cu_seqlens)
    o, last = torch.empty_like(v), (V, K) if v_first else (K, V)
    final_state = q.new_empty(N, H, *last, dtype=torch.float32) if output_final_state else None
    launch(_output(q, k, v, g, gv, scale, initial_state, None, o, final_state, cu_seqlens, v_first))
    return o, final_state


def _output(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, scale: float, initial_state: Tensor | None,
    do: Tensor | None, into: Tensor, final_state: Tensor | None, cu_seqlens: Tensor | None, v_first: bool,
) -> Launch:  # fmt: skip
    """A launch for o, or with do for what the gradient of gv takes from o."""
    _, T, H, _ = q.shape
    args = {
        "p_q": q, "p_k": k, "p_v": v, "p_g": g, "p_gv": gv, "p_s0": initial_state, "p_do": do, "p_o": into,
        "p_st": final_state, "p_lengths": cu_seqlens, "scale": scale, "T": T, "H": H,
    }  # fmt: skip
    return _launch(
        recurrent_output_kernel,
        "V",
        args,
        _shape(q, v, cu_seqlens),
        GATED=g is not None,
        GATED_V=gv is not None,
        HAS_S0=initial_state is not None,
        STORE_ST=final_state is not None,
        TIMES_DO=do is not None,
        V_FIRST=v_first,
    )


def backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, scale: float, initial_state: Tensor | None,
    do: Tensor, final_state: Tensor | None, d_final: Tensor | None, launch: Launcher, gv: Tensor | None = None,
    cu_seqlens: Tensor | None = None, v_first: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """dq, dk, dv, dg, dgv and the initial state's gradient. final_state: needed with gates where d_final is given.
    cu_seqlens, v_first: as in `forward`."""
    _, T, H, _ = q.shape
    shape = _shape(q, v, cu_seqlens)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dg, dgv = (None if gates is None else torch.empty_like(gates) for gates in (g, gv))
    qdq, odo = (None if gates is None else torch.empty_like(gates, dtype=torch.float32) for gates in (g, gv))
    d_initial = None if initial_state is None else torch.empty_like(initial_state)
    common = {"p_q": q, "p_k": k, "p_g": g, "p_gv": gv, "p_do": do, "scale": scale, "T": T, "H": H}
    common["p_lengths"] = cu_seqlens
    how = {"GATED": g is not None, "GATED_V": gv is not None, "V_FIRST": v_first}
    args = common | {"p_v": v, "p_s0": initial_state, "p_dq": dq, "p_qdq": qdq}
    launch(_launch(recurrent_grad_q_kernel, "K", args, shape, **how, HAS_S0=initial_state is not None))
    args = common | {"p_v": v, "p_st": final_state, "p_dst": d_final, "p_qdq": qdq}
    args |= {"p_dk": dk, "p_dg": dg, "p_ds0": d_initial}
    flags = {"HAS_DST": d_final is not None, "STORE_DS0": d_initial is not None}
    launch(_launch(recurrent_grad_k_kernel, "K", args, shape, **how, **flags))
    args = common | {"p_v": None, "p_st": None, "p_dst": d_final, "p_odo": odo, "p_dv": dv, "p_dgv": dgv}
    if odo is not None:
        launch(_output(q, k, v, g, gv, scale, initial_state, do, odo, None, cu_seqlens, v_first))
        args |= {"p_v": v, "p_st": final_state}
    launch(_launch(recurrent_grad_v_kernel, "V", args, shape, **how, HAS_DST=d_final is not None))
    return dq, dk, dv, dg, dgv, d_initial


def step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, state: Tensor, scale: float, launch: Launcher,
    gv: Tensor | None = None, v_first: bool = False,
) -> Tensor:  # fmt: skip
    """o [B, H, V]; ``state`` [B, H, K, V] float32, or v_first [B, H, V, K], is updated in place. q, k and g may have
    fewer heads, each for as many of v as any other."""
    B, H, V = v.shape
    K = q.shape[-1]
    o = torch.empty_like(v)
    args = {"p_q": q, "p_k": k, "p_v": v, "p_g": g, "p_gv": gv, "p_s": state, "p_o": o, "scale": scale}
    group = max(1, H // max(1, q.shape[1]))
    flags = {"GATED": g is not None, "GATED_V": gv is not None, "V_FIRST": v_first, "GROUP": group}
    launch(_launch(step_kernel, "V", args, (B, H, K, V), **flags))
    return o
