"""The states that segments start from, and their gradients, of what each segment adds by itself (states.py).

With gamma_i a segment's whole decay and L_i what it adds,

    S_{i+1} = Diag(e^gamma_i) S_i + L_i               and the same backward in time for the gradients.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..launch import settle_keys
from ..tiles.operands import load_state, store_state

PREFETCH: tl.constexpr = tl.constexpr(4)  # segments whose loads are in flight at once


@triton.jit(do_not_specialize=["n_seg", "n_added"])
def combine_kernel(
    p_add, p_gamma, p_gamma_v, p_first, p_s, n_seg, n_added,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    REVERSE: tl.constexpr, HAS_FIRST: tl.constexpr, GATED: tl.constexpr, V_FIRST: tl.constexpr, FRAMED: tl.constexpr,
):  # fmt: skip
    """The state before each segment, or with REVERSE its gradient after each: p_s [B*H, n_seg, K, V], float32.

    p_add [B*H, n_added, K, V], float32, and p_gamma [B*H, n_added, K]: what each segment adds, and log2 of its whole
    decay, from the sequence's start on, or with REVERSE up to its end; FRAMED, p_gamma_v [B*H, n_added, V]: of the
    columns' one. p_first [B*H, K, V], float32: where the sum starts from, V_FIRST [B*H, V, K]; without HAS_FIRST it is
    zero.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_bh = i_p % NV, (i_p // NV) % NK, (i_p // (NV * NK)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    p_s += i_bh * n_seg * K * V

    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_FIRST:
        b_s += load_state(p_first + i_bh * K * V, o_k, o_v, K, V, V_FIRST)
    for i_step in tl.range(0, n_seg - 1, num_stages=PREFETCH):
        i_seg, i_add = i_step, i_bh * n_added + i_step
        if REVERSE:
            i_seg, i_add = n_seg - 1 - i_step, (i_bh + 1) * n_added - 1 - i_step
        store_state(p_s + tl.cast(i_seg, tl.int64) * K * V, b_s, o_k, o_v, K, V)
        if GATED:
            b_s = b_s * tl.exp2(tl.load(p_gamma + i_add * K + o_k, mask=o_k < K, other=0.0))[:, None]
        if FRAMED:
            b_s = b_s * tl.exp2(tl.load(p_gamma_v + i_add * V + o_v, mask=o_v < V, other=0.0))[None, :]
        b_s += load_state(p_add + i_add * K * V, o_k, o_v, K, V)
    i_last = 0 if REVERSE else n_seg - 1
    store_state(p_s + tl.cast(i_last, tl.int64) * K * V, b_s, o_k, o_v, K, V)


settle_keys(combine_kernel)
