"""dQ, dK and the gate's gradient on Hopper, in Gluon: what grad_qk.py computes, where a chunk is one row block of 64.

The same arithmetic in the same precision, but transposed: features lie along the rows of every accumulator. With A the
masked scores' gradients, X^T and Y^T as in grad_qk.py, and C, Q = q e^C, K = k e^-C:

    X^T = scale e^h (S dO^T) + K^T A^T      dq^T = e^C X^T      C^T = g^T M^T,  M[i, j] = 1/2 for i >= j, else -1/2
    Y^T =       e^h (dS V^T) + Q^T A        dk^T = e^-C Y^T     dg^T = (Q X - K Y)^T U + Phi,  U[i, t] = 1 for i >= t

So Q^T, K^T and what dg is summed of leave one product's accumulator for the next one's operand without moving between
threads, A lies in shared memory once and serves both ways round, sums over rows and over V stay within a warp, and the
decay of a block is a factor of a row. Triton waits for each load outside of a loop and keeps what it loaded in
registers; here all loads are on their way to shared memory before anything waits, and products run while the next ones
are prepared.

Tiles that are not mild are computed like the others and not stored: `grad_qk_strong_kernel` runs after this one.
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

from ...launch.tritons import async_load, async_store, barrier
from ...tiles.hopper import (
    ACCUMULATOR,
    EVERYWHERE,
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
    wide,
)
from .layouts import LEAST_HALF, LOG2_E, by_parts, parts_of, sums_of
from .packed import firsts_of_rows, head_and_tail, of_rows, passes, phi_of_rows, same_scores, sums_in_sequences


@gluon.jit
def _load_values(
    i, d_do, d_v, d_s, d_ds, s_do, s_v, s_s, s_ds, bars, i_batch, i_row, i_h, i_state,
    V: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Send for the i-th tile of V of dO, V and both states, into the stage whose turn it is."""
    AT: gl.constexpr = i % STAGES
    bar, i_v = bars.index(AT), i_h * V + i * ROWS
    mbarrier.expect(bar, 4 * TILE_BYTES)
    async_load(d_do, [i_batch, i_row, i_v], bar, s_do.index(AT))
    async_load(d_v, [i_batch, i_row, i_v], bar, s_v.index(AT))
    async_load(d_s, [i_state, i * ROWS], bar, s_s.index(AT))
    async_load(d_ds, [i_state, i * ROWS], bar, s_ds.index(AT))


