"""The gradients of the states and dV in one walk backward in time, on Hopper, in Gluon: what grad_states_kernel and
grad_v.py compute, where a chunk is one row block of 64. dV reads no gradient of a state from memory.

    C = M g,  Q = scale q e^C,  K = k e^-C             M[i, j] = 1/2 for i >= j, else -1/2
    A^T = triu(K Q^T)                                  of two bf16 parts each
    dv = A^T dO + bf16(K e^h) bf16(dS)                 A^T in two bf16 parts
    dS <- e^h (e^h dS + bf16(Q)^T dO)

A program walks over a segment with all of K and BV columns of V, and has an SM to itself. Two groups of four warps,
each a block behind or ahead of the other:

    scores   loads q, k, g; makes C, the exponentials, A^T. Leaves Q's and K e^h's bf16 in shared memory where q and k
             were, A^T's parts beside them. The left operands of its products come from registers. C of the next block
             is begun before this one's scores are waited for.
    walk     loads dO; holds dS in its accumulators; stores bf16(dS) and dv.

A row block that is not mild has M = 1 for i >= j, else 0: then Q = scale q e^(sum of gates up to the row), right at any
gate strength, and dS <- e^2h dS + bf16(Q)^T dO. Its dv is sent beyond the last row, where nothing is written:
`steep.grad_steep_kernel` runs after this one.

Barriers: one for each pair of tiles of q, k, g and dO that may be on its way; `full`: scores -> walk, A^T's parts and
the operands lie there; `empty`: walk -> scores, it is done with them. Each of the latter counts one arrival a block.
"""

# mypy: disallow-untyped-defs=False, disable-error-code="assignment, misc"
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .hopper import (
    ACCUMULATOR,
    EVERYWHERE,
    LEAST_HALF,
    LINE,
    LOG2_E,
    OPERAND,
    ROWS,
    SHARED,
    TILE_BYTES,
    barrier,
    barriers,
    by_parts,
    cut,
    each,
    inverse_exp2,
    leading,
    matrix,
    rounded,
    wide,
)

REGISTERS = gl.constexpr(248)  # of a thread of either part
ONE_ROW = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def _barriers_each(NK: gl.constexpr):
    """Two barriers for each 64 features."""
    a = barriers(2)
    if NK == 1:
        return (a,)
    else:  # noqa: RET505 - only one of both is compiled
        return (a, barriers(2))


# --- Loads: of the i-th block of the walk, where there is one ---------------------------------------------------------


@gluon.jit
def _expect_rows(i, n_here, bar_q, bar_k, bar_g, NK: gl.constexpr):
    there = i < n_here
    for t in gl.static_range(NK):
        mbarrier.expect(bar_g[t].index(i & 1), TILE_BYTES, there)
        mbarrier.expect(bar_q[t].index(i & 1), TILE_BYTES, there)
        mbarrier.expect(bar_k[t].index(i & 1), TILE_BYTES, there)


@gluon.jit
def _send_for_rows(
    i, n_here, d_q, d_k, d_g, s_q, s_k, s_g, bar_q, bar_k, bar_g, i_batch, i_row0, i_col, NK: gl.constexpr
):  # fmt: skip
    there, i_row, two, three = i < n_here, i_row0 + (n_here - 1 - i) * ROWS, i & 1, i % 3
    for t in gl.static_range(NK):
        at = [i_batch, i_row, i_col + t * ROWS]
        tma.async_copy_global_to_shared(d_g, at, bar_g[t].index(two), s_g[t].index(two), there)
    for t in gl.static_range(NK):
        at = [i_batch, i_row, i_col + t * ROWS]
        tma.async_copy_global_to_shared(d_q, at, bar_q[t].index(two), s_q[t].index(three), there)
        tma.async_copy_global_to_shared(d_k, at, bar_k[t].index(two), s_k[t].index(three), there)


