"""A walk over time on Hopper, in Gluon, for heads so wide that what decays q and k, and their scores, would have to be
made again for every tile of V: prepare.py makes them once. What is left is products.

    forward    o  = Q S + A v        S  <- e^{2h} S + K^T v        with Q, K and A as prepare.py has them
    backward   dv = K dS + A^T do    dS <- e^{2h} dS + Q^T do      the last chunk first

Both are one kernel: z = X S + A u, S <- f S + Y^T u. The state lies in registers, turned, and never leaves them: S^T is
the accumulator of one product and, as bfloat16, the left operand of the next,

    z^T = S^T X^T + u^T A^T,    S^T <- f S^T + u^T Y

A group of four warps has 64 columns of V and all of K; one or two groups share what one warp sends for. Right at any
gate strength, because Q, K and A are. Of every quarter of the state, 64 features, its own product is on its way while
the next one is cut to bfloat16. With more at once the compiler has each product waited for: registers do not suffice.

Packed sequences: what does not pass a chunk is not in X, Y, A and f (prepare.py), and the walk knows of none but where
they have states. A state that leaves, of a sequence that ends in the chunk, or backward begins in it, is stored as it
comes into the chunk; `edges` does the rest. One that enters is added to what the chunk leaves.

Shared memory: UNITS of X and Y, 64 features each; A in two parts, u and f of two chunks; z and, where states are
stored, two tiles of them for each group. Barriers; those of loads count one arrival with the expected bytes, those of
consumers one of each group:

    full, empty          of a unit
    full_u, empty_u      of A, u and f
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

from ...launch.tritons import async_load, async_store, barrier
from ...tiles.hopper import ACCUMULATOR, LINE, OPERAND, ROWS, TILE_BYTES, barriers, matrix, rounded
from .strong_gates import hidden_zero
from .walk import FEW_REGISTERS, REGISTERS

NK = gl.constexpr(4)  # tiles of 64 features
WIDE_K = gl.constexpr(256)
SLOTS = gl.constexpr(2)  # tiles of states that may be leaving, of a group
ONE_WARP = gl.constexpr(gl.BlockedLayout([2], [32], [1], [0]))


@gluon.jit
def chunk_of(i, n_here, REVERSE: gl.constexpr):
    """The i-th chunk of the walk, from the segment's first."""
    return n_here - 1 - i if REVERSE else i


@gluon.jit
def turned_state_at(o_k, o_v, V: gl.constexpr, V_FIRST: gl.constexpr):
    """Where 64 features of a state, turned, lie in a [K, V] matrix, or V_FIRST, in a [V, K] one; and how far it is to
    the next 64."""
    if V_FIRST:
        return o_v[:, None] * WIDE_K + o_k[None, :], ROWS
    else:  # noqa: RET505 - only one of both is compiled
        return o_v[:, None] + o_k[None, :] * V, ROWS * V


@gluon.jit
def _store_quarters(p_x, b_0, b_1, b_2, b_3, o_k, o_v, V: gl.constexpr, V_FIRST: gl.constexpr):
    o_x, NEXT = turned_state_at(o_k, o_v, V, V_FIRST)
    gl.store(p_x + o_x, b_0)
    gl.store(p_x + NEXT + o_x, b_1)
    gl.store(p_x + 2 * NEXT + o_x, b_2)
    gl.store(p_x + 3 * NEXT + o_x, b_3)


@gluon.jit
def _entering(p_x, p_e, o_k, o_v, V: gl.constexpr, V_FIRST: gl.constexpr):
    """A quarter of a state that enters in a chunk, decayed to where it leaves it."""
    o_x, _ = turned_state_at(o_k, o_v, V, V_FIRST)
    return gl.load(p_x + o_x) * gl.exp2(2.0 * gl.load(p_e + o_k))[None, :]


@gluon.jit
def quarters_at(p_x):
    """A row of all features, 64 at a time."""
    return gl.load(p_x), gl.load(p_x + ROWS), gl.load(p_x + 2 * ROWS), gl.load(p_x + 3 * ROWS)


