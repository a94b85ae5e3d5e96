"""What kernels for mild gates alone leave undone: chunks that decay by too much for a frame of their own."""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .any_gate import any_gate_grad_qk
from .gates import row_block_limit
from .products import load_half


@triton.jit(do_not_specialize=["T", "n_blocks", "n_here", "first_chunk", "n_stored"])
def grad_qk_steep_kernel(
    p_q, p_k, p_v, p_g, p_do, p_s, p_ds, p_h, p_dq, p_dk, p_dg, scale, T, H, n_blocks, n_here, first_chunk, n_stored,
    K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, SHARE: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, dk and dg [B, T, H, K] of n_here chunks from first_chunk on: of those tiles of BK features that are not mild.

    A chunk is one row block. A program looks at SHARE chunks of a head at once, and mostly finds that all are mild. For
    the tensors see `grad_qk.grad_qk_kernel`.
    """
    least = -0.5 * row_block_limit(True, PRECISION)
    PADDED: tl.constexpr = triton.next_power_of_2(K)
    n_shares = tl.cdiv(n_here, SHARE)
    i_p = tl.program_id(0)
    i_first, i_bh = (i_p % n_shares) * SHARE, (i_p // n_shares).to(tl.int64)
    p_h += (i_bh * n_blocks + first_chunk) * K
    o_c, o_all = i_first + tl.arange(0, SHARE), tl.arange(0, PADDED)
    m_h = (o_c < n_here)[:, None] & (o_all < K)[None, :]
    b_h = tl.load(p_h + o_c[:, None] * K + o_all[None, :], mask=m_h, other=0.0)
    if tl.min(tl.min(b_h, axis=1), axis=0) <= least:
        i_row0 = (i_bh // H) * T * H + i_bh % H
        p_q, p_k, p_v, p_g = p_q + i_row0 * K, p_k + i_row0 * K, p_v + i_row0 * V, p_g + i_row0 * K
        p_do, p_dq, p_dk, p_dg = p_do + i_row0 * V, p_dq + i_row0 * K, p_dk + i_row0 * K, p_dg + i_row0 * K
        for i_c in range(i_first, tl.minimum(i_first + SHARE, n_here)):
            i_state = (i_bh * n_stored + i_c) * K * V
            for i_k in range(0, (K + BK - 1) // BK):
                o_k = i_k * BK + tl.arange(0, BK)
                if tl.min(load_half(p_h, i_c, o_k, K), axis=0) <= least:
                    any_gate_grad_qk(
                        p_q, p_k, p_v, p_g, p_do, p_s + i_state, p_ds + i_state, p_dq, p_dk, p_dg,
                        scale, (first_chunk + i_c) * CHUNK, T, H, o_k, K, V, CHUNK, BK, BV, DOT, PRECISION,
                    )  # fmt: skip
