"""dQ, dK and the gate's gradient of the chunks that `grad_qk.py` leaves undone, in Gluon.

Pairs of rows meet by halving, as in strong_gates.py. With B = a level's pairs of dA, mirrored on the diagonal, R = B Z
is what the rows of either half of a block get from those of the other, before their own decay:

    dq_i += e^{..} R_i  in a later half,  dk_j += e^{..} R_j  in an earlier one,   q dq - k dk += Z R or -Z R

The rest is as grad_qk.py has it, but rows lie first here, and both decays of the states are exact.
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
from triton.language.extra.cuda import gdc_wait

from ...launch.tritons import async_load, async_store, barrier
from ...tiles.hopper import (
    ACCUMULATOR,
    LINE,
    ROWS,
    SHARED,
    TILE_BYTES,
    barriers,
    cut,
    leading,
    matrix,
    rest,
    rounded,
    wide,
)
from .layouts import by_parts, parts_of
from .packed import ends, firsts_of_rows, head_and_tail, passes, same_scores
from .strong_gates import (
    FORGETS,
    after,
    as_operand,
    clamp,
    eights,
    from_middle,
    gates_by,
    hidden_zero,
    lay_down,
    levels_of,
    rows,
    rows_of_level,
    share_of,
    to_border,
    up_to,
)


@gluon.jit
def _send_values(
    i, d_do, d_v, d_s, d_ds, s_do, s_v, s_s, s_ds, bars, i_batch, i_row, i_out, i_state, STAGES: gl.constexpr
):
    """For the i-th tile of V of dO, V and both states."""
    AT: gl.constexpr = i % STAGES
    bar = bars.index(AT)
    mbarrier.expect(bar, 4 * TILE_BYTES)
    async_load(d_do, [i_batch, i_row, i_out + i * ROWS], bar, s_do.index(AT))
    async_load(d_v, [i_batch, i_row, i_out + i * ROWS], bar, s_v.index(AT))
    async_load(d_s, [i_state, i * ROWS], bar, s_s.index(AT))
    async_load(d_ds, [i_state, i * ROWS], bar, s_ds.index(AT))


@gluon.jit
def _products(
    d_do, d_v, d_s, d_ds, s_do, s_v, s_s, s_ds, bars, turn, i_batch, i_row, i_out, i_state, nil,
    NV: gl.constexpr, SENT: gl.constexpr,
):  # fmt: skip
    """dA and its transpose, dO S^T, V dS^T, each [ROWS, ROWS], and the sum of S dS over V [ROWS], of NV tiles of V, of
    which SENT were sent for; turn: how many chunks came before."""
    b_a = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_at, b_x, b_y = b_a, b_a, b_a
    b_phi = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, ACCUMULATOR))
    for i in gl.static_range(NV):
        uses = (NV - i % SENT + SENT - 1) // SENT  # of the stage, a chunk
        mbarrier.wait(bars.index(i % SENT), (turn * uses + i // SENT) & 1)
        b_do, b_v = matrix(s_do.index(i % SENT + nil)), matrix(s_v.index(i % SENT + nil))
        b_s, b_ds = s_s.index(i % SENT + nil), s_ds.index(i % SENT + nil)
        b_a = warpgroup_mma(b_do, b_v.permute((1, 0)), b_a, is_async=True)
        b_at = warpgroup_mma(b_v, b_do.permute((1, 0)), b_at, is_async=True)
        b_x = warpgroup_mma(b_do, b_s.permute((1, 0)), b_x, is_async=True)
        b_y = warpgroup_mma(b_v, b_ds.permute((1, 0)), b_y, is_async=True)
        b_phi += gl.sum(wide(b_s.load(ACCUMULATOR)) * wide(b_ds.load(ACCUMULATOR)), axis=1)
        b_a, b_at, b_x, b_y = warpgroup_mma_wait(0, (b_a, b_at, b_x, b_y))
        if i + SENT < NV:
            fence_async_shared()
            barrier()  # every warp is done with the stage
            _send_values(
                i + SENT, d_do, d_v, d_s, d_ds, s_do, s_v, s_s, s_ds, bars, i_batch, i_row, i_out, i_state, SENT
            )
    return b_a, b_at, b_x, b_y, b_phi


@gluon.jit
def _sums_from(s_high, s_low, nil, p_marks, n_rows, i_row, PACKED: gl.constexpr):
    """Of each row and those after it, PACKED of its sequence, of a tile in two parts."""
    o_i, o_j = rows(nil)
    m_from = o_j >= o_i
    if PACKED:
        m_from = m_from & (o_j < ends(p_marks, n_rows, i_row, gl.SliceLayout(1, ACCUMULATOR))[:, None])
    b_m, b_sum = as_operand(gl.where(m_from, 1.0, 0.0)), gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_sum = warpgroup_mma(b_m, s_low, b_sum, use_acc=False, is_async=True)
    b_sum = warpgroup_mma(b_m, s_high, b_sum, is_async=True)
    return warpgroup_mma_wait(0, (b_sum,))


@gluon.jit
def _fine(b_x):
    """`tiles.fine`, the sum of what `cut` has."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 h, l; and.b32 h, $1, 0xffff0000; sub.f32 l, $1, h; and.b32 l, l, 0xffff0000; add.f32 $0, h, l; }",
        "=r,r", [b_x], gl.float32, True, 1,
    )  # fmt: skip


