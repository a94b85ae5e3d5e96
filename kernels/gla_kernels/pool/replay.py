"""Decoding that reads a state at each step and writes it at every n-th: the last tokens of a slot are kept as k, v and
g, its tail, and replayed on top of the state, S, which is as it was before them.

    o_t = scale [(q_t e^{G_t}) S + sum_j (q_t . k_j e^{G_t - G_j}) v_j]      over all tokens j of the tail, t among them

G_t - G_j is a sum of the gates after j, up to t. A step of several tokens puts all of them into the tail and returns o
of each; the next step says how many of these it accepts, and the others are overwritten. So a state after any of them
is at hand, and none was written: speculative decoding.

A step begins with the tokens that are settled. If these are TAIL or more, it folds them into the state, in order, as a
step that writes would have done, and goes on with an empty tail: whether it does is each slot's own, so that one CUDA
graph is all steps. A tail is a ring of ROWS rows, for which those that a program reads and those that another one
writes must not meet: TAIL - 1 settled tokens, the drafts of the last step and those of this one.

Every program, of a head and a tile of V, has counts of its own, equal for all of a slot, for none may read what another
one writes: tokens that were folded, which are its time and where its ring begins; tokens in the tail; and how many of
them the last step has put there.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, Launcher, settle_keys
from ..schedule import MAX_REGISTERS
from .states import Tiles, load_pooled, seed, sizes_of, store_pooled, tiles_of
from .step import COUNTS, gates_of, load_gate

FOUR_WARPS = 4096  # elements that 4 warps hold: of a state, or of a tail's keys, beside one another
ONE_TOKEN_REGISTERS = 80  # of 8 warps, for three programs an SM: a step of one token needs no more (cross-compiled)


@triton.jit
def counts_of(p_counts, p_accept, i_b):
    """Of a program: tokens folded, and settled tokens in the tail."""
    n_folded, n_kept, n_new = tl.load(p_counts), tl.load(p_counts + 1), tl.load(p_counts + 2)
    if p_accept is not None:
        n_accepted = tl.maximum(tl.load(p_accept + i_b).to(tl.int32), 0)
        n_kept -= n_new - tl.minimum(n_accepted, n_new)
    return n_folded, n_kept


@triton.jit
def _row(p_tk, p_tv, p_tg, i_row, o_k, o_v, K: tl.constexpr, V: tl.constexpr, GATES: tl.constexpr):
    """Key, value and gates of a row of a tail."""
    b_k = tl.load(p_tk + i_row * K + o_k, mask=o_k < K, other=0.0).to(tl.float32)
    b_v = tl.load(p_tv + i_row * V + o_v, mask=o_v < V, other=0.0).to(tl.float32)
    b_g = b_k
    if GATES != 0:
        b_g = load_gate(p_tg, i_row, o_k, K, GATES)
    return b_k, b_v, b_g


@triton.jit
def with_tail(
    b_s, p_tk, p_tv, p_tg, n_folded, n_kept, o_k, o_v,
    K: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, GATES: tl.constexpr,
):  # fmt: skip
    """The state after the tail's tokens, one after another. p_tk, p_tv, p_tg: the rows of a slot and head."""
    b_k1, b_v1, b_g1 = _row(p_tk, p_tv, p_tg, n_folded % ROWS, o_k, o_v, K, V, GATES)
    for j in range(0, n_kept):
        b_k, b_v, b_g = b_k1, b_v1, b_g1
        # the next row comes while this one is added; after the last one some row, which nobody needs
        b_k1, b_v1, b_g1 = _row(p_tk, p_tv, p_tg, (n_folded + j + 1) % ROWS, o_k, o_v, K, V, GATES)
        if GATES != 0:
            b_s *= tl.exp(b_g)[:, None]
        b_s += b_k[:, None] * b_v[None, :]
    return b_s


@triton.jit
def _rows(p_x, o_row, m_row, o_d, D: tl.constexpr):
    """Rows of D numbers, zeros where there is none."""
    return tl.load(p_x + o_row[:, None] * D + o_d[None, :], mask=m_row[:, None] & (o_d < D)[None, :], other=0.0)


@triton.jit
def _token(p_q, p_g, i_row, o_k, K: tl.constexpr, GATES: tl.constexpr):
    """A token's query and gates."""
    b_q = tl.load(p_q + i_row * K + o_k, mask=o_k < K, other=0.0).to(tl.float32)
    b_g = b_q
    if GATES != 0:
        b_g = load_gate(p_g, i_row, o_k, K, GATES)
    return b_q, b_g


