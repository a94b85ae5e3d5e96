"""dQ, dK and the gate's gradient on Hopper over runs of chunks, in Gluon: what grad_qk_runs.py computes, where V is so
wide that a program has a multiprocessor to itself. Four groups of warps have a part each:

    products   A, X and Y of a chunk, with one tile of V on its way while the next is begun, and all that comes of them.
    state      (grad_qk_wide_state.py) D and k e^D; of each tile S dS^T, for Phi, and S <- e^{2h} S + (k e^D as
               bf16)^T V. What rounding S leaves stays in registers.
    load       one warp, which sends for what the others are done with.
    store      one warp, which sends off dq, dk and dg. With gates in float32 the products' part does, as dg leaves from
               where dq was.

What bounds it: the state's part is about as long as the products', a chunk's last tiles wait for memory, and in what
follows the last tile nothing is loaded but the next chunk's first STAGES tiles.

Shared memory, in tiles of 64 by 64: S as products read it, V / 64; STAGES of dO, V and dS; q, k, g; A's leading bits,
then dk; A's next ones, then dg; L and U. dq leaves from where q was. h and Phi's sums over V beside.

Barriers; each counts one arrival, in those that tell of loads the one with the expected bytes. Of stages, a tile of V:

    full       dO, V, dS have come                                              load -> products, state
    done       the products are done with them, and with the tile of S          products -> state
    empty      so is the state                                                  state -> load

of each tile of V, a chunk:

    made       S after the chunk lies there                                     state -> products

a chunk:

    rows       g and k have come, and h lies there                              load -> products, state
    left, let  they are done with                                               products -> load, state -> load
    bar_q      q has come                                                       load -> products
    ready      dq, dk and dg lie there                                          products -> store
    gone       they have left                                                   store or products -> load, products
    summed     Phi's sums lie there; every `done` of the chunk came before      state -> products

and once:

    first      all of S before the run has come                                 load -> products, state

No barrier gets a phase ahead of who waits for it: each next arrival comes after what the wait made possible. And nobody
waits in a ring. Products are done with a tile once the next one's are begun, and the state leaves a tile's stage before
it waits for the next one: STAGES is 2 or more. A chunk's q is sent for once all its tiles are that need no more than
that its first two are done with: by then the gradients of the chunk before have mostly left.
"""

# mypy: disallow-untyped-defs=False
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from ...launch.tritons import async_load, barrier
from ...tiles.hopper import (
    ACCUMULATOR,
    EVERYWHERE,
    LINE,
    ROWS,
    SHARED,
    TILE_BYTES,
    barriers,
    cut,
    features_first,
    matrix,
    rounded,
)
from .grad_qk_rows import (
    after_rows,
    gates_begun,
    leave,
    lie_down,
    places,
    run_of_program,
    scores_in_parts,
    send,
    send_off,
    send_values,
    stage_of,
    sums_begun,
    through_scores,
    triangles,
    zero_of_tile,
)
from .grad_qk_wide_state import state_part
from .layouts import LEAST_HALF, inverse_exp2
from .packed import head_and_tail, passes, sums_in_sequences, within_sequences
from .strong_gates import hidden_zero
from .walk import FEW_REGISTERS, REGISTERS

ONE_WARP = gl.constexpr(gl.BlockedLayout([2], [32], [1], [0]))


