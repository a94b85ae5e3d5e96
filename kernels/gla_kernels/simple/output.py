"""The outputs of all chunks at once, from the states before them.

O = scale [(Q S) e^c + ((Q K^T) D) V]                    D: decays.between
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.descriptors import load_rows, load_state_tile, store_rows
from ..tiles.products import product
from .decays import between, from_start, load_sums
from .heads import first_row


@triton.jit(do_not_specialize=["T", "n_chunks", "first_chunk", "n_here", "n_stored"])
def simple_output_kernel(
    p_q, p_k, p_v, p_c, p_s, p_o, d_q, d_k, d_v, d_s, d_o, scale, T, H, n_chunks, first_chunk, n_here, n_stored,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GK: tl.constexpr, GV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of n_here chunks from first_chunk on; a program has one of them, and BV columns of V. GK heads
    share each one of p_q and p_k, GV each one of p_v."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_c, i_bh = i_p % NV, (i_p // NV) % n_here, (i_p // NV // n_here).to(tl.int64)
    i_batch, i_h = (i_bh // H).to(tl.int32), (i_bh % H).to(tl.int32)
    i_row0, i_row = first_row(i_bh, T, H, GK), (first_chunk + i_c) * BT
    p_q, p_k, p_v = p_q + i_row0 * K, p_k + i_row0 * K, p_v + first_row(i_bh, T, H, GV) * V
    p_o += first_row(i_bh, T, H, 1) * V
    b_a = tl.zeros([BT, BT], dtype=tl.float32)
    b_o = tl.zeros([BT, BV], dtype=tl.float32)
    for i_k in range(0, K, BK):
        b_q = load_rows(d_q, p_q, i_batch, i_h // GK, i_row, T, H // GK, i_k, K, BT, BK)
        b_k = load_rows(d_k, p_k, i_batch, i_h // GK, i_row, T, H // GK, i_k, K, BT, BK)
        b_s = load_state_tile(d_s, p_s, i_bh * n_stored + i_c, i_k, i_v * BV, K, V, BK, BV)
        b_a = product(b_q, tl.trans(b_k), b_a, DOT, PRECISION)
        b_o = product(b_q, b_s, b_o, DOT, PRECISION)
    b_c, _ = load_sums(p_c + i_bh * n_chunks * BT, i_row, BT)
    b_v = load_rows(d_v, p_v, i_batch, i_h // GV, i_row, T, H // GV, i_v * BV, V, BT, BV)
    b_o = product(b_a * between(b_c, BT), b_v, b_o * from_start(b_c)[:, None], DOT, PRECISION)
    store_rows(d_o, p_o, b_o * scale, i_batch, i_h, i_row, T, H, i_v * BV, V, BT, BV)