@gluon.jit
def send_decays(b_h, s_f, at):
    """A chunk's decay of all features, from half of its logarithm, to where the walk reads it."""
    for t in gl.static_range(NK):
        s_f.index(at * NK + t).store(gl.exp2(2.0 * b_h[t]))
    barrier()


@gluon.jit
def _borders_of(p_borders, i_c, REVERSE: gl.constexpr):
    """The sequence whose state leaves in a chunk, and the one whose state enters, -1 for none."""
    p_ends, p_begins = p_borders + 2 * i_c, p_borders + 2 * i_c + 1
    if REVERSE:
        return gl.load(p_begins).to(gl.int64), gl.load(p_ends).to(gl.int64)
    else:  # noqa: RET505 - only one of both is compiled
        return gl.load(p_ends).to(gl.int64), gl.load(p_begins).to(gl.int64)


@gluon.jit
def _load_part(
    d_x, d_y, d_a, d_u, p_h, s_x, s_y, s_a, s_u, s_f, full, empty, full_u, empty_u,
    i_batch, i_row0, i_h, i_out, n_here, GROUPS: gl.constexpr, UNITS: gl.constexpr, REVERSE: gl.constexpr,
):  # fmt: skip
    """Send for everything in the order in which it is needed, as soon as there is room."""
    p_first = p_h + gl.arange(0, ROWS, ONE_WARP)
    p_half = p_first + chunk_of(0, n_here, REVERSE) * WIDE_K
    b_h = quarters_at(p_half)
    for i in range(n_here):
        at, i_row = i & 1, i_row0 + chunk_of(i, n_here, REVERSE) * ROWS
        mbarrier.wait(empty_u.index(at), ((i >> 1) & 1) ^ 1)
        send_decays(b_h, s_f, at)
        bar = full_u.index(at)
        mbarrier.expect(bar, (2 + GROUPS) * TILE_BYTES)
        async_load(d_a, [i_batch, i_row, i_h * 2 * ROWS], bar, s_a.index(at * 2))
        async_load(d_a, [i_batch, i_row, i_h * 2 * ROWS + ROWS], bar, s_a.index(at * 2 + 1))
        for j in gl.static_range(GROUPS):
            async_load(d_u, [i_batch, i_row, i_out + j * ROWS], bar, s_u.index(at * GROUPS + j))
        # a chunk ahead: who waits for these waits for memory
        p_half = p_first + chunk_of(gl.minimum(i + 1, n_here - 1), n_here, REVERSE) * WIDE_K
        b_h = quarters_at(p_half)
        for t in gl.static_range(NK):
            n = i * NK + t
            unit = n % UNITS
            mbarrier.wait(empty.index(unit), ((n // UNITS) & 1) ^ 1)
            mbarrier.expect(full.index(unit), 2 * TILE_BYTES)
            async_load(d_x, [i_batch, i_row, i_h * WIDE_K + t * ROWS], full.index(unit), s_x.index(unit))
            async_load(d_y, [i_batch, i_row, i_h * WIDE_K + t * ROWS], full.index(unit), s_y.index(unit))


@gluon.jit
def _quarter(
    b_s, b_o, b_u, s_high, s_low, s_x, s_y, s_f, s_s, full, empty, d_s, n, i_state, i_v, stored,
    t: gl.constexpr, J: gl.constexpr, UNITS: gl.constexpr, STORE_S: gl.constexpr,
):  # fmt: skip
    """z with what 64 features of the state add to it, and they themselves after the chunk, on their way; those before
    it leave. Of the quarter before everything is done then."""
    at = n % UNITS
    b_x = rounded(b_s)
    if STORE_S:
        if stored:
            s_s.index(J * SLOTS + t % SLOTS).permute((1, 0)).store(b_x)
            fence_async_shared()
    b_x = gl.convert_layout(b_x, OPERAND, True)
    mbarrier.wait(full.index(at), (n // UNITS) & 1)
    b_s = b_s * s_f.load(gl.SliceLayout(0, ACCUMULATOR))[None, :]
    if t == 0:
        b_o = warpgroup_mma(b_u, s_high, b_o, use_acc=False, is_async=True)
        b_o = warpgroup_mma(b_u, s_low, b_o, is_async=True)
    b_o = warpgroup_mma(b_x, matrix(s_x.index(at)).permute((1, 0)), b_o, is_async=True)
    b_s = warpgroup_mma(b_u, matrix(s_y.index(at)), b_s, is_async=True)
    b_o, b_x = warpgroup_mma_wait(1, (b_o, b_x))
    b_o = warpgroup_mma_init(b_o)
    if STORE_S or t == 0:
        tma.store_wait(0)
    barrier()  # every warp is done with the unit before; the state's tile lies there, and the one before has left
    if t > 0:
        mbarrier.arrive(empty.index((n - 1) % UNITS))
    if STORE_S:
        if stored:
            async_store(d_s, [i_state + t * ROWS, i_v], s_s.index(J * SLOTS + t % SLOTS))
    return b_s, b_o


@gluon.jit
def _walk_part(
    d_z, d_s, p_s0, p_st, p_sn, p_e, p_borders, s_x, s_y, s_a, s_u, s_f, s_z, s_s, full, empty, full_u, empty_u,
    i_batch, i_row0, i_out, i_state, until, every, store_st, n_here, step_n, J: gl.constexpr,
    V: gl.constexpr, GROUPS: gl.constexpr, UNITS: gl.constexpr, REVERSE: gl.constexpr,
    HAS_S0: gl.constexpr, STORE_S: gl.constexpr, STORE_ST: gl.constexpr,
    PACKED: gl.constexpr, HAS_SN: gl.constexpr, V_FIRST: gl.constexpr, S0_V_FIRST: gl.constexpr,
):  # fmt: skip
    """64 columns of V of all chunks. step_n: from a state of one sequence to the next one's."""
    o_v, o_k = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)), gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    i_v = i_out % V + J * ROWS
    i_out = i_out + J * ROWS
    b_s0 = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_s1, b_s2, b_s3 = b_s0, b_s0, b_s0
    if HAS_S0:
        o_s0, NEXT = turned_state_at(o_k, i_v + o_v, V, S0_V_FIRST)
        b_s0, b_s1 = gl.load(p_s0 + o_s0), gl.load(p_s0 + NEXT + o_s0)
        b_s2, b_s3 = gl.load(p_s0 + 2 * NEXT + o_s0), gl.load(p_s0 + 3 * NEXT + o_s0)
    s_z = s_z.index(J)
    if PACKED:
        next_leaves, next_enters = _borders_of(p_borders, chunk_of(0, n_here, REVERSE), REVERSE)
    for i in range(n_here):
        at, n = i & 1, i * NK
        i_row = i_row0 + chunk_of(i, n_here, REVERSE) * ROWS
        stored = chunk_of(i, n_here, REVERSE) % every == until
        if PACKED:  # a chunk ahead
            leaves, enters = next_leaves, next_enters
            i_next = chunk_of(gl.minimum(i + 1, n_here - 1), n_here, REVERSE)
            next_leaves, next_enters = _borders_of(p_borders, i_next, REVERSE)
            if STORE_ST:
                if leaves >= 0:
                    o_turned = i_v + o_v + hidden_zero(i_row)
                    _store_quarters(p_st + leaves * step_n, b_s0, b_s1, b_s2, b_s3, o_k, o_turned, V, V_FIRST)
        mbarrier.wait(full_u.index(at), (i >> 1) & 1)
        b_u = matrix(s_u.index(at * GROUPS + J)).permute((1, 0)).load(OPERAND)
        s_high, s_low = matrix(s_a.index(at * 2)), matrix(s_a.index(at * 2 + 1))
        if not REVERSE:
            s_high, s_low = s_high.permute((1, 0)), s_low.permute((1, 0))
        b_o = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
        b_s0, b_o = _quarter(
            b_s0, b_o, b_u, s_high, s_low, s_x, s_y, s_f.index(at * NK + 0), s_s, full, empty, d_s,
            n, i_state, i_v, stored, 0, J, UNITS, STORE_S,
        )  # fmt: skip
        b_s1, b_o = _quarter(
            b_s1, b_o, b_u, s_high, s_low, s_x, s_y, s_f.index(at * NK + 1), s_s, full, empty, d_s,
            n + 1, i_state, i_v, stored, 1, J, UNITS, STORE_S,
        )  # fmt: skip
        b_s2, b_o = _quarter(
            b_s2, b_o, b_u, s_high, s_low, s_x, s_y, s_f.index(at * NK + 2), s_s, full, empty, d_s,
            n + 2, i_state, i_v, stored, 2, J, UNITS, STORE_S,
        )  # fmt: skip
        b_s3, b_o = _quarter(
            b_s3, b_o, b_u, s_high, s_low, s_x, s_y, s_f.index(at * NK + 3), s_s, full, empty, d_s,
            n + 3, i_state, i_v, stored, 3, J, UNITS, STORE_S,
        )  # fmt: skip
        b_o = warpgroup_mma_wait(1, (b_o,))
        matrix(s_z).permute((1, 0)).store(rounded(b_o))
        fence_async_shared()
        b_s0, b_s1, b_s2, b_s3, b_u = warpgroup_mma_wait(0, (b_s0, b_s1, b_s2, b_s3, b_u))
        barrier()  # every warp is done with the chunk, and z lies there
        mbarrier.arrive(empty.index((n + 3) % UNITS))
        mbarrier.arrive(empty_u.index(at))
        async_store(d_z, [i_batch, i_row, i_out], s_z)
        i_state = i_state + gl.where(stored, -WIDE_K if REVERSE else WIDE_K, 0)
        if PACKED:
            if HAS_SN:
                if enters >= 0:
                    o_turned = i_v + o_v + hidden_zero(i_row)
                    p_at, p_decay = p_sn + enters * step_n, p_e + chunk_of(i, n_here, REVERSE) * WIDE_K
                    _, NEXT_SN = turned_state_at(o_k, o_turned, V, V_FIRST)
                    b_s0 += _entering(p_at, p_decay, o_k, o_turned, V, V_FIRST)
                    b_s1 += _entering(p_at + NEXT_SN, p_decay + ROWS, o_k, o_turned, V, V_FIRST)
                    b_s2 += _entering(p_at + 2 * NEXT_SN, p_decay + 2 * ROWS, o_k, o_turned, V, V_FIRST)
                    b_s3 += _entering(p_at + 3 * NEXT_SN, p_decay + 3 * ROWS, o_k, o_turned, V, V_FIRST)
    if STORE_ST and not PACKED:
        if store_st:
            # made here: places that the compiler knew from the loads would stay in registers all along
            o_turned = i_v + o_v + hidden_zero(n_here)
            _store_quarters(p_st, b_s0, b_s1, b_s2, b_s3, o_k, o_turned, V, V_FIRST)
    tma.store_wait(0)


@gluon.jit
def _walk(
    d_x, d_y, d_a, d_u, p_h, p_s0, d_s, p_st, p_sn, p_e, p_borders, d_z,
    T, H, n_seg, first_seg, n_start, n_stored, seg_rows, every,
    V: gl.constexpr, GROUPS: gl.constexpr, UNITS: gl.constexpr, REVERSE: gl.constexpr,
    HAS_S0: gl.constexpr, STORE_S: gl.constexpr, STORE_ST: gl.constexpr,
    PACKED: gl.constexpr, HAS_SN: gl.constexpr, V_FIRST: gl.constexpr, S0_V_FIRST: gl.constexpr,
):  # fmt: skip
    """z of a segment and GROUPS times 64 columns of V. STORE_S: d_s is given a state every so many chunks."""
    NV: gl.constexpr = V // (GROUPS * ROWS)
    i_p = gl.program_id(0)
    i_v, i_seg, i_bh = i_p % NV, (i_p // NV) % n_seg, i_p // (NV * n_seg)
    i_batch, i_h = i_bh // H, i_bh % H
    i_out = i_h * V + i_v * GROUPS * ROWS
    seg_blocks = seg_rows // ROWS
    n_blocks = (T + ROWS - 1) // ROWS
    first = (first_seg + i_seg) * seg_blocks
    n_here = gl.minimum(n_blocks - first, seg_blocks)
    i_row0 = first * ROWS
    if REVERSE:
        until = gl.to_tensor(0)
        i_state = (i_bh * n_stored + i_seg * seg_blocks + n_here - 1) * WIDE_K
        ends = i_seg == 0
    else:
        n_before = (first + every - 1) // every
        until = n_before * every - first
        i_state = (i_bh * n_stored + n_before) * WIDE_K
        ends = i_seg == n_seg - 1
    p_h += (i_bh.to(gl.int64) * n_blocks + first) * WIDE_K
    if HAS_S0:
        p_s0 += (i_bh.to(gl.int64) * n_start + (first_seg + i_seg) % n_start) * WIDE_K * V
    if STORE_ST:
        p_st += (i_h if PACKED else i_bh).to(gl.int64) * WIDE_K * V
    step_n = 0
    if PACKED:
        p_borders += 2 * first
        step_n = H * WIDE_K * V
        if HAS_SN:
            p_sn += i_h.to(gl.int64) * WIDE_K * V
            p_e += (i_bh.to(gl.int64) * n_blocks + first) * WIDE_K

    OF_ROWS: gl.constexpr = d_x.layout
    s_x = gl.allocate_shared_memory(gl.bfloat16, [UNITS, 1, ROWS, ROWS], OF_ROWS)
    s_y = gl.allocate_shared_memory(gl.bfloat16, [UNITS, 1, ROWS, ROWS], OF_ROWS)
    s_f = gl.allocate_shared_memory(gl.float32, [2 * NK, ROWS], LINE)
    s_a = gl.allocate_shared_memory(gl.bfloat16, [4, 1, ROWS, ROWS], OF_ROWS)
    s_u = gl.allocate_shared_memory(gl.bfloat16, [2 * GROUPS, 1, ROWS, ROWS], OF_ROWS)
    s_z = gl.allocate_shared_memory(gl.bfloat16, [GROUPS, 1, ROWS, ROWS], OF_ROWS)
    s_s = s_z
    if STORE_S:
        s_s = gl.allocate_shared_memory(gl.bfloat16, [SLOTS * GROUPS, ROWS, ROWS], d_s.layout)
    full, empty = barriers(UNITS), barriers(UNITS, GROUPS)
    full_u, empty_u = barriers(2), barriers(2, GROUPS)
    fence_async_shared()
    barrier()

    if GROUPS == 2:
        gl.warp_specialize(
            [
                (
                    _walk_part,
                    (
                        d_z, d_s, p_s0, p_st, p_sn, p_e, p_borders, s_x, s_y, s_a, s_u, s_f, s_z, s_s,
                        full, empty, full_u, empty_u,
                        i_batch, i_row0, i_out, i_state, until, every, ends, n_here, step_n,
                        0, V, GROUPS, UNITS, REVERSE, HAS_S0, STORE_S, STORE_ST, PACKED, HAS_SN,
                        V_FIRST, S0_V_FIRST,
                    ),
                ),
                (
                    _walk_part,
                    (
                        d_z, d_s, p_s0, p_st, p_sn, p_e, p_borders, s_x, s_y, s_a, s_u, s_f, s_z, s_s,
                        full, empty, full_u, empty_u,
                        i_batch, i_row0, i_out, i_state, until, every, ends, n_here, step_n,
                        1, V, GROUPS, UNITS, REVERSE, HAS_S0, STORE_S, STORE_ST, PACKED, HAS_SN,
                        V_FIRST, S0_V_FIRST,
                    ),
                ),
                (
                    _load_part,
                    (
                        d_x, d_y, d_a, d_u, p_h, s_x, s_y, s_a, s_u, s_f, full, empty, full_u, empty_u,
                        i_batch, i_row0, i_h, i_out, n_here, GROUPS, UNITS, REVERSE,
                    ),
                ),
            ],
            [4, 1],
            [REGISTERS, FEW_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (
                    _walk_part,
                    (
                        d_z, d_s, p_s0, p_st, p_sn, p_e, p_borders, s_x, s_y, s_a, s_u, s_f, s_z, s_s,
                        full, empty, full_u, empty_u,
                        i_batch, i_row0, i_out, i_state, until, every, ends, n_here, step_n,
                        0, V, GROUPS, UNITS, REVERSE, HAS_S0, STORE_S, STORE_ST, PACKED, HAS_SN,
                        V_FIRST, S0_V_FIRST,
                    ),
                ),
                (
                    _load_part,
                    (
                        d_x, d_y, d_a, d_u, p_h, s_x, s_y, s_a, s_u, s_f, full, empty, full_u, empty_u,
                        i_batch, i_row0, i_h, i_out, n_here, GROUPS, UNITS, REVERSE,
                    ),
                ),
            ],
            [1],
            [FEW_REGISTERS],
        )  # fmt: skip


SIZES = ["T", "n_seg", "first_seg", "n_stored", "seg_rows"]


@gluon.jit(do_not_specialize=[*SIZES, "n_start", "n_few", "every"])
def walk_wide_hopper_kernel(
    d_qd, d_kd, d_a, d_v, p_h, p_s0, d_s, d_few, p_st, p_sn, p_e, p_borders, d_o,
    T, H, n_seg, first_seg, n_start, n_stored, n_few, seg_rows, every,
    V: gl.constexpr, GROUPS: gl.constexpr, UNITS: gl.constexpr, HAS_S0: gl.constexpr, STORE_S: gl.constexpr,
    STORE_FEW: gl.constexpr, STORE_ST: gl.constexpr, PACKED: gl.constexpr, HAS_SN: gl.constexpr,
    V_FIRST: gl.constexpr, S0_V_FIRST: gl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of n_seg segments from first_seg on, from v like it and what `prepare_hopper_kernel` leaves: qd,
    kd [B, T, H, 256], a [B, T, H, 128], f as p_h, and p_e. A program a segment and GROUPS times 64 columns of V; UNITS
    tiles of 64 features of qd and kd may be on their way to it. PACKED: sequences have states; p_borders: see
    `packing.edges`. All else as `walk_hopper_kernel` has it."""
    _walk(
        d_qd, d_kd, d_a, d_v, p_h, p_s0, d_s if STORE_S else d_few, p_st, p_sn, p_e, p_borders, d_o,
        T, H, n_seg, first_seg, n_start, n_stored if STORE_S else n_few, seg_rows, every,
        V, GROUPS, UNITS, False, HAS_S0, STORE_S or STORE_FEW, STORE_ST, PACKED, HAS_SN, V_FIRST, S0_V_FIRST,
    )  # fmt: skip


@gluon.jit(do_not_specialize=[*SIZES, "n_end"])
def grad_walk_wide_hopper_kernel(
    d_qd, d_kd, d_a, d_do, p_h, p_dst, d_ds, p_ds0, p_dsn, p_e, p_borders, d_dv,
    T, H, n_seg, first_seg, n_end, n_stored, seg_rows,
    V: gl.constexpr, GROUPS: gl.constexpr, UNITS: gl.constexpr, HAS_DST: gl.constexpr, STORE_DS0: gl.constexpr,
    PACKED: gl.constexpr, HAS_DSN: gl.constexpr, V_FIRST: gl.constexpr, DST_V_FIRST: gl.constexpr,
):  # fmt: skip
    """dv [B, T, H, V] likewise, and the gradients of the states after all chunks, as `grad_walk_hopper_kernel` has
    them."""
    _walk(
        d_kd, d_qd, d_a, d_do, p_h, p_dst, d_ds, p_ds0, p_dsn, p_e, p_borders, d_dv,
        T, H, n_seg, first_seg, n_end, n_stored, seg_rows, gl.to_tensor(1),
        V, GROUPS, UNITS, True, HAS_DST, True, STORE_DS0, PACKED, HAS_DSN, V_FIRST, DST_V_FIRST,
    )  # fmt: skip
