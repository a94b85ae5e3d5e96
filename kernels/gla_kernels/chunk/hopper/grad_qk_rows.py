"""What both kernels of runs (grad_qk_runs.py, grad_qk_wide.py) do alike: with q, k and g of a chunk, and with what the
products over V left. But for A features lie along the rows of every accumulator.
"""

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

from ...launch.tritons import async_load, async_store, barrier, reinterpreted
from ...tiles.hopper import (
    ACCUMULATOR,
    OPERAND,
    ROWS,
    SHARED,
    SPREAD,
    TILE_BYTES,
    cut,
    features_first,
    leading,
    matrix,
    rest,
    rounded,
    state_at,
    wide,
)
from .layouts import LOG2_E, by_parts, sums_of
from .packed import head_and_tail, phi_of_rows, sequence_of, sums_in_sequences


@gluon.jit
def run_of_program(
    p_h, H, n_blocks, n_here, first_chunk, n_stored, n_few, every, K: gl.constexpr, V: gl.constexpr, KEPT: gl.constexpr
):
    """The program's chunks: how many; of the first the batch, the row, q's and v's columns, the rows of the states
    after chunks and of the state before the run, and h."""
    NK: gl.constexpr = K // ROWS
    i_p = gl.program_id(0)
    n_runs = (n_here + every - 1) // every
    i_k, i_run, i_bh = i_p % NK, (i_p // NK) % n_runs, i_p // (NK * n_runs)
    i_batch, i_h = i_bh // H, i_bh % H
    i_first = i_run * every
    count = gl.minimum(n_here - i_first, every)
    i_row0, i_col, i_out = (first_chunk + i_first) * ROWS, i_h * K + i_k * ROWS, i_h * V
    i_state, i_few = (i_bh * n_stored + i_first) * K + i_k * ROWS, (i_bh * n_few + i_run * KEPT) * K + i_k * ROWS
    p_h += (i_bh.to(gl.int64) * n_blocks + first_chunk + i_first) * K + i_k * ROWS
    return count, i_batch, i_row0, i_col, i_out, i_state, i_few, p_h


@gluon.jit
def places(d_q, d_k, d_g, d_do, d_v, d_ds, d_few, NV: gl.constexpr, STAGES: gl.constexpr):
    """Shared memory of a program: q, k, g and both parts of A, each with an axis of one to be indexed by a hidden zero;
    stages of tiles of dO, V and dS; the state as products read it; U, or L where gates are in float32. And where dg
    in float32 comes to: q and A's next part lie together then, and it takes the place of both."""
    WIDE: gl.constexpr = d_g.dtype == gl.float32
    t_q = gl.allocate_shared_memory(gl.bfloat16, [2 if WIDE else 1, 1, ROWS, ROWS], d_q.layout)
    t_k = gl.allocate_shared_memory(gl.bfloat16, [1, 1, ROWS, ROWS], d_k.layout)
    t_g = gl.allocate_shared_memory(d_g.dtype, [1, 1, ROWS, ROWS], d_g.layout)
    s_do = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 1, ROWS, ROWS], d_do.layout)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 1, ROWS, ROWS], d_v.layout)
    s_ds = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, ROWS], d_ds.layout)
    s_s = gl.allocate_shared_memory(gl.bfloat16, [NV, ROWS, ROWS], d_few.layout)
    t_high = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, ROWS], SHARED)
    if WIDE:
        t_low = reinterpreted(t_q.index(1), gl.bfloat16, [1, ROWS, ROWS], SHARED)
        OF_GATES: gl.constexpr = d_g.layout
        t_dg = reinterpreted(t_q, gl.float32, [1, 1, ROWS, ROWS], OF_GATES)
    else:
        t_low = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, ROWS], SHARED)
        t_dg = t_q  # which nothing comes to
    s_u = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    return t_q, t_k, t_g, t_high, t_low, t_dg, s_do, s_v, s_ds, s_s, s_u


