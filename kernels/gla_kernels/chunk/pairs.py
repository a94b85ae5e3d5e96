"""What one part of a sequence tells the others, and what it makes of what they say: see shards.py.

A part's message is what its tokens add to a state, float32 [B*H, K, V], and how they decay one, e^gamma [B*H, K]; back
in time what they add to the gradient of one, which the same factors decay. Who writes it goes over all segments, and
leaves behind where each of them starts if nothing enters the part. What does, decayed, is all that is missing then.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, settle_keys
from ..tiles.operands import load_state, store_state
from .boundaries import launch_of_states
from .combine import PREFETCH

if TYPE_CHECKING:
    from .problem import Problem
    from .shards import Added


@triton.jit
def _tile_of(K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr):
    """A program's state, rows and columns."""
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_s = i_p % NV, (i_p // NV) % NK, (i_p // (NV * NK)).to(tl.int64)
    return i_s, i_v, i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)


@triton.jit(do_not_specialize=["n_seg", "n_states"])
def message_kernel(
    p_add, p_gamma, p_first, p_message, p_s, p_left, n_seg, n_states,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    REVERSE: tl.constexpr, HAS_FIRST: tl.constexpr, GATED: tl.constexpr, V_FIRST: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """p_message: of all segments, from what each adds, p_add [B*H, n_seg, K, V], float32, and log2 of its decay,
    p_gamma [B*H, n_seg, K]; without REVERSE the decays behind n_states numbers. p_first [B*H, K, V], float32: what
    comes to the first segment, or with REVERSE to the last, V_FIRST [B*H, V, K]; without HAS_FIRST nothing does.

    SEGMENTS: p_s [B*H, n_seg, K, V], float32, is the state before each segment, or with REVERSE its gradient after
    each, and p_left [B*H, n_seg, K] log2 of what is left there of one that enters."""
    i_bh, i_v, o_k, o_v = _tile_of(K, V, BK, BV)
    b_s, b_gamma = tl.zeros([BK, BV], dtype=tl.float32), tl.zeros([BK], dtype=tl.float32)
    if HAS_FIRST:
        b_s += load_state(p_first + i_bh * K * V, o_k, o_v, K, V, V_FIRST)
    for i_step in tl.range(0, n_seg, num_stages=PREFETCH):
        i_seg = i_bh * n_seg + (n_seg - 1 - i_step if REVERSE else i_step)
        if SEGMENTS:
            store_state(p_s + i_seg * K * V, b_s, o_k, o_v, K, V)
            if GATED:
                tl.store(p_left + i_seg * K + o_k, b_gamma, mask=(o_k < K) & (i_v == 0))
        if GATED:
            b_g = tl.load(p_gamma + i_seg * K + o_k, mask=o_k < K, other=0.0)
            b_s, b_gamma = b_s * tl.exp2(b_g)[:, None], b_gamma + b_g
        b_s += load_state(p_add + i_seg * K * V, o_k, o_v, K, V)
    store_state(p_message + i_bh * K * V, b_s, o_k, o_v, K, V)
    if GATED and not REVERSE:
        tl.store(p_message + n_states + i_bh * K + o_k, tl.exp2(b_gamma), mask=(o_k < K) & (i_v == 0))


@triton.jit(do_not_specialize=["n_seg", "part", "parts", "n_states", "n_message", "n_decays"])
def meeting_kernel(
    p_messages, p_decays, p_met, p_s, p_left, n_seg, part, parts, n_states, n_message, n_decays,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    REVERSE: tl.constexpr, GATED: tl.constexpr, V_FIRST: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """p_met [B*H, K, V], float32, V_FIRST [B*H, V, K]: the state that enters a part, of what those before it say in
    p_messages [parts, n_message]; or with REVERSE the gradient of the state that leaves it, of those after it. Decays
    lie behind n_states numbers of each row of p_decays [parts, n_decays].

    SEGMENTS: a program of each, which adds that to p_s, as message_kernel leaves p_s and p_left."""
    i_s, _, o_k, o_v = _tile_of(K, V, BK, BV)
    i_bh = i_s // n_seg
    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    for i_step in range(0, parts - 1 - part if REVERSE else part):
        i_part = tl.cast(parts - 1 - i_step if REVERSE else i_step, tl.int64)
        if GATED:
            p_a = p_decays + i_part * n_decays + n_states + i_bh * K
            b_s = b_s * tl.load(p_a + o_k, mask=o_k < K, other=0.0)[:, None]
        b_s += load_state(p_messages + i_part * n_message + i_bh * K * V, o_k, o_v, K, V)
    if i_s % n_seg == 0:
        store_state(p_met + i_bh * K * V, b_s, o_k, o_v, K, V, V_FIRST)
    if SEGMENTS:
        if GATED:
            b_s *= tl.exp2(tl.load(p_left + i_s * K + o_k, mask=o_k < K, other=0.0))[:, None]
        b_s += load_state(p_s + i_s * K * V, o_k, o_v, K, V)
        store_state(p_s + i_s * K * V, b_s, o_k, o_v, K, V)


settle_keys(message_kernel, meeting_kernel)


def message_of(p: Problem, added: Added, first: Tensor | None, reverse: bool) -> tuple[Tensor, Launch]:
    """A part's message, and the launch that writes it, and where the segments start. first: the state, or gradient,
    that comes from no other part."""
    states = p.one_state()
    size = states.numel() if reverse or added.decays is None else states.numel() * (p.dims[-1] + 1) // p.dims[-1]
    message = states.new_empty(size)
    args = {
        "p_add": added.states, "p_gamma": added.decays, "p_first": first, "p_message": message, "p_s": added.starts,
        "p_left": added.left, "n_seg": p.n_seg, "n_states": states.numel(),
    }  # fmt: skip
    flags = {"REVERSE": reverse, "HAS_FIRST": first is not None, "V_FIRST": p.is_v_first(first)}
    return message, launch_of_states(p, message_kernel, args, flags | {"SEGMENTS": added.starts is not None})


def meeting_of(
    p: Problem, added: Added, messages: Tensor, decays: Tensor, part: int, reverse: bool
) -> tuple[Tensor, Launch]:
    """The state that enters this part, or the gradient of the one that leaves it, as the call's states are, and the
    launch that works it out, and adds it to where the segments start. messages, decays [parts, ..]: of all parts, and
    of all parts' forward pass."""
    state, n_states = p.final_buffer(), p.one_state().numel()
    segments = 1 if added.starts is None else p.n_seg
    args = {
        "p_messages": messages, "p_decays": decays, "p_met": state, "p_s": added.starts, "p_left": added.left,
        "n_seg": segments, "part": part, "parts": messages.shape[0], "n_states": n_states,
        "n_message": messages.shape[1], "n_decays": decays.shape[1],
    }  # fmt: skip
    flags = {"REVERSE": reverse, "V_FIRST": p.v_first, "SEGMENTS": added.starts is not None}
    return state, launch_of_states(p, meeting_kernel, args, flags, segments)
