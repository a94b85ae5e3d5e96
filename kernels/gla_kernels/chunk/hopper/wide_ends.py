"""What segments of wide heads add to the state, or going back to its gradient, on Hopper, in Gluon: the walk of
wide_walk.py without an output, each segment from zero.

    forward    S  <- e^{2h} S + K^T v        with K and Q as prepare.py has them
    backward   dS <- e^{2h} dS + Q^T do      the last chunk first

The state lies in registers, turned, as there: S^T <- f S^T + u^T Y. A program has 64 columns of V and all of K; one
warp sends for what four others multiply. Two programs share a multiprocessor.

Shared memory: UNITS of Y, 64 features each; u and f of two chunks. Barriers, each of one arrival:

    full, empty          of a unit
    full_u, empty_u      of u and f
"""

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
from ...tiles.hopper import ACCUMULATOR, LINE, OPERAND, ROWS, TILE_BYTES, barriers, matrix
from .wide_walk import NK, ONE_WARP, WIDE_K, chunk_of, quarters_at, send_decays, turned_state_at

LOADER_REGISTERS = gl.constexpr(40)  # of a thread: it adds up decays, too


@gluon.jit
def _load_part(
    d_y, d_u, p_h, p_gamma, s_y, s_u, s_f, full, empty, full_u, empty_u,
    i_batch, i_row0, i_h, i_out, n_here, adds_up, UNITS: gl.constexpr, REVERSE: gl.constexpr,
):  # fmt: skip
    """Send for everything in the order in which it is needed, as soon as there is room; and add up decays where a
    program is the one that does."""
    p_first = p_h + gl.arange(0, ROWS, ONE_WARP)
    b_h = quarters_at(p_first + chunk_of(0, n_here, REVERSE) * WIDE_K)
    b_zero = gl.zeros([ROWS], gl.float32, ONE_WARP)
    b_sum = (b_zero, b_zero, b_zero, b_zero)
    for i in range(n_here):
        at, i_row = i & 1, i_row0 + chunk_of(i, n_here, REVERSE) * ROWS
        mbarrier.wait(empty_u.index(at), ((i >> 1) & 1) ^ 1)
        send_decays(b_h, s_f, at)
        mbarrier.expect(full_u.index(at), TILE_BYTES)
        async_load(d_u, [i_batch, i_row, i_out], full_u.index(at), s_u.index(at))
        b_sum = (b_sum[0] + b_h[0], b_sum[1] + b_h[1], b_sum[2] + b_h[2], b_sum[3] + b_h[3])
        # a chunk ahead: who waits for these waits for memory
        b_h = quarters_at(p_first + chunk_of(gl.minimum(i + 1, n_here - 1), n_here, REVERSE) * WIDE_K)
        for t in gl.static_range(NK):
            n = i * NK + t
            unit = n % UNITS
            mbarrier.wait(empty.index(unit), ((n // UNITS) & 1) ^ 1)
            mbarrier.expect(full.index(unit), TILE_BYTES)
            async_load(d_y, [i_batch, i_row, i_h * WIDE_K + t * ROWS], full.index(unit), s_y.index(unit))
    if adds_up:
        o_k = gl.arange(0, ROWS, ONE_WARP)
        for t in gl.static_range(NK):
            gl.store(p_gamma + t * ROWS + o_k, 2.0 * b_sum[t])


@gluon.jit
def _decayed(b_s, s_f, full, n, UNITS: gl.constexpr):
    """64 features of the state, when what is to be added has come."""
    mbarrier.wait(full.index(n % UNITS), (n // UNITS) & 1)
    return b_s * s_f.load(gl.SliceLayout(0, ACCUMULATOR))[None, :]


@gluon.jit
def _added(b_s, b_u, s_y, n, UNITS: gl.constexpr):
    """What a chunk adds to them, on its way."""
    return warpgroup_mma(b_u, matrix(s_y.index(n % UNITS)), b_s, is_async=True)


@gluon.jit
def _ends_part(p_added, s_y, s_u, s_f, full, empty, full_u, empty_u, i_v, n_here, V: gl.constexpr, UNITS: gl.constexpr):
    """64 columns of V of all chunks."""
    b_s0 = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_s1, b_s2, b_s3 = b_s0, b_s0, b_s0
    for i in range(n_here):
        at, n = i & 1, i * NK
        mbarrier.wait(full_u.index(at), (i >> 1) & 1)
        b_u = matrix(s_u.index(at)).permute((1, 0)).load(OPERAND)
        # all of them before any product: the compiler has one that is on its way waited for where another is waited for
        b_s0 = _decayed(b_s0, s_f.index(at * NK), full, n, UNITS)
        b_s1 = _decayed(b_s1, s_f.index(at * NK + 1), full, n + 1, UNITS)
        b_s2 = _decayed(b_s2, s_f.index(at * NK + 2), full, n + 2, UNITS)
        b_s3 = _decayed(b_s3, s_f.index(at * NK + 3), full, n + 3, UNITS)
        b_s0, b_s1 = _added(b_s0, b_u, s_y, n, UNITS), _added(b_s1, b_u, s_y, n + 1, UNITS)
        b_s2, b_s3 = _added(b_s2, b_u, s_y, n + 2, UNITS), _added(b_s3, b_u, s_y, n + 3, UNITS)
        b_s0, b_s1, b_s2, b_s3, b_u = warpgroup_mma_wait(0, (b_s0, b_s1, b_s2, b_s3, b_u))
        barrier()  # every warp is done with the chunk
        mbarrier.arrive(empty_u.index(at))
        for t in gl.static_range(NK):
            mbarrier.arrive(empty.index((n + t) % UNITS))
    o_v, o_k = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)), gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    o_s, NEXT = turned_state_at(o_k, i_v + o_v, V, False)
    gl.store(p_added + o_s, b_s0)
    gl.store(p_added + NEXT + o_s, b_s1)
    gl.store(p_added + 2 * NEXT + o_s, b_s2)
    gl.store(p_added + 3 * NEXT + o_s, b_s3)


@gluon.jit
def _ends(
    d_y, d_u, p_h, p_added, p_gamma, T, H, n_seg, first_seg, seg_rows,
    V: gl.constexpr, UNITS: gl.constexpr, REVERSE: gl.constexpr,
):  # fmt: skip
    """What a segment adds to 64 columns of V."""
    NV: gl.constexpr = V // ROWS
    i_p = gl.program_id(0)
    i_v, i_seg, i_bh = (i_p % NV) * ROWS, (i_p // NV) % n_seg, i_p // (NV * n_seg)
    i_batch, i_h = i_bh // H, i_bh % H
    first, n_blocks = (first_seg + i_seg) * (seg_rows // ROWS), (T + ROWS - 1) // ROWS
    n_here = gl.minimum(n_blocks - first, seg_rows // ROWS)
    i_at = i_bh.to(gl.int64) * n_seg + i_seg
    p_h += (i_bh.to(gl.int64) * n_blocks + first) * WIDE_K
    p_added, p_gamma = p_added + i_at * WIDE_K * V, p_gamma + i_at * WIDE_K

    s_y = gl.allocate_shared_memory(gl.bfloat16, [UNITS, 1, ROWS, ROWS], d_y.layout)
    s_u = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, ROWS], d_u.layout)
    s_f = gl.allocate_shared_memory(gl.float32, [2 * NK, ROWS], LINE)
    full, empty, full_u, empty_u = barriers(UNITS), barriers(UNITS), barriers(2), barriers(2)
    fence_async_shared()
    barrier()
    gl.warp_specialize(
        [
            (_ends_part, (p_added, s_y, s_u, s_f, full, empty, full_u, empty_u, i_v, n_here, V, UNITS)),
            (
                _load_part,
                (
                    d_y, d_u, p_h, p_gamma, s_y, s_u, s_f, full, empty, full_u, empty_u,
                    i_batch, first * ROWS, i_h, i_h * V + i_v, n_here, i_v == 0, UNITS, REVERSE,
                ),
            ),
        ],
        [1],
        [LOADER_REGISTERS],
    )  # fmt: skip


SIZES = ["T", "n_seg", "first_seg", "seg_rows"]


@gluon.jit(do_not_specialize=SIZES)
def states_wide_hopper_kernel(
    d_kd, d_v, p_h, p_s, p_gamma, T, H, n_seg, first_seg, seg_rows, V: gl.constexpr, UNITS: gl.constexpr
):
    """What n_seg segments from first_seg on add: p_s [B*H, n_seg, 256, V], and log2 of their whole decay in p_gamma
    [B*H, n_seg, 256], float32, from v and what `prepare_hopper_kernel` leaves, kd and p_h. A program a segment and 64
    columns of V."""
    _ends(d_kd, d_v, p_h, p_s, p_gamma, T, H, n_seg, first_seg, seg_rows, V, UNITS, False)


@gluon.jit(do_not_specialize=SIZES)
def grad_states_wide_hopper_kernel(
    d_qd, d_do, p_h, p_ds, p_gamma, T, H, n_seg, first_seg, seg_rows, V: gl.constexpr, UNITS: gl.constexpr
):
    """What they add to the gradient of the state before them: p_ds, likewise."""
    _ends(d_qd, d_do, p_h, p_ds, p_gamma, T, H, n_seg, first_seg, seg_rows, V, UNITS, True)