@gluon.jit
def _expect_do(i, n_here, bar_do, BV: gl.constexpr):
    mbarrier.expect(bar_do.index(i & 1), BV // ROWS * TILE_BYTES, i < n_here)


@gluon.jit
def _send_for_do(i, n_here, d_do, s_do, bar_do, i_batch, i_row0, i_out):
    at = [i_batch, i_row0 + (n_here - 1 - i) * ROWS, i_out]
    tma.async_copy_global_to_shared(d_do, at, bar_do.index(i & 1), s_do.index(i & 1), i < n_here)


@gluon.jit
def _prefetch(p_row, o_l, NK: gl.constexpr):
    """Have a block's row of p_h come to L2: fences wait for loads that are on their way."""
    for t in gl.static_range(NK):
        gl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [(p_row + t * ROWS + o_l).to(gl.int64, bitcast=True)],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip


# --- Whether a block is mild, and what follows from it ----------------------------------------------------------------


@gluon.jit
def _halves(p_row, NK: gl.constexpr):
    """A block's row of p_h, all of it in every warp."""
    o_k = gl.arange(0, ROWS, gl.SliceLayout(0, EVERYWHERE))
    if NK == 1:
        return (gl.load(p_row + o_k),)
    else:  # noqa: RET505 - only one of both is compiled
        return (gl.load(p_row + o_k), gl.load(p_row + ROWS + o_k))


@gluon.jit
def _is_mild(h, NK: gl.constexpr):
    """Whether a block is mild, from `_halves`; the same in every thread."""
    least = h[0]
    if NK == 2:
        least = gl.minimum(least, h[1])
    return gl.min(least, axis=0) > LEAST_HALF


@gluon.jit
def _decays(h, mild):
    """By what dS is multiplied before and after a block adds to it."""
    return gl.exp2(gl.where(mild, h, 2.0 * h)), gl.exp2(gl.where(mild, h, 0.0))


@gluon.jit
def _sums(i, there, mild, m_i, s_g, bar_g, NK: gl.constexpr):
    """M g of the i-th block of the walk, begun: 64 features each, and M, which has to stay in registers."""
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_m = gl.where(m_i, gl.where(mild, 0.5, 1.0), gl.where(mild, -0.5, 0.0)).to(gl.bfloat16)
    mbarrier.wait(bar_g[0].index(i & 1), (i >> 1) & 1, there)
    b_ca = warpgroup_mma(b_m, matrix(s_g[0].index(i & 1)), b_zero, use_acc=False, is_async=True)
    b_cb = b_ca
    if NK == 2:
        mbarrier.wait(bar_g[1].index(i & 1), (i >> 1) & 1, there)
        b_cb = warpgroup_mma(b_m, matrix(s_g[1].index(i & 1)), b_zero, use_acc=False, is_async=True)
    return b_ca, b_cb, b_m


@gluon.jit
def _done(b_ca, b_cb, b_m, NK: gl.constexpr):
    """`_sums` once they are there."""
    if NK == 2:
        b_ca, b_cb, b_m = warpgroup_mma_wait(0, (b_ca, b_cb, b_m))
        return b_ca, b_cb
    else:  # noqa: RET505 - only one of both is compiled
        b_ca, b_m = warpgroup_mma_wait(0, (b_ca, b_m))
        return b_ca, b_ca


# --- Both parts -------------------------------------------------------------------------------------------------------


@gluon.jit
def _scores_part(
    d_q, d_k, d_g, p_h, s_q, s_k, s_g, s_ah, s_al, s_e, bar_q, bar_k, bar_g, bar_full, bar_empty,
    i_batch, i_row0, i_col, n_here, scale, K: gl.constexpr,
):  # fmt: skip
    """A^T of every block, and the operands that the walk needs."""
    NK: gl.constexpr = K // ROWS
    for i in gl.static_range(2):
        _expect_rows(gl.to_tensor(i), n_here, bar_q, bar_k, bar_g, NK)
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
    mild = _is_mild(_halves(p_row, NK), NK)
    for t in gl.static_range(NK):
        s_e[t].index(0).store(gl.exp2(gl.load(p_row + t * ROWS + o_l)))
    b_ca, b_cb, b_m = _sums(gl.to_tensor(0), n_here > 0, mild, m_i, s_g, bar_g, NK)
    b_ca, b_cb = _done(b_ca, b_cb, b_m, NK)
    barrier()

    for i in range(n_here):
        # h of the next block
        p_next = p_h + gl.maximum(n_here - 2 - i, 0) * K
        _prefetch(p_h + gl.maximum(n_here - 5 - i, 0) * K, o_l, NK)
        h_all = _halves(p_next, NK)
        h_next = (gl.load(p_next + o_l),)
        if NK == 2:
            h_next = (h_next[0], gl.load(p_next + ROWS + o_l))

        b_at = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
        kept = ()  # operands in registers: not to be written before the products are done
        for t in gl.static_range(NK):
            t_q, t_k, t_g = matrix(s_q[t].index(i % 3)), matrix(s_k[t].index(i % 3)), matrix(s_g[t].index(i & 1))
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
            t_k.store(rounded(b_k * b_e[None, :]))
            t_q.store(b_qh)
            t_g.store(b_ql)
            fence_async_shared()
            barrier()
            b_at = by_parts(b_kh, b_kl, t_q.permute((1, 0)), t_g.permute((1, 0)), b_at, t == 0)
            kept = kept + (b_kh, b_kl)  # noqa: RUF005
        # C of the next block, while this one's scores are made ready
        mild = _is_mild(h_all, NK)
        b_ca, b_cb, b_m = _sums(i + 1, i + 1 < n_here, mild, m_i, s_g, bar_g, NK)
        if NK == 2:
            b_at, _, _, _, _ = warpgroup_mma_wait(2, (b_at, kept[0], kept[1], kept[2], kept[3]))
        else:
            b_at, _, _ = warpgroup_mma_wait(1, (b_at, kept[0], kept[1]))
        b_ah, b_al = cut(gl.where(o_j[:, None] <= o_i[None, :], b_at, 0.0))
        mbarrier.wait(bar_empty, (i - 1) & 1, i > 0)  # the walk is done with the block before
        _expect_rows(i + 2, n_here, bar_q, bar_k, bar_g, NK)
        s_ah.store(b_ah)
        s_al.store(b_al)
        for t in gl.static_range(NK):
            s_e[t].index(~i & 1).store(gl.exp2(h_next[t]))
        fence_async_shared()
        barrier()
        mbarrier.arrive(bar_full, count=1)
        _send_for_rows(i + 2, n_here, d_q, d_k, d_g, s_q, s_k, s_g, bar_q, bar_k, bar_g, i_batch, i_row0, i_col, NK)
        b_ca, b_cb = _done(b_ca, b_cb, b_m, NK)


@gluon.jit
def _state(p_x, t: gl.constexpr, V: gl.constexpr, OUT: gl.constexpr, BV: gl.constexpr):
    """Where 64 features of a state in float32 lie."""
    o_k, o_v = gl.arange(0, ROWS, gl.SliceLayout(1, OUT)), gl.arange(0, BV, gl.SliceLayout(0, OUT))
    return p_x + (t * ROWS + o_k)[:, None] * V + o_v[None, :]


@gluon.jit
def _walk_part(
    d_do, d_ds, d_dv, p_h, p_dst, p_ds0, s_q, s_k, s_do, s_ds, s_dv, s_ah, s_al, bar_do, bar_full, bar_empty,
    i_batch, i_row0, i_out, i_v, i_state, i_beyond, store_ds0, n_here,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, HAS_DST: gl.constexpr, STORE_DS0: gl.constexpr,
):  # fmt: skip
    """dS, led backward in time, and dv."""
    NK: gl.constexpr = K // ROWS
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    for i in gl.static_range(2):
        _expect_do(gl.to_tensor(i), n_here, bar_do, BV)
    barrier()
    for i in gl.static_range(2):
        _send_for_do(gl.to_tensor(i), n_here, d_do, s_do, bar_do, i_batch, i_row0, i_out)
    b_zero = gl.zeros([ROWS, BV], gl.float32, OUT)
    b_da, b_db = b_zero, b_zero  # dS: features 0..63, 64..127
    if HAS_DST:
        b_da = gl.load(_state(p_dst, 0, V, OUT, BV))
        if NK == 2:
            b_db = gl.load(_state(p_dst, 1, V, OUT, BV))

    for i in range(n_here):
        i_b = n_here - 1 - i
        p_row = p_h + i_b * K
        o_k = gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
        h_all, h_a = _halves(p_row, NK), gl.load(p_row + o_k)
        h_b = h_a
        if NK == 2:
            h_b = gl.load(p_row + ROWS + o_k)
        # dS, of the state after this block
        s_ds[0].store(rounded(b_da))
        if NK == 2:
            s_ds[1].store(rounded(b_db))
        fence_async_shared()
        tma.store_wait(0)  # dv of the block before has left
        barrier()
        for t in gl.static_range(NK):
            tma.async_copy_shared_to_global(d_ds, [i_state + i_b * K + t * ROWS, i_v * BV], s_ds[t])

        # dv first, then what the block adds to dS
        t_do = matrix(s_do.index(i & 1))
        mbarrier.wait(bar_do.index(i & 1), (i >> 1) & 1)
        mbarrier.wait(bar_full, i & 1)
        b_dv = warpgroup_mma(s_ah, t_do, b_zero, use_acc=False, is_async=True)
        b_dv = warpgroup_mma(s_al, t_do, b_dv, is_async=True)
        for t in gl.static_range(NK):
            b_dv = warpgroup_mma(matrix(s_k[t].index(i % 3)), s_ds[t], b_dv, is_async=True)
        mild = _is_mild(h_all, NK)
        before_a, after_a = _decays(h_a, mild)
        b_da = b_da * before_a[:, None]
        b_da = warpgroup_mma(matrix(s_q[0].index(i % 3)).permute((1, 0)), t_do, b_da, is_async=True)
        if NK == 2:
            before_b, after_b = _decays(h_b, mild)
            b_db = b_db * before_b[:, None]
            b_db = warpgroup_mma(matrix(s_q[1].index(i % 3)).permute((1, 0)), t_do, b_db, is_async=True)
        b_dv = warpgroup_mma_wait(NK, (b_dv,))
        matrix(s_dv).store(rounded(b_dv))
        fence_async_shared()
        barrier()
        # sent always, so that there are as many copies on their way whatever the gates
        i_to = gl.where(mild, i_row0 + i_b * ROWS, i_beyond)
        tma.async_copy_shared_to_global(d_dv, [i_batch, i_to, i_out], s_dv)
        if NK == 2:
            b_da, b_db = warpgroup_mma_wait(0, (b_da, b_db))
            b_db = b_db * after_b[:, None]
        else:
            b_da = warpgroup_mma_wait(0, (b_da,))
        b_da = b_da * after_a[:, None]
        _expect_do(i + 2, n_here, bar_do, BV)
        tma.store_wait(1)  # dS has left, dv may still be leaving
        barrier()  # every warp is done with what scores left and with dO
        mbarrier.arrive(bar_empty, count=1)
        _send_for_do(i + 2, n_here, d_do, s_do, bar_do, i_batch, i_row0, i_out)
    if STORE_DS0:
        if store_ds0:
            gl.store(_state(p_ds0, 0, V, OUT, BV), b_da)
            if NK == 2:
                gl.store(_state(p_ds0, 1, V, OUT, BV), b_db)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["T", "n_seg", "first_seg", "n_end", "n_stored", "seg_rows"])
