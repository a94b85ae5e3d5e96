"""States before the chunks, and their gradients after them: the pass that walks over time.

    S_c      = e^{c_C} S_{c-1} + K^T (V e^{c_C - c})         forward in time
    dS_{c-1} = e^{c_C} dS_c + scale Q^T (dO e^c)             backward in time

One kernel does both: they differ in what is added, and in the direction.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.descriptors import load_rows, store_state_tile
from ..tiles.operands import load_state, store_state
from ..tiles.products import product
from .decays import from_start, load_sums, to_end
from .edges import put_out, take_in
from .heads import first_row


@triton.jit
def next_state(
    b_s, b_k, b_v, b_c, b_all, p_first, scale, REVERSE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The state after a chunk with keys and values, or REVERSE, its gradient before one with queries and gradients of
    outputs. b_c, b_all: of `load_sums`; p_first: the sum of the chunk's first row.

    Values bear the decay, not keys: keys then go from memory into the product as they are. Back in time it is counted
    from the first row on, whose own comes last: no operand is then too small for its parts.
    """
    if REVERSE:
        b_first = tl.load(p_first)
        b_v = b_v.to(tl.float32) * (scale * from_start(b_c - b_first))[:, None]
        b_s = product(tl.trans(b_k), b_v, b_s * from_start(b_all - b_first), DOT, PRECISION) * from_start(b_first)
    else:
        b_v = b_v.to(tl.float32) * to_end(b_c, b_all)[:, None]
        b_s = product(tl.trans(b_k), b_v, b_s * from_start(b_all), DOT, PRECISION)
    return b_s


@triton.jit(do_not_specialize=["T", "n_chunks", "first_chunk", "n_here", "n_stored"])
def simple_states_kernel(
    p_k, p_v, p_c, p_s0, p_s, p_st, p_marks, p_in, p_out, d_k, d_v, d_s, scale,
    T, H, n_chunks, first_chunk, n_here, n_stored,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, REVERSE: tl.constexpr,
    HAS_S0: tl.constexpr, STORE_S: tl.constexpr, STORE_ST: tl.constexpr, V_FIRST: tl.constexpr,
    GK: tl.constexpr, GV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """p_s [B*H, n_stored, K, V]: the states before each of n_here chunks from first_chunk on. REVERSE: the gradients of
    those after each of them, from queries as p_k and gradients of outputs as p_v.

    A program walks over all of these chunks with one tile of the state on chip. p_s0 [B*H, K, V], float32: where it
    starts, zero without HAS_S0; p_st: where it ends. p_c: see `simple_decays_kernel`. scale: on what is added. p_in,
    p_out: what packed sequences take in and put out on the way, or None (edges.py). V_FIRST: all of these lie as
    [V, K]. GK heads share each one of p_k, GV each one of p_v (heads.py).
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_bh = i_p % NV, (i_p // NV) % NK, (i_p // (NV * NK)).to(tl.int64)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    i_batch, i_h = (i_bh // H).to(tl.int32), (i_bh % H).to(tl.int32)
    p_k, p_v = p_k + first_row(i_bh, T, H, GK) * K, p_v + first_row(i_bh, T, H, GV) * V
    p_c += i_bh * n_chunks * BT
    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_S0:
        b_s += load_state(p_s0 + i_bh * K * V, o_k, o_v, K, V, V_FIRST)
    for i in range(0, n_here):
        i_c = n_here - 1 - i if REVERSE else i
        i_row = (first_chunk + i_c) * BT
        if STORE_S:
            store_state_tile(d_s, p_s, b_s, i_bh * n_stored + i_c, i_k * BK, i_v * BV, K, V, BK, BV)
        if p_out is not None:
            put_out(p_out, p_marks, b_s, i_row, i_bh, T, H, o_k, o_v, K, V, BT, REVERSE, V_FIRST)
        b_k = load_rows(d_k, p_k, i_batch, i_h // GK, i_row, T, H // GK, i_k * BK, K, BT, BK)
        b_v = load_rows(d_v, p_v, i_batch, i_h // GV, i_row, T, H // GV, i_v * BV, V, BT, BV)
        b_c, b_all = load_sums(p_c, i_row, BT)
        b_s = next_state(b_s, b_k, b_v, b_c, b_all, p_c + i_row, scale, REVERSE, DOT, PRECISION)
        if p_in is not None:
            b_s = take_in(p_in, p_marks, p_c, b_s, i_row, i_bh, T, H, o_k, o_v, K, V, BT, REVERSE, V_FIRST)
    if STORE_ST:
        store_state(p_st + i_bh * K * V, b_s, o_k, o_v, K, V, V_FIRST)