@gluon.jit
def stage_of(i_c, i_v: gl.constexpr, NV: gl.constexpr, STAGES: gl.constexpr):
    """Of a tile of V of a chunk: the stage where it lies, and the parity of that stage's barrier. Where stages divide a
    chunk's tiles the stage is always the same, and addresses are constants."""
    if NV % STAGES == 0:
        return i_v % STAGES, (i_c * (NV // STAGES) + i_v // STAGES) & 1
    else:  # noqa: RET505 - only one of both is compiled
        return (i_c * NV + i_v) % STAGES, ((i_c * NV + i_v) // STAGES) & 1


@gluon.jit
def zero_of_tile(i_c, i_v: gl.constexpr):
    """As `hidden_zero`, for addresses of a tile of V: made of what all threads share, in the registers that they share,
    and for each tile anew. Else the compiler makes addresses of all tiles once, and spills them."""
    return (i_c + i_v) >> 20


@gluon.jit
def send(d_x, s_x, bar, i_batch, i_row, i_col):
    """For a chunk's rows of a tensor."""
    mbarrier.expect(bar, (2 if d_x.dtype == gl.float32 else 1) * TILE_BYTES)
    async_load(d_x, [i_batch, i_row, i_col], bar, s_x)


@gluon.jit
def send_values(d_do, d_v, d_ds, s_do, s_v, s_ds, bars, at, i_batch, i_row, i_out, i_state, i_v):
    """For a tile of V of dO, V and the gradient of the state after the chunk, into a stage."""
    bar = bars.index(at)
    mbarrier.expect(bar, 3 * TILE_BYTES)
    async_load(d_do, [i_batch, i_row, i_out + i_v], bar, s_do.index(at))
    async_load(d_v, [i_batch, i_row, i_out + i_v], bar, s_v.index(at))
    async_load(d_ds, [i_state, i_v], bar, s_ds.index(at))


@gluon.jit
def triangles(s_u, s_l, WIDE: gl.constexpr):
    """U[i, t] = 1 for i >= t; L[i, j] = 1 for i > j, and all of its last column. WIDE: gates are in float32, and there
    is no room for U."""
    o_i = gl.arange(0, ROWS, gl.SliceLayout(1, SPREAD))[:, None]
    o_j = gl.arange(0, ROWS, gl.SliceLayout(0, SPREAD))[None, :]
    if not WIDE:
        s_u.store(gl.where(o_i >= o_j, 1.0, 0.0).to(gl.bfloat16))
    s_l.store(gl.where((o_i > o_j) | (o_j == ROWS - 1), 1.0, 0.0).to(gl.bfloat16))


@gluon.jit
def gates_begun(s_g, s_l):
    """D^T of 64 features."""
    return sums_of(s_g, s_l)


@gluon.jit
def after_rows(b_d, nil):
    """log2 of it; nothing is after the last row."""
    last = (gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR)) + nil == ROWS - 1)[None, :]
    return gl.where(last, 0.0, b_d * LOG2_E)


@gluon.jit
def decayed_keys(s_k, b_d):
    """(k e^D)^T as an operand."""
    b_e = gl.exp2(b_d)
    return gl.convert_layout(rounded(features_first(s_k) * b_e), OPERAND, True)


@gluon.jit
def from_tail(b_d, b_half, p_edges, i_row):
    """Of a chunk that is not of one sequence: D of the rows that reach the state after it, and -inf elsewhere; and what
    a state decays by over these rows."""
    _, tail = head_and_tail(p_edges, i_row)
    o_t = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    b_e = gl.sum(gl.where((o_t == tail - 1)[None, :], b_d, 0.0), axis=1)
    b_e = gl.exp2(gl.where(tail == 0, 2.0 * b_half, b_e))
    return gl.where((o_t >= tail)[None, :], b_d, float("-inf")), b_e


@gluon.jit
def first_state(p_sn, p_marks, n_rows, i_row, i_head, n_heads, i_feature, i_v, b_e,
                K: gl.constexpr, V: gl.constexpr, V_FIRST: gl.constexpr):  # fmt: skip
    """64 features and columns of the state before the sequence that goes on after a chunk and began in it, decayed by
    b_e."""
    o_t = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    o_k = i_feature + gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR))
    o_s, _ = state_at(o_k, i_v + o_t, K, V, V_FIRST)
    p_sn += (sequence_of(p_marks, n_rows, i_row + ROWS - 1) * n_heads + i_head) * K * V
    return gl.load(p_sn + o_s) * b_e[:, None]


@gluon.jit
def scores_in_parts(b_a, scale, nil):
    """A, in two parts."""
    o_r = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR))
    o_t = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    return cut(gl.where(o_r[:, None] + nil >= o_t[None, :], b_a * scale, 0.0))


@gluon.jit
def through_scores(b_x, b_y, b_phi, b_kh, b_kl, b_d, b_half, b_h, s_q, s_high, s_low, bar_q, phase):
    """X, with scale e^h already, Y as they come through the states, sum_V S dS, and K: dq, to where q is; Y, Q X - K Y,
    and Phi from Y as it comes through the state, of K as its parts show it."""
    b_x = by_parts(b_kh, b_kl, s_high.permute((1, 0)), s_low.permute((1, 0)), b_x, False)
    b_y = b_y * b_h[:, None]
    b_phi = b_phi * (b_h * b_h) + gl.sum((wide(b_kh) + wide(b_kl)) * b_y, axis=1)
    b_f = gl.exp2(b_half[:, None] - b_d)
    mbarrier.wait(bar_q, phase)
    b_qh, b_ql = cut(features_first(s_q) * b_f)
    b_y = by_parts(b_qh, b_ql, s_high, s_low, b_y, False)
    b_x = warpgroup_mma_wait(3, (b_x,))
    matrix(s_q).permute((1, 0)).store(rounded(b_x * b_f))
    b_diff = (wide(b_qh) + wide(b_ql)) * b_x
    b_y = warpgroup_mma_wait(0, (b_y,))
    b_diff -= (wide(b_kh) + wide(b_kl)) * b_y
    return b_y, b_diff, b_phi