@gluon.jit(do_not_specialize=["n_blocks", "n_here", "first_chunk", "n_stored"])
def grad_qk_hopper_kernel(
    d_q, d_k, d_v, d_g, d_do, d_s, d_ds, p_h, p_marks, p_edges, d_dq, d_dk, d_dg,
    scale, H, n_blocks, n_here, first_chunk, n_stored,
    K: gl.constexpr, V: gl.constexpr, STAGES: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """dq, dk and dg [B, T, H, K] of n_here chunks from first_chunk on, of tiles that are mild: see grad_qk.py. bf16.

    K and V are multiples of 64: a program is a chunk and 64 features, and goes through V 64 columns at a time, with
    STAGES of them on their way. Shared memory: q, k, g; the stages; M, then A's leading bits; its next ones; U. dq, dk
    and dg leave from where g, k and M were. With a single stage U comes to where g was, and dq leaves from where q was;
    so with gates in float32, of which dg leaves from where g was.
    """
    NK: gl.constexpr = K // ROWS
    NV: gl.constexpr = V // ROWS
    SENT: gl.constexpr = STAGES if STAGES < NV else NV  # tiles of V that are sent for at the start
    WIDE: gl.constexpr = d_g.dtype == gl.float32
    OWN_U: gl.constexpr = STAGES > 1 and not WIDE
    i_p = gl.program_id(0)
    i_k, i_c, i_bh = i_p % NK, (i_p // NK) % n_here, i_p // (NK * n_here)
    i_batch, i_h = i_bh // H, i_bh % H
    i_row, i_col = (first_chunk + i_c) * ROWS, i_h * K + i_k * ROWS
    i_state = (i_bh * n_stored + i_c) * K + i_k * ROWS

    s_q = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, ROWS], d_q.layout)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, ROWS], d_k.layout)
    s_g = gl.allocate_shared_memory(d_g.dtype, [1, ROWS, ROWS], d_g.layout)
    s_do = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 1, ROWS, ROWS], d_do.layout)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 1, ROWS, ROWS], d_v.layout)
    s_s = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, ROWS], d_s.layout)
    s_ds = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, ROWS], d_ds.layout)
    s_m = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    s_low = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    if OWN_U:
        s_u = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
        s_dq = s_g  # so that nothing waits until q has been read
    else:
        s_u = parts_of(s_g).index(0) if WIDE else matrix(s_g)
        s_dq = s_q
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    bar_g = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    bar_qk = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(bars.index(i), count=1)
    mbarrier.init(bar_g, count=1)
    mbarrier.init(bar_qk, count=1)
    fence_async_shared()
    barrier()

    # everything is sent for, in the order in which it is needed
    mbarrier.expect(bar_g, (2 if WIDE else 1) * TILE_BYTES)
    async_load(d_g, [i_batch, i_row, i_col], bar_g, s_g)
    for i in gl.static_range(SENT):
        _load_values(i, d_do, d_v, d_s, d_ds, s_do, s_v, s_s, s_ds, bars, i_batch, i_row, i_h, i_state, V, STAGES)
    mbarrier.expect(bar_qk, 2 * TILE_BYTES)
    async_load(d_k, [i_batch, i_row, i_col], bar_qk, s_k)
    async_load(d_q, [i_batch, i_row, i_col], bar_qk, s_q)

    # while it comes: h, and both triangles
    if PACKED:
        head, tail = head_and_tail(p_edges, i_row)
        b_first = firsts_of_rows(p_marks, i_row)
    p_h += (i_bh.to(gl.int64) * n_blocks + first_chunk + i_c) * K + i_k * ROWS
    b_h = gl.exp2(gl.load(p_h + gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR))))
    mild = gl.min(gl.load(p_h + gl.arange(0, ROWS, gl.SliceLayout(0, EVERYWHERE))), axis=0) > LEAST_HALF
    o_i, o_j = gl.arange(0, ROWS, gl.SliceLayout(1, SPREAD)), gl.arange(0, ROWS, gl.SliceLayout(0, SPREAD))
    m_lower = o_i[:, None] >= o_j[None, :]
    s_m.store(gl.where(m_lower, 0.5, -0.5).to(gl.bfloat16))
    if OWN_U:
        if PACKED:
            sums_in_sequences(s_u, p_marks, i_row)
        else:
            s_u.store(gl.where(m_lower, 1.0, 0.0).to(gl.bfloat16))
    fence_async_shared()
    barrier()

    mbarrier.wait(bar_g, 0)
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_c = warpgroup_mma_wait(0, (sums_of(s_g, s_m.permute((1, 0))),)) * LOG2_E

    # dA, and what comes through the states
    b_a, b_x, b_y = b_zero, b_zero, b_zero
    b_phi = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, ACCUMULATOR))
    for i in gl.static_range(NV):
        mbarrier.wait(bars.index(i % STAGES), (i // STAGES) & 1)
        b_do, b_v = matrix(s_do.index(i % STAGES)), matrix(s_v.index(i % STAGES))
        b_s, b_ds = s_s.index(i % STAGES), s_ds.index(i % STAGES)
        b_a = warpgroup_mma(b_do, b_v.permute((1, 0)), b_a, use_acc=i > 0, is_async=True)
        b_x = warpgroup_mma(b_s, b_do.permute((1, 0)), b_x, use_acc=i > 0, is_async=True)
        b_y = warpgroup_mma(b_ds, b_v.permute((1, 0)), b_y, use_acc=i > 0, is_async=True)
        b_phi += gl.sum(wide(b_s.load(ACCUMULATOR)) * wide(b_ds.load(ACCUMULATOR)), axis=1)
        if i + STAGES < NV:
            b_a, b_x, b_y = warpgroup_mma_wait(0, (b_a, b_x, b_y))
            fence_async_shared()
            barrier()  # every warp is done with the stage
            _load_values(
                i + STAGES, d_do, d_v, d_s, d_ds, s_do, s_v, s_s, s_ds, bars, i_batch, i_row, i_h, i_state, V, STAGES
            )
    mbarrier.wait(bar_qk, 0)
    b_kh, b_kl = cut(features_first(s_k) * gl.exp2(-b_c))
    b_a, b_x, b_y = warpgroup_mma_wait(0, (b_a, b_x, b_y))

    # A, into shared memory
    o_i, o_j = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)), gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    b_a = gl.where(o_i[:, None] >= o_j[None, :], b_a * scale, 0.0)
    if PACKED:
        b_a, b_x, b_y = same_scores(b_a, b_first), of_rows(b_x, 0, head), of_rows(b_y, tail, ROWS)
        b_phi = gl.where(passes(head, tail), b_phi, 0.0)
    b_ah, b_al = cut(b_a)
    barrier()  # every warp is done with M and g
    s_m.store(b_ah)
    s_low.store(b_al)
    if not OWN_U:
        if PACKED:
            sums_in_sequences(s_u, p_marks, i_row)
        else:
            s_u.store(gl.where(m_lower, 1.0, 0.0).to(gl.bfloat16))
    b_x = b_x * (scale * b_h)[:, None]
    fence_async_shared()
    barrier()

    # X and Y; Phi from Y as it comes through the state, of K as its parts show it
    b_x = by_parts(b_kh, b_kl, s_m.permute((1, 0)), s_low.permute((1, 0)), b_x, False)
    b_y = b_y * b_h[:, None]
    b_phi = b_phi * (b_h * b_h) + gl.sum((wide(b_kh) + wide(b_kl)) * b_y, axis=1)
    b_qh, b_ql = cut(features_first(s_q) * gl.exp2(b_c))
    b_y = by_parts(b_qh, b_ql, s_m, s_low, b_y, False)
    b_x = warpgroup_mma_wait(3, (b_x,))
    matrix(s_dq).permute((1, 0)).store(rounded(b_x * gl.exp2(b_c)))
    b_diff = (wide(b_qh) + wide(b_ql)) * b_x
    b_y = warpgroup_mma_wait(0, (b_y,))
    matrix(s_k).permute((1, 0)).store(rounded(b_y * gl.exp2(-b_c)))
    b_diff -= (wide(b_kh) + wide(b_kl)) * b_y

    # dg, while dq and dk leave
    b_high, b_low = leading(b_diff), rounded(rest(b_diff))
    fence_async_shared()
    b_dg = warpgroup_mma(gl.convert_layout(b_low, OPERAND, True), s_u, b_zero, use_acc=False, is_async=True)
    b_dg = warpgroup_mma(gl.convert_layout(b_high, OPERAND, True), s_u, b_dg, is_async=True)
    barrier()  # dq and dk lie there; every warp is done with A
    if mild:
        async_store(d_dq, [i_batch, i_row, i_col], s_dq)
        async_store(d_dk, [i_batch, i_row, i_col], s_k)
    b_dg = warpgroup_mma_wait(0, (b_dg,))
    if PACKED:
        b_dg += phi_of_rows(b_phi, tail)
    else:
        b_dg += b_phi[:, None]
    if WIDE:
        barrier()  # every warp is done with U
        matrix(s_g).permute((1, 0)).store(b_dg)
        s_dg = s_g
    else:
        s_m.permute((1, 0)).store(rounded(b_dg))
        s_dg = s_m.reshape([1, ROWS, ROWS])
    fence_async_shared()
    barrier()
    if mild:
        async_store(d_dg, [i_batch, i_row, i_col], s_dg)
    tma.store_wait(0)
