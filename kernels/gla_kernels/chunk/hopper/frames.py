"""Frames of the value side in walks (walk.py, grad_walk.py): what value_gates/frames.py keeps of each block's columns,
and what the first 8 bits of a result leave."""

# mypy: disallow-untyped-defs=False
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...tiles.gates import STRONG_COLUMN
from ...tiles.hopper import ROWS, bits, rounded, wide

# A row: all of it in every warp, as it comes by few loads. From there it moves within warps.
COLUMNS = gl.constexpr(gl.SliceLayout(0, gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])))
STRONG = gl.constexpr(STRONG_COLUMN.value)


@gluon.jit
def frame(b_h):
    """Log2 of columns' frames."""
    return gl.where(b_h > STRONG, b_h, 0.0)


@gluon.jit
def decay(b_h):
    """All that columns decay by over the block, of those that have no frame; 1 of others."""
    return gl.exp2(gl.where(b_h > STRONG, 0.0, b_h))


@gluon.jit
def is_strong(p_strong, i, V: gl.constexpr):
    """Whether the i-th block has columns without a frame."""
    found = gl.load(p_strong + i * (V // ROWS))
    for t in gl.static_range(1, V // ROWS):
        found += gl.load(p_strong + i * (V // ROWS) + t)
    return found != 0


@gluon.jit
def _store(p_x, b_x, i_row, T, stride, LAYOUT: gl.constexpr):
    """ROWS rows of p_x from i_row on."""
    nil = gl.minimum(i_row, 0)  # else what all blocks share is made before the loop over them, and spilled
    o_r = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)) + nil
    o_c = gl.arange(0, b_x.shape[1], gl.SliceLayout(0, LAYOUT)) + nil
    p_x += i_row.to(gl.int64) * stride
    gl.store(p_x + (o_r * stride)[:, None] + o_c[None, :], b_x, mask=(i_row + o_r < T)[:, None])


@gluon.jit
def store_high(p_x, b_x, i_row, T, stride, LAYOUT: gl.constexpr):
    """x, rounded to bfloat16, to ROWS rows of p_x from i_row on."""
    _store(p_x, rounded(b_x), i_row, T, stride, LAYOUT)


@gluon.jit
def store_low(p_x, b_x, i_row, T, stride, LAYOUT: gl.constexpr):
    """What that leaves: int8, in 256ths of what the last bit of bfloat16 stands for, cut off."""
    b_low = bits(b_x) - bits(wide(rounded(b_x)))
    b_low = gl.minimum(b_low >> 8, 127).to(gl.int8)  # of what lies in the middle of two numbers it would be 128
    _store(p_x, b_low, i_row, T, stride, LAYOUT)
