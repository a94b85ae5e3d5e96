"""The part of the walk (grad_walk.py) that makes the gradients of q, k and g. Equations and barriers are there."""

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
from ...tiles.hopper import ACCUMULATOR, EVERYWHERE, ROWS, matrix, rounded, wide
from .sums import all_of, decays, sums_of


@gluon.jit
def _through(t_x, s_state):
    """x s^T of 64 features, begun."""
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    return warpgroup_mma(t_x, s_state.permute((1, 0)), b_zero, use_acc=False, is_async=True)


@gluon.jit
def _keys(b_y, s_da, s_q, s_k, b_own, b_f):
    """dk of 64 features, and of its rows the sums of k dk, those through the state and, without the diagonal, b_own,
    those inside the chunk. b_y: V dS^T."""
    b_y = b_y * b_f[:, None]
    b_in = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_in = warpgroup_mma(s_da.permute((1, 0)), matrix(s_q), b_in, use_acc=False, is_async=True)
    b_k = wide(matrix(s_k).load(ACCUMULATOR))
    b_left = gl.sum(b_k * b_y, axis=1)
    b_in = warpgroup_mma_wait(0, (b_in,))
    b_inside = gl.sum(b_k * b_in, axis=1)
    return rounded(b_y + b_in + b_own[:, None] * wide(matrix(s_q).load(ACCUMULATOR))), b_left, b_inside


@gluon.jit
def _queries(b_x, s_da, s_q, s_k, b_own, b_e):
    """dq of 64 features, and of its rows the sums of q dq without the diagonal, b_own, which passes no gate. b_x:
    dO S^T."""
    b_x = warpgroup_mma_wait(0, (warpgroup_mma(s_da, matrix(s_k), b_x * b_e[:, None], is_async=True),))
    b_sum = gl.sum(wide(matrix(s_q).load(ACCUMULATOR)) * b_x, axis=1)
    return rounded(b_x + b_own[:, None] * wide(matrix(s_k).load(ACCUMULATOR))), b_sum


