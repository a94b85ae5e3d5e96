"""One token of decoding with states in a pool, which are read, updated and written.

    S_t = Diag(e^g_t) S_{t-1} Diag(e^gv_t) + k_t^T v_t          o_t = scale q_t S_t

Sums are float32. One program is a slot's head and goes through its tiles of V, or where heads are few it has one of
these; a tile has all of K. GATES: 0 for none, 1 for one of each feature
of k, 2 for one a head; GATED_V: whether there are gates gv.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, Launcher, settle_keys
from ..schedule import MAX_REGISTERS, cdiv
from .states import REGISTERS, as_float, load_tile, seed, sizes_of, store_tile, tiles_of

COUNTS: tl.constexpr = tl.constexpr(4)  # numbers of a slot and head in replay.py's counts; the first one is its time
FEW_HEADS = 512  # below, a program each leaves processors without any: tiles of V get one each


@triton.jit
def load_gate(p_g, i_row, o_k, K: tl.constexpr, GATES: tl.constexpr):
    """A token's gates, of each feature of k."""
    if GATES == 2:
        b_g = tl.load(p_g + i_row).to(tl.float32) + tl.zeros(o_k.shape, dtype=tl.float32)
    else:
        b_g = tl.load(p_g + i_row * K + o_k, mask=o_k < K, other=0.0).to(tl.float32)
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


@triton.jit(do_not_specialize=["n_slots", "each"])
def pool_step_kernel(
    p_q, p_k, p_v, p_g, p_gv, p_s, p_scales, p_slots, p_times, p_o, scale, stride, n_slots, each, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, GATES: tl.constexpr, GATED_V: tl.constexpr,
    V_FIRST: tl.constexpr, STOCHASTIC: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """One token: states of the slots [B] are updated in place, o [B, H, V]. p_times: of each request [B], or COUNTED,
    counts [slots, H, COUNTS], and then a step adds one. each: tiles of V of a program; all where COUNTED. It is no
    constant, so that one kernel, and the same bits, serve any batch."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p, n_parts = tl.program_id(0), (NV + each - 1) // each
    i_first, i_bh = i_p % n_parts * each, (i_p // n_parts).to(tl.int64)
    i_b, i_h, i_end = i_bh // H, i_bh % H, tl.minimum(i_first + each, NV)
    i_slot = tl.load(p_slots + i_b).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), tl.arange(0, BV)
    b_q = tl.load(p_q + i_bh * K + o_k, mask=o_k < K, other=0.0).to(tl.float32) * scale
    b_k = tl.load(p_k + i_bh * K + o_k, mask=o_k < K, other=0.0).to(tl.float32)
    b_v1 = load_values(p_v, i_bh, i_first, o_v, V)
    if GATES != 0:
        b_decay = tl.exp(load_gate(p_g, i_bh, o_k, K, GATES))
    if (i_slot >= 0) & (i_slot < n_slots):
        i_head = i_slot * H + i_h
        p_state = p_s + i_slot * stride + i_h * K * V
        p_scale = None if p_scales is None else p_scales + i_head * V
        b_next = load_tile(p_state, i_first, o_k, o_v, K, V, V_FIRST)
        i_seed, i_time = None, 0
        if STOCHASTIC:
            p_time = p_times + (i_head * COUNTS if COUNTED else i_b)
            i_time = tl.load(p_time).to(tl.int32)
            i_seed = seed(i_time, i_h)
        for i_v in range(i_first, i_end):
            b_s, b_v = as_float(b_next, p_scale, i_v, o_v, V), b_v1
            if i_v + 1 < i_end:  # the next tile is on its way while this one is used
                b_next = load_tile(p_state, i_v + 1, o_k, o_v, K, V, V_FIRST)
                b_v1 = load_values(p_v, i_bh, i_v + 1, o_v, V)
            if GATES != 0:
                b_s *= b_decay[:, None]
            if GATED_V:
                b_s *= tl.exp(load_values(p_gv, i_bh, i_v, o_v, V))[None, :]
            b_s += b_k[:, None] * b_v[None, :]
            store_tile(p_state, p_scale, b_s, i_seed, i_v, o_k, o_v, K, V, V_FIRST, STOCHASTIC)
            b_o = tl.sum(b_s * b_q[:, None], axis=0)
            store_values(p_o, i_bh, i_v, b_o, o_v, V)
        if STOCHASTIC and COUNTED:
            tl.debug_barrier()  # all warps have read it
            tl.store(p_time, i_time + 1)
    else:
        for i_v in range(i_first, i_end):
            store_values(p_o, i_bh, i_v, tl.zeros([BV], dtype=tl.float32), o_v, V)


settle_keys(pool_step_kernel)


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
    """o [B, H, V]; the states of ``slots`` [B] in the pool ``state`` are updated in place. times: states are rounded by
    chance, with other bits at another time."""
    B, _, _ = q.shape
    H, K, V = sizes_of(state, v_first)
    tiles, o = tiles_of(K, V, state.dtype, v_first), torch.empty_like(v)
    each = 1 if B * H < FEW_HEADS and not counted else tiles.over_v
    args = {
        "p_q": q, "p_k": k, "p_v": v, "p_g": g, "p_gv": gv, "p_s": state, "p_scales": scales, "p_slots": slots,
        "p_times": times, "p_o": o, "scale": scale, "stride": state.stride(0), "n_slots": state.shape[0],
        "each": each, "H": H,
    }  # fmt: skip
    sizes = {"K": K, "V": V, "BK": tiles.BK, "BV": tiles.BV, "GATES": gates_of(g, q)}
    flags = {"GATED_V": gv is not None, "V_FIRST": v_first, "STOCHASTIC": times is not None, "COUNTED": counted}
    grid = (cdiv(tiles.over_v, each) * B * H,)
    num_warps = tiles.num_warps()
    # numbers of 8 bits that are rounded by chance, or lie in wider tiles, would spill
    limit = MAX_REGISTERS if state.itemsize == 1 and (times is not None or num_warps > 4) else REGISTERS
    launch(Launch(pool_step_kernel, grid, args, sizes | flags, num_warps=num_warps, max_registers=limit))
    return o
