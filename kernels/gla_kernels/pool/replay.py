"""Decoding that reads a state at each step and writes it at every n-th: the last tokens of a slot are kept as k, v and
g, its tail, and replayed on top of the state, S, which is as it was before them.

    o_t = scale [(q_t e^{G_t}) S + sum_j (q_t . k_j e^{G_t - G_j}) v_j]      over all tokens j of the tail, t among them

G_t - G_j is a sum of the gates after j, up to t. A step of several tokens puts all of them into the tail and returns o
of each; the next step says how many of these it accepts, and the others are overwritten. So a state after any of them
is at hand, and none was written: speculative decoding.

A step begins with the tokens that are settled. If these are TAIL or more, it folds them into the state, in order, as a
step that writes would have done: whether it does is each slot's own, so that one CUDA graph is all steps. Outputs are
those above in either case, of the state as it was, so that folding is a write on the way and no output waits for it.

One program is a slot's head. What its keys and queries have to do with one another it works out once; then it goes
through the state's tiles of V, and has the next one on its way while it uses one. A tail is a ring of ROWS rows, for
the rows that a program reads and those that it writes must not meet, as its warps do not wait for each other: TAIL - 1
settled tokens, the drafts of the last step and those of this one.

Counts of a slot and head: tokens that were folded, which are its time and where its ring begins; tokens in the tail;
and how many of them the last step has put there.
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
from .states import REGISTERS, Tiles, as_float, load_tile, seed, sizes_of, store_tile, tiles_of
from .step import COUNTS, gates_of, load_gate, load_values, store_values

# Registers of a thread for three programs of 4 warps an SM, which the compiler would not leave by itself, and which do
# without spills up to so many tokens a step, and elements of a tail's keys (cross-compiled); REGISTERS are for four.
REGISTERS_OF_DRAFTS, MOST_LIMITED, SMALL_TAIL = 168, 4, 2048


@triton.jit
def counts_of(p_counts, p_accept, i_b):
    """Of a slot and head: tokens folded, and settled tokens in the tail."""
    n_folded, n_kept, n_new = tl.load(p_counts), tl.load(p_counts + 1), tl.load(p_counts + 2)
    if p_accept is not None:
        n_accepted = tl.maximum(tl.load(p_accept + i_b).to(tl.int32), 0)
        n_kept -= n_new - tl.minimum(n_accepted, n_new)
    return n_folded, n_kept


@triton.jit
def _vector(p_x, i_row, o_d, D: tl.constexpr):
    """A row of D numbers as float32."""
    return tl.load(p_x + i_row * D + o_d, mask=o_d < D, other=0.0).to(tl.float32)


@triton.jit
def _row(p_tk, p_tv, p_tg, i_row, i_v, o_k, o_v, K: tl.constexpr, V: tl.constexpr, GATES: tl.constexpr):
    """Key, value and gates of a row of a tail."""
    b_k, b_v = _vector(p_tk, i_row, o_k, K), load_values(p_tv, i_row, i_v, o_v, V)
    b_g = b_k
    if GATES != 0:
        b_g = load_gate(p_tg, i_row, o_k, K, GATES)
    return b_k, b_v, b_g


@triton.jit
def with_tail(
    b_s, p_tk, p_tv, p_tg, n_folded, n_kept, i_v, o_k, o_v,
    K: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, GATES: tl.constexpr,
):  # fmt: skip
    """Tile i_v of the state after the tail's tokens, one after another. p_tk, p_tv, p_tg: rows of a slot's head."""
    b_k1, b_v1, b_g1 = _row(p_tk, p_tv, p_tg, n_folded % ROWS, i_v, o_k, o_v, K, V, GATES)
    for j in range(0, n_kept):
        b_k, b_v, b_g = b_k1, b_v1, b_g1
        # the next row comes while this one is added; after the last one some row, which nobody needs
        b_k1, b_v1, b_g1 = _row(p_tk, p_tv, p_tg, (n_folded + j + 1) % ROWS, i_v, o_k, o_v, K, V, GATES)
        if GATES != 0:
            b_s *= tl.exp(b_g)[:, None]
        b_s += b_k[:, None] * b_v[None, :]
    return b_s


@triton.jit
def _rows(p_x, o_row, m_row, o_d, D: tl.constexpr):
    """Rows of D numbers, zeros where there is none."""
    return tl.load(p_x + o_row[:, None] * D + o_d[None, :], mask=m_row[:, None] & (o_d < D)[None, :], other=0.0)


@triton.jit
def _gate(p_g, i_row, o_k, K: tl.constexpr, GATES: tl.constexpr):
    """A token's gates: of each feature [BK], or that of the head."""
    return _vector(p_g, i_row, o_k, K) if GATES == 1 else tl.load(p_g + i_row).to(tl.float32)


