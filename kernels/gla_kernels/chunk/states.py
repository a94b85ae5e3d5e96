"""States at the segments' boundaries: the pass that walks over time.

    S_c  = Diag(e^gamma) S_{c-1} + (K e^{gamma-G})^T V

A walk is a chain, one row block after another. A long one is cut into segments (slices.py), all walked over at once,
and twice: first each from zero, for what it adds by itself (LAST); then, where `combine_kernel` has added that up, each
from the state that it starts from. grad_states.py has the same backward in time.
"""

# mypy: disallow-untyped-defs=False
from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents

from ..launch import Launcher, interpreting, settle_keys
from ..tiles.descriptors import load_rows, store_state_tile
from ..tiles.gates import after_rows, frame, limited, whole_decay, wide_decays
from ..tiles.operands import load_state, load_tile, store_state
from ..tiles.packed import begins_here, decay_of_rows, ends_here, sequence_of
from ..tiles.products import product
from ..tiles.slices import Slice
from .strong_gates import at_once

if TYPE_CHECKING:
    from .problem import Problem

CLOSED: tl.constexpr = tl.constexpr(-1e4)  # log2 of what forgets all

SIZES = ["T", "n_seg", "first_seg", "n_stored", "seg_rows", "every_rows", "n_rows"]


@triton.jit
def walk_over(
    p_k, p_v, p_g, p_s0, p_s, p_h, p_st, p_marks, p_open, p_sn, p_hv, d_k, d_v, d_g, d_s, T, H, seg_rows, every_rows,
    n_rows, n_heads, i_first, i_s, i_batch, i_h, i_row0, i_k, i_v, o_k, o_v,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    EACH: tl.constexpr, LAST: tl.constexpr, HAS_S0: tl.constexpr, STORE_H: tl.constexpr, STORE_ST: tl.constexpr,
    PACKED: tl.constexpr, HAS_SN: tl.constexpr, V_FIRST: tl.constexpr, S0_V_FIRST: tl.constexpr, OPEN_H: tl.constexpr,
    FRAMED: tl.constexpr, GATED: tl.constexpr, LIMIT: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The segment of states_kernel whose first row is i_first: its last state [BK, BV], log2 of its decay of features
    [BK] and of columns [BV], and whether a gate was -inf. Where 16-bit gates are, sums beside them are no numbers, but
    with LIMIT: gates then go through registers on their way to a product, which takes longer
    (kernels/NOTES.md, "Scores and gates within a chunk: mild, strong, -inf")."""
    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    b_gamma, b_least = tl.zeros([BK], dtype=tl.float32), tl.zeros([BK], dtype=tl.float32)
    b_gamma_v, b_frame = tl.zeros([BV], dtype=tl.float32), tl.zeros([BV], dtype=tl.float32)
    if FRAMED:
        b_frame = frame(tl.load(p_hv - V, mask=(o_v < V) & (i_first > 0), other=0.0))
    if HAS_S0:
        b_s += load_state(p_s0, o_k, o_v, K, V, S0_V_FIRST)
    STAGES: tl.constexpr = 1 if LIMIT else None  # not to ask for more registers than the walk without
    for i_t in tl.range(0, tl.cdiv(tl.minimum(T - i_first, seg_rows), BT), num_stages=STAGES):
        i_row = i_first + i_t * BT
        if PACKED:  # nothing passes to a sequence that begins with the block, whose gate then need not be closed
            begins = tl.load(p_marks + i_row) == i_row
            b_s = tl.where(begins, 0.0, b_s)
            b_gamma = tl.where(begins, CLOSED, b_gamma)
        if PACKED and STORE_ST:
            if ends_here(p_marks, n_rows, i_row, BT):
                p_at = p_st + (sequence_of(p_marks, n_rows, i_row) * n_heads + i_h) * K * V
                store_state(p_at, b_s, o_k, o_v, K, V, V_FIRST)
        if EACH:
            store_state_tile(d_s, p_s, b_s, i_s + i_t, i_k * BK, i_v * BV, K, V, BK, BV)
        elif not LAST:
            if (i_t * BT) % every_rows == 0:
                store_state_tile(d_s, p_s, b_s, i_s + (i_t * BT) // every_rows, i_k * BK, i_v * BV, K, V, BK, BV)
        b_k = load_rows(d_k, p_k, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK)
        b_v = load_rows(d_v, p_v, i_batch, i_h, i_row, T, H, i_v * BV, V, BT, BV)
        if GATED:
            b_g = load_rows(d_g, p_g, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK)
            if b_g.dtype == tl.float32 and DOT == tl.bfloat16:
                b_d, b_total = wide_decays(b_g, True, BT)
            else:
                if LIMIT or b_g.dtype == tl.float32:
                    b_g = limited(b_g)
                b_d = after_rows(b_g, p_g, i_row, T, H * K, o_k, K, BT, DOT)
                b_total = whole_decay(b_g, BT, DOT)
            b_least = tl.minimum(b_least, b_total)
            if STORE_H:
                b_half = 0.5 * b_total
                if OPEN_H:
                    b_open = limited(load_tile(p_open + i_row0 * K, i_row, T, H * K, o_k, K, BT))
                    b_half = 0.5 * whole_decay(b_open, BT, DOT)
                tl.store(p_h + i_t * K, b_half, mask=(o_k < K) & (i_v == 0))
            b_k = b_k.to(tl.float32) * tl.exp2(b_d)
            if LAST:
                b_gamma += b_total
            b_s = b_s * tl.exp2(b_total)[:, None]
        if FRAMED:
            b_h = tl.load(p_hv + i_t * V, mask=o_v < V, other=0.0)
            b_s = b_s * tl.exp2(b_frame + b_h)[None, :]
            b_gamma_v += b_frame + b_h
            b_frame = frame(b_h)
        b_s = product(tl.trans(b_k), b_v, b_s, DOT, PRECISION)
        if PACKED and HAS_SN:
            i_last = i_row + BT - 1
            if begins_here(p_marks, n_rows, i_row, BT):
                i_start = tl.load(p_marks + i_last)
                b_e = decay_of_rows(p_open + i_row0 * K, i_row, i_start, i_row + BT, T, H * K, o_k, K, BT)
                p_at = p_sn + (sequence_of(p_marks, n_rows, i_last) * n_heads + i_h) * K * V
                b_s += load_state(p_at, o_k, o_v, K, V, V_FIRST) * b_e[:, None]
    return b_s, b_gamma, b_gamma_v, tl.min(b_least, axis=0) == float("-inf")


@triton.jit(do_not_specialize=[*SIZES, "n_start", "n_blocks"])
def states_kernel(
    p_k, p_v, p_g, p_s0, p_s, p_h, p_gamma, p_st, p_marks, p_open, p_sn, p_hv, p_gamma_v, d_k, d_v, d_g, d_s,
    T, H, n_seg, first_seg, n_start, n_stored, n_blocks, seg_rows, every_rows, n_rows, n_heads,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    EACH: tl.constexpr, LAST: tl.constexpr, HAS_S0: tl.constexpr, STORE_H: tl.constexpr, STORE_ST: tl.constexpr,
    PACKED: tl.constexpr, HAS_SN: tl.constexpr, V_FIRST: tl.constexpr, S0_V_FIRST: tl.constexpr, OPEN_H: tl.constexpr,
    FRAMED: tl.constexpr, GATED: tl.constexpr, LEADS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The states before every ``every_rows``-th row of the segments from ``first_seg`` on: p_s [B*H, n_stored, K, V].

    A program walks over the rows of one segment, ``seg_rows`` of them, with a tile of the state on chip. n_seg segments
    are walked over, each from its own state in p_s0 [B*H, n_start, K, V], float32, or from zero without HAS_S0. Each
    stores seg_rows / every_rows states, the sequence's end apart; EACH: one every row block; LAST: only the one after
    its last row, and log2 of its whole decay in p_gamma [B*H, n_stored, K], float32. n_start: a state for each segment
    of the sequence, or one for the only segment that is walked over.
    p_h [B*H, n_blocks, K], float32: log2 of half of each row block's decay, which the passes after this one go by.
    p_st [B*H, K, V], float32: the state after the last of these segments.

    PACKED: p_marks as `packed.marks` makes them, p_g closed where a sequence begins, p_open as the call has them. p_sn
    [N, n_heads, K, V], float32: the state before each sequence, or zero without HAS_SN. p_st [N, n_heads, K, V] is
    given the state before the row block that a sequence ends in, if it came from the one before. OPEN_H: p_h goes by
    p_open. V_FIRST: p_sn and p_st are [.., V, K]; S0_V_FIRST: p_s0 is.

    FRAMED, with LAST: v is in frames of the value side, of which p_hv [B*H, row blocks, V] tells, and so are states
    after the last rows of segments (value_gates/frames.py). p_gamma_v [B*H, n_stored, V]: as p_gamma, of that side.

    LEADS: the next launch may begin before this one is done, where it is to (`Launch.early`).
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_p = i_p % NV, (i_p // NV) % NK, i_p // (NV * NK)
    i_seg, i_bh = i_p % n_seg, (i_p // n_seg).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_batch, i_h = (i_bh // H).to(tl.int32), (i_bh % H).to(tl.int32)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_k, p_v = p_k + i_row0 * K, p_v + i_row0 * V
    i_first = (first_seg + i_seg) * seg_rows
    i_s = i_bh * n_stored + i_seg * (seg_rows // every_rows)  # the first state that is stored
    if GATED:
        p_g += i_row0 * K
        if STORE_H:
            p_h += (i_bh * n_blocks + i_first // BT) * K + o_k

    if LEADS:
        gdc_launch_dependents()
    if HAS_S0:
        p_s0 += (i_bh * n_start + (first_seg + i_seg) % n_start) * K * V
    if FRAMED:
        p_hv += (i_bh * tl.cdiv(T, BT) + i_first // BT) * V + o_v
    b_s, b_gamma, b_gamma_v, infinite = walk_over(
        p_k, p_v, p_g, p_s0, p_s, p_h, p_st, p_marks, p_open, p_sn, p_hv, d_k, d_v, d_g, d_s, T, H, seg_rows,
        every_rows, n_rows, n_heads, i_first, i_s, i_batch, i_h, i_row0, i_k, i_v, o_k, o_v, K, V, BT, BK, BV, EACH,
        LAST, HAS_S0, STORE_H, STORE_ST, PACKED, HAS_SN, V_FIRST, S0_V_FIRST, OPEN_H, FRAMED, GATED, False, DOT,
        PRECISION,
    )  # fmt: skip
    if GATED and p_g.dtype.element_ty != tl.float32:
        if infinite:
            b_s, b_gamma, b_gamma_v, infinite = walk_over(
                p_k, p_v, p_g, p_s0, p_s, p_h, p_st, p_marks, p_open, p_sn, p_hv, d_k, d_v, d_g, d_s, T, H, seg_rows,
                every_rows, n_rows, n_heads, i_first, i_s, i_batch, i_h, i_row0, i_k, i_v, o_k, o_v, K, V, BT, BK, BV,
                EACH, LAST, HAS_S0, STORE_H, STORE_ST, PACKED, HAS_SN, V_FIRST, S0_V_FIRST, OPEN_H, FRAMED, GATED, True,
                DOT, PRECISION,
            )  # fmt: skip
    if LAST:
        store_state_tile(d_s, p_s, b_s, i_s, i_k * BK, i_v * BV, K, V, BK, BV)
        if GATED:
            tl.store(p_gamma + (i_bh * n_stored + i_seg) * K + o_k, b_gamma, mask=(o_k < K) & (i_v == 0))
        if FRAMED:
            tl.store(p_gamma_v + (i_bh * n_stored + i_seg) * V + o_v, b_gamma_v, mask=(o_v < V) & (i_k == 0))
    if STORE_ST and not PACKED:
        if i_seg == n_seg - 1:
            store_state(p_st + i_bh * K * V, b_s, o_k, o_v, K, V, V_FIRST)


settle_keys(states_kernel)


def make_states(
    p: "Problem", piece: Slice, starts: Tensor | None, states: Tensor, halves: Tensor | None,
    final_state: Tensor | None, launch: Launcher, every: int = 1, last: bool = False, gamma: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill ``states`` [B*H, .., K, V] with the states before every n-th chunk of the slice, and the slice's rows of
    ``halves``. ``starts``: the states before each segment of the sequence, none for zero. ``last``: the state after
    each segment instead, and log2 of its decay in ``gamma`` [B*H, segments, K]."""
    args = {
        "p_k": p.k, "p_v": p.v, "p_g": p.gates, "p_s0": starts, "p_s": states, "p_h": halves, "p_gamma": gamma,
        "p_st": final_state, "n_start": p.states_a_head(starts), "n_blocks": p.n_blocks,
    } | p.framed  # fmt: skip
    args, flags = p.with_sequences(args, "p_sn", p.initial_state)
    launch(
        p.walk_of(
            states_kernel,
            p.config.states,
            args,
            piece,
            states,
            every,
            last,
            HAS_S0=starts is not None,
            STORE_H=halves is not None,
            STORE_ST=final_state is not None,
            S0_V_FIRST=p.is_v_first(starts),
            OPEN_H=p.packed is not None and p.native,
            FRAMED=p.frames is not None,
            LEADS=at_once(p) and not interpreting(),
            **flags,
        )
    )
