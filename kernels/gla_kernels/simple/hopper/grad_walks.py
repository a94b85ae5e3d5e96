"""The gradients of q, k and v in three walks over time, on Hopper, in Gluon, with chunks of 64 rows. No state is read
from memory, and none is made twice by one program.

With c the sums of a chunk's gates, e = scale e^c, f = e^{c_C - c}, E = e^{c_C} and D of decays.py, all three are one:

    Y = w (L Z) + (scale (L R^T) D) U,        Z <- E Z + (u R)^T U

    dq    L = dO   R = V    U = K     w = e   u = f    Z = S^T     forward in time
    dk    L = V    R = dO   U = Q     w = f   u = e    Z = dS^T    back, D^T for D
    dv    L = K    R = Q    U = dO    w = f   u = e    Z = dS      back, D^T for D

A program makes one of them, up to 128 columns of Y, and has an SM to itself; nobody waits for another. Those of dk and
dv that go back side by side read the same rows. One warp sends for the next rows and makes decays of their sums; four
(`_state_part`) lead Z along in registers; four (`output_part`, grad_walks_rows.py) make Y, as in walk.py.

What dg is made of (gates.py) leaves beside: over the columns of each row the sums of q dq, and of k dk, of what comes
through the state alone, and of all; and, before every so many chunks, S^T and dS^T. The diagonal of D, which passes no
gate, is in both sums alike.

Shared memory: 96 or 128 KiB of L and R, in three stages or, at V = 256, in two; 2 of U; 2 of q or k, whose place Y
takes; Z as bf16 2 x 32 KiB; 2 of the decays' parts. Barriers, as many as there are stages, of one arrival a chunk from
each that is named:

    full      L, R have come                             producer -> state, output
    full_u    U has come                                 producer -> state, output
    full_x    q or k has come                            producer -> output
    summed    what decays are made of lies there         producer -> state, output
    made      Z of before the chunk lies there           state -> output
    free      Z has been read                            output -> state
    empty     L, R have been read                        state, output -> producer
    empty_u   U and the decays have been read            state, output -> producer
    empty_x   Y has left                                 output -> producer
"""

# mypy: disallow-untyped-defs=False, disable-error-code="assignment"
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from ...launch.tritons import async_load, async_store, barrier
from ...tiles.hopper import (
    ACCUMULATOR,
    LINE,
    ROWS,
    SHARED,
    TILE_BYTES,
    barriers,
    each,
    rounded,
    state_at,
)
from ..gates import NOTHING as NOTHING_OF_GATES
from .grad_walks_rows import OF_K, OF_Q, OF_V, output_part
from .sums import all_of, sums_of
from .walk import ONE_WARP, added

REGISTERS, FEW_REGISTERS = gl.constexpr(232), gl.constexpr(40)  # of a thread that computes, of one that loads
NOTHING_PASSES = gl.constexpr(NOTHING_OF_GATES.value)


@gluon.jit
def _send(d_x, s_x, at, bar, i_batch, i_row, i_col, N: gl.constexpr):
    """For N tiles of 64 features."""
    for t in gl.static_range(N):
        async_load(d_x, [i_batch, i_row, i_col + t * ROWS], bar, s_x[t].index(at))


