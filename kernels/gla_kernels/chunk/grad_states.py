"""The gradients of states at the segments' boundaries: the pass that walks back over time.

    dS_{c-1} = Diag(e^gamma) dS_c + scale (Q e^G)^T dO

By segments as in states.py.
"""

# mypy: disallow-untyped-defs=False
from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents

from ..launch import Launcher, interpreting, settle_keys
from ..tiles.descriptors import load_rows, store_state_tile
from ..tiles.gates import frame, limited, up_to_rows, whole_decay, wide_decays
from ..tiles.operands import dot, load_state, store_state
from ..tiles.packed import begins_here, decay_of_rows, ends_here, sequence_of
from ..tiles.products import product
from ..tiles.slices import Slice
from .states import CLOSED, SIZES
from .strong_gates import at_once

if TYPE_CHECKING:
    from .problem import Problem


@triton.jit
def walk_back(
    p_q, p_g, p_do, p_dst, p_ds, p_ds0, p_marks, p_open, p_dsn, p_hv, d_q, d_g, d_do, d_ds, scale, T, H, seg_rows,
    every_rows, n_rows, n_heads, i_first, i_s, i_batch, i_h, i_row0, i_k, i_v, o_k, o_v,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    EACH: tl.constexpr, LAST: tl.constexpr, HAS_DST: tl.constexpr, STORE_DS0: tl.constexpr,
    PACKED: tl.constexpr, HAS_DSN: tl.constexpr, V_FIRST: tl.constexpr, DST_V_FIRST: tl.constexpr,
    FRAMED: tl.constexpr, GATED: tl.constexpr, LIMIT: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As walk_over, for grad_states_kernel: from the segment's last row to its first one."""
    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    b_gamma, b_least = tl.zeros([BK], dtype=tl.float32), tl.zeros([BK], dtype=tl.float32)
    b_gamma_v, b_frame = tl.zeros([BV], dtype=tl.float32), tl.zeros([BV], dtype=tl.float32)
    if HAS_DST:
        b_ds += load_state(p_dst, o_k, o_v, K, V, DST_V_FIRST)
    n_t = tl.cdiv(tl.minimum(T - i_first, seg_rows), BT)
    if FRAMED:
        n_chunks = tl.cdiv(T, BT)
        b_frame = frame(tl.load(p_hv + n_t * V, mask=(o_v < V) & (i_first // BT + n_t < n_chunks), other=0.0))
    STAGES: tl.constexpr = 1 if LIMIT else None
    for i_back in tl.range(0, n_t, num_stages=STAGES):
        i_t = n_t - 1 - i_back
        i_row = i_first + i_t * BT
        if PACKED:  # nor from one that ends with it
            ends = tl.load(p_marks + n_rows + i_row + BT - 1) <= i_row + BT
            b_ds = tl.where(ends, 0.0, b_ds)
            b_gamma = tl.where(ends, CLOSED, b_gamma)
        if PACKED and STORE_DS0:
            if begins_here(p_marks, n_rows, i_row, BT):
                p_at = p_ds0 + (sequence_of(p_marks, n_rows, i_row + BT - 1) * n_heads + i_h) * K * V
                store_state(p_at, b_ds, o_k, o_v, K, V, V_FIRST)
        if EACH:
            store_state_tile(d_ds, p_ds, b_ds, i_s + i_t, i_k * BK, i_v * BV, K, V, BK, BV)
        elif not LAST:
            if ((i_t + 1) * BT % every_rows == 0) | (i_back == 0):
                store_state_tile(d_ds, p_ds, b_ds, i_s + (i_t * BT) // every_rows, i_k * BK, i_v * BV, K, V, BK, BV)
        if FRAMED:
            b_h = tl.load(p_hv + i_t * V, mask=o_v < V, other=0.0)
            b_ds = b_ds * tl.exp2(b_frame + b_h)[None, :]
            b_gamma_v += b_frame + b_h
            b_frame = frame(b_h)
        b_q = load_rows(d_q, p_q, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK)
        b_do = load_rows(d_do, p_do, i_batch, i_h, i_row, T, H, i_v * BV, V, BT, BV)
        if GATED:
            b_g = load_rows(d_g, p_g, i_batch, i_h, i_row, T, H, i_k * BK, K, BT, BK)
            if b_g.dtype == tl.float32 and DOT == tl.bfloat16:
                b_d, b_total = wide_decays(b_g, False, BT)
            else:
                if LIMIT or b_g.dtype == tl.float32:
                    b_g = limited(b_g)
                b_d = up_to_rows(b_g, BT, DOT)
                b_total = whole_decay(b_g, BT, DOT)
            b_least = tl.minimum(b_least, b_total)
            b_q = b_q.to(tl.float32) * (scale * tl.exp2(b_d))
            if LAST:
                b_gamma += b_total
            b_ds = b_ds * tl.exp2(b_total)[:, None]
            b_ds = product(tl.trans(b_q), b_do, b_ds, DOT, PRECISION)
        else:  # a scale that is no power of two would cost q its last bits
            b_ds += scale * dot(tl.trans(b_q), b_do, DOT, PRECISION)
        if PACKED and HAS_DSN:
            if ends_here(p_marks, n_rows, i_row, BT):
                i_end = tl.load(p_marks + n_rows + i_row)
                b_e = decay_of_rows(p_open + i_row0 * K, i_row, i_row, i_end, T, H * K, o_k, K, BT)
                p_at = p_dsn + (sequence_of(p_marks, n_rows, i_row) * n_heads + i_h) * K * V
                b_ds += load_state(p_at, o_k, o_v, K, V, V_FIRST) * b_e[:, None]
    return b_ds, b_gamma, b_gamma_v, tl.min(b_least, axis=0) == float("-inf")


@triton.jit(do_not_specialize=[*SIZES, "n_end"])
def grad_states_kernel(
    p_q, p_g, p_do, p_dst, p_ds, p_gamma, p_ds0, p_marks, p_open, p_dsn, p_hv, p_gamma_v, d_q, d_g, d_do, d_ds, scale,
    T, H, n_seg, first_seg, n_end, n_stored, seg_rows, every_rows, n_rows, n_heads,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    EACH: tl.constexpr, LAST: tl.constexpr, HAS_DST: tl.constexpr, STORE_DS0: tl.constexpr,
    PACKED: tl.constexpr, HAS_DSN: tl.constexpr, V_FIRST: tl.constexpr, DST_V_FIRST: tl.constexpr,
    FRAMED: tl.constexpr, GATED: tl.constexpr, LEADS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of the states after every ``every_rows``-th row: p_ds [B*H, n_stored, K, V]. As in
    states_kernel, but from the last row of a segment to its first one: LAST is the gradient before that.

    p_dst [B*H, n_end, K, V], float32: the gradient of the state after each segment; without HAS_DST it is zero.
    p_ds0 [B*H, K, V], float32: that of the state before the first of these segments.

    PACKED: as there, with the gradients of sequences' last states in p_dsn [N, n_heads, K, V], and in p_ds0 [N,
    n_heads, K, V] that of the state after the row block that a sequence begins in, if it goes on in the next one.
    FRAMED: as there, with do in frames, and gradients of states before the first rows of segments.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_p = i_p % NV, (i_p // NV) % NK, i_p // (NV * NK)
    i_seg, i_bh = i_p % n_seg, (i_p // n_seg).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_batch, i_h = (i_bh // H).to(tl.int32), (i_bh % H).to(tl.int32)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_q, p_do = p_q + i_row0 * K, p_do + i_row0 * V
    i_first = (first_seg + i_seg) * seg_rows
    i_s = i_bh * n_stored + i_seg * (seg_rows // every_rows)
    if GATED:
        p_g += i_row0 * K

    if LEADS:
        gdc_launch_dependents()
    if HAS_DST:
        p_dst += (i_bh * n_end + (first_seg + i_seg) % n_end) * K * V
    if FRAMED:
        p_hv += (i_bh * tl.cdiv(T, BT) + i_first // BT) * V + o_v
    b_ds, b_gamma, b_gamma_v, infinite = walk_back(
        p_q, p_g, p_do, p_dst, p_ds, p_ds0, p_marks, p_open, p_dsn, p_hv, d_q, d_g, d_do, d_ds, scale, T, H, seg_rows,
        every_rows, n_rows, n_heads, i_first, i_s, i_batch, i_h, i_row0, i_k, i_v, o_k, o_v, K, V, BT, BK, BV, EACH,
        LAST, HAS_DST, STORE_DS0, PACKED, HAS_DSN, V_FIRST, DST_V_FIRST, FRAMED, GATED, False, DOT, PRECISION,
    )  # fmt: skip
    if GATED and p_g.dtype.element_ty != tl.float32:
        if infinite:
            b_ds, b_gamma, b_gamma_v, infinite = walk_back(
                p_q, p_g, p_do, p_dst, p_ds, p_ds0, p_marks, p_open, p_dsn, p_hv, d_q, d_g, d_do, d_ds, scale, T, H,
                seg_rows, every_rows, n_rows, n_heads, i_first, i_s, i_batch, i_h, i_row0, i_k, i_v, o_k, o_v, K, V, BT,
                BK, BV, EACH, LAST, HAS_DST, STORE_DS0, PACKED, HAS_DSN, V_FIRST, DST_V_FIRST, FRAMED, GATED, True, DOT,
                PRECISION,
            )  # fmt: skip
    if LAST:
        store_state_tile(d_ds, p_ds, b_ds, i_s, i_k * BK, i_v * BV, K, V, BK, BV)
        if GATED:
            tl.store(p_gamma + (i_bh * n_stored + i_seg) * K + o_k, b_gamma, mask=(o_k < K) & (i_v == 0))
        if FRAMED:
            tl.store(p_gamma_v + (i_bh * n_stored + i_seg) * V + o_v, b_gamma_v, mask=(o_v < V) & (i_k == 0))
    if STORE_DS0 and not PACKED:
        if i_seg == 0:
            store_state(p_ds0 + i_bh * K * V, b_ds, o_k, o_v, K, V, V_FIRST)


settle_keys(grad_states_kernel)


def make_grad_states(
    p: "Problem", piece: Slice, do: Tensor, ends: Tensor | None, grads: Tensor,
    d_initial: Tensor | None, launch: Launcher, every: int = 1, last: bool = False, gamma: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill ``grads`` [B*H, .., K, V] with the gradients of the states after every n-th chunk of the slice. ``ends``: of
    the states after each segment of the sequence, or after all of it, [B, H, K, V]; none for zero. ``last``: of the
    state before each segment instead, and log2 of its decay in ``gamma`` [B*H, segments, K]."""
    args = {
        "p_q": p.q, "p_g": p.gates, "p_do": do, "p_dst": ends, "p_ds": grads, "p_gamma": gamma,
        "p_ds0": d_initial, "scale": p.scale, "n_end": p.states_a_head(ends),
    } | p.framed  # fmt: skip
    args, flags = p.with_sequences(args, "p_dsn", p.d_final)
    launch(
        p.walk_of(
            grad_states_kernel,
            p.config.grad_states,
            args,
            piece,
            grads,
            every,
            last,
            HAS_DST=ends is not None,
            STORE_DS0=d_initial is not None,
            DST_V_FIRST=p.is_v_first(ends),
            FRAMED=p.frames is not None,
            LEADS=at_once(p) and not interpreting(),
            **flags,
        )
    )
