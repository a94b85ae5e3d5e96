"""The forward pass without gates in one walk over time: what states.py and output.py compute, where a chunk is one row
block. The output reads no state from memory.

    O = scale [Q S + tril(Q K^T) V],     S <- S + K^T V

S stays in registers, in float32, and enters the product with Q as it is kept for the backward pass. With gates,
operands in parts and exponentials leave no room beside it: see hopper/walk.py.
"""

# mypy: disallow-untyped-defs=False
from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launcher, settle_keys
from ..schedule import WALKED_K
from ..tiles.descriptors import load_rows, store_rows, store_state_tile
from ..tiles.operands import dot_half, load_state, store_state
from ..tiles.products import product
from ..tiles.slices import Slice
from .hopper import walk_hopper_kernel
from .strong_gates import output_strong_kernel, strong_gates_of
from .wide_walk import wide_scan

if TYPE_CHECKING:
    from .prepare import Prepared
    from .problem import Problem


@triton.jit(do_not_specialize=["T", "n_seg", "first_seg", "n_start", "n_stored", "seg_rows"])
def walk_kernel(
    p_q, p_k, p_v, p_s0, p_s, p_st, p_o, d_q, d_k, d_v, d_s, d_o,
    scale, T, H, n_seg, first_seg, n_start, n_stored, seg_rows,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    HAS_S0: tl.constexpr, STORE_S: tl.constexpr, STORE_ST: tl.constexpr, V_FIRST: tl.constexpr,
    S0_V_FIRST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of n_seg segments from first_seg on; all else as `states_kernel` has it, with a state before every
    row block where STORE_S asks for them. A program has all of K, which BK covers, and BV columns of V."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_p = i_p % NV, i_p // NV
    i_seg, i_bh = i_p % n_seg, (i_p // n_seg).to(tl.int64)
    o_k, o_v, o_r = tl.arange(0, BK), i_v * BV + tl.arange(0, BV), tl.arange(0, BT)
    i_batch, i_h = (i_bh // H).to(tl.int32), (i_bh % H).to(tl.int32)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_q, p_k, p_v, p_o = p_q + i_row0 * K, p_k + i_row0 * K, p_v + i_row0 * V, p_o + i_row0 * V
    i_first = (first_seg + i_seg) * seg_rows
    i_s = i_bh * n_stored + i_seg * (seg_rows // BT)  # the first state that is stored

    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S0:
        b_s += load_state(p_s0 + (i_bh * n_start + (first_seg + i_seg) % n_start) * K * V, o_k, o_v, K, V, S0_V_FIRST)
    for i_t in range(0, tl.cdiv(tl.minimum(T - i_first, seg_rows), BT)):
        i_row = i_first + i_t * BT
        b_q = load_rows(d_q, p_q, i_batch, i_h, i_row, T, H, 0, K, BT, BK)
        b_k = load_rows(d_k, p_k, i_batch, i_h, i_row, T, H, 0, K, BT, BK)
        b_v = load_rows(d_v, p_v, i_batch, i_h, i_row, T, H, i_v * BV, V, BT, BV)
        # scores first: until they are there S is not looked at, and the product that adds to it may still run
        b_a = tl.dot(b_q.to(DOT), tl.trans(b_k.to(DOT)), input_precision=PRECISION)
        b_kept = b_s.to(DOT)
        if STORE_S:
            store_state_tile(d_s, p_s, b_kept, i_s + i_t, 0, i_v * BV, K, V, BK, BV)
        b_o = tl.dot(b_q.to(DOT), b_kept, input_precision=PRECISION)
        b_o = dot_half(tl.where(o_r[:, None] >= o_r[None, :], b_a, 0.0), b_v, b_o, DOT, PRECISION)
        b_s = product(tl.trans(b_k), b_v, b_s, DOT, PRECISION)
        store_rows(d_o, p_o, b_o * scale, i_batch, i_h, i_row, T, H, i_v * BV, V, BT, BV)
    if STORE_ST:
        if i_seg == n_seg - 1:
            store_state(p_st + i_bh * K * V, b_s, o_k, o_v, K, V, V_FIRST)


settle_keys(walk_kernel)


def fused_scan(
    p: "Problem", piece: Slice, starts: Tensor | None, states: Tensor | None, halves: Tensor | None,
    final_state: Tensor | None, o: Tensor, few: Tensor | None, every: int, made: "Prepared | None", launch: Launcher,
) -> bool:  # fmt: skip
    """Fill what `make_states` and `make_output` do, in a fused scan. Returns False where the plan has none or it cannot
    serve. Without gates it does without ``states``, too. every: chunks from one state that is kept to the next; 0 where
    nobody asks for states but of strong gates. few [B*H, .., K, V]: given those where they are not all. made: what a
    walk of wide heads reads. In frames of the value side, rows of o of strong gates are left out."""
    args = {
        "p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s0": starts, "p_s": states, "p_h": halves,
        "p_st": final_state, "p_o": o, "scale": p.scale, "n_start": p.states_a_head(starts),
        "p_few": few, "n_few": 0 if few is None else few.shape[1], "every": max(1, every),
    }  # fmt: skip
    args, flags = p.with_sequences(args, "p_sn", p.initial_state)
    flags |= {"HAS_S0": starts is not None, "STORE_S": states is not None, "STORE_ST": final_state is not None}
    flags["S0_V_FIRST"] = p.is_v_first(starts)
    if p.ungated_walk is not None:
        launch(p.walk_on_chip(walk_kernel, p.ungated_walk, args, piece, states, **flags))
        return True
    flags |= {"STORE_S": every == 1, "STORE_FEW": few is not None}
    if p.is_wide(p.config.walk):
        return wide_scan(p, made, piece, args, flags, launch)
    if p.dims[3] > WALKED_K:
        return False
    walk = p.hopper_launch(walk_hopper_kernel, p.config.walk, p.walk_on_chip, args, piece, states, **flags)
    if walk is None:
        return False
    assert states is not None
    launch(walk)
    if p.frames is None:
        launch(strong_gates_of(p, output_strong_kernel, args, piece, states))
    return True