@triton.jit
def settled_keys(
    p_tk, p_tg, n_folded, n_kept, o_k,
    K: tl.constexpr, ROWS: tl.constexpr, BT: tl.constexpr, GATES: tl.constexpr,
):  # fmt: skip
    """Keys of the settled tokens, [BT, BK], and of the state's rows a factor: what the gates after them leave of
    them."""
    o_t = tl.arange(0, BT)
    b_keys, b_left = _rows(p_tk, (n_folded + o_t) % ROWS, o_t < n_kept, o_k, K).to(tl.float32), 1.0
    if GATES != 0:
        # of each row the gates of the next one: their sums from the last row back are those of the rows after
        o_next, m_next = (n_folded + o_t + 1) % ROWS, o_t + 1 < n_kept
        b_first = tl.where(n_kept > 0, _gate(p_tg, n_folded % ROWS, o_k, K, GATES), 0.0)
        if GATES == 1:
            b_after = _rows(p_tg, o_next, m_next, o_k, K).to(tl.float32)
            b_keys *= tl.exp(tl.cumsum(b_after, axis=0, reverse=True))
        else:
            b_after = tl.load(p_tg + o_next, mask=m_next, other=0.0).to(tl.float32)
            b_keys *= tl.exp(tl.cumsum(b_after, axis=0, reverse=True))[:, None]
        b_left = tl.exp(b_first + tl.sum(b_after, axis=0))
    return b_keys, b_left


@triton.jit
def new_tokens(p_q, p_k, p_g, i_new, H, scale, o_k, K: tl.constexpr, N: tl.constexpr, GATES: tl.constexpr):
    """Of N tokens: queries, times the scale, and keys, [BK] each; gates; and e^g."""
    b_q, b_k, b_g, b_decay = (), (), (), ()
    for t in tl.static_range(N):
        b_q += (_vector(p_q, i_new + t * H, o_k, K) * scale,)  # type: ignore[assignment]
        b_k += (_vector(p_k, i_new + t * H, o_k, K),)  # type: ignore[assignment]
        if GATES != 0:
            b_g += (_gate(p_g, i_new + t * H, o_k, K, GATES),)  # type: ignore[assignment]
            b_decay += (tl.exp(b_g[t]),)  # type: ignore[assignment]
    return b_q, b_k, b_g, b_decay