@gluon.jit
def _load_part(
    d_q, d_k, d_v, d_do, d_qu, d_ku, d_dou, p_c, s_l, s_r, s_u, s_x, s_c,
    full, full_u, full_x, summed, empty, empty_u, empty_x, scale, i_batch, i_col, i_out, i_y, n_here, which,
    N: gl.constexpr, BV: gl.constexpr, STAGES: gl.constexpr, GRAD_G: gl.constexpr,
):  # fmt: skip
    """Send for every chunk as soon as its stage is free. s_c, of each stage: the sums of gates in two parts, which fall
    in the walk's direction, w and u. i_col, i_out: the columns of the heads of q and v; i_y: of Y in its head."""
    back = which != OF_Q
    for i in range(n_here):
        at, two = i % STAGES, i & 1
        i_b = gl.where(back, n_here - 1 - i, i)
        i_row, bar, bar_u = i_b * ROWS, full.index(at), full_u.index(two)
        mbarrier.wait(empty.index(at), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(bar, 2 * N * TILE_BYTES)
        if which == OF_Q:
            _send(d_do, s_l, at, bar, i_batch, i_row, i_out, N)
            _send(d_v, s_r, at, bar, i_batch, i_row, i_out, N)
        elif which == OF_K:
            _send(d_v, s_l, at, bar, i_batch, i_row, i_out, N)
            _send(d_do, s_r, at, bar, i_batch, i_row, i_out, N)
        else:
            _send(d_k, s_l, at, bar, i_batch, i_row, i_col, N)
            _send(d_q, s_r, at, bar, i_batch, i_row, i_col, N)
        b_high, b_low = sums_of(p_c, i_b, ONE_WARP)
        all_high, all_low = all_of(p_c, i_b)
        b_e, b_f = scale * gl.exp2(b_high), gl.exp2((all_high - b_high) + (all_low - b_low))
        mbarrier.wait(empty_u.index(two), ((i >> 1) & 1) ^ 1)
        s_c[0].index(two).store(gl.where(back, -b_high, b_high))
        s_c[1].index(two).store(gl.where(back, -b_low, b_low))
        s_c[2].index(two).store(gl.where(back, b_f, b_e))
        s_c[3].index(two).store(gl.where(back, b_e, b_f))
        barrier()
        mbarrier.arrive(summed.index(two), count=1)
        mbarrier.expect(bar_u, BV // ROWS * TILE_BYTES)
        if which == OF_Q:
            async_load(d_ku, [i_batch, i_row, i_col + i_y], bar_u, s_u.index(two))
        elif which == OF_K:
            async_load(d_qu, [i_batch, i_row, i_col + i_y], bar_u, s_u.index(two))
        else:
            async_load(d_dou, [i_batch, i_row, i_out + i_y], bar_u, s_u.index(two))
        if GRAD_G:
            if which != OF_V:
                bar_x = full_x.index(two)
                mbarrier.wait(empty_x.index(two), ((i >> 1) & 1) ^ 1)
                mbarrier.expect(bar_x, BV // ROWS * TILE_BYTES)
                if which == OF_Q:
                    async_load(d_qu, [i_batch, i_row, i_col + i_y], bar_x, s_x.index(two))
                else:
                    async_load(d_ku, [i_batch, i_row, i_col + i_y], bar_x, s_x.index(two))


@gluon.jit
def _state_part(
    d_few, p_c, p_s0, p_dst, p_ds0, s_r, s_u, s_z, s_c, full, full_u, summed, made, free, empty, empty_u,
    i_end, i_few, i_y, n_here, every, which,
    N: gl.constexpr, K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, STAGES: gl.constexpr,
    HAS_S0: gl.constexpr, HAS_DST: gl.constexpr, STORE_DS0: gl.constexpr, V_FIRST: gl.constexpr, GRAD_G: gl.constexpr,
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
        if HAS_S0:
            if which == OF_Q:
                b_t = gl.load(p_s0 + i_end + others[0] + t * others[1])
        if HAS_DST:
            if which == OF_K:
                b_t = gl.load(p_dst + i_end + others[0] + t * others[1])
            if which == OF_V:
                b_t = gl.load(p_dst + i_end + of_dv[0] + t * of_dv[1])
        b_z = b_z + (b_t,)  # noqa: RUF005 - Triton knows no other way
    passed = all_of(p_c, 0)[0]  # what the chunk before lets pass

    for i in range(n_here):
        at, phase, stage, turn = i & 1, (i >> 1) & 1, i % STAGES, (i // STAGES) & 1
        i_b = gl.where(back, n_here - 1 - i, i)
        passing = all_of(p_c, i_b)[0]
        mbarrier.wait(free.index(at), phase ^ 1)
        for t in gl.static_range(N):
            s_z[t].index(at).store(rounded(b_z[t]))
        tma.store_wait(0)  # what was stored of the other place has left
        fence_async_shared()
        barrier()
        mbarrier.arrive(made.index(at), count=1)
        if GRAD_G:
            i_of = gl.where(back, i_b + 1, i_b)  # the chunk before which Z is the state, or its gradient
            due = (i_of % every == 0) & ((passing >= NOTHING_PASSES) | (passed >= NOTHING_PASSES)) | (i == 0)
            if (which != OF_V) & due:
                i_to = i_few + (i_of + every - 1) // every * V
                for t in gl.static_range(N):
                    async_store(d_few, [i_to + t * ROWS, i_y], s_z[t].index(at))
        passed, decay = passing, gl.exp2(passing)
        mbarrier.wait(summed.index(at), phase)
        b_u = s_c[3].index(at).load(gl.SliceLayout(0, ACCUMULATOR))
        mbarrier.wait(full.index(stage), turn)
        mbarrier.wait(full_u.index(at), phase)
        b_next = ()
        for t in gl.static_range(N):
            b_next = b_next + (added(b_z[t], s_r[t].index(stage), s_u.index(at), decay, b_u, OUT),)  # noqa: RUF005
        b_z = warpgroup_mma_wait(0, b_next)
        barrier()  # every warp is done with R and U
        mbarrier.arrive(empty.index(stage), count=1)
        mbarrier.arrive(empty_u.index(at), count=1)
    if STORE_DS0:
        if which == OF_V:
            for t in gl.static_range(N):
                gl.store(p_ds0 + i_end + of_dv[0] + t * of_dv[1], b_z[t])
    tma.store_wait(0)
    if GRAD_G:
        if which != OF_V:
            at, i_to = n_here & 1, i_few + gl.where(back, 0, (n_here + every - 1) // every) * V
            mbarrier.wait(free.index(at), ((n_here >> 1) & 1) ^ 1)
            for t in gl.static_range(N):
                s_z[t].index(at).store(rounded(b_z[t]))
            fence_async_shared()
            barrier()
            for t in gl.static_range(N):
                async_store(d_few, [i_to + t * ROWS, i_y], s_z[t].index(at))
            tma.store_wait(0)


@gluon.jit
def _load(
    given, which, NA: gl.constexpr, NB: gl.constexpr, BV: gl.constexpr, STAGES: gl.constexpr, GRAD_G: gl.constexpr,
):  # fmt: skip
    """`_load_part` with as many tiles of 64 features as L and R have: NA of V, for dq and dk, or NB of K, for dv."""
    if NA == NB:
        _load_part(*given, which, NB, BV, STAGES, GRAD_G)
    else:  # only one of both is compiled
        if which == OF_V:
            _load_part(*given, which, NB, BV, STAGES, GRAD_G)
        else:
            _load_part(*given, which, NA, BV, STAGES, GRAD_G)


@gluon.jit
def _state(
    given, which, NA: gl.constexpr, NB: gl.constexpr, K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr,
    STAGES: gl.constexpr, HAS_S0: gl.constexpr, HAS_DST: gl.constexpr, STORE_DS0: gl.constexpr, V_FIRST: gl.constexpr,
    GRAD_G: gl.constexpr,
):  # fmt: skip
    """`_state_part` with as many tiles of 64 features as L and R have: NA of V, for dq and dk, or NB of K, for dv."""
    if NA == NB:
        _state_part(*given, which, NB, K, V, BV, STAGES, HAS_S0, HAS_DST, STORE_DS0, V_FIRST, GRAD_G)
    else:  # only one of both is compiled
        if which == OF_V:
            _state_part(*given, which, NB, K, V, BV, STAGES, HAS_S0, HAS_DST, STORE_DS0, V_FIRST, GRAD_G)
        else:
            _state_part(*given, which, NA, K, V, BV, STAGES, HAS_S0, HAS_DST, STORE_DS0, V_FIRST, GRAD_G)


@gluon.jit
def _output(
    given, which, NA: gl.constexpr, NB: gl.constexpr, BV: gl.constexpr, STAGES: gl.constexpr, GRAD_G: gl.constexpr,
):  # fmt: skip
    """`output_part` with as many tiles of 64 features as L and R have: NA of V, for dq and dk, or NB of K, for dv."""
    if NA == NB:
        output_part(*given, which, NB, BV, STAGES, GRAD_G)
    else:  # only one of both is compiled
        if which == OF_V:
            output_part(*given, which, NB, BV, STAGES, GRAD_G)
        else:
            output_part(*given, which, NA, BV, STAGES, GRAD_G)


@gluon.jit(do_not_specialize=["B", "T", "n_chunks", "n_few", "n_sums", "every"])
def simple_grad_walks_hopper_kernel(
    d_q, d_k, d_v, d_do, d_qu, d_ku, d_dou, d_few, p_c, p_s0, p_dst, p_ds0, p_sums, d_dq, d_dk, d_dv,
    scale, B, T, H, n_chunks, n_few, n_sums, every,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, GK: gl.constexpr, HAS_S0: gl.constexpr, HAS_DST: gl.constexpr,
    STORE_DS0: gl.constexpr, V_FIRST: gl.constexpr, GRAD_G: gl.constexpr,
):  # fmt: skip
    """dq, dk [B, T, H, K] and dv [B, T, H, V], bf16. p_s0, p_dst, p_ds0 [B*H, K, V], float32: the state before all
    chunks, zero without HAS_S0, the gradient of that after them, zero without HAS_DST, and where STORE_DS0, that of the
    state before; V_FIRST: [.., V, K]. p_c: see `simple_decays_kernel`. GK heads share each one of q and k; what each
    adds to dq and dk lies in [GK, B, T, H // GK, K].

    GRAD_G: p_sums [2, 2, K / BV, B*H, n_chunks * 64] float32, of what comes through the state and of all, of dq and dk,
    what BV columns add; n_sums numbers each of the first two. few [2, B*H, n_few + 1, V, K]: S^T, and dS^T,
    before every so many chunks and after the last; not between
    chunks that let nothing pass. qu, ku, dou: q, k and dO by BV columns, the others are by 64; K is 128, V and
    BV are 128, or 256 and 64."""
    NA: gl.constexpr = V // ROWS
    NB: gl.constexpr = K // ROWS
    OF_K_AND_V: gl.constexpr = (K + V) // BV
    PROGRAMS: gl.constexpr = OF_K_AND_V + K // BV
    STAGES: gl.constexpr = 3 if NA == 2 else 2
    i_p, i_bh = gl.program_id(0) % PROGRAMS, gl.program_id(0) // PROGRAMS
    which = gl.where(i_p < K // BV, OF_K, gl.where(i_p < OF_K_AND_V, OF_V, OF_Q))
    i_v = gl.where(i_p < K // BV, i_p, gl.where(i_p < OF_K_AND_V, i_p - K // BV, i_p - OF_K_AND_V))
    i_batch, i_h, i_y = i_bh // H, i_bh % H, i_v * BV
    i_col, i_out, i_part = i_h // GK * K, i_h * V, i_h % GK * B + i_batch
    i_of = gl.where(which == OF_K, B * H, 0) + i_bh
    i_few, i_end, n_rows = i_of * (n_few + 1) * V, i_bh.to(gl.int64) * K * V, n_chunks * ROWS
    p_c += i_bh.to(gl.int64) * n_rows
    if GRAD_G:
        p_sums += ((gl.where(which == OF_K, K // BV, 0) + i_v) * (B * H) + i_bh).to(gl.int64) * n_rows

    OF_ROWS: gl.constexpr = d_q.layout
    s_l = each(gl.bfloat16, [STAGES, 1, ROWS, ROWS], OF_ROWS, 2)
    s_r = each(gl.bfloat16, [STAGES, 1, ROWS, ROWS], OF_ROWS, 2)
    s_z = each(gl.bfloat16, [2, ROWS, BV], SHARED, 2)
    if NA == 4:
        s_l = s_l + each(gl.bfloat16, [STAGES, 1, ROWS, ROWS], OF_ROWS, 2)
        s_r = s_r + each(gl.bfloat16, [STAGES, 1, ROWS, ROWS], OF_ROWS, 2)
        s_z = s_z + each(gl.bfloat16, [2, ROWS, BV], SHARED, 2)
    s_u = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
    s_x = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
    s_c = each(gl.float32, [2, ROWS], LINE, 2) + each(gl.float32, [2, ROWS], LINE, 2)
    full, empty = barriers(STAGES), barriers(STAGES, 2)
    full_u, full_x, summed, made, free = barriers(2), barriers(2), barriers(2), barriers(2), barriers(2)
    empty_u, empty_x = barriers(2, 2), barriers(2)
    fence_async_shared()
    barrier()

    output = (
        d_dq, d_dk, d_dv, p_sums, s_l, s_r, s_u, s_z, s_x, s_c,
        full, full_u, full_x, summed, made, free, empty, empty_u, empty_x,
        scale, i_batch, i_part, i_col + i_y, i_out + i_y, n_chunks, n_sums,
    )  # fmt: skip
    state = (
        d_few, p_c, p_s0, p_dst, p_ds0, s_r, s_u, s_z, s_c, full, full_u, summed, made, free, empty, empty_u,
        i_end, i_few, i_y, n_chunks, every,
    )  # fmt: skip
    load = (
        d_q, d_k, d_v, d_do, d_qu, d_ku, d_dou, p_c, s_l, s_r, s_u, s_x, s_c,
        full, full_u, full_x, summed, empty, empty_u, empty_x, scale, i_batch, i_col, i_out, i_y, n_chunks,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_output, (output, which, NA, NB, BV, STAGES, GRAD_G)),
            (_state, (state, which, NA, NB, K, V, BV, STAGES, HAS_S0, HAS_DST, STORE_DS0, V_FIRST, GRAD_G)),
            (_load, (load, which, NA, NB, BV, STAGES, GRAD_G)),
        ],
        [4, 1],
        [REGISTERS, FEW_REGISTERS],
    )
