"""The gradient of v, of all chunks at once, from the gradients of the states after them.

dV = (K dS) e^{c_C - c} + scale ((Q K^T) D)^T dO         D: decays.between
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.descriptors import load_rows, load_state_tile, store_rows
from ..tiles.products import product
from .decays import between, load_sums, to_end
from .heads import first_row, first_row_of_part


@triton.jit(do_not_specialize=["B", "T", "n_chunks", "first_chunk", "n_here", "n_stored"])
def simple_grad_v_kernel(
    p_q, p_k, p_c, p_do, p_ds, p_dv, d_q, d_k, d_do, d_ds, d_dv, scale,
    B, T, H, n_chunks, first_chunk, n_here, n_stored,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GK: tl.constexpr, GO: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv [B, T, H, V] of n_here chunks from first_chunk on; a program has one of them, and BV columns of V. GK heads
    share each one of p_q and p_k; where GO share one of v, what each adds is in p_dv [GO, B, T, H // GO, V]."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_c, i_bh = i_p % NV, (i_p // NV) % n_here, (i_p // NV // n_here).to(tl.int64)
    i_batch, i_h = (i_bh // H).to(tl.int32), (i_bh % H).to(tl.int32)
    i_row0, i_row = first_row(i_bh, T, H, GK), (first_chunk + i_c) * BT
    p_q, p_k, p_do = p_q + i_row0 * K, p_k + i_row0 * K, p_do + first_row(i_bh, T, H, 1) * V
    p_dv += first_row_of_part(i_bh, B, T, H, GO) * V
    i_part = i_batch if GO == 1 else i_h % GO * B + i_batch
    b_a = tl.zeros([BT, BT], dtype=tl.float32)  # keys along the rows
    b_dv = tl.zeros([BT, BV], dtype=tl.float32)
    for i_k in range(0, K, BK):
        b_q = load_rows(d_q, p_q, i_batch, i_h // GK, i_row, T, H // GK, i_k, K, BT, BK)
        b_k = load_rows(d_k, p_k, i_batch, i_h // GK, i_row, T, H // GK, i_k, K, BT, BK)
        b_ds = load_state_tile(d_ds, p_ds, i_bh * n_stored + i_c, i_k, i_v * BV, K, V, BK, BV)
        b_a = product(b_k, tl.trans(b_q), b_a, DOT, PRECISION)
        b_dv = product(b_k, b_ds, b_dv, DOT, PRECISION)
    b_c, b_all = load_sums(p_c + i_bh * n_chunks * BT, i_row, BT)
    b_do = load_rows(d_do, p_do, i_batch, i_h, i_row, T, H, i_v * BV, V, BT, BV)
    b_a *= scale * between(b_c, BT, KEYS_FIRST=True)
    b_dv = product(b_a, b_do, b_dv * to_end(b_c, b_all)[:, None], DOT, PRECISION)
    store_rows(d_dv, p_dv, b_dv, i_part, i_h // GO, i_row, T, H // GO, i_v * BV, V, BT, BV)
