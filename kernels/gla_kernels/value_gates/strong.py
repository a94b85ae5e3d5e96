"""All of a direction for chunks that are not mild on both sides, right at any gate strength: the scores of a side
(scores.py), and what the other side's rows get by them (apply.py), backward for either side.

Runs after what is for mild chunks. A program looks at SHARE chunks of a head, and mostly finds nothing to do.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .apply import apply_tile
from .guard import are_mild
from .scores import store_scores


@triton.jit
def _side(
    p_x, p_y, p_g, p_u, p_w, p_gu, p_a, p_s, p_ds, p_f, p_dx, p_dy, p_dg, scale, i_row, T, H,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, SUB: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    Y: tl.constexpr, STORE_X: tl.constexpr, TRANSPOSED: tl.constexpr, FRAMED: tl.constexpr,
    GATED: tl.constexpr, GATED_U: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What `apply_tile` makes, of all columns of a side of one chunk, by the scores of the other side, which are left
    in p_a for the while."""
    tl.debug_barrier()  # all warps have read the scores that lay there
    store_scores(p_u, p_w, p_gu, p_a, scale, i_row, T, H * E, E, C, SUB, BE, GATED_U, DOT, PRECISION)
    tl.debug_barrier()
    for i_d in tl.range(0, (D + BD - 1) // BD, num_stages=1, disable_licm=True):
        nil = tl.minimum(i_row + i_d, 0)  # else addresses of all tiles are kept, and spilled
        o_d = i_d * BD + tl.arange(0, BD)
        apply_tile(
            p_x, p_y, p_g, p_a + nil, p_u, p_w, p_gu, p_s, p_ds, p_f, p_dx, p_dy, p_dg, scale, i_row, T, H + nil, o_d,
            D, E, C, SUB, BE, Y, STORE_X, TRANSPOSED, FRAMED, GATED, GATED_U, DOT, PRECISION,
        )  # fmt: skip


@triton.jit(do_not_specialize=["T", "n_here", "first_chunk"])
def gv_strong_kernel(
    p_q, p_k, p_g, p_v, p_gv, p_do, p_hk, p_hv, p_s, p_ds, p_a, p_o, p_dq, p_dk, p_dg, p_dv, p_dgv,
    scale, T, H, n_here, first_chunk,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, SUB: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    SHARE: tl.constexpr, BACK: tl.constexpr, FRAMED: tl.constexpr, GATED_K: tl.constexpr, GATED_V: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o, or with BACK the gradients of q, k, v and the gates, of n_here chunks from first_chunk on, of those that are
    not mild: a program SHARE chunks of a head.

    p_q, p_k, p_g, p_dq, p_dk, p_dg [B, T, H, K]; p_v, p_gv, p_do, p_o, p_dv, p_dgv [B, T, H, V]; p_s, p_ds [B*H,
    n_here, K, V]: states before and gradients after each chunk. p_hk [B*H, n_here, K] and p_hv [B*H, n_here, V]: see
    guard.py. p_a [programs, C, C], float32: room for scores. FRAMED: states are in the frames of chunks, of which p_hv
    tells (frames.py). What only the other direction, or gates that there are not, would need is None.
    """
    n_shares = tl.cdiv(n_here, SHARE)
    i_p = tl.program_id(0).to(tl.int64)
    i_first, i_bh = ((i_p % n_shares) * SHARE).to(tl.int32), i_p // n_shares
    i_head = (i_bh // H) * T * H + i_bh % H
    p_a += i_p * C * C
    p_q, p_k, p_v = p_q + i_head * K, p_k + i_head * K, p_v + i_head * V
    p_g = p_g + i_head * K if GATED_K else p_k
    p_gv = p_gv + i_head * V if GATED_V else p_v
    if p_hk is not None:
        p_hk += i_bh * n_here * K
    if p_hv is not None:
        p_hv += i_bh * n_here * V
    if BACK:
        p_do, p_dv, p_dq, p_dk = p_do + i_head * V, p_dv + i_head * V, p_dq + i_head * K, p_dk + i_head * K
        p_dg = p_dg + i_head * K if GATED_K else p_k
        p_dgv = p_dgv + i_head * V if GATED_V else p_v
    else:
        p_o += i_head * V
    if not are_mild(p_hk, p_hv, i_first, n_here, K, V, SHARE, PRECISION):
        for i_c in tl.range(i_first, tl.minimum(i_first + SHARE, n_here), disable_licm=True):
            if not are_mild(p_hk, p_hv, i_c, n_here, K, V, 1, PRECISION):
                i_row, i_state = (first_chunk + i_c) * C, (i_bh * n_here + i_c) * K * V
                p_f = p_hv + i_c * V if FRAMED else p_v
                if BACK:
                    _side(
                        p_do, p_v, p_gv, p_q, p_k, p_g, p_a, p_s + i_state, p_ds + i_state, p_f, p_v, p_dv, p_dgv,
                        scale, i_row, T, H, V, K, C, SUB, BV, BK,
                        True, False, False, FRAMED, GATED_V, GATED_K, DOT, PRECISION,
                    )  # fmt: skip
                    _side(
                        p_q, p_k, p_g, p_do, p_v, p_gv, p_a, p_s + i_state, p_ds + i_state, p_f, p_dq, p_dk, p_dg,
                        scale, i_row, T, H, K, V, C, SUB, BK, BV,
                        True, True, True, FRAMED, GATED_K, GATED_V, DOT, PRECISION,
                    )  # fmt: skip
                else:
                    _side(
                        p_v, p_v, p_gv, p_q, p_k, p_g, p_a, p_s + i_state, p_s, p_f, p_o, p_v, p_v,
                        scale, i_row, T, H, V, K, C, SUB, BV, BK,
                        False, True, False, FRAMED, GATED_V, GATED_K, DOT, PRECISION,
                    )  # fmt: skip