@gluon.jit
def _inverse(b_x):
    """1 / x."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [b_x], gl.float32, True, 1)


@gluon.jit
def _kept(b_x, m_x):
    """bfloat16 where m, else 0."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 m; prmt.b32 m, $2, $3, 0x5410; and.b32 $0, $1, m; }",
        "=r,r,r,r", [b_x, gl.where(m_x, -1, 0)], gl.bfloat16, True, 2,
    )  # fmt: skip


@gluon.jit
def _lay(b_x, s_high, s_low):
    """x in two parts, where `_given` multiplies it."""
    b_high, b_low = cut(b_x)
    lay_down(b_high, b_low, s_high, s_low)


@gluon.jit
def _laid(s_high, s_low):
    """`tiles.fine` of what lies there."""
    return wide(s_high.load(ACCUMULATOR)) + wide(s_low.load(ACCUMULATOR))


@gluon.jit
def _given(m_pairs, t_pairs, s_high, s_low):
    """What rows get from each other by some of the pairs: pairs @ x, of the x that was laid down."""
    b_ah, b_al = _kept(t_pairs[0].load(ACCUMULATOR), m_pairs), _kept(t_pairs[1].load(ACCUMULATOR), m_pairs)
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    return warpgroup_mma_wait(0, (by_parts(b_ah, b_al, s_high, s_low, b_zero, True),))