@gluon.jit
def rows_part(
    d_dq, d_dk, p_c, p_dg, s_q, s_k, s_v, s_do, s_s, s_ds, s_a, s_da, s_own, s_phi, s_r,
    full, full_s, made_ds, made_a, made_da, free_ds, free_da, summed, read, empty, empty_s,
    scale, i_part, i_row0, i_col, T, H, n_here, NK: gl.constexpr, TILE: gl.constexpr, GRAD_G: gl.constexpr,
):  # fmt: skip
    """dq and dk of 64 features of every chunk, the last one first: those of the TILE-th of NK tiles. The first one's
    warps make A too, and dg; the last one's dA."""
    FIRST: gl.constexpr = TILE == 0
    LAST: gl.constexpr = TILE == NK - 1
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    o_i, o_j = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)), gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))

    for i in range(n_here):
        at, phase, i_b = i & 1, (i >> 1) & 1, n_here - 1 - i
        i_row = i_row0 + i_b * ROWS
        all_high, all_low = all_of(p_c, i_b)
        b_ch, b_cl = sums_of(p_c, i_b, gl.SliceLayout(1, ACCUMULATOR))
        b_e, b_f = scale * gl.exp2(b_ch), gl.exp2((all_high - b_ch) + (all_low - b_cl))

        # A and dA
        mbarrier.wait(full.index(at), phase)
        t_do, t_v = matrix(s_do.index(at)), matrix(s_v.index(at))
        if FIRST:
            b_a = b_zero
            for t in gl.static_range(NK):
                t_k = matrix(s_k[t].index(at)).permute((1, 0))
                b_a = warpgroup_mma(matrix(s_q[t].index(at)), t_k, b_a, use_acc=t > 0, is_async=True)
        if LAST:
            b_da = warpgroup_mma(t_do, t_v.permute((1, 0)), b_zero, use_acc=False, is_async=True)
        b_hj, b_lj = sums_of(p_c, i_b, gl.SliceLayout(0, ACCUMULATOR))
        b_d = decays(b_ch, b_cl, b_hj, b_lj) * scale
        if FIRST:
            b_a = warpgroup_mma_wait(0, (b_a,))
            s_a.store(rounded(b_a * b_d))
        if LAST:
            b_da = warpgroup_mma_wait(0, (b_da,))
            if not FIRST:
                mbarrier.wait(free_da.index(0), (i & 1) ^ 1)
            s_own.store(scale * gl.sum(gl.where(o_i[:, None] == o_j[None, :], b_da, 0.0), axis=1))
            s_da.store(rounded(gl.where(o_i[:, None] > o_j[None, :], b_da * b_d, 0.0)))
        tma.store_wait(0)  # dq and dk of the chunk before have left
        fence_async_shared()
        barrier()
        if FIRST:
            mbarrier.arrive(made_a.index(0), count=1)
        if LAST and not FIRST:
            mbarrier.arrive(made_da.index(0), count=1)
        mbarrier.arrive(empty.index(at ^ 1), count=1, pred=i > 0)

        # dk, then dq: the state comes later than its gradient. Where warps have registers enough both are begun at once
        mbarrier.wait(made_ds.index(0), i & 1)
        b_y = _through(t_v, s_ds[TILE])
        if NK == 1:
            mbarrier.wait(full_s.index(0), i & 1)
            b_x = _through(t_do, s_s[TILE])
            b_y = warpgroup_mma_wait(1, (b_y,))
        else:
            b_y = warpgroup_mma_wait(0, (b_y,))
        if FIRST and not LAST:
            mbarrier.wait(made_da.index(0), i & 1)
        b_own = s_own.load(gl.SliceLayout(1, ACCUMULATOR))
        s_qt, s_kt = s_q[TILE].index(at), s_k[TILE].index(at)
        b_dk, b_left, b_inside = _keys(b_y, s_da, s_qt, s_kt, b_own, b_f)
        if NK == 2:
            mbarrier.wait(full_s.index(0), i & 1)
            b_x = _through(t_do, s_s[TILE])
        b_x = warpgroup_mma_wait(0, (b_x,))
        barrier()  # every warp is done with both states
        mbarrier.arrive(free_ds.index(0), count=1)
        mbarrier.arrive(empty_s.index(0), count=1)
        b_dq, b_passed = _queries(b_x, s_da, s_qt, s_kt, b_own, b_e)
        b_passed -= b_inside
        if GRAD_G:
            s_r[TILE].index(0).store(b_passed)
            s_r[TILE].index(1).store(b_left)
        mbarrier.wait(read.index(at), phase)
        barrier()  # every warp has read q, k and dA
        if LAST and not FIRST:
            mbarrier.arrive(summed.index(0), count=1)
        matrix(s_qt).store(b_dq)
        matrix(s_kt).store(b_dk)
        fence_async_shared()
        barrier()
        async_store(d_dq, [i_part, i_row, i_col + TILE * ROWS], s_qt)
        async_store(d_dk, [i_part, i_row, i_col + TILE * ROWS], s_kt)

        if GRAD_G and FIRST:
            phi = gl.sum(s_phi.index(at).load(gl.SliceLayout(0, EVERYWHERE)), axis=0)
            b_passed = s_r[0].index(0).load(gl.SliceLayout(0, ACCUMULATOR))
            b_left = s_r[0].index(1).load(gl.SliceLayout(0, ACCUMULATOR))
            if NK == 2:
                mbarrier.wait(summed.index(0), i & 1)
                b_passed += s_r[1].index(0).load(gl.SliceLayout(0, ACCUMULATOR))
                b_left += s_r[1].index(1).load(gl.SliceLayout(0, ACCUMULATOR))
            b_dg = gl.sum(gl.where(o_j[None, :] >= o_i[:, None], b_passed[None, :], b_left[None, :]), axis=1) + phi
            o_t = i_row + o_i
            gl.store(p_dg + o_t.to(gl.int64) * H, b_dg, mask=o_t < T)
        if FIRST and not LAST:
            barrier()  # every warp has read dA and what the last one's warps summed
            mbarrier.arrive(free_da.index(0), count=1)
    tma.store_wait(0)