@triton.jit
def replay_kernel(
    p_q, p_k, p_v, p_g, p_s, p_scales, p_tk, p_tv, p_tg, p_counts, p_slots, p_accept, p_o, scale, stride, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, N: tl.constexpr, TAIL: tl.constexpr,
    ROWS: tl.constexpr, BT: tl.constexpr, GATES: tl.constexpr, V_FIRST: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """o [B, N, H, V] of N tokens each; N = 0 only folds. BT: rows of a tile of the tail, of TAIL - 1 + N at least."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_bh = i_p % NV, (i_p // NV).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    i_slot = tl.load(p_slots + i_b).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    if N > 0:
        b_q1, b_g1 = _token(p_q, p_g, i_b * N * H + i_h, o_k, K, GATES)
    if i_slot >= 0:
        i_head = i_slot * H + i_h
        p_state = p_s + i_slot * stride + i_h * K * V
        p_scale = None if p_scales is None else p_scales + i_head * V
        b_s = load_pooled(p_state, p_scale, o_k, o_v, K, V, V_FIRST)
        p_count = p_counts + (i_head * NV + i_v) * COUNTS
        n_folded, n_kept = counts_of(p_count, p_accept, i_b)
        p_k0, p_v0 = p_tk + i_head * ROWS * K, p_tv + i_head * ROWS * V
        p_g0 = None if GATES == 0 else p_tg + i_head * ROWS * (K if GATES == 1 else 1)
        if n_kept >= TAIL:
            b_s = with_tail(b_s, p_k0, p_v0, p_g0, n_folded, n_kept, o_k, o_v, K, V, ROWS, GATES)
            i_seed = seed(n_folded, i_h) if STOCHASTIC else None
            store_pooled(p_state, p_scale, b_s, i_seed, o_k, o_v, K, V, V_FIRST, STOCHASTIC)
            n_folded += n_kept
            n_kept -= n_kept

        if N > 0:
            # keys and values of the tail, and of the new tokens in its next rows; all is loaded before anything waits
            o_t = tl.arange(0, BT)
            o_row, o_next = (n_folded + o_t) % ROWS, (n_folded + o_t + 1) % ROWS
            m_old, m_new = o_t < n_kept, (o_t >= n_kept) & (o_t < n_kept + N)
            o_new = (i_b * N + o_t - n_kept) * H + i_h
            b_old_k, b_new_k = _rows(p_k0, o_row, m_old, o_k, K), _rows(p_k, o_new, m_new, o_k, K)
            b_old_v, b_new_v = _rows(p_v0, o_row, m_old, o_v, V), _rows(p_v, o_new, m_new, o_v, V)
            # of each row the gates of the next one: their sums from the last row back are those of the rows after
            if GATES == 1 and TAIL > 1:
                b_first = load_gate(p_g0, n_folded % ROWS, o_k, K, GATES)
                b_after = _rows(p_g0, o_next, o_t + 1 < n_kept, o_k, K).to(tl.float32)
            if GATES == 2 and TAIL > 1:
                b_first = load_gate(p_g0, n_folded % ROWS, o_k, K, GATES)
                b_after = tl.load(p_g0 + o_next, mask=o_t + 1 < n_kept, other=0.0).to(tl.float32)
            b_keys = tl.where(m_new[:, None], b_new_k, b_old_k).to(tl.float32)
            b_values = tl.where(m_new[:, None], b_new_v, b_old_v).to(tl.float32)

            # what gates leave of the tail's keys and of the state
            b_left = tl.full([BK], 1.0, dtype=tl.float32)
            if GATES != 0 and TAIL > 1:
                b_left = tl.exp(tl.where(n_kept > 0, b_first, 0.0) + tl.sum(b_after, axis=0))
                b_decay = tl.exp(tl.cumsum(b_after, axis=0, reverse=True))
                b_keys *= b_decay if GATES == 1 else b_decay[:, None]
            for t in tl.static_range(N):
                b_q, b_g = b_q1, b_g1
                i_new = (i_b * N + t) * H + i_h
                if t + 1 < N:
                    b_q1, b_g1 = _token(p_q, p_g, i_new + H, o_k, K, GATES)
                if GATES != 0:  # of this token, for all that came before it
                    b_decay = tl.exp(b_g.to(tl.float32))
                    b_keys *= tl.where((o_t < n_kept + t)[:, None], b_decay[None, :], 1.0)
                    b_left *= b_decay
                b_scores = tl.where(o_t <= n_kept + t, tl.sum(b_keys * b_q[None, :], axis=1), 0.0)
                b_o = tl.sum(b_s * (b_q * b_left)[:, None], axis=0) + tl.sum(b_scores[:, None] * b_values, axis=0)
                tl.store(p_o + i_new * V + o_v, (b_o * scale).to(p_o.dtype.element_ty), mask=o_v < V)

            m_k = (m_new & (i_v == 0))[:, None] & (o_k < K)[None, :]  # one of the head's programs is enough
            tl.store(p_k0 + o_row[:, None] * K + o_k[None, :], b_new_k, mask=m_k)
            tl.store(p_v0 + o_row[:, None] * V + o_v[None, :], b_new_v, mask=m_new[:, None] & (o_v < V)[None, :])
            if GATES == 1:
                tl.store(p_g0 + o_row[:, None] * K + o_k[None, :], _rows(p_g, o_new, m_new, o_k, K), mask=m_k)
            if GATES == 2:
                m_g = m_new & (i_v == 0)
                tl.store(p_g0 + o_row, tl.load(p_g + o_new, mask=m_g, other=0.0), mask=m_g)
        tl.debug_barrier()  # all warps have read the counts
        tl.store(p_count, n_folded)
        tl.store(p_count + 1, n_kept + N)
        tl.store(p_count + 2, N)
    else:
        for t in tl.static_range(N):
            b_none = tl.zeros([BV], dtype=p_o.dtype.element_ty)
            tl.store(p_o + ((i_b * N + t) * H + i_h) * V + o_v, b_none, mask=o_v < V)


settle_keys(replay_kernel)


@dataclass(frozen=True)
class Slots:
    """A pool and the tails of its slots.

    state: [slots, H, K, V], or v_first [slots, H, V, K]; scales: of fp8 states, [slots, H, V] float32.
    keys, values: of tails, [slots, H, rows, K] and [slots, H, rows, V]; None where there are none.
    gates: of tails, [slots, H, rows, K], or one a head, [slots, H, rows]; None without gates.
    counts: [slots, H, tiles of V, COUNTS] int32: see above.
    tail: of how many settled tokens a step folds. stochastic: see `states.store_pooled`.
    """

    state: Tensor
    scales: Tensor | None
    keys: Tensor | None
    values: Tensor | None
    gates: Tensor | None
    counts: Tensor
    tail: int
    v_first: bool
    stochastic: bool

    @property
    def sizes(self) -> tuple[int, int, int]:
        """H, K, V."""
        return sizes_of(self.state, self.v_first)

    @property
    def tiles(self) -> Tiles:
        _, K, V = self.sizes
        return tiles_of(K, V, self.state.dtype, self.v_first)

    @property
    def most(self) -> int:
        """The most tokens of a step: see `rows_of_tail`."""
        return 1 if self.keys is None else (self.keys.shape[2] - self.tail + 1) // 2

    def launch_of(self, kernel: Any, slots: Tensor, args: dict[str, Any], **constexprs: int) -> Launch:
        """A launch of a program for each tile of the slots' states; ``args`` and ``constexprs``: what is the kernel's
        own."""
        H, K, V = self.sizes
        tiles = self.tiles
        pool = {
            "p_s": self.state, "p_scales": self.scales, "p_tk": self.keys, "p_tv": self.values, "p_tg": self.gates,
            "p_counts": self.counts, "p_slots": slots, "stride": self.state.stride(0), "H": H,
        }  # fmt: skip
        rows = 1 if self.keys is None else self.keys.shape[2]
        sizes = {
            "K": K,
            "V": V,
            "BK": tiles.BK,
            "BV": tiles.BV,
            "ROWS": rows,
            "GATES": gates_of(self.gates, self.state),
        }
        flags = {"V_FIRST": self.v_first, "STOCHASTIC": self.stochastic, "TAILED": self.tail > 0}
        grid, num_warps = (tiles.over_v * slots.shape[0] * H,), tiles.num_warps(FOUR_WARPS, constexprs.get("BT", 1))
        limit = ONE_TOKEN_REGISTERS if num_warps == 8 and constexprs.get("N") == 1 else MAX_REGISTERS
        constants = sizes | flags | constexprs
        return Launch(kernel, grid, pool | args, constants, num_warps=num_warps, max_registers=limit)


def rows_of_tail(tail: int, most: int) -> int:
    """Rows of a ring for steps of ``most`` tokens: see above."""
    return tail - 1 + 2 * most


def replay(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, pool: Slots, slots: Tensor, accept: Tensor | None, scale: float,
    launch: Launcher,
) -> Tensor:  # fmt: skip
    """o [B, n, H, V] of n new tokens of each slot, q, k [B, n, H, K], which are kept in its tail. accept [B]: how many
    of the tokens of the last step before count; None: all."""
    n, o = q.shape[1], torch.empty_like(v)
    new = {"p_q": q, "p_k": k, "p_v": v, "p_g": g, "p_accept": accept, "p_o": o, "scale": scale}
    BT = max(2, 1 << (pool.tail + n - 2).bit_length())  # a power of two, of tail - 1 + n rows at least
    launch(pool.launch_of(replay_kernel, slots, new, N=n, TAIL=pool.tail, BT=BT))
    return o


def fold(pool: Slots, slots: Tensor, accept: Tensor | None, launch: Launcher) -> None:
    """Have all settled tokens of the slots folded into their states."""
    none: dict[str, Any] = dict.fromkeys(("p_q", "p_k", "p_v", "p_g", "p_o"))
    launch(pool.launch_of(replay_kernel, slots, none | {"p_accept": accept, "scale": 1.0}, N=0, TAIL=1, BT=2))
