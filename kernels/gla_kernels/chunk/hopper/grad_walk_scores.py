"""The part of the walk backward in time (grad_walk.py) that makes A^T of every block, and the operands that the
other part, which leads dS along, reads. The equations and the barriers are there.

Nothing here knows V: a program's scores are the same for all of its columns.
"""

# mypy: disallow-untyped-defs=False, disable-error-code="assignment, misc"
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...launch.tritons import async_load, barrier
from ...tiles.hopper import ACCUMULATOR, OPERAND, ROWS, TILE_BYTES, cut, leading, matrix, rounded, wide
from .layouts import (
    CLOSED_HALF,
    LEAST_GATE,
    LEAST_HALF,
    LOG2_E,
    by_parts,
    cut_gates,
    halves,
    inverse_exp2,
    least_of,
    limit,
    parts_of,
)
from .packed import ends, head_and_tail
from .strong_gates import hidden_zero

ONE_ROW = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


# --- Loads: of the i-th block of the walk, where there is one ---------------------------------------------------------


@gluon.jit
def _expect_rows(i, n_here, bar_q, bar_k, bar_g, NK: gl.constexpr, WIDE: gl.constexpr):
    there = i < n_here
    for t in gl.static_range(NK):
        if not WIDE:
            mbarrier.expect(bar_g[t].index(i & 1), TILE_BYTES, there)
        mbarrier.expect(bar_q[t].index(i & 1), TILE_BYTES, there)
        mbarrier.expect(bar_k[t].index(i & 1), TILE_BYTES, there)


@gluon.jit
def _send_for_rows(
    i, n_here, d_q, d_k, d_g, s_q, s_k, s_g, bar_q, bar_k, bar_g, i_batch, i_row0, i_col, NK: gl.constexpr
):  # fmt: skip
    there, i_row, two, three = i < n_here, i_row0 + (n_here - 1 - i) * ROWS, i & 1, i % 3
    if s_g[0].dtype == gl.bfloat16:
        for t in gl.static_range(NK):
            at = [i_batch, i_row, i_col + t * ROWS]
            async_load(d_g, at, bar_g[t].index(two), s_g[t].index(two), there)
    for t in gl.static_range(NK):
        at = [i_batch, i_row, i_col + t * ROWS]
        async_load(d_q, at, bar_q[t].index(two), s_q[t].index(three), there)
        async_load(d_k, at, bar_k[t].index(two), s_k[t].index(three), there)


@gluon.jit
def _send_for_gates(i, n_here, d_g, s_g, bar_g, i_batch, i_row0, i_col, NK: gl.constexpr):
    """In float32, to where those of the block before were: every warp is done with these."""
    there, i_row = i < n_here, i_row0 + (n_here - 1 - i) * ROWS
    for t in gl.static_range(NK):
        bar = bar_g[t].index(i & 1)
        mbarrier.expect(bar, 2 * TILE_BYTES, there)
        async_load(d_g, [i_batch, i_row, i_col + t * ROWS], bar, s_g[t].index(0), there)


@gluon.jit
def _prefetch(p_row, o_l, NK: gl.constexpr):
    """Have a block's row of p_h come to L2: fences wait for loads that are on their way."""
    for t in gl.static_range(NK):
        gl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [(p_row + t * ROWS + o_l).to(gl.int64, bitcast=True)],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip


# --- The scores -------------------------------------------------------------------------------------------------------


@gluon.jit
def _sums(i, there, mild, closed, m_i, s_g, bar_g, NK: gl.constexpr):
    """M g of the i-th block of the walk, begun: 64 features each, and M, which has to stay in registers. closed: there
    may be gates of -inf."""
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_m = gl.where(m_i, gl.where(mild, 0.5, 1.0), gl.where(mild, -0.5, 0.0)).to(gl.bfloat16)
    if closed:
        for t in gl.static_range(NK):
            mbarrier.wait(bar_g[t].index(i & 1), (i >> 1) & 1, there)
            limit(s_g[t].index(i & 1))
    mbarrier.wait(bar_g[0].index(i & 1), (i >> 1) & 1, there)
    b_ca = warpgroup_mma(b_m, matrix(s_g[0].index(i & 1)), b_zero, use_acc=False, is_async=True)
    b_cb = b_ca
    if NK == 2:
        mbarrier.wait(bar_g[1].index(i & 1), (i >> 1) & 1, there)
        b_cb = warpgroup_mma(b_m, matrix(s_g[1].index(i & 1)), b_zero, use_acc=False, is_async=True)
    return b_ca, b_cb, b_m


