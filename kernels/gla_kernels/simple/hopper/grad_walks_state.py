"""The part of the walks (grad_walks.py) that leads a state or its gradient along. Equations and barriers are there."""

# mypy: disallow-untyped-defs=False, disable-error-code="assignment"
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from ...launch.tritons import async_store, barrier
from ...tiles.hopper import ACCUMULATOR, ROWS, rounded, state_at
from ..gates import NOTHING as NOTHING_OF_GATES
from .grad_walks_rows import OF_K, OF_Q, OF_V, place
from .sums import all_of
from .walk import added

NOTHING = gl.constexpr(NOTHING_OF_GATES.value)


@gluon.jit
def state_part(
    s_u, s_z, s_x, d_few, p_c, p_s0, p_dst, p_ds0, s_r, s_c, full, full_u, summed, made, free, empty, empty_u,
    i_end, i_few, i_y, n_here, every, which,
    N: gl.constexpr, QK: gl.constexpr, DV: gl.constexpr, K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr,
    STAGES: gl.constexpr, HAS_S0: gl.constexpr, HAS_DST: gl.constexpr, STORE_DS0: gl.constexpr, V_FIRST: gl.constexpr,
    GRAD_G: gl.constexpr,
):  # fmt: skip
    """Lead Z along; lay it down before each chunk, for the output's part, and every so many chunks in memory."""
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    back = which != OF_Q
    b_zero = gl.zeros([ROWS, BV], gl.float32, OUT)
    o_f, o_y = gl.arange(0, ROWS, gl.SliceLayout(1, OUT)), i_y + gl.arange(0, BV, gl.SliceLayout(0, OUT))
    of_dv = state_at(o_f, o_y, K, V, V_FIRST)
    others = state_at(o_f, o_y, V, K, not V_FIRST)
    b_z = ()
    for t in gl.static_range(N):
        b_t = b_zero
        if HAS_S0 and QK:
            if which == OF_Q:
                b_t = gl.load(p_s0 + i_end + others[0] + t * others[1])
        if HAS_DST:
            if which == OF_K:
                b_t = gl.load(p_dst + i_end + others[0] + t * others[1])
            elif which == OF_V:
                b_t = gl.load(p_dst + i_end + of_dv[0] + t * of_dv[1])
        b_z = b_z + (b_t,)  # noqa: RUF005 - Triton knows no other way
    passed = all_of(p_c, 0)[0]  # what the chunk before lets pass

    for i in range(n_here):
        at, phase, stage, turn = i & 1, (i >> 1) & 1, i % STAGES, (i // STAGES) & 1
        i_b = gl.where(back, n_here - 1 - i, i)
        passing = all_of(p_c, i_b)[0]
        mbarrier.wait(free.index(at), phase ^ 1)
        for t in gl.static_range(N):
            place(s_z, t, at, N // 2, 2).store(rounded(b_z[t]))
        tma.store_wait(0)  # what was stored of the other place has left
        fence_async_shared()
        barrier()
        mbarrier.arrive(made.index(at), count=1)
        if GRAD_G and QK:
            i_of = gl.where(back, i_b + 1, i_b)  # the chunk before which Z is the state, or its gradient
            due = (i_of % every == 0) & ((passing >= NOTHING) | (passed >= NOTHING)) | (i == 0)
            if (which != OF_V) & due:
                i_to = i_few + (i_of + every - 1) // every * V
                for t in gl.static_range(N):
                    async_store(d_few, [i_to + t * ROWS, i_y], place(s_z, t, at, N // 2, 2))
        passed, decay = passing, gl.exp2(passing)
        mbarrier.wait(summed.index(at), phase)
        b_u = s_c[3].index(at).load(gl.SliceLayout(0, ACCUMULATOR))
        mbarrier.wait(full.index(stage), turn)
        mbarrier.wait(full_u.index(at), phase)
        b_next = ()
        for t in gl.static_range(N):
            s_t = place(s_r, t, stage, 2, STAGES)
            b_next = b_next + (added(b_z[t], s_t, s_u.index(at), decay, b_u, OUT),)  # noqa: RUF005
        b_z = warpgroup_mma_wait(0, b_next)
        barrier()  # every warp is done with R and U
        mbarrier.arrive(empty.index(stage), count=1)
        mbarrier.arrive(empty_u.index(at), count=1)
    if STORE_DS0 and DV:
        if which == OF_V:
            for t in gl.static_range(N):
                gl.store(p_ds0 + i_end + of_dv[0] + t * of_dv[1], b_z[t])
    tma.store_wait(0)
    if GRAD_G and QK:
        if which != OF_V:
            at, i_to = n_here & 1, i_few + gl.where(back, 0, (n_here + every - 1) // every) * V
            mbarrier.wait(free.index(at), ((n_here >> 1) & 1) ^ 1)
            for t in gl.static_range(N):
                place(s_z, t, at, N // 2, 2).store(rounded(b_z[t]))
            fence_async_shared()
            barrier()
            for t in gl.static_range(N):
                async_store(d_few, [i_to + t * ROWS, i_y], place(s_z, t, at, N // 2, 2))
            tma.store_wait(0)
