"""States and outputs in one walk over time: what states.py and output.py compute. Back in time, what states.py and
grad_v.py do, with keys for queries, gradients of outputs for values, and gradients of values for outputs.

    O  = scale [(Q S) e^c + ((Q K^T) D) V],                  S  <- e^{c_C} S + K^T (V e^{c_C - c})
    dV = (K dS) e^{c_C - c} + scale ((Q K^T) D)^T dO,        dS <- e^{c_C} dS + scale Q^T (dO e^c)

The state enters the output's product from the chip, and all rows come from memory once.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.descriptors import load_rows, store_rows
from ..tiles.operands import load_state, store_state
from ..tiles.products import product
from .decays import between, from_start, load_sums, to_end
from .edges import put_out, take_in
from .heads import first_row, first_row_of_part
from .states import next_state


@triton.jit(do_not_specialize=["B", "T", "n_chunks", "first_chunk", "n_here", "n_stored"])
def simple_walk_kernel(
    p_q, p_k, p_v, p_c, p_s0, p_s, p_o, p_st, p_marks, p_in, p_out, d_q, d_k, d_v, d_o,
    scale, B, T, H, n_chunks, first_chunk, n_here, n_stored,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    WHOLE: tl.constexpr, REVERSE: tl.constexpr,
    HAS_S0: tl.constexpr, STORE_S: tl.constexpr, STORE_ST: tl.constexpr, V_FIRST: tl.constexpr,
    GK: tl.constexpr, GV: tl.constexpr, GO: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of n_here chunks from first_chunk on, and, where STORE_S and STORE_ST ask for them, the states
    before the chunks and after the last; a program has a head's BV columns of V and all of K, which BK covers. p_s0,
    p_s, p_st, p_c, p_in, p_out, REVERSE, V_FIRST: as `simple_states_kernel` has them. WHOLE: these are all chunks there
    are; a loop that starts at 0 comes to fewer instructions. GK heads share each one of
    p_q and p_k, GV each one of p_v, and where GO share one of p_o, it is [GO, B, T, H // GO, V] (heads.py)."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_bh = i_p % NV, (i_p // NV).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_batch, i_h = (i_bh // H).to(tl.int32), (i_bh % H).to(tl.int32)
    i_row0 = first_row(i_bh, T, H, GK)
    p_q, p_k, p_v = p_q + i_row0 * K, p_k + i_row0 * K, p_v + first_row(i_bh, T, H, GV) * V
    p_o += first_row_of_part(i_bh, B, T, H, GO) * V
    i_part = i_batch if GO == 1 else i_h % GO * B + i_batch
    p_c += i_bh * n_chunks * BT
    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S0:
        b_s += load_state(p_s0 + i_bh * K * V, o_k, o_v, K, V, V_FIRST)
    i_first = 0 if WHOLE else first_chunk * BT
    i_last = i_first + (n_here - 1) * BT
    for i in range(i_first, T if WHOLE else i_last + BT, BT):
        i_row = i_first + i_last - i if REVERSE else i
        if STORE_S:  # by pointers: a tile on its way out would take the shared memory of a second program at K = 128
            store_state(p_s + (i_bh * n_stored + (i_row - i_first) // BT) * K * V, b_s, o_k, o_v, K, V)
        if p_out is not None:
            put_out(p_out, p_marks, b_s, i_row, i_bh, T, H, o_k, o_v, K, V, BT, REVERSE, V_FIRST)
        b_q = load_rows(d_q, p_q, i_batch, i_h // GK, i_row, T, H // GK, 0, K, BT, BK)
        b_k = load_rows(d_k, p_k, i_batch, i_h // GK, i_row, T, H // GK, 0, K, BT, BK)
        b_v = load_rows(d_v, p_v, i_batch, i_h // GV, i_row, T, H // GV, i_v * BV, V, BT, BV)
        b_c, b_all = load_sums(p_c, i_row, BT)
        # scores first: until they are there S is not looked at, and the product that adds to it may still run
        b_a = product(b_q, tl.trans(b_k), tl.zeros([BT, BT], dtype=tl.float32), DOT, PRECISION)
        b_a *= scale * between(b_c, BT, KEYS_FIRST=REVERSE)
        b_o = product(b_q, b_s, tl.zeros([BT, BV], dtype=tl.float32), DOT, PRECISION)
        b_o *= (to_end(b_c, b_all) if REVERSE else scale * from_start(b_c))[:, None]
        b_o = product(b_a, b_v, b_o, DOT, PRECISION)
        b_s = next_state(b_s, b_k, b_v, b_c, b_all, p_c + i_row, scale, REVERSE, DOT, PRECISION)
        if p_in is not None:
            b_s = take_in(p_in, p_marks, p_c, b_s, i_row, i_bh, T, H, o_k, o_v, K, V, BT, REVERSE, V_FIRST)
        store_rows(d_o, p_o, b_o, i_part, i_h // GO, i_row, T, H // GO, i_v * BV, V, BT, BV)
    if STORE_ST:
        store_state(p_st + i_bh * K * V, b_s, o_k, o_v, K, V, V_FIRST)