def grad_walk_hopper_kernel(
    d_q, d_k, d_g, d_do, p_h, p_dst, d_ds, p_ds0, d_dv, scale, T, H, n_seg, first_seg, n_end, n_stored, seg_rows,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, HAS_DST: gl.constexpr, STORE_DS0: gl.constexpr,
):  # fmt: skip
    """dv [B, T, H, V] of n_seg segments from first_seg on, of row blocks that are mild; all else as
    `grad_states_kernel` has it, with a gradient after every row block. bf16; K is 64 or 128, BV 64 or 128.
    p_h [B*H, n_blocks, K]: see `states_kernel`. scale > 0."""
    NK: gl.constexpr = K // ROWS
    NV: gl.constexpr = V // BV
    i_p = gl.program_id(0)
    i_v, i_seg, i_bh = i_p % NV, (i_p // NV) % n_seg, i_p // (NV * n_seg)
    i_batch, i_h = i_bh // H, i_bh % H
    seg_blocks = seg_rows // ROWS
    n_blocks = (T + ROWS - 1) // ROWS
    first = (first_seg + i_seg) * seg_blocks
    n_here = gl.minimum(n_blocks - first, seg_blocks)
    i_row0, i_col, i_out = first * ROWS, i_h * K, i_h * V + i_v * BV
    i_state = (i_bh * n_stored + i_seg * seg_blocks) * K
    i_beyond = n_blocks * ROWS
    p_h += (i_bh.to(gl.int64) * n_blocks + first) * K
    if HAS_DST:
        p_dst += (i_bh.to(gl.int64) * n_end + (first_seg + i_seg) % n_end) * K * V + i_v * BV
    if STORE_DS0:
        p_ds0 += i_bh.to(gl.int64) * K * V + i_v * BV

    OF_ROWS: gl.constexpr = d_q.layout
    OF_STATES: gl.constexpr = d_ds.layout
    s_q = each(gl.bfloat16, [3, 1, ROWS, ROWS], OF_ROWS, NK)
    s_k = each(gl.bfloat16, [3, 1, ROWS, ROWS], OF_ROWS, NK)
    s_g = each(gl.bfloat16, [2, 1, ROWS, ROWS], OF_ROWS, NK)
    s_do = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
    s_ds = each(gl.bfloat16, [ROWS, BV], OF_STATES, NK)
    s_dv = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, BV], OF_ROWS)
    s_ah = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    s_al = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    s_e = each(gl.float32, [2, ROWS], LINE, NK)
    bar_q, bar_k, bar_g, bar_do = _barriers_each(NK), _barriers_each(NK), _barriers_each(NK), barriers(2)
    one_full, one_empty = barriers(1), barriers(1)
    bar_full, bar_empty = one_full.index(0), one_empty.index(0)
    fence_async_shared()
    barrier()

    gl.warp_specialize(
        [
            (
                _walk_part,
                (
                    d_do, d_ds, d_dv, p_h, p_dst, p_ds0, s_q, s_k, s_do, s_ds, s_dv, s_ah, s_al,
                    bar_do, bar_full, bar_empty, i_batch, i_row0, i_out, i_v, i_state, i_beyond, i_seg == 0, n_here,
                    K, V, BV, HAS_DST, STORE_DS0,
                ),
            ),
            (
                _scores_part,
                (
                    d_q, d_k, d_g, p_h, s_q, s_k, s_g, s_ah, s_al, s_e, bar_q, bar_k, bar_g, bar_full, bar_empty,
                    i_batch, i_row0, i_col, n_here, scale, K,
                ),
            ),
        ],
        [4],
        [REGISTERS],
    )  # fmt: skip
