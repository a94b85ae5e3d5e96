"""The part of the walk (walk.py) that makes the output. The equations and the barriers are there."""

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

from ...launch.tritons import async_store, barrier
from ...tiles.hopper import ACCUMULATOR, ROWS, cut, matrix, rounded, wide
from .frames import send_gates, store_low
from .layouts import LEAST_HALF, LOG2_E, by_parts, inverse_exp2, least_half_of, turn_of
from .packed import firsts_of_rows, head_and_tail, same_scores


@gluon.jit
def _sums(s_g, s_m, at):
    """M g of 64 features, begun."""
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    return warpgroup_mma(s_m, matrix(s_g.index(at)), b_zero, use_acc=False, is_async=True)


@gluon.jit
def _value_sums(s_gv, s_m, BV: gl.constexpr, OUT: gl.constexpr):
    """M g of BV columns of the value side, begun."""
    b_zero = gl.zeros([ROWS, BV], gl.float32, OUT)
    return warpgroup_mma(s_m, matrix(s_gv.index(0)), b_zero, use_acc=False, is_async=True)


@gluon.jit
def _keys(b_c, s_q, s_k, at, taken, phase, FIRST: gl.constexpr):
    """k e^-C in two parts to where k and q were; q as loaded."""
    b_k, b_q = matrix(s_k.index(at)), matrix(s_q.index(at))
    b_kw, b_qw = b_k.load(ACCUMULATOR), b_q.load(ACCUMULATOR)
    b_kh, b_kl = cut(wide(b_kw) * inverse_exp2(b_c))
    if FIRST:
        mbarrier.wait(taken.index(at), phase)
    b_k.store(b_kh)
    b_q.store(b_kl)
    return b_qw


@gluon.jit
def _queries(b_x, s_e, at, head, PACKED: gl.constexpr):
    """Of q e^C: its two parts, and q e^{C+h}, PACKED of the first ``head`` rows alone."""
    b_qh, b_ql = cut(b_x)
    b_x = b_x * s_e.index(at).load(gl.SliceLayout(0, ACCUMULATOR))[None, :]
    b_qd = rounded(b_x)
    if PACKED:
        if head < ROWS:
            b_qd = gl.where((gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)) < head)[:, None], b_qd, 0.0)
    return b_qh, b_ql, b_qd


@gluon.jit
def _scores(b_qh, b_ql, s_q, s_k, at, b_a, FIRST: gl.constexpr):
    """a + (q e^C)(k e^-C)^T, begun."""
    s_high, s_low = matrix(s_k.index(at)).permute((1, 0)), matrix(s_q.index(at)).permute((1, 0))
    return by_parts(b_qh, b_ql, s_high, s_low, b_a, FIRST)


