"""The part of grad_qk_wide.py that leads the state along. The equations and the barriers are there."""

# mypy: disallow-untyped-defs=False, disable-error-code="assignment"
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
from .grad_qk_rows import after_rows, decayed_keys, first_state, from_tail, gates_begun
from .layouts import ACCUMULATOR, CLOSED_HALF, EVERYWHERE, LEAST_HALF, ROWS, limit, matrix, rounded, wide
from .packed import head_and_tail, passes
from .strong_gates import hidden_zero


@gluon.jit
def state_part(
    d_s, s_k, s_g, s_v, s_ds, s_s, s_l, s_h, s_phi, full, done, empty, made, rows, let, summed,
    p_marks, p_edges, p_sn, n_rows, i_head, n_heads, i_feature, i_row0, i_state, count,
    K: gl.constexpr, V: gl.constexpr, STAGES: gl.constexpr,
    PACKED: gl.constexpr, HAS_SN: gl.constexpr, V_FIRST: gl.constexpr,
):  # fmt: skip
    """Lead the state along, and sum S dS over V. After the last chunk it is laid down as well: nobody reads it."""
    NV: gl.constexpr = V // ROWS
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_rest = ()
    for _ in gl.static_range(NV):
        b_rest = b_rest + (b_zero.to(gl.bfloat16),)  # noqa: RUF005
    for i_c in range(count):
        phase, nil, i_row = i_c & 1, hidden_zero(i_state + i_c), i_row0 + i_c * ROWS
        head, tail, passing = ROWS, 0, count > 0
        if PACKED:
            head, tail = head_and_tail(p_edges, i_row)
            passing = passes(head, tail)
        mbarrier.wait(rows, phase)
        least = gl.min(s_h.load(gl.SliceLayout(0, EVERYWHERE)), axis=0)
        if s_g.dtype == gl.bfloat16:
            if least < CLOSED_HALF:  # there may be gates of -inf, and what is summed beside them would be no number
                limit(s_g)
        b_d = gates_begun(s_g, s_l)
        b_half = s_h.load(gl.SliceLayout(1, ACCUMULATOR))
        b_h = gl.exp2(b_half)
        mild = least > LEAST_HALF
        b_d = after_rows(warpgroup_mma_wait(0, (b_d,)), nil)
        b_f = b_h * b_h
        b_begun = b_half
        if PACKED:
            if not passing:
                b_d, b_begun = from_tail(b_d, b_half, p_edges, i_row)
                b_f = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, ACCUMULATOR))
        b_kd = decayed_keys(s_k, b_d)
        barrier()  # every warp is done with g, k and h
        mbarrier.arrive(let)
        wanted = not mild  # the strong kernel asks for the state
        if PACKED:
            wanted = wanted | ((head > 0) & (not passing))  # and so does `edges`, where a sequence ends
        if wanted:
            for i_v in gl.static_range(NV):
                mbarrier.wait(made.index(i_v), phase)
                async_store(d_s, [i_state + i_c * K, i_v * ROWS], s_s.index(i_v))
            tma.store_wait(0)
            barrier()

        b_phi = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, ACCUMULATOR))
        b_left = ()
        for i_v in gl.static_range(NV):
            i_tile = i_c * NV + i_v
            at, turn = i_tile % STAGES, (i_tile // STAGES) & 1
            b_s, b_ds = s_s.index(i_v), s_ds.index(at)
            mbarrier.wait(made.index(i_v), phase)
            b_sw = wide(b_s.load(ACCUMULATOR))
            b_next = (b_sw + wide(b_rest[i_v])) * b_f[:, None]
            if PACKED:
                if HAS_SN:
                    if (not passing) & (tail < ROWS):
                        b_next = first_state(
                            p_sn, p_marks, n_rows, i_row, i_head, n_heads, i_feature, i_v * ROWS, b_begun,
                            K, V, V_FIRST,
                        )  # fmt: skip
            mbarrier.wait(full.index(at), turn)
            b_next = warpgroup_mma(b_kd, matrix(s_v.index(at)), b_next, is_async=True)
            b_sw = warpgroup_mma_wait(1, (b_sw,))  # or the compiler has the product wait for Phi
            b_phi += gl.sum(b_sw * wide(b_ds.load(ACCUMULATOR)), axis=1)
            b_next = warpgroup_mma_wait(0, (b_next,))
            b_sh = rounded(b_next)
            b_left = b_left + (rounded(b_next - wide(b_sh)),)  # noqa: RUF005
            mbarrier.wait(done.index(at), turn)
            b_s.store(b_sh)
            if i_v == NV - 1:
                s_phi.store(b_phi)
            fence_async_shared()
            barrier()  # every warp is done with the stage, and the state lies there
            mbarrier.arrive(empty.index(at))
            mbarrier.arrive(made.index(i_v))
        mbarrier.arrive(summed)
        b_rest = b_left