@triton.jit(do_not_specialize=["n_slots"])
def replay_kernel(
    p_q, p_k, p_v, p_g, p_s, p_scales, p_tk, p_tv, p_tg, p_counts, p_slots, p_accept, p_o, scale, stride, n_slots, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, N: tl.constexpr, TAIL: tl.constexpr,
    ROWS: tl.constexpr, BT: tl.constexpr, GATES: tl.constexpr, V_FIRST: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """o [B, N, H, V] of N tokens each; N = 0 only folds. BT: rows of a tile of settled tokens, as many as may be."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_bh = tl.program_id(0).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    i_new = i_b * N * H + i_h  # row of the first token; each next one lies H rows further
    i_slot = tl.load(p_slots + i_b).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), tl.arange(0, BV)
    b_q, b_k, b_g, b_decay = new_tokens(p_q, p_k, p_g, i_new, H, scale, o_k, K, N, GATES)
    if (i_slot >= 0) & (i_slot < n_slots):
        i_head = i_slot * H + i_h
        p_state = p_s + i_slot * stride + i_h * K * V
        p_scale = None if p_scales is None else p_scales + i_head * V
        p_count = p_counts + i_head * COUNTS
        n_folded, n_kept = counts_of(p_count, p_accept, i_b)
        b_next = load_tile(p_state, 0, o_k, o_v, K, V, V_FIRST)
        tl.debug_barrier()  # has the compiler leave it there, before loads that wait for the counts
        p_k0, p_v0 = p_tk + i_head * ROWS * K, p_tv + i_head * ROWS * V
        p_g0 = None if GATES == 0 else p_tg + i_head * ROWS * (K if GATES == 1 else 1)
        n_before = n_folded + n_kept

        # queries against the state and settled tokens, [BK, 1] and [BT, 1]; those against new ones, key after key
        b_queries, b_scores, b_pairs = (), (), ()
        if N > 0:
            o_t = tl.arange(0, BT)
            o_row, m_row = (n_folded + o_t) % ROWS, o_t < n_kept
            b_keys, b_left = settled_keys(p_k0, p_g0, n_folded, n_kept, o_k, K, ROWS, BT, GATES)
            b_since = 1.0
            for t in tl.static_range(N):
                if GATES != 0:
                    b_since *= b_decay[t]
                b_scores += (tl.sum(b_keys * (b_q[t] * b_since)[None, :], axis=1)[:, None],)  # type: ignore[assignment]
                b_queries += ((b_q[t] * b_since * b_left)[:, None],)  # type: ignore[assignment]
            for j in tl.static_range(N):
                b_key = b_k[j]
                for t in tl.static_range(j, N):
                    if GATES != 0 and t > j:
                        b_key *= b_decay[t]
                    b_pairs += (tl.sum(b_key * b_q[t], axis=0),)  # type: ignore[assignment]
            for t in tl.static_range(N):
                i_row = (n_before + t) % ROWS
                tl.store(p_k0 + i_row * K + o_k, b_k[t].to(p_tk.dtype.element_ty), mask=o_k < K)
                if GATES == 1:
                    tl.store(p_g0 + i_row * K + o_k, b_g[t].to(p_tg.dtype.element_ty), mask=o_k < K)
                if GATES == 2:
                    tl.store(p_g0 + i_row, b_g[t].to(p_tg.dtype.element_ty))

        for i_v in range(NV):
            b_s = as_float(b_next, p_scale, i_v, o_v, V)
            b_next = load_tile(p_state, i_v + 1, o_k, o_v, K, V, V_FIRST)  # nothing after the last one
            if N > 0:
                b_values = _rows(p_v0, o_row, m_row, i_v * BV + o_v, V).to(tl.float32)
                b_new = ()
                for t in tl.static_range(N):
                    b_new += (load_values(p_v, i_new + t * H, i_v, o_v, V),)  # type: ignore[assignment]
                for t in tl.static_range(N):
                    b_o = tl.sum(b_s * b_queries[t], axis=0) + tl.sum(b_values * b_scores[t], axis=0)
                    for j in tl.static_range(t + 1):
                        b_o += b_pairs[j * N - j * (j - 1) // 2 + t - j] * b_new[j]
                    store_values(p_o, i_new + t * H, i_v, b_o, o_v, V)
                    store_values(p_v0, (n_before + t) % ROWS, i_v, b_new[t], o_v, V)
            if n_kept >= TAIL:
                b_s = with_tail(b_s, p_k0, p_v0, p_g0, n_folded, n_kept, i_v, o_k, o_v, K, V, ROWS, GATES)
                i_seed = seed(n_folded, i_h) if STOCHASTIC else None
                store_tile(p_state, p_scale, b_s, i_seed, i_v, o_k, o_v, K, V, V_FIRST, STOCHASTIC)

        n_gone = tl.where(n_kept >= TAIL, n_kept, 0)
        tl.debug_barrier()  # all warps have read the counts
        tl.store(p_count, n_folded + n_gone)
        tl.store(p_count + 1, n_kept - n_gone + N)
        tl.store(p_count + 2, N)
    else:
        for i_v in range(NV):
            for t in tl.static_range(N):
                store_values(p_o, i_new + t * H, i_v, tl.zeros([BV], dtype=tl.float32), o_v, V)


settle_keys(replay_kernel)


@dataclass(frozen=True)
class Slots:
    """A pool and the tails of its slots.

    state: [slots, H, K, V], or v_first [slots, H, V, K]; scales: of fp8 states, [slots, H, V] float32.
    keys, values: of tails, [slots, H, rows, K] and [slots, H, rows, V]; None where there are none.
    gates: of tails, [slots, H, rows, K], or one a head, [slots, H, rows]; None without gates.
    counts: [slots, H, COUNTS] int32: see above.
    tail: of how many settled tokens a step folds. stochastic: see `states.store_tile`.
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
    def parts(self) -> tuple[Any, ...]:
        """All of the above, in this order, as the compiler of PyTorch 2.11 can trace it: `vars` it cannot."""
        tensors = self.state, self.scales, self.keys, self.values, self.gates, self.counts
        return *tensors, self.tail, self.v_first, self.stochastic

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
        """A launch of a program for each head of the slots; ``args`` and ``constexprs``: what is the kernel's own."""
        H, K, V = self.sizes
        tiles = self.tiles
        pool = {
            "p_s": self.state, "p_scales": self.scales, "p_tk": self.keys, "p_tv": self.values, "p_tg": self.gates,
            "p_counts": self.counts, "p_slots": slots, "stride": self.state.stride(0),
            "n_slots": self.state.shape[0], "H": H,
        }  # fmt: skip
        rows = 1 if self.keys is None else self.keys.shape[2]
        gates = gates_of(self.gates, self.state)
        sizes = {"K": K, "V": V, "BK": tiles.BK, "BV": tiles.BV, "ROWS": rows, "GATES": gates}
        flags = {"V_FIRST": self.v_first, "STOCHASTIC": self.stochastic, "TAILED": self.tail > 0}
        n, BT = constexprs.get("N", 0), constexprs.get("BT", 1)
        limit = MAX_REGISTERS
        if tiles.BK * BT <= SMALL_TAIL and n <= MOST_LIMITED:
            limit = REGISTERS if n <= 1 else REGISTERS_OF_DRAFTS
        how: dict[str, Any] = {"num_warps": tiles.num_warps(BT), "max_registers": limit}
        return Launch(kernel, (slots.shape[0] * H,), pool | args, sizes | flags | constexprs, **how)


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
    BT = max(2, 1 << (pool.tail + pool.most - 2).bit_length())  # a power of two, of tail - 1 + most rows at least
    launch(pool.launch_of(replay_kernel, slots, new, N=n, TAIL=pool.tail, BT=BT))
    return o


def fold(pool: Slots, slots: Tensor, accept: Tensor | None, launch: Launcher) -> None:
    """Have all settled tokens of the slots folded into their states."""
    none: dict[str, Any] = dict.fromkeys(("p_q", "p_k", "p_v", "p_g", "p_o"))
    launch(pool.launch_of(replay_kernel, slots, none | {"p_accept": accept, "scale": 1.0}, N=0, TAIL=1, BT=2))