@gluon.jit
def _sums_in_parts(i, nil, there, mild, m_i, s_g, bar_g, NK: gl.constexpr):
    """The same of float32 gates, which are cut in two: twice as many products."""
    for t in gl.static_range(NK):
        mbarrier.wait(bar_g[t].index(i & 1), (i >> 1) & 1, there)
        cut_gates(s_g[t].index(nil), LEAST_GATE)
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_m = gl.where(m_i, gl.where(mild, 0.5, 1.0), gl.where(mild, -0.5, 0.0)).to(gl.bfloat16)
    s_a = parts_of(s_g[0].index(nil))
    b_ca = warpgroup_mma(b_m, s_a.index(1), b_zero, use_acc=False, is_async=True)
    b_ca = warpgroup_mma(b_m, s_a.index(0), b_ca, is_async=True)
    b_cb = b_ca
    if NK == 2:
        s_b = parts_of(s_g[1].index(nil))
        b_cb = warpgroup_mma(b_m, s_b.index(1), b_zero, use_acc=False, is_async=True)
        b_cb = warpgroup_mma(b_m, s_b.index(0), b_cb, is_async=True)
    return b_ca, b_cb, b_m


@gluon.jit
def _begun(i, nil, there, least, m_i, s_g, bar_g, NK: gl.constexpr):
    """`_sums` of gates of either type, of a block whose least h is this."""
    if s_g[0].dtype == gl.float32:
        return _sums_in_parts(i, nil, there, least > LEAST_HALF, m_i, s_g, bar_g, NK)
    else:  # noqa: RET505 - only one of both is compiled
        return _sums(i, there, least > LEAST_HALF, there & (least < CLOSED_HALF), m_i, s_g, bar_g, NK)


@gluon.jit
def _done(b_ca, b_cb, b_m, NK: gl.constexpr):
    """`_sums` once they are there."""
    if NK == 2:
        b_ca, b_cb, b_m = warpgroup_mma_wait(0, (b_ca, b_cb, b_m))
        return b_ca, b_cb
    else:  # noqa: RET505 - only one of both is compiled
        b_ca, b_m = warpgroup_mma_wait(0, (b_ca, b_m))
        return b_ca, b_ca


