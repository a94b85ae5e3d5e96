"""The gradients of q, k and v in three walks over time, on Hopper, in Gluon, with chunks of 64 rows. No state is read
from memory, and none is made twice by one program.

With c the sums of a chunk's gates, e = scale e^c, f = e^{c_C - c}, E = e^{c_C} and D of decays.py, all three are one:

    Y = w (L Z) + (scale (L R^T) D) U,        Z <- E Z + (u R)^T U

    dq    L = dO   R = V    U = K     w = e   u = f    Z = S^T     forward in time
    dk    L = V    R = dO   U = Q     w = f   u = e    Z = dS^T    back, D^T for D
    dv    L = K    R = Q    U = dO    w = f   u = e    Z = dS      back, D^T for D

A program makes one of them, up to 128 columns of Y, and has an SM to itself; nobody waits for another. Those of dk and
dv that go back side by side read the same rows. One warp sends for the next rows and makes decays of their sums; four
(grad_walks_state.py) lead Z along in registers; four (grad_walks_rows.py) make Y, as in walk.py.

What dg is made of (gates.py) leaves beside: over the columns of each row the sums of q dq, and of k dk, of what comes
through the state alone, and of all; and, before every so many chunks, S^T and dS^T. The diagonal of D, which passes no
gate, is in both sums alike.

Shared memory at V = 128: 3 stages of L and R 96 KiB; 2 of U 32, and 2 of q or k, whose place Y takes, 32; Z as bf16 in
two places 64; 2 of the decays' parts. At V = 256 L and R of dq and dk are twice as wide, in 2 stages, U and Y half; of
dv U and Y lie where its L and R leave room. Barriers, as many as there are stages, of one arrival a chunk from each
that is named:

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
)

from ...launch.tritons import async_load, barrier, reinterpreted
from ...tiles.hopper import (
    LINE,
    ROWS,
    SHARED,
    TILE_BYTES,
    barriers,
    each,
)
from .grad_walks_rows import OF_K, OF_Q, OF_V, output_part, place
from .grad_walks_state import state_part
from .sums import all_of, sums_of
from .walk import ONE_WARP

REGISTERS, FEW_REGISTERS = gl.constexpr(232), gl.constexpr(40)  # of a thread that computes, of one that loads


@gluon.jit
def _send(d_x, s_x, at, bar, i_batch, i_row, i_col, N: gl.constexpr, STAGES: gl.constexpr):
    """For N tiles of 64 features."""
    for t in gl.static_range(N):
        async_load(d_x, [i_batch, i_row, i_col + t * ROWS], bar, place(s_x, t, at, 2, STAGES))


@gluon.jit
def _load_part(
    s_u, s_z, s_x, d_q, d_k, d_v, d_do, d_qu, d_ku, d_dou, p_c, s_l, s_r, s_c,
    full, full_u, full_x, summed, empty, empty_u, empty_x, scale, i_batch, i_col, i_out, i_y, n_here, which,
    N: gl.constexpr, QK: gl.constexpr, DV: gl.constexpr, BV: gl.constexpr, STAGES: gl.constexpr, GRAD_G: gl.constexpr,
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
            _send(d_do, s_l, at, bar, i_batch, i_row, i_out, N, STAGES)
            _send(d_v, s_r, at, bar, i_batch, i_row, i_out, N, STAGES)
        elif which == OF_K:
            _send(d_v, s_l, at, bar, i_batch, i_row, i_out, N, STAGES)
            _send(d_do, s_r, at, bar, i_batch, i_row, i_out, N, STAGES)
        else:
            _send(d_k, s_l, at, bar, i_batch, i_row, i_col, N, STAGES)
            _send(d_q, s_r, at, bar, i_batch, i_row, i_col, N, STAGES)
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
        if QK:
            if which == OF_Q:
                async_load(d_ku, [i_batch, i_row, i_col + i_y], bar_u, s_u.index(two))
            if which == OF_K:
                async_load(d_qu, [i_batch, i_row, i_col + i_y], bar_u, s_u.index(two))
        if DV:
            if which == OF_V:
                async_load(d_dou, [i_batch, i_row, i_out + i_y], bar_u, s_u.index(two))
        if GRAD_G and QK:
            if which != OF_V:
                bar_x = full_x.index(two)
                mbarrier.wait(empty_x.index(two), ((i >> 1) & 1) ^ 1)
                mbarrier.expect(bar_x, BV // ROWS * TILE_BYTES)
                if which == OF_Q:
                    async_load(d_qu, [i_batch, i_row, i_col + i_y], bar_x, s_x.index(two))
                else:
                    async_load(d_ku, [i_batch, i_row, i_col + i_y], bar_x, s_x.index(two))


@gluon.jit
def _load(
    given, of_qk, of_v, which, NA: gl.constexpr, NB: gl.constexpr, BY: gl.constexpr, BV: gl.constexpr,
    STAGES: gl.constexpr, GRAD_G: gl.constexpr,
):  # fmt: skip
    """`_load_part` of dq and dk, whose L and R are NA tiles of 64 features and whose Y is BY columns, or of dv.
    Where these differ each is compiled by itself."""
    if NA == NB:
        _load_part(*of_v, *given, which, NB, True, True, BV, STAGES, GRAD_G)
    else:  # only one of both is compiled
        if which == OF_V:
            _load_part(*of_v, *given, which, NB, False, True, BV, STAGES, GRAD_G)
        else:
            _load_part(*of_qk, *given, which, NA, True, False, BY, STAGES, GRAD_G)


@gluon.jit
def _state(
    given, of_qk, of_v, which, NA: gl.constexpr, NB: gl.constexpr, BY: gl.constexpr, BV: gl.constexpr,
    STAGES: gl.constexpr, GRAD_G: gl.constexpr, K: gl.constexpr, V: gl.constexpr, HAS_S0: gl.constexpr,
    HAS_DST: gl.constexpr, STORE_DS0: gl.constexpr, V_FIRST: gl.constexpr,
):  # fmt: skip
    """`state_part` of dq and dk, whose L and R are NA tiles of 64 features and whose Y is BY columns, or of dv.
    Where these differ each is compiled by itself."""
    if NA == NB:
        state_part(*of_v, *given, which, NB, True, True, K, V, BV, STAGES, HAS_S0, HAS_DST, STORE_DS0, V_FIRST, GRAD_G)
    else:  # only one of both is compiled
        if which == OF_V:
            state_part(
                *of_v, *given, which, NB, False, True, K, V, BV, STAGES, HAS_S0, HAS_DST, STORE_DS0, V_FIRST, GRAD_G
            )
        else:
            state_part(
                *of_qk, *given, which, NA, True, False, K, V, BY, STAGES, HAS_S0, HAS_DST, STORE_DS0, V_FIRST, GRAD_G
            )


@gluon.jit
def _output(
    given, of_qk, of_v, which, NA: gl.constexpr, NB: gl.constexpr, BY: gl.constexpr, BV: gl.constexpr,
    STAGES: gl.constexpr, GRAD_G: gl.constexpr,
):  # fmt: skip
    """`output_part` of dq and dk, whose L and R are NA tiles of 64 features and whose Y is BY columns, or of dv.
    Where these differ each is compiled by itself."""
    if NA == NB:
        output_part(*of_v, *given, which, NB, True, True, BV, STAGES, GRAD_G)
    else:  # only one of both is compiled
        if which == OF_V:
            output_part(*of_v, *given, which, NB, False, True, BV, STAGES, GRAD_G)
        else:
            output_part(*of_qk, *given, which, NA, True, False, BY, STAGES, GRAD_G)


@gluon.jit(do_not_specialize=["B", "T", "n_chunks", "n_few", "n_sums", "every"])
def simple_grad_walks_hopper_kernel(
    d_q, d_k, d_v, d_do, d_qu, d_ku, d_dou, d_few, p_c, p_s0, p_dst, p_ds0, p_sums, d_dq, d_dk, d_dv,
    scale, B, T, H, n_chunks, n_few, n_sums, every,
    K: gl.constexpr, V: gl.constexpr, BY: gl.constexpr, BV: gl.constexpr, GK: gl.constexpr, HAS_S0: gl.constexpr,
    HAS_DST: gl.constexpr, STORE_DS0: gl.constexpr, V_FIRST: gl.constexpr, GRAD_G: gl.constexpr,
):  # fmt: skip
    """dq, dk [B, T, H, K] and dv [B, T, H, V], bf16. p_s0, p_dst, p_ds0 [B*H, K, V], float32: the state before all
    chunks, zero without HAS_S0, the gradient of that after them, zero without HAS_DST, and where STORE_DS0, that of the
    state before; V_FIRST: [.., V, K]. p_c: see `simple_decays_kernel`. GK heads share each one of q and k; what each
    adds to dq and dk lies in [GK, B, T, H // GK, K].

    K and BV, of dv the columns of a program, are 128, BY, of dq and dk, is 128 where V is, or 64 where V is 256. qu and
    ku are q and k by BY columns, dou is dO by BV, all else is by 64.

    GRAD_G: p_sums [2, 2, K / BY, B*H, n_chunks * 64] float32, of what comes through the state and of all, of dq and dk,
    what BY columns add; n_sums numbers each of the first two. few [2, B*H, n_few + 1, V, K]: S^T, and dS^T, before
    every so many chunks and after the last, but not between chunks that let nothing pass."""
    NA: gl.constexpr = V // ROWS
    NB: gl.constexpr = K // ROWS
    NY: gl.constexpr = K // BY
    NV: gl.constexpr = V // BV
    STAGES: gl.constexpr = 3 if NA == 2 else 2
    i_p, i_bh = gl.program_id(0) % (2 * NY + NV), gl.program_id(0) // (2 * NY + NV)
    which = gl.where(i_p < NY, OF_K, gl.where(i_p < NY + NV, OF_V, OF_Q))
    i_part = gl.where(i_p < NY, i_p, gl.where(i_p < NY + NV, i_p - NY, i_p - NY - NV))
    i_batch, i_h, i_y = i_bh // H, i_bh % H, i_part * gl.where(which == OF_V, BV, BY)
    i_col, i_out, i_shared = i_h // GK * K, i_h * V, i_h % GK * B + i_batch
    i_of = gl.where(which == OF_K, B * H, 0) + i_bh
    i_few, i_end, n_rows = i_of * (n_few + 1) * V, i_bh.to(gl.int64) * K * V, n_chunks * ROWS
    p_c += i_bh.to(gl.int64) * n_rows
    if GRAD_G:
        p_sums += ((gl.where(which == OF_K, NY, 0) + i_part) * (B * H) + i_bh).to(gl.int64) * n_rows

    OF_ROWS: gl.constexpr = d_q.layout
    s_l = each(gl.bfloat16, [2 * STAGES, 1, ROWS, ROWS], OF_ROWS, NA // 2)
    s_r = each(gl.bfloat16, [2 * STAGES, 1, ROWS, ROWS], OF_ROWS, NA // 2)
    s_z = each(gl.bfloat16, [NA, ROWS, BY], SHARED, 2)
    s_u = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BY], OF_ROWS)
    s_x = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BY], OF_ROWS)
    of_qk = s_u, s_z, s_x
    of_v = of_qk
    if NA == 4:  # of dv: U and Y where there are no more tiles of L and R
        z_0 = reinterpreted(s_z[0], gl.bfloat16, [2, ROWS, BV], SHARED)
        z_1 = reinterpreted(s_z[1], gl.bfloat16, [2, ROWS, BV], SHARED)
        s_u = reinterpreted(s_l[1], gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
        s_x = reinterpreted(s_r[1], gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
        of_v = s_u, (z_0, z_1), s_x
    s_c = each(gl.float32, [2, ROWS], LINE, 2) + each(gl.float32, [2, ROWS], LINE, 2)
    full, empty = barriers(STAGES), barriers(STAGES, 2)
    full_u, full_x, summed, made, free = barriers(2), barriers(2), barriers(2), barriers(2), barriers(2)
    empty_u, empty_x = barriers(2, 2), barriers(2)
    fence_async_shared()
    barrier()

    output = (
        d_dq, d_dk, d_dv, p_sums, s_l, s_r, s_c, full, full_u, full_x, summed, made, free, empty, empty_u, empty_x,
        scale, i_batch, i_shared, i_col + i_y, i_out + i_y, n_chunks, n_sums,
    )  # fmt: skip
    state = (
        d_few, p_c, p_s0, p_dst, p_ds0, s_r, s_c, full, full_u, summed, made, free, empty, empty_u,
        i_end, i_few, i_y, n_chunks, every,
    )  # fmt: skip
    load = (
        d_q, d_k, d_v, d_do, d_qu, d_ku, d_dou, p_c, s_l, s_r, s_c,
        full, full_u, full_x, summed, empty, empty_u, empty_x, scale, i_batch, i_col, i_out, i_y, n_chunks,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_output, (output, of_qk, of_v, which, NA, NB, BY, BV, STAGES, GRAD_G)),
            (
                _state,
                (
                    state, of_qk, of_v, which, NA, NB, BY, BV, STAGES, GRAD_G,
                    K, V, HAS_S0, HAS_DST, STORE_DS0, V_FIRST,
                ),
            ),
            (_load, (load, of_qk, of_v, which, NA, NB, BY, BV, STAGES, GRAD_G)),
        ],
        [4, 1],
        [REGISTERS, FEW_REGISTERS],
    )  # fmt: skip