@gluon.jit
def sums_begun(b_diff, s_m, ITSELF: gl.constexpr):
    """dg but for Phi, b_diff by a matrix. ITSELF: by L, and each row's own share is added to it."""
    b_dg = b_diff
    if not ITSELF:
        b_dg = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_high, b_low = leading(b_diff), rounded(rest(b_diff))
    b_dg = warpgroup_mma(gl.convert_layout(b_low, OPERAND, True), s_m, b_dg, use_acc=ITSELF, is_async=True)
    return warpgroup_mma(gl.convert_layout(b_high, OPERAND, True), s_m, b_dg, is_async=True)


@gluon.jit
def _with_phi(b_dg, b_phi, passing, p_edges, i_row, PACKED: gl.constexpr):
    """dg. Without a branch for both kinds of chunks: nothing of a tile is in registers twice."""
    if PACKED:
        if not passing:
            _, tail = head_and_tail(p_edges, i_row)
            b_dg += phi_of_rows(b_phi, tail)
            b_phi = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, ACCUMULATOR))
    return b_dg + b_phi[:, None]


@gluon.jit
def leave(
    b_dg, b_dk, b_phi, b_diff, mild, passing, d_dq, d_dk, d_dg, s_q, s_high, s_low, s_dg, p_marks, p_edges,
    i_batch, i_row, i_col, nil, PACKED: gl.constexpr,
):  # fmt: skip
    """dq, dk and dg, from where q and A are; dg in float32 from s_dg, where q and A's next part are, so after dq.
    PACKED: whether the chunk is of one sequence that `passes`. Where not, U of gates in float32 comes to where A was,
    as L may be read by others."""
    if d_dg.dtype == gl.float32:
        fence_async_shared()
        barrier()  # every warp is done with A
        if mild:
            async_store(d_dq, [i_batch, i_row, i_col], s_q)
        s_high.permute((1, 0)).store(b_dk)
        if PACKED:
            if not passing:
                sums_in_sequences(s_low, p_marks, i_row)
        fence_async_shared()
        barrier()
        if mild:
            async_store(d_dk, [i_batch, i_row, i_col], s_high.reshape([1, ROWS, ROWS]))
        b_dg = warpgroup_mma_wait(0, (b_dg,))
        o_t = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))[None, :] + nil
        b_dg = gl.where(o_t == ROWS - 1, b_diff, b_dg)  # L's last column: other sums
        if PACKED:
            if not passing:
                b_dg = warpgroup_mma_wait(0, (sums_begun(b_diff, s_low, False),))
        b_dg = _with_phi(b_dg, b_phi, passing, p_edges, i_row, PACKED)
        tma.store_wait(1)
        barrier()  # dq has left
        matrix(s_dg).permute((1, 0)).store(b_dg)
        fence_async_shared()
        barrier()
        if mild:
            async_store(d_dg, [i_batch, i_row, i_col], s_dg)
    else:
        lie_down(b_dg, b_dk, b_phi, passing, s_high, s_low, p_edges, i_row, PACKED)
        if mild:
            send_off(d_dq, d_dk, d_dg, s_q, s_high, s_low, i_batch, i_row, i_col)


@gluon.jit
def lie_down(b_dg, b_dk, b_phi, passing, s_high, s_low, p_edges, i_row, PACKED: gl.constexpr):
    """dk and dg, of gates in bfloat16, to where A was."""
    barrier()  # every warp is done with A
    s_high.permute((1, 0)).store(b_dk)
    b_dg = warpgroup_mma_wait(0, (b_dg,))
    b_dg = _with_phi(b_dg, b_phi, passing, p_edges, i_row, PACKED)
    s_low.permute((1, 0)).store(rounded(b_dg))
    fence_async_shared()
    barrier()


@gluon.jit
def send_off(d_dq, d_dk, d_dg, s_q, s_high, s_low, i_batch, i_row, i_col):
    """dq, dk and dg, of gates in bfloat16, from where they lie."""
    async_store(d_dq, [i_batch, i_row, i_col], s_q)
    async_store(d_dk, [i_batch, i_row, i_col], s_high.reshape([1, ROWS, ROWS]))
    async_store(d_dg, [i_batch, i_row, i_col], s_low.reshape([1, ROWS, ROWS]))