@gluon.jit
def scores_part(
    d_q, d_k, d_g, p_h, s_q, s_k, s_g, s_ql, s_ah, s_al, s_e, bar_q, bar_k, bar_g, bar_full, bar_empty,
    p_marks, p_edges, n_rows, i_batch, i_row0, i_col, n_here, scale, K: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """A^T of every block, and the operands that the walk needs; PACKED, of the rows that meet the states around it."""
    NK: gl.constexpr = K // ROWS
    WIDE: gl.constexpr = d_g.dtype == gl.float32
    if WIDE:
        _send_for_gates(gl.to_tensor(0), n_here, d_g, s_g, bar_g, i_batch, i_row0, i_col, NK)
    for i in gl.static_range(2):
        _expect_rows(gl.to_tensor(i), n_here, bar_q, bar_k, bar_g, NK, WIDE)
    barrier()
    for i in gl.static_range(2):
        _send_for_rows(
            gl.to_tensor(i), n_here, d_q, d_k, d_g, s_q, s_k, s_g, bar_q, bar_k, bar_g, i_batch, i_row0, i_col, NK
        )
    o_l = gl.arange(0, ROWS, ONE_ROW)
    log2_scale = gl.log2(scale)
    m_i = (
        gl.arange(0, ROWS, gl.SliceLayout(1, OPERAND))[:, None]
        >= gl.arange(0, ROWS, gl.SliceLayout(0, OPERAND))[None, :]
    )
    o_j, o_i = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)), gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))

    # the walk's first block
    p_row = p_h + (n_here - 1) * K
    least = least_of(halves(p_row, NK), NK)
    for t in gl.static_range(NK):
        s_e[t].index(0).store(gl.exp2(gl.load(p_row + t * ROWS + o_l)))
    b_ca, b_cb, b_m = _begun(gl.to_tensor(0), hidden_zero(i_row0), n_here > 0, least, m_i, s_g, bar_g, NK)
    b_ca, b_cb = _done(b_ca, b_cb, b_m, NK)
    barrier()
    if WIDE:
        _send_for_gates(gl.to_tensor(1), n_here, d_g, s_g, bar_g, i_batch, i_row0, i_col, NK)

    if PACKED:
        i_next = i_row0 + (n_here - 1) * ROWS
        next_head, next_tail = head_and_tail(p_edges, i_next)
        b_next = ends(p_marks, n_rows, i_next, gl.SliceLayout(1, ACCUMULATOR))

    for i in range(n_here):
        head, tail = ROWS, 0
        if PACKED:
            head, tail, b_end = next_head, next_tail, b_next
            i_next = i_row0 + gl.maximum(n_here - 2 - i, 0) * ROWS
            next_head, next_tail = head_and_tail(p_edges, i_next)
            b_next = ends(p_marks, n_rows, i_next, gl.SliceLayout(1, ACCUMULATOR))
        # h of the next block
        p_next = p_h + gl.maximum(n_here - 2 - i, 0) * K
        _prefetch(p_h + gl.maximum(n_here - 5 - i, 0) * K, o_l, NK)
        h_all = halves(p_next, NK)
        h_next = (gl.load(p_next + o_l),)
        if NK == 2:
            h_next = (h_next[0], gl.load(p_next + ROWS + o_l))

        nil = hidden_zero(i_row0 + i)
        b_at = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
        kept = ()  # operands in registers: not to be written before the products are done
        for t in gl.static_range(NK):
            t_q, t_k = matrix(s_q[t].index(i % 3)), matrix(s_k[t].index(i % 3))
            t_ql = matrix(s_ql[t].index(nil if WIDE else i & 1))
            mbarrier.wait(bar_q[t].index(i & 1), (i >> 1) & 1)
            mbarrier.wait(bar_k[t].index(i & 1), (i >> 1) & 1)
            b_k, b_q = t_k.load(ACCUMULATOR), t_q.load(ACCUMULATOR)
            b_e = s_e[t].index(i & 1).load(gl.SliceLayout(0, ACCUMULATOR))
            b_c = (b_ca if t == 0 else b_cb) * LOG2_E
            b_k = wide(b_k) * inverse_exp2(b_c)
            b_q = wide(b_q) * gl.exp2(b_c + log2_scale)
            b_kh, b_kl = cut(b_k)
            b_qh = rounded(b_q)
            b_ql = leading(b_q - wide(b_qh))
            barrier()  # every warp is done with g
            b_k = b_k * b_e[None, :]
            if PACKED:
                b_k = gl.where((o_j >= tail)[:, None], b_k, 0.0)
            t_k.store(rounded(b_k))
            t_q.store(b_qh)
            t_ql.store(b_ql)
            fence_async_shared()
            barrier()
            b_at = by_parts(b_kh, b_kl, t_q.permute((1, 0)), t_ql.permute((1, 0)), b_at, t == 0)
            kept = kept + (b_kh, b_kl)  # noqa: RUF005
        # C of the next block, while this one's scores are made ready
        least = least_of(h_all, NK)
        b_ca, b_cb, b_m = _begun(i + 1, nil, i + 1 < n_here, least, m_i, s_g, bar_g, NK)
        if NK == 2:
            b_at, _, _, _, _ = warpgroup_mma_wait(4 if WIDE else 2, (b_at, kept[0], kept[1], kept[2], kept[3]))
        else:
            b_at, _, _ = warpgroup_mma_wait(2 if WIDE else 1, (b_at, kept[0], kept[1]))
        b_at = gl.where(o_j[:, None] <= o_i[None, :], b_at, 0.0)
        if PACKED:
            b_at = gl.where(o_i[None, :] < b_end[:, None], b_at, 0.0)
        b_ah, b_al = cut(b_at)
        mbarrier.wait(bar_empty, (i - 1) & 1, i > 0)  # the walk is done with the block before
        _expect_rows(i + 2, n_here, bar_q, bar_k, bar_g, NK, WIDE)
        s_ah.store(b_ah)
        s_al.store(b_al)
        if PACKED:
            if head < ROWS:
                barrier()  # every warp is done with q
                for t in gl.static_range(NK):
                    t_q = matrix(s_q[t].index(i % 3))
                    t_q.store(gl.where((o_j < head)[:, None], wide(t_q.load(ACCUMULATOR)), 0.0).to(gl.bfloat16))
        for t in gl.static_range(NK):
            s_e[t].index(~i & 1).store(gl.exp2(h_next[t]))
        fence_async_shared()
        barrier()
        mbarrier.arrive(bar_full, count=1)
        _send_for_rows(i + 2, n_here, d_q, d_k, d_g, s_q, s_k, s_g, bar_q, bar_k, bar_g, i_batch, i_row0, i_col, NK)
        b_ca, b_cb = _done(b_ca, b_cb, b_m, NK)
        if WIDE:
            barrier()  # every warp is done with the gates
            _send_for_gates(i + 2, n_here, d_g, s_g, bar_g, i_batch, i_row0, i_col, NK)
