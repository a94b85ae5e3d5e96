"""One token of decoding with states in a pool, which are read, updated and written.

    S_t = Diag(e^g_t) S_{t-1} Diag(e^gv_t) + k_t^T v_t          o_t = scale q_t S_t

Sums are float32. One program makes o of one tile of V of a slot's head, and has all of K: one that goes through all of
a head's, with the next one on its way, takes longer. GATES: 0 for none, 1 for one of each feature of k, 2 for one a
head; GATED_V: whether there are gates gv.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, Launcher, settle_keys
from .states import as_float, load_tile, seed, sizes_of, store_tile, tiles_of

COUNTS: tl.constexpr = tl.constexpr(4)  # numbers of a slot and head in replay.py's counts; the first one is its time
# Of a tile of a state, by bytes of each, and those beyond which a program has 8 warps. More than replay.py has in one,
# for here a program has no other, and waits for it once.
ELEMENTS = {4: 4096, 2: 8192, 1: 8192}
FOUR_WARPS = {4: 8192, 2: 8192, 1: 4096}


@triton.jit
def load_gate(p_g, i_row, o_k, K: tl.constexpr, GATES: tl.constexpr, GROUP: tl.constexpr = 1):
    """A token's gates, of each feature of k. GROUP heads share those of a feature."""
    if GATES == 2:
        b_g = tl.load(p_g + i_row).to(tl.float32) + tl.zeros(o_k.shape, dtype=tl.float32)
    else:
        b_g = tl.load(p_g + i_row // GROUP * K + o_k, mask=o_k < K, other=0.0).to(tl.float32)
    return b_g


@triton.jit
def load_values(p_x, i_row, i_v, o_v, V: tl.constexpr):
    """Tile i_v of a row of V numbers, as float32."""
    o_v += i_v * o_v.shape[0]
    return tl.load(p_x + i_row * V + o_v, mask=o_v < V, other=0.0).to(tl.float32)


@triton.jit
def store_values(p_x, i_row, i_v, b_x, o_v, V: tl.constexpr):
    """The inverse of load_values."""
    o_v += i_v * o_v.shape[0]
    tl.store(p_x + i_row * V + o_v, b_x.to(p_x.dtype.element_ty), mask=o_v < V)


@triton.jit(do_not_specialize=["n_slots"])
def pool_step_kernel(
    p_q, p_k, p_v, p_g, p_gv, p_s, p_scales, p_slots, p_times, p_o, scale, stride, n_slots, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, GATES: tl.constexpr, GATED_V: tl.constexpr,
    V_FIRST: tl.constexpr, STOCHASTIC: tl.constexpr, COUNTED: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One token: states of the slots [B] are updated in place, o [B, H, V]. GROUP heads share each one of q, k
    and gates of a feature. p_times: of each request [B], or COUNTED, counts [slots, H, COUNTS]."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_bh = i_p % NV, (i_p // NV).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    i_slot = tl.load(p_slots + i_b).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), tl.arange(0, BV)
    b_q = tl.load(p_q + i_bh // GROUP * K + o_k, mask=o_k < K, other=0.0).to(tl.float32)
    b_k = tl.load(p_k + i_bh // GROUP * K + o_k, mask=o_k < K, other=0.0).to(tl.float32)
    b_v = load_values(p_v, i_bh, i_v, o_v, V)
    b_o = tl.zeros([BV], dtype=tl.float32)
    if (i_slot >= 0) & (i_slot < n_slots):
        i_head = i_slot * H + i_h
        p_state = p_s + i_slot * stride + i_h * K * V
        p_scale = None if p_scales is None else p_scales + i_head * V
        b_s = as_float(load_tile(p_state, i_v, o_k, o_v, K, V, V_FIRST), p_scale, i_v, o_v, V)
        if GATES != 0:
            b_s *= tl.exp(load_gate(p_g, i_bh, o_k, K, GATES, GROUP))[:, None]
        if GATED_V:
            b_s *= tl.exp(load_values(p_gv, i_bh, i_v, o_v, V))[None, :]
        b_s += b_k[:, None] * b_v[None, :]
        b_o = tl.sum(b_s * b_q[:, None], axis=0) * scale
        i_seed = None
        if STOCHASTIC:
            i_seed = seed(tl.load(p_times + (i_head * COUNTS if COUNTED else i_b)).to(tl.int32), i_h)
        store_tile(p_state, p_scale, b_s, i_seed, i_v, o_k, o_v, K, V, V_FIRST, STOCHASTIC)
    store_values(p_o, i_bh, i_v, b_o, o_v, V)


@triton.jit(do_not_specialize=["n_slots"])
def pool_tick_kernel(p_times, p_slots, n_slots, H, BH: tl.constexpr):
    """Adds one to the times of the heads of the slots [B], once all programs of a step have read them: p_times
    [slots, H, COUNTS]."""
    i_slot, o_h = tl.load(p_slots + tl.program_id(0)).to(tl.int64), tl.arange(0, BH)
    m_h = (o_h < H) & (i_slot >= 0) & (i_slot < n_slots)
    p_time = p_times + (i_slot * H + o_h) * COUNTS
    tl.store(p_time, tl.load(p_time, mask=m_h, other=0) + 1, mask=m_h)


settle_keys(pool_step_kernel, pool_tick_kernel)


def gates_of(g: Tensor | None, q: Tensor) -> int:
    """GATES of a kernel: g is None, like q, or of one axis less."""
    if g is None:
        return 0
    return 1 if g.dim() == q.dim() else 2


def step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, state: Tensor, slots: Tensor, scale: float, launch: Launcher,
    *, gv: Tensor | None = None, v_first: bool = False, scales: Tensor | None = None, times: Tensor | None = None,
    counted: bool = False,
) -> Tensor:  # fmt: skip
    """o [B, H, V]; the states of ``slots`` [B] in the pool ``state`` are updated in place. q, k and gates of each
    feature may have fewer heads, each for as many of v as any other. times: states are rounded by chance, with other
    bits at another time."""
    B, of_q, _ = q.shape
    H, K, V = sizes_of(state, v_first)
    tiles, o = tiles_of(K, V, state.dtype, v_first, ELEMENTS[state.itemsize]), torch.empty_like(v)
    args = {
        "p_q": q, "p_k": k, "p_v": v, "p_g": g, "p_gv": gv, "p_s": state, "p_scales": scales, "p_slots": slots,
        "p_times": times, "p_o": o, "scale": scale, "stride": state.stride(0), "n_slots": state.shape[0], "H": H,
    }  # fmt: skip
    sizes = {"K": K, "V": V, "BK": tiles.BK, "BV": tiles.BV, "GATES": gates_of(g, q)}
    flags = {"GROUP": max(1, H // max(1, of_q))}
    flags |= {"GATED_V": gv is not None, "V_FIRST": v_first, "STOCHASTIC": times is not None, "COUNTED": counted}
    num_warps = tiles.num_warps(elements=FOUR_WARPS[state.itemsize])
    launch(Launch(pool_step_kernel, (tiles.over_v * B * H,), args, sizes | flags, num_warps=num_warps))
    if counted and times is not None:
        args = {"p_times": times, "p_slots": slots, "n_slots": state.shape[0], "H": H}
        launch(Launch(pool_tick_kernel, (B,), args, {"BH": triton.next_power_of_2(H)}, num_warps=1))
    return o
