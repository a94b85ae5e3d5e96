"""The part of the walks (grad_walks.py) that makes the rows of dq, dk or dv. Equations and barriers are there."""

# mypy: disallow-untyped-defs=False
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...launch.tritons import async_store, barrier
from ...tiles.hopper import ACCUMULATOR, ROWS, matrix, rounded, wide
from .sums import NOTHING

OF_Q, OF_K, OF_V = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)  # what a program makes the gradient of


@gluon.jit
def place(s_x, t: gl.constexpr, at, PER: gl.constexpr, PLACES: gl.constexpr):
    """One of so many places of a tile of 64 features; s_x has PER tiles in each allocation."""
    return s_x[t // PER].index(t % PER * PLACES + at)


@gluon.jit
def _scores(s_l, s_r, at, N: gl.constexpr, STAGES: gl.constexpr):
    """L R^T, begun."""
    b_a = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    for t in gl.static_range(N):
        t_l, t_r = matrix(place(s_l, t, at, 2, STAGES)), matrix(place(s_r, t, at, 2, STAGES))
        b_a = warpgroup_mma(t_l, t_r.permute((1, 0)), b_a, use_acc=t > 0, is_async=True)
    return b_a


@gluon.jit
def _decays(s_c, at, back):
    """D, or D^T, of a stage: sums fall in the walk's direction."""
    o_i, o_j = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)), gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    s_high, s_low = s_c[0].index(at), s_c[1].index(at)
    b_hi, b_li = s_high.load(gl.SliceLayout(1, ACCUMULATOR)), s_low.load(gl.SliceLayout(1, ACCUMULATOR))
    b_hj, b_lj = s_high.load(gl.SliceLayout(0, ACCUMULATOR)), s_low.load(gl.SliceLayout(0, ACCUMULATOR))
    b_d = (b_hi[:, None] - b_hj[None, :]) + (b_li[:, None] - b_lj[None, :])
    o_d = gl.where(back, o_j[None, :] - o_i[:, None], o_i[:, None] - o_j[None, :])
    return gl.exp2(gl.where(o_d >= 0, b_d, NOTHING))


@gluon.jit
def _row_sums(p_sums, s_x, b_y, OUT: gl.constexpr):
    """Of each row the sum of x y, to where it belongs."""
    o_i = gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
    gl.store(p_sums + o_i, gl.sum(wide(matrix(s_x).load(OUT)) * b_y, axis=1))


@gluon.jit
def _leave(
    d_dq, d_dk, d_dv, s_x, which, i_batch, i_part, i_row, i_col, i_out, QK: gl.constexpr, DV: gl.constexpr
):  # fmt: skip
    """Y of a chunk, from where it lies."""
    if QK:
        if which == OF_Q:
            async_store(d_dq, [i_part, i_row, i_col], s_x)
        if which == OF_K:
            async_store(d_dk, [i_part, i_row, i_col], s_x)
    if DV:
        if which == OF_V:
            async_store(d_dv, [i_batch, i_row, i_out], s_x)


@gluon.jit
def output_part(
    s_u, s_z, s_x, d_dq, d_dk, d_dv, p_sums, s_l, s_r, s_c,
    full, full_u, full_x, summed, made, free, empty, empty_u, empty_x,
    scale, i_batch, i_part, i_col, i_out, n_here, n_sums, which,
    N: gl.constexpr, QK: gl.constexpr, DV: gl.constexpr, BV: gl.constexpr, STAGES: gl.constexpr, GRAD_G: gl.constexpr,
):  # fmt: skip
    """Y of every chunk, which leaves in the next turn. QK, DV: whether it may be dq or dk, or dv. p_sums: of what comes
    through the state; n_sums behind it, of all."""
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    back = which != OF_Q
    b_zero = gl.zeros([ROWS, BV], gl.float32, OUT)
    b_out = rounded(b_zero)
    mbarrier.wait(full.index(0), 0)
    mbarrier.wait(summed.index(0), 0)
    b_a = warpgroup_mma_wait(0, (_scores(s_l, s_r, 0, N, STAGES),))
    b_ad = rounded(b_a * (_decays(s_c, 0, back) * scale))

    for i in range(n_here):
        at, phase, stage = i & 1, (i >> 1) & 1, i % STAGES
        after, turn = (i + 1) % STAGES, ((i + 1) // STAGES) & 1
        i_b = gl.where(back, n_here - 1 - i, i)
        mbarrier.wait(made.index(at), phase)
        b_y = b_zero
        for t in gl.static_range(N):
            t_l = matrix(place(s_l, t, stage, 2, STAGES))
            b_y = warpgroup_mma(t_l, place(s_z, t, at, N // 2, 2), b_y, use_acc=t > 0, is_async=True)
        if i > 0:  # the chunk before, under the product
            matrix(s_x.index(at ^ 1)).store(b_out)
            fence_async_shared()
            barrier()
            i_row = gl.where(back, i_b + 1, i_b - 1) * ROWS
            _leave(d_dq, d_dk, d_dv, s_x.index(at ^ 1), which, i_batch, i_part, i_row, i_col, i_out, QK, DV)
        b_w = s_c[2].index(at).load(gl.SliceLayout(1, OUT))
        b_y = warpgroup_mma_wait(0, (b_y,)) * b_w[:, None]
        barrier()  # every warp has read Z
        mbarrier.arrive(free.index(at), count=1)
        # scores of the next chunk; of the last one's, which nobody asks for, the operand is what lies there
        mbarrier.wait(full.index(after), turn, pred=i + 1 < n_here)
        b_a = _scores(s_l, s_r, after, N, STAGES)
        if GRAD_G and QK:
            if which != OF_V:
                mbarrier.wait(full_x.index(at), phase)
                _row_sums(p_sums + i_b * ROWS, s_x.index(at), b_y, OUT)
        mbarrier.wait(full_u.index(at), phase)
        b_y = warpgroup_mma(gl.convert_layout(b_ad, LEFT, True), matrix(s_u.index(at)), b_y, is_async=True)
        mbarrier.wait(summed.index(at ^ 1), ((i + 1) >> 1) & 1, pred=i + 1 < n_here)
        b_d = _decays(s_c, at ^ 1, back) * scale
        b_y, b_a = warpgroup_mma_wait(0, (b_y, b_a))
        b_ad = rounded(b_a * b_d)
        if GRAD_G and QK:
            if which != OF_V:
                _row_sums(p_sums + (n_sums + i_b * ROWS), s_x.index(at), b_y, OUT)
        b_out = rounded(b_y)
        tma.store_wait(0)
        barrier()  # every warp is done with L, R and U, and Y of the chunk before has left
        mbarrier.arrive(empty.index(stage), count=1)
        mbarrier.arrive(empty_u.index(at), count=1)
        mbarrier.arrive(empty_x.index(at ^ 1), count=1, pred=i > 0)
    at = (n_here - 1) & 1
    matrix(s_x.index(at)).store(b_out)
    fence_async_shared()
    barrier()
    i_row = gl.where(back, 0, n_here - 1) * ROWS
    _leave(d_dq, d_dk, d_dv, s_x.index(at), which, i_batch, i_part, i_row, i_col, i_out, QK, DV)
    tma.store_wait(0)
