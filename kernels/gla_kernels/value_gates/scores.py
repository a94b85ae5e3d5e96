"""The scores of each chunk that is not mild: products of its rows, decayed by the gates in between.

    A_ij = scale sum_d x_id y_jd e^{c_id - c_jd}   for i >= j, else 0

With (q, k, g) these are the scores of queries and keys, with (do, v, gv) their gradient: the same sum over the value
side. How the exponents are kept in range is told in tiles/halving.py.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.gates import limited
from ..tiles.halving import decayed_scores
from ..tiles.operands import load_tile
from ..tiles.products import product
from .guard import are_mild
from .halving import levels


@triton.jit(do_not_specialize=["T", "n_here", "first_chunk"])
def gv_scores_kernel(
    p_x, p_y, p_g, p_h, p_hu, p_a, scale, T, H, n_here, first_chunk,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, SUB: tl.constexpr, BD: tl.constexpr, SHARE: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """p_a [B*H, n_here, C, C], float32, of n_here chunks from first_chunk on, of those that are not mild; p_x, p_y, p_g
    [B, T, H, D]. p_h [B*H, n_here, D] and p_hu [B*H, n_here, E] of the other side: see guard.py."""
    n_shares = tl.cdiv(n_here, SHARE)
    i_p = tl.program_id(0)
    i_first, i_bh = (i_p % n_shares) * SHARE, (i_p // n_shares).to(tl.int64)
    if p_h is not None:
        p_h += i_bh * n_here * D
    if p_hu is not None:
        p_hu += i_bh * n_here * E
    if not are_mild(p_h, p_hu, i_first, n_here, D, E, SHARE, PRECISION):
        i_head = ((i_bh // H) * T * H + i_bh % H) * D
        if GATED:
            p_g += i_head
        for i_c in tl.range(i_first, tl.minimum(i_first + SHARE, n_here), disable_licm=True):
            if not are_mild(p_h, p_hu, i_c, n_here, D, E, 1, PRECISION):
                _scores(
                    p_x + i_head, p_y + i_head, p_g, p_a + (i_bh * n_here + i_c) * C * C, scale,
                    (first_chunk + i_c) * C, T, H * D, D, C, SUB, BD, GATED, DOT, PRECISION,
                )  # fmt: skip


@triton.jit
def _scores(
    p_x, p_y, p_g, p_a, scale, i_row, T, stride, D: tl.constexpr, C: tl.constexpr, SUB: tl.constexpr,
    BD: tl.constexpr, GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """p_a [C, C] of one chunk."""
    o_r = tl.arange(0, C)
    b_a = tl.zeros([C, C], dtype=tl.float32)
    for i_d in tl.range(0, (D + BD - 1) // BD, num_stages=1):
        o_d = i_d * BD + tl.arange(0, BD)
        b_x = load_tile(p_x, i_row, T, stride, o_d, D, C)
        b_y = load_tile(p_y, i_row, T, stride, o_d, D, C)
        if GATED:
            b_g = limited(load_tile(p_g, i_row, T, stride, o_d, D, C))
            n_levels = levels(b_g, C, SUB, PRECISION)
            b_a = decayed_scores(b_a, b_x, b_y, b_g, n_levels, i_row, C, PRECISION)
        else:
            b_a = product(b_x, tl.trans(b_y), b_a, DOT, PRECISION)
    b_a = tl.where(o_r[:, None] >= o_r[None, :], b_a * scale, 0.0)
    tl.store(p_a + o_r[:, None] * C + o_r[None, :], b_a)
