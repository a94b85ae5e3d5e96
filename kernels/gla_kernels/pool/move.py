"""States of a pool as float32 tensors, and back: what a prefill starts from, and what it leaves."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launcher, settle_keys
from .replay import Slots, counts_of, with_tail
from .states import as_float, load_tile, seed, store_tile
from .step import COUNTS


@triton.jit(do_not_specialize=["n_slots"])
def read_kernel(
    p_s, p_scales, p_tk, p_tv, p_tg, p_counts, p_slots, p_accept, p_x, stride, n_slots, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, ROWS: tl.constexpr, GATES: tl.constexpr,
    V_FIRST: tl.constexpr, TAILED: tl.constexpr,
):  # fmt: skip
    """p_x [N, H, K, V] float32, or V_FIRST [N, H, V, K]: the states of the slots [N] after all settled tokens."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_bh = tl.program_id(0).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    i_slot = tl.load(p_slots + i_b).to(tl.int64)
    i_head, o_k, o_v = i_slot * H + i_h, tl.arange(0, BK), tl.arange(0, BV)
    for i_v in range(NV):
        b_s = tl.zeros([BK, BV], dtype=tl.float32)
        if (i_slot >= 0) & (i_slot < n_slots):
            p_scale = None if p_scales is None else p_scales + i_head * V
            p_state = p_s + i_slot * stride + i_h * K * V
            b_s += as_float(load_tile(p_state, i_v, o_k, o_v, K, V, V_FIRST), p_scale, i_v, o_v, V)
            if TAILED:
                n_folded, n_kept = counts_of(p_counts + i_head * COUNTS, p_accept, i_b)
                p_k0, p_v0 = p_tk + i_head * ROWS * K, p_tv + i_head * ROWS * V
                p_g0 = None if GATES == 0 else p_tg + i_head * ROWS * (K if GATES == 1 else 1)
                b_s = with_tail(b_s, p_k0, p_v0, p_g0, n_folded, n_kept, i_v, o_k, o_v, K, V, ROWS, GATES)
        store_tile(p_x + i_bh * K * V, None, b_s, None, i_v, o_k, o_v, K, V, V_FIRST, False)


@triton.jit(do_not_specialize=["n_slots"])
def write_kernel(
    p_s, p_scales, p_counts, p_slots, p_x, stride, n_slots, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, V_FIRST: tl.constexpr,
    STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """The states of the slots [N] are p_x, as `read_kernel` has it, and their tails empty; None: zeros, at time 0."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_bh = tl.program_id(0).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    i_slot = tl.load(p_slots + i_b).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), tl.arange(0, BV)
    if (i_slot >= 0) & (i_slot < n_slots):
        i_head = i_slot * H + i_h
        p_scale = None if p_scales is None else p_scales + i_head * V
        p_count = p_counts + i_head * COUNTS
        i_time = tl.load(p_count)
        i_seed = seed(i_time, i_h) if STOCHASTIC else None
        p_state = p_s + i_slot * stride + i_h * K * V
        for i_v in range(NV):
            b_s = tl.zeros([BK, BV], dtype=tl.float32)
            if p_x is not None:
                b_s += load_tile(p_x + i_bh * K * V, i_v, o_k, o_v, K, V, V_FIRST)
            store_tile(p_state, p_scale, b_s, i_seed, i_v, o_k, o_v, K, V, V_FIRST, STOCHASTIC)
        tl.debug_barrier()  # all warps have read it
        tl.store(p_count, i_time * 0 if p_x is None else i_time + 1)
        tl.store(p_count + 1, 0)
        tl.store(p_count + 2, 0)


settle_keys(read_kernel, write_kernel)


def read(pool: Slots, slots: Tensor, accept: Tensor | None, launch: Launcher) -> Tensor:
    """States of the slots [N], float32 [N, H, K, V] or [N, H, V, K] as they lie in the pool, zeros for what is no slot.
    Tails are added, and stay."""
    states = torch.empty(slots.shape[0], *pool.state.shape[1:], dtype=torch.float32, device=pool.state.device)
    launch(pool.launch_of(read_kernel, slots, {"p_x": states, "p_accept": accept}))
    return states


def write(pool: Slots, slots: Tensor, states: Tensor | None, launch: Launcher) -> None:
    """Put states, as `read` has them, into the slots, whose tails are then empty; None: zeros, for a new request."""
    launch(pool.launch_of(write_kernel, slots, {"p_x": states}))