@gluon.jit
def _load_part(
    d_q, d_k, d_v, d_g, d_do, d_few, d_ds, p_h, s_q, s_k, s_g, s_do, s_v, s_ds, s_s, s_h,
    full, empty, first, rows, left, let, bar_q, gone,
    i_batch, i_row0, i_col, i_out, i_state, i_few, count, K: gl.constexpr, NV: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Send for everything, in the order in which it is needed, as soon as there is room."""
    BEFORE_Q: gl.constexpr = STAGES + 1 if STAGES + 1 < NV else NV - 1  # a tile of V
    p_h += gl.arange(0, ROWS, ONE_WARP)
    b_half = gl.load(p_h)
    for i_c in range(count):
        i_row, free = i_row0 + i_c * ROWS, (i_c & 1) ^ 1
        mbarrier.wait(left, free)
        mbarrier.wait(let, free)
        s_h.store(b_half)
        barrier()
        mbarrier.expect(rows, (3 if d_g.dtype == gl.float32 else 2) * TILE_BYTES)
        async_load(d_g, [i_batch, i_row, i_col], rows, s_g)
        async_load(d_k, [i_batch, i_row, i_col], rows, s_k)
        p_h += gl.where(i_c + 1 < count, K, 0)
        b_half = gl.load(p_h)
        if i_c == 0:
            mbarrier.expect(first, NV * TILE_BYTES)
            for i_v in gl.static_range(NV):
                async_load(d_few, [i_few, i_v * ROWS], first, s_s.index(i_v))
        for i_v in range(NV):
            i_tile = i_c * NV + i_v
            at = i_tile % STAGES
            mbarrier.wait(empty.index(at), ((i_tile // STAGES) & 1) ^ 1)
            send_values(
                d_do, d_v, d_ds, s_do, s_v, s_ds, full, at, i_batch, i_row, i_out, i_state + i_c * K, i_v * ROWS
            )
            if i_v == BEFORE_Q:
                mbarrier.wait(gone, free)
                send(d_q, s_q, bar_q, i_batch, i_row, i_col)


@gluon.jit
def _store_part(d_dq, d_dk, d_dg, p_h, s_q, s_high, s_low, ready, gone, i_batch, i_row0, i_col, count, K: gl.constexpr):
    """dq, dk and dg leave, where gates are in bfloat16."""
    if d_dg.dtype == gl.bfloat16:
        p_h += gl.arange(0, ROWS, ONE_WARP)
        b_half = gl.load(p_h)
        for i_c in range(count):
            mild = gl.min(b_half, axis=0) > LEAST_HALF
            p_h += gl.where(i_c + 1 < count, K, 0)
            b_half = gl.load(p_h)
            mbarrier.wait(ready, i_c & 1)
            if mild:
                send_off(d_dq, d_dk, d_dg, s_q, s_high, s_low, i_batch, i_row0 + i_c * ROWS, i_col)
            tma.store_wait(0)
            barrier()
            mbarrier.arrive(gone)


@gluon.jit
def _begin(
    b_a, b_x, b_y, s_do, s_v, s_ds, s_s, full, made, i_c, i_v: gl.constexpr, NV: gl.constexpr, STAGES: gl.constexpr
):
    """A, X and Y of one tile more."""
    at, turn = stage_of(i_c, i_v, NV, STAGES)
    nil = zero_of_tile(i_c, i_v)
    mbarrier.wait(full.index(at), turn)
    mbarrier.wait(made.index(i_v), (i_c & 1) ^ 1)
    b_do, b_v = matrix(s_do.index(at + nil)), matrix(s_v.index(at + nil))
    b_a = warpgroup_mma(b_do, b_v.permute((1, 0)), b_a, is_async=True)
    b_x = warpgroup_mma(s_s.index(i_v + nil), b_do.permute((1, 0)), b_x, is_async=True)
    b_y = warpgroup_mma(s_ds.index(at + nil), b_v.permute((1, 0)), b_y, is_async=True)
    return b_a, b_x, b_y


@gluon.jit
def _done(done, i_c, i_v: gl.constexpr, NV: gl.constexpr, STAGES: gl.constexpr):
    """Tell of a tile that every warp is done with."""
    at = stage_of(i_c, i_v, NV, STAGES)[0]
    barrier()
    mbarrier.arrive(done.index(at))


@gluon.jit
def _products_part(
    d_dq, d_dk, d_dg, t_q, t_k, t_g, s_do, s_v, s_ds, s_s, t_high, t_low, t_dg, s_l, s_u, s_h, s_phi,
    full, done, first, made, rows, left, bar_q, ready, gone, summed,
    p_marks, p_edges, scale, i_batch, i_row0, i_col, count,
    NV: gl.constexpr, STAGES: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """dq, dk and dg of every chunk."""
    WIDE: gl.constexpr = t_g.dtype == gl.float32
    mixed = count < 0  # whether U is of several sequences
    mbarrier.wait(first, 0)
    for i_c in range(count):
        i_row, phase = i_row0 + i_c * ROWS, i_c & 1
        nil = hidden_zero(i_row)
        s_q, s_k, s_g, s_high, s_low = (
            t_q.index(nil),
            t_k.index(nil),
            t_g.index(nil),
            t_high.index(nil),
            t_low.index(nil),
        )
        b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
        passing = count > 0
        if PACKED:
            head, tail = head_and_tail(p_edges, i_row)
            passing = passes(head, tail)

        # dA, and what comes through the states; C = h - D, and K
        b_a, b_x, b_y = _begin(b_zero, b_zero, b_zero, s_do, s_v, s_ds, s_s, full, made, i_c, 0, NV, STAGES)
        mbarrier.wait(rows, phase)
        b_d = gates_begun(s_g, s_l)
        b_half = s_h.load(gl.SliceLayout(1, ACCUMULATOR))
        b_a, b_x, b_y = _begin(b_a, b_x, b_y, s_do, s_v, s_ds, s_s, full, made, i_c, 1, NV, STAGES)
        b_a, b_x, b_y, b_d = warpgroup_mma_wait(3, (b_a, b_x, b_y, b_d))
        b_a, b_x, b_y = warpgroup_mma_init(b_a), warpgroup_mma_init(b_x), warpgroup_mma_init(b_y)
        _done(done, i_c, 0, NV, STAGES)
        b_d = after_rows(b_d, nil)
        b_kh, b_kl = cut(features_first(s_k) * gl.exp2(b_d - b_half[:, None]))
        mild = True
        if WIDE:
            mild = gl.min(s_h.load(gl.SliceLayout(0, EVERYWHERE)), axis=0) > LEAST_HALF
            tma.store_wait(0)
        barrier()  # every warp is done with g, k and h
        mbarrier.arrive(left)
        if WIDE:
            mbarrier.arrive(gone, pred=i_c > 0)
        for i_v in gl.static_range(2, NV):
            b_a, b_x, b_y = _begin(b_a, b_x, b_y, s_do, s_v, s_ds, s_s, full, made, i_c, i_v, NV, STAGES)
            b_a, b_x, b_y = warpgroup_mma_wait(3, (b_a, b_x, b_y))
            b_a, b_x, b_y = warpgroup_mma_init(b_a), warpgroup_mma_init(b_x), warpgroup_mma_init(b_y)
            _done(done, i_c, i_v - 1, NV, STAGES)
        b_a, b_x, b_y = warpgroup_mma_wait(0, (b_a, b_x, b_y))
        _done(done, i_c, NV - 1, NV, STAGES)

        if PACKED:
            if not passing:
                b_a, b_x, b_y = within_sequences(b_a, b_x, b_y, p_marks, p_edges, i_row)
            if not WIDE:
                if mixed | (not passing):
                    sums_in_sequences(s_u, p_marks, i_row)
                mixed = not passing
        b_ah, b_al = scores_in_parts(b_a, scale, nil)
        if not WIDE:
            mbarrier.wait(gone, phase ^ 1)  # the gradients of the chunk before have left
        s_high.store(b_ah)
        s_low.store(b_al)
        b_h = gl.exp2(b_half)
        b_x = b_x * (scale * b_h)[:, None]
        fence_async_shared()
        barrier()  # A lies there
        b_phi = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, ACCUMULATOR))
        b_y, b_diff, b_phi = through_scores(
            b_x, b_y, b_phi, b_kh, b_kl, b_d, b_half, b_h, s_q, s_high, s_low, bar_q, phase
        )
        b_dg = sums_begun(b_diff, s_u, WIDE)
        b_dk = rounded(b_y * inverse_exp2(b_half[:, None] - b_d))
        mbarrier.wait(summed, phase)
        b_crossing = s_phi.load(gl.SliceLayout(1, ACCUMULATOR)) * (b_h * b_h)
        if PACKED:
            b_crossing = gl.where(passing, b_crossing, 0.0)
        b_phi += b_crossing
        if WIDE:
            leave(
                b_dg, b_dk, b_phi, b_diff, mild, passing, d_dq, d_dk, d_dg, s_q, s_high, s_low, t_dg.index(nil),
                p_marks, p_edges, i_batch, i_row, i_col, nil, PACKED,
            )  # fmt: skip
        else:
            lie_down(b_dg, b_dk, b_phi, passing, s_high, s_low, p_edges, i_row, PACKED)
            mbarrier.arrive(ready)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_blocks", "n_here", "first_chunk", "n_stored", "n_few", "every", "n_rows"])
def grad_qk_wide_runs_hopper_kernel(
    d_q, d_k, d_v, d_g, d_do, d_s, d_few, d_ds, p_h, p_marks, p_edges, p_sn, p_hv, p_strong, d_dq, d_dk, d_dg,
    scale, H, n_blocks, n_here, first_chunk, n_stored, n_few, every, n_rows, n_heads,
    K: gl.constexpr, V: gl.constexpr, STAGES: gl.constexpr,
    PACKED: gl.constexpr, HAS_SN: gl.constexpr, V_FIRST: gl.constexpr, FRAMED: gl.constexpr, KEPT: gl.constexpr,
):  # fmt: skip
    """As `grad_qk_runs_hopper_kernel`. STAGES is 2 or more."""
    NV: gl.constexpr = V // ROWS
    WIDE: gl.constexpr = d_g.dtype == gl.float32
    count, i_batch, i_row0, i_col, i_out, i_state, i_few, p_h = run_of_program(
        p_h, H, n_blocks, n_here, first_chunk, n_stored, n_few, every, K, V, KEPT
    )

    t_q, t_k, t_g, t_high, t_low, t_dg, s_do, s_v, s_ds, s_s, s_u = places(
        d_q, d_k, d_g, d_do, d_v, d_ds, d_few, NV, STAGES
    )
    if FRAMED:
        i_first = (i_batch * H + i_out // V) * n_blocks + i_row0 // ROWS
        p_hv += i_first.to(gl.int64) * V
        p_strong += i_first.to(gl.int64) * NV
    s_l = s_u
    if not WIDE:
        s_l = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    s_h = gl.allocate_shared_memory(gl.float32, [ROWS], LINE)
    s_phi = gl.allocate_shared_memory(gl.float32, [ROWS], LINE)
    full, done, empty = barriers(STAGES), barriers(STAGES), barriers(STAGES)
    made, first = barriers(NV), barriers(1).index(0)
    rows, left, let = barriers(1).index(0), barriers(1).index(0), barriers(1).index(0)
    bar_q, summed = barriers(1).index(0), barriers(1).index(0)
    ready, gone = barriers(1).index(0), barriers(1).index(0)
    triangles(s_u, s_l, WIDE)
    fence_async_shared()
    barrier()

    gl.warp_specialize(
        [
            (
                _products_part,
                (
                    d_dq, d_dk, d_dg,
                    t_q, t_k, t_g, s_do, s_v, s_ds, s_s, t_high, t_low, t_dg, s_l, s_u, s_h, s_phi,
                    full, done, first, made, rows, left, bar_q, ready, gone, summed,
                    p_marks, p_edges, scale, i_batch, i_row0, i_col, count, NV, STAGES, PACKED,
                ),
            ),
            (
                state_part,
                (
                    d_s, t_k.index(0), t_g.index(0), s_v, s_ds, s_s, s_l, s_h, s_phi,
                    full, done, empty, first, made, rows, let, summed, p_marks, p_edges, p_sn, p_hv, p_strong, n_rows,
                    i_out // V, n_heads, i_col % K, i_row0, i_state, count,
                    K, V, STAGES, PACKED, HAS_SN, V_FIRST, FRAMED,
                ),
            ),
            (
                _load_part,
                (
                    d_q, d_k, d_v, d_g, d_do, d_few, d_ds, p_h,
                    t_q.index(0), t_k.index(0), t_g.index(0), s_do, s_v, s_ds, s_s, s_h,
                    full, empty, first, rows, left, let, bar_q, gone,
                    i_batch, i_row0, i_col, i_out, i_state, i_few, count, K, NV, STAGES,
                ),
            ),
            (
                _store_part,
                (
                    d_dq, d_dk, d_dg, p_h, t_q.index(0), t_high.index(0), t_low.index(0), ready, gone,
                    i_batch, i_row0, i_col, count, K,
                ),
            ),
        ],
        [4, 1, 1],
        [REGISTERS, FEW_REGISTERS, FEW_REGISTERS],
    )  # fmt: skip
