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
from .halving import levels


@triton.jit
def store_scores(
    p_x, p_y, p_g, p_a, scale, i_row, T, stride, D: tl.constexpr, C: tl.constexpr, SUB: tl.constexpr,
    BD: tl.constexpr, GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """p_a [C, C], float32, of one chunk; p_x, p_y, p_g [T, H, D] of one head."""
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
