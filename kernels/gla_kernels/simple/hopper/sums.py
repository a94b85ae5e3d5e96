"""Sums of a chunk's gates, and decays, as parts of the walks over time have them. float64 in memory (decays.py)."""

# mypy: disallow-untyped-defs=False
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...tiles.hopper import ACCUMULATOR, ROWS
from ..decays import CLOSED

NOTHING = gl.constexpr(CLOSED.value)


@gluon.jit
def sums_of(p_c, i_b, LAYOUT: gl.constexpr):
    """A chunk's sums of gates, each in two parts of float32: its leading one and the rest, which subtract alike
    (decays.py). Some part loads them a chunk ahead, and so they are in the L1 cache when others do."""
    return in_parts(gl.load(p_c + i_b * ROWS + gl.arange(0, ROWS, LAYOUT)))


@gluon.jit
def in_parts(b_c):
    b_high = b_c.to(gl.float32)
    return b_high, (b_c - b_high.to(gl.float64)).to(gl.float32)


@gluon.jit
def all_of(p_c, i_b):
    """The sum of all gates of a chunk, in parts."""
    return in_parts(gl.load(p_c + (i_b * ROWS + (ROWS - 1))))


@gluon.jit
def decays(b_hi, b_li, b_hj, b_lj):
    """D [queries, keys], 0 above the diagonal, of both parts of the queries' sums and of the keys'."""
    o_i, o_j = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)), gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    b_d = (b_hi[:, None] - b_hj[None, :]) + (b_li[:, None] - b_lj[None, :])
    return gl.exp2(gl.where(o_i[:, None] >= o_j[None, :], b_d, NOTHING))