@gluon.jit
def _by_anchor(levels, b_dq, b_dk, b_diff, t_pairs, s_q, s_k, s_g, s_high, s_low, nil):
    """What pairs of rows in one block give each other, added. levels: how many there are above such blocks."""
    o_i, o_j = rows(nil)
    o_i8, o_j8 = eights(nil)
    m_block = (o_i8 ^ o_j8) < (ROWS // 8 >> levels)
    b_e = gl.exp2(gates_by(from_middle(levels, nil), s_g))
    _lay(wide(matrix(s_k).load(ACCUMULATOR)) * _inverse(b_e), s_high, s_low)
    b_r = _given(m_block & (o_i > o_j), t_pairs, s_high, s_low)
    _lay(wide(matrix(s_q).load(ACCUMULATOR)) * b_e, s_high, s_low)
    b_diff += _laid(s_high, s_low) * b_r
    b_dq += b_r * b_e
    b_r = _given(m_block & (o_i < o_j), t_pairs, s_high, s_low)
    b_e = _inverse(b_e)
    b_diff -= _fine(wide(matrix(s_k).load(ACCUMULATOR)) * b_e) * b_r
    b_dk += b_r * b_e
    return b_dq, b_dk, b_diff


@gluon.jit
def _by_level(half, b_dq, b_dk, b_diff, t_pairs, s_q, s_k, s_g, s_high, s_low, nil):
    """What the rows of either half of a block give those of the other, added."""
    o_i8, o_j8 = eights(nil)
    half8 = half >> 3
    later = gl.where((o_i8 & half8) != 0, 1.0, 0.0)  # a factor: with it a sum takes one instruction
    b_e = gl.exp2(gates_by(to_border(half, nil), s_g))
    _lay(wide(rows_of_level(half, s_q, s_k, nil)) * b_e, s_high, s_low)
    b_r = _given((o_j8 & -half8) == ((o_i8 & -half8) ^ half8), t_pairs, s_high, s_low)
    b_diff += (2.0 * later - 1.0) * (_laid(s_high, s_low) * b_r)
    b_r = b_r * b_e
    b_dq += later * b_r
    b_dk += (1.0 - later) * b_r
    return b_dq, b_dk, b_diff


@gluon.jit(do_not_specialize=["n_blocks", "n_here", "first_chunk", "n_stored", "share", "n_rows"])
def grad_qk_strong_hopper_kernel(
    d_q, d_k, d_v, d_g, d_do, d_s, d_ds, p_h, p_marks, p_edges, d_dq, d_dk, d_dg,
    scale, H, n_blocks, n_here, first_chunk, n_stored, share, n_rows,
    K: gl.constexpr, V: gl.constexpr, STAGES: gl.constexpr, MOST: gl.constexpr, EARLY: gl.constexpr,
    PACKED: gl.constexpr,
):  # fmt: skip
    """dq, dk and dg [B, T, H, K] of n_here chunks from first_chunk on: of those tiles of 64 features that are not mild.
    For the tensors see `grad_qk.grad_qk_kernel`, for V and STAGES `grad_qk_hopper_kernel`; for EARLY
    `strong_rows.grad_v_strong_hopper_kernel`."""
    NK: gl.constexpr = K // ROWS
    NV: gl.constexpr = V // ROWS
    SENT: gl.constexpr = STAGES if STAGES < NV else NV
    WIDE: gl.constexpr = d_g.dtype == gl.float32
    i_k, i_bh, i_first, i_end, p_h, bits = share_of(p_h, n_blocks, n_here, first_chunk, share, K, ROWS, NK, MOST)
    if bits != 0:
        s_q = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, ROWS], d_q.layout)
        s_k = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, ROWS], d_k.layout)
        s_gates = gl.allocate_shared_memory(d_g.dtype, [1, 1, ROWS, ROWS], d_g.layout)
        s_g = s_gates.index(0)
        s_do = gl.allocate_shared_memory(gl.bfloat16, [SENT, 1, ROWS, ROWS], d_do.layout)
        s_v = gl.allocate_shared_memory(gl.bfloat16, [SENT, 1, ROWS, ROWS], d_v.layout)
        s_s = gl.allocate_shared_memory(gl.bfloat16, [SENT, ROWS, ROWS], d_s.layout)
        s_ds = gl.allocate_shared_memory(gl.bfloat16, [SENT, ROWS, ROWS], d_ds.layout)
        if WIDE:  # where states were, so that two programs still fit an SM
            s_high, s_low = s_s.index(0), s_ds.index(0)
        else:
            s_high = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
            s_low = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
        s_phi = gl.allocate_shared_memory(gl.float32, [ROWS], LINE)
        bars, bar_rows = barriers(SENT), barriers(1).index(0)
        fence_async_shared()
        barrier()
        i_batch, i_h = i_bh // H, i_bh % H
        i_col, i_out = i_h * K + i_k * ROWS, i_h * V
        turn = gl.to_tensor(0)
        for i_c in range(i_first, i_end):
            if (bits >> (i_c - i_first)) & 1 != 0:
                i_row, i_state = (first_chunk + i_c) * ROWS, (i_bh * n_stored + i_c) * K + i_k * ROWS
                for i in gl.static_range(SENT):
                    _send_values(
                        i, d_do, d_v, d_s, d_ds, s_do, s_v, s_s, s_ds, bars, i_batch, i_row, i_out, i_state, SENT
                    )
                mbarrier.expect(bar_rows, (4 if WIDE else 3) * TILE_BYTES)
                async_load(d_g, [i_batch, i_row, i_col], bar_rows, s_g)
                async_load(d_k, [i_batch, i_row, i_col], bar_rows, s_k)
                async_load(d_q, [i_batch, i_row, i_col], bar_rows, s_q)

                nil = hidden_zero(i_c)
                b_a, b_at, b_x, b_y, b_phi = _products(
                    d_do, d_v, d_s, d_ds, s_do, s_v, s_s, s_ds, bars, turn, i_batch, i_row, i_out, i_state, nil,
                    NV, SENT,
                )  # fmt: skip
                o_i, o_j = rows(nil)
                head, tail = ROWS, 0
                if PACKED:
                    head, tail = head_and_tail(p_edges, i_row)
                    b_a = same_scores(b_a, firsts_of_rows(p_marks, i_row))
                    b_end = ends(p_marks, n_rows, i_row, gl.SliceLayout(1, ACCUMULATOR))
                    b_at = gl.where(o_j < b_end[:, None], b_at, 0.0)
                    b_x, b_y = gl.where(o_i < head, b_x, 0.0), gl.where(o_i >= tail, b_y, 0.0)
                    b_phi = gl.where(passes(head, tail), b_phi, 0.0)
                b_self = scale * gl.sum(gl.where(o_i == o_j, b_a, 0.0), axis=1)[:, None]
                b_high, b_low = cut(scale * gl.where(o_i > o_j, b_a, b_at))  # nobody reads the diagonal
                barrier()  # every warp is done with dO and V, where the pairs come to
                t_pairs = (matrix(s_do.index(0)), matrix(s_v.index(0)))
                t_pairs[0].store(b_high)
                t_pairs[1].store(b_low)
                mbarrier.wait(bar_rows, turn & 1)
                turn += 1
                clamp(s_g)
                # rows are loaded anew for each use: registers hold few tiles, and pairs need three of them
                b_x *= scale * gl.exp2(gates_by(up_to(nil), s_g))
                b_diff = wide(matrix(s_q).load(ACCUMULATOR)) * b_x
                b_dq = b_x + b_self * wide(matrix(s_k).load(ACCUMULATOR))  # a row's own score goes through no gate
                b_y *= gl.exp2(gates_by(after(nil), s_g))
                b_z = wide(matrix(s_k).load(ACCUMULATOR)) * b_y
                b_diff -= b_z
                b_dk = b_y + b_self * wide(matrix(s_q).load(ACCUMULATOR))
                COLUMNS: gl.constexpr = gl.SliceLayout(0, ACCUMULATOR)
                b_phi = gl.convert_layout(b_phi, COLUMNS) * gl.exp2(
                    2.0 * gl.load(p_h + i_c * K + gl.arange(0, ROWS, COLUMNS))
                )
                s_phi.store(b_phi + gl.sum(b_z, axis=0))

                # inside the chunk
                levels = levels_of(s_gates, nil, 1)
                b_dq, b_dk, b_diff = _by_anchor(levels, b_dq, b_dk, b_diff, t_pairs, s_q, s_k, s_g, s_high, s_low, nil)
                for i_level in range(levels):
                    half = ROWS >> (i_level + 1)
                    b_dq, b_dk, b_diff = _by_level(half, b_dq, b_dk, b_diff, t_pairs, s_q, s_k, s_g, s_high, s_low, nil)

                lay_down(leading(b_diff), rounded(rest(b_diff)), s_high, s_low)
                matrix(s_q).store(rounded(b_dq))
                matrix(s_k).store(rounded(b_dk))
                b_dg = _sums_from(s_high, s_low, nil, p_marks, n_rows, i_row, PACKED)
                b_phi = s_phi.load(COLUMNS)
                if PACKED:
                    b_dg += gl.where(o_i >= tail, b_phi[None, :], 0.0)
                else:
                    b_dg += b_phi[None, :]
                # a gate that lets nothing through has no gradient; the difference would leave rounding errors there
                if WIDE:
                    b_high, b_low = parts_of(s_g).index(0).load(ACCUMULATOR), parts_of(s_g).index(1).load(ACCUMULATOR)
                    b_dg = gl.where(wide(b_high) + wide(b_low) <= FORGETS, 0.0, b_dg)
                    barrier()  # every warp is done with g
                    matrix(s_g).store(b_dg)
                else:
                    b_dg = gl.where(wide(matrix(s_g).load(ACCUMULATOR)) <= FORGETS, 0.0, b_dg)
                    matrix(s_g).store(rounded(b_dg))
                fence_async_shared()
                barrier()
                async_store(d_dq, [i_batch, i_row, i_col], s_q)
                async_store(d_dk, [i_batch, i_row, i_col], s_k)
                async_store(d_dg, [i_batch, i_row, i_col], s_g)
                tma.store_wait(0)
                barrier()
    if EARLY:
        gdc_wait()
