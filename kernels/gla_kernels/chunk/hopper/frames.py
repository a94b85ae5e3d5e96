"""Frames of the value side in walks (walk.py, grad_walk.py): what value_gates/frames.py keeps of each block's columns,
do led into them, and both parts of what lies in them."""

# mypy: disallow-untyped-defs=False
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...launch.tritons import async_load, barrier
from ...tiles.gates import STRONG_COLUMN
from ...tiles.hopper import ACCUMULATOR, OPERAND, ROWS, TILE_BYTES, bits, matrix, rounded, wide
from .layouts import LOG2_E, limit

# A row: all of it in every warp, as it comes by few loads. From there it moves within warps.
COLUMNS = gl.constexpr(gl.SliceLayout(0, gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])))
STRONG = gl.constexpr(STRONG_COLUMN.value)

# Where an accumulator's numbers are once each thread's 16 of 64 columns lie together.
_LANES, _WARPS = [[0, 16], [0, 32], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]]
_OF_A_LINE = [[0, 1], [0, 2], [0, 4], [0, 8], [8, 0]]
ONE_LINE = gl.constexpr(gl.DistributedLinearLayout(_OF_A_LINE, _LANES, _WARPS, [], [64, 64]))
TWO_LINES = gl.constexpr(gl.DistributedLinearLayout([*_OF_A_LINE, [0, 64]], _LANES, _WARPS, [], [64, 128]))


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
def send_gates(d_gv, s_gv, bar_gv, i_batch, i_row, i_out, there):
    """For a block's gates of the value side, if it is there."""
    BV: gl.constexpr = s_gv.shape[3]
    mbarrier.expect(bar_gv.index(0), BV // ROWS * TILE_BYTES, there)
    async_load(d_gv, [i_batch, i_row, i_out], bar_gv.index(0), s_gv.index(0), there)


@gluon.jit
def enter(s_do, s_gv, p_row, strong, i_row):
    """do e^C where do lies; of a block that has columns without a frame (strong), of these e^(sum of gates up to the
    row). p_row: of what is kept of its columns. 64 columns at a time, for registers. Answers C of the last ones."""
    nil = gl.minimum(i_row, 0)  # else M is made before the loop over blocks, and spilled
    o_i = gl.arange(0, ROWS, gl.SliceLayout(1, OPERAND))[:, None] + nil
    o_j = gl.arange(0, ROWS, gl.SliceLayout(0, OPERAND))[None, :] + nil
    if strong:
        limit(s_gv.index(0))
    b_m = gl.where(o_i >= o_j, gl.where(strong, 1.0, 0.5), gl.where(strong, 0.0, -0.5)).to(gl.bfloat16)
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    for t in gl.static_range(s_do.shape[1] // ROWS):
        s_part = matrix(s_gv.index(0)).slice(t * ROWS, ROWS, 1)
        b_c = warpgroup_mma(b_m, s_part, b_zero, use_acc=False, is_async=True)
        b_c, b_m = warpgroup_mma_wait(0, (b_c, b_m))
        b_c = b_c * LOG2_E
        if strong:
            b_h = gl.load(p_row + t * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR)))
            b_c = b_c - frame(b_h)[None, :]
        s_part = s_do.slice(t * ROWS, ROWS, 1)
        s_part.store(rounded(wide(s_part.load(ACCUMULATOR)) * gl.exp2(b_c)))
    fence_async_shared()
    barrier()
    return b_c


@gluon.jit
def store_low(p_x, b_x, i_row, T, stride):
    """What is left of x where it is rounded to bfloat16, to ROWS rows of p_x from i_row on: int8, in 256ths of what the
    last bit of bfloat16 stands for, cut off. A thread's 16 of each 64 columns lie together: `chunk.kept.Frames`."""
    WIDTH: gl.constexpr = b_x.shape[1]
    LINES: gl.constexpr = ONE_LINE if WIDTH == ROWS else TWO_LINES
    b_low = bits(b_x) - bits(wide(rounded(b_x)))
    b_low = gl.minimum(b_low >> 8, 127).to(gl.int8)  # of what lies in the middle of two numbers it would be 128
    b_low = b_low.reshape([ROWS, WIDTH // ROWS, 8, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, WIDTH])
    nil = gl.minimum(i_row, 0)  # else what all blocks share is made before the loop over them, and spilled
    o_r = gl.arange(0, ROWS, gl.SliceLayout(1, LINES)) + nil
    o_c = gl.arange(0, WIDTH, gl.SliceLayout(0, LINES)) + nil
    p_x += i_row.to(gl.int64) * stride
    p_x = p_x + (o_r * stride)[:, None] + o_c[None, :]
    gl.store(p_x, gl.convert_layout(b_low, LINES), mask=(i_row + o_r < T)[:, None])