@gluon.jit
def output_part(
    d_o, d_gv, p_low, p_marks, p_edges, s_q, s_k, s_v, s_g, s_gv, s_s, s_o, s_m, s_h, s_e,
    full, full_v, full_gv, taken, made, empty, empty_v, empty_g,
    scale, i_batch, i_row0, i_out, n_here, T, stride,
    K: gl.constexpr, BV: gl.constexpr, PACKED: gl.constexpr, STORE_LOW: gl.constexpr,
):  # fmt: skip
    """O of every block. Its last product ends in the next turn, while that one's keys are prepared. With d_gv it is led
    out of its frames there, by the sums of gates of the value side that came for the block meanwhile."""
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    NK: gl.constexpr = K // ROWS
    WIDE: gl.constexpr = s_g[0].dtype == gl.float32
    LENT: gl.constexpr = WIDE or (d_gv is not None and BV > ROWS)  # whether o leaves from where v of its block was
    b_o = warpgroup_mma_init(gl.zeros([ROWS, BV], gl.float32, OUT))
    mild = n_here < 0  # of the block before
    if PACKED:
        next_head, _ = head_and_tail(p_edges, i_row0)
    mbarrier.wait(full.index(0), 0)
    if WIDE:  # what goes around the loop has been waited for, or the compiler has all products of it wait
        b_o = warpgroup_mma_init(warpgroup_mma_wait(0, (b_o,)))
    else:
        b_c0 = warpgroup_mma_wait(0, (_sums(s_g[0], s_m, 0),))

    for i in range(n_here):
        # on their way: both products A V of the block before
        at, phase = i & 1, (i >> 1) & 1
        head = ROWS
        if PACKED:
            head = next_head
        s_out = s_o.index(at ^ 1 if LENT else 0)
        if WIDE:
            mbarrier.wait(taken.index(at), phase)
            turn, _ = turn_of(i, 0, NK)
            b_c = matrix(s_g[0].index(turn)).load(ACCUMULATOR)
        else:
            b_c = b_c0 * LOG2_E
        b_qw = _keys(b_c, s_q[0], s_k[0], at, taken, phase, not WIDE)
        b_x = wide(b_qw) * gl.exp2(b_c)
        if d_gv is None:
            b_out, b_x = warpgroup_mma_wait(0, (b_o, b_x))  # with b_x, or the compiler makes it only after the wait
        else:
            mbarrier.wait(full_gv.index(0), (i - 1) & 1, pred=i > 0)
            b_cv = _value_sums(s_gv, s_m, BV, OUT)
            b_out, b_x, b_cv = warpgroup_mma_wait(0, (b_o, b_x, b_cv))
        b_out = b_out * scale
        if d_gv is not None:
            b_out = b_out * gl.exp2(b_cv * LOG2_E)
        if STORE_LOW:
            if i > 0:
                store_low(p_low, b_out, i_row0 + (i - 1) * ROWS, T, stride)
        b_out = rounded(b_out)
        b_qh, b_ql, b_qd = _queries(b_x, s_e[0], at, head, PACKED)
        fence_async_shared()
        tma.store_wait(0)
        barrier()  # the keys lie there; every warp is done with the block before; its o may be laid down
        if d_gv is not None:
            send_gates(d_gv, s_gv, full_gv, i_batch, i_row0 + i * ROWS, i_out, True)
        if WIDE:
            mbarrier.arrive(empty_g.index(turn))
        elif NK == 2:
            b_c1 = _sums(s_g[1], s_m, at)
        b_a = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
        b_a = _scores(b_qh, b_ql, s_q[0], s_k[0], at, b_a, True)
        if not LENT:
            matrix(s_out).store(b_out)
        mbarrier.wait(made.index(at), phase)  # which comes after the state's part has read the v of the block before
        if LENT:
            if i > 0:  # else a v comes there
                matrix(s_out).store(b_out)
        else:
            mbarrier.arrive(empty_v.index(at ^ 1), pred=i > 0)
        b_o = gl.zeros([ROWS, BV], gl.float32, OUT)
        b_o = warpgroup_mma(gl.convert_layout(b_qd, LEFT, True), s_s[0].index(at), b_o, use_acc=False, is_async=True)
        if NK == 2:
            if WIDE:
                turn, _ = turn_of(i, 1, NK)
                b_c = matrix(s_g[0].index(turn)).load(ACCUMULATOR)
            else:
                b_c = warpgroup_mma_wait(4, (b_c1,)) * LOG2_E
            b_qw = _keys(b_c, s_q[1], s_k[1], at, taken, phase, False)
            b_a = warpgroup_mma_init(warpgroup_mma_wait(1, (b_a,)))  # registers for the queries
            b_qh, b_ql, b_qd = _queries(wide(b_qw) * gl.exp2(b_c), s_e[1], at, head, PACKED)
        fence_async_shared()
        barrier()  # the keys and the o of the block before lie there
        if mild:
            async_store(d_o, [i_batch, i_row0 + (i - 1) * ROWS, i_out], s_out)
        if NK == 2:
            if WIDE:
                mbarrier.arrive(empty_g.index(turn))
            b_a = _scores(b_qh, b_ql, s_q[1], s_k[1], at, b_a, False)
            b_o = warpgroup_mma(gl.convert_layout(b_qd, LEFT, True), s_s[1].index(at), b_o, is_async=True)
        mild = least_half_of(s_h, at, NK) > LEAST_HALF

        # the next block's sums begin; of the last block's, which nobody asks for, the operand is what lies there
        mbarrier.wait(full.index(at ^ 1), ((i + 1) >> 1) & 1, pred=i + 1 < n_here)
        if not WIDE:
            b_c0 = _sums(s_g[0], s_m, at ^ 1)
        b_a = warpgroup_mma_wait(2 if NK == 2 and not WIDE else 1, (b_a,))
        o_i, o_j = (
            gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)),
            gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR)),
        )
        b_a = gl.where(o_i[:, None] >= o_j[None, :], b_a, 0.0)
        if PACKED:
            if head < ROWS:
                b_a = same_scores(b_a, firsts_of_rows(p_marks, i_row0 + i * ROWS))
        b_ah, b_al = cut(b_a)
        if WIDE:
            b_o = warpgroup_mma_wait(0, (b_o,))
        else:
            b_o, b_c0 = warpgroup_mma_wait(0, (b_o, b_c0))
        b_o = warpgroup_mma_init(b_o)
        if LENT:
            tma.store_wait(0)
        barrier()  # every warp is done with q, k, g, h and the state
        mbarrier.arrive(empty.index(at))
        if LENT:
            mbarrier.arrive(empty_v.index(at ^ 1), pred=i > 0)
        if PACKED:
            i_next = i_row0 + gl.minimum(i + 1, n_here - 1) * ROWS
            next_head, _ = head_and_tail(p_edges, i_next)
        mbarrier.wait(full_v.index(at), phase)
        b_v = matrix(s_v.index(at))
        b_o = warpgroup_mma(gl.convert_layout(b_ah, LEFT, True), b_v, b_o, is_async=True)
        b_o = warpgroup_mma(gl.convert_layout(b_al, LEFT, True), b_v, b_o, is_async=True)
    if d_gv is None:
        b_out = warpgroup_mma_wait(0, (b_o,))
    else:
        mbarrier.wait(full_gv.index(0), (n_here - 1) & 1)
        b_out, b_cv = warpgroup_mma_wait(0, (b_o, _value_sums(s_gv, s_m, BV, OUT)))
    tma.store_wait(0)
    barrier()
    s_out = s_o.index(n_here & 1 if LENT else 0)  # not where the state's part reads v
    b_out = b_out * scale
    if d_gv is not None:
        b_out = b_out * gl.exp2(b_cv * LOG2_E)
    if STORE_LOW:
        store_low(p_low, b_out, i_row0 + (n_here - 1) * ROWS, T, stride)
    matrix(s_out).store(rounded(b_out))
    fence_async_shared()
    barrier()
    if mild:
        async_store(d_o, [i_batch, i_row0 + (n_here - 1) * ROWS, i_out], s_out)
    tma.store_wait(0)
