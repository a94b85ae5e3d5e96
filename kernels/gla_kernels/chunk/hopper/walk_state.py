"""The part of the walk (walk.py) that leads the state along. The equations and the barriers are there."""

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

from ...launch.tritons import async_store, barrier
from ...tiles.hopper import ACCUMULATOR, ROWS, matrix, rounded, state_at, wide
from .frames import COLUMNS, decay, frame, is_strong
from .layouts import CLOSED_HALF, LEAST_HALF, LOG2_E, least_half_of, limit, sums_of, turn_of
from .packed import as_factor, head_and_tail, passes, sequence_of


@gluon.jit
def _decayed_keys(
    b_d, s_k, s_g, s_h, s_e, at, p_h, store_h, tail, PACKED: gl.constexpr, HAS_SN: gl.constexpr
):  # fmt: skip
    """(k e^D)^T of 64 features as an operand, and what the state decays by; h is laid down, and C where float32 gates
    came to. PACKED: of the rows from tail on alone."""
    b_k = wide(matrix(s_k.index(at)).permute((1, 0)).load(ACCUMULATOR))
    last = (gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR)) == ROWS - 1)[None, :]
    total = gl.sum(gl.where(last, b_d, 0.0), axis=1) * LOG2_E
    half = 0.5 * total
    s_h.index(at).store(half)
    s_e.index(at).store(gl.exp2(half))
    gl.store(p_h + gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)), half, mask=store_h)
    b_c = gl.where(last, 0.0, b_d * LOG2_E)
    if s_g.dtype == gl.float32:
        matrix(s_g).permute((1, 0)).store(half[:, None] - b_c)
    b_e = gl.exp2(b_c)
    b_k = rounded(b_k * b_e)
    if PACKED:
        o_i = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
        if tail > 0:
            b_k = gl.where((o_i >= tail)[None, :], b_k, 0.0)
        if HAS_SN:  # the gates from the tail on are those after the row before it
            total = gl.sum(gl.where((o_i == (tail - 1) & (ROWS - 1))[None, :], b_d, 0.0), axis=1) * LOG2_E
    return b_k, gl.exp2(total)


@gluon.jit
def _added(b_s, b_k, b_f, b_v, STATE: gl.constexpr):
    """64 features of the state after a block, begun: f s + k^T v."""
    b_s = b_s * gl.convert_layout(b_f, gl.SliceLayout(1, STATE), True)[:, None]
    b_k = gl.convert_layout(b_k, gl.DotOperandLayout(0, STATE, 2), True)
    return warpgroup_mma(b_k, b_v, b_s, is_async=True)


@gluon.jit
def state_part(
    d_s, d_few, p_s0, p_st, p_h, p_marks, p_edges, p_sn, p_hv, p_strong,
    s_k, s_v, s_g, s_s, s_l, s_h, s_e, full, full_v, full_g, taken, made,
    i_state, i_few, until, every, i_v, i_row0, n_rows, i_head, n_heads, store_h, store_st, has_before, n_here,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr,
    HAS_S0: gl.constexpr, STORE_S: gl.constexpr, STORE_FEW: gl.constexpr, STORE_ST: gl.constexpr,
    PACKED: gl.constexpr, HAS_SN: gl.constexpr, V_FIRST: gl.constexpr, S0_V_FIRST: gl.constexpr, FRAMED: gl.constexpr,
):  # fmt: skip
    """Lead the state along; lay it down before each block, for the output's part and as what is kept of it. until:
    blocks before the next one of those whose state is kept by STORE_FEW."""
    STATE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    NK: gl.constexpr = K // ROWS
    WIDE: gl.constexpr = s_g[0].dtype == gl.float32
    o_k, o_v = gl.arange(0, ROWS, gl.SliceLayout(1, STATE)), gl.arange(0, BV, gl.SliceLayout(0, STATE))
    o_s, NEXT = state_at(o_k, i_v * BV + o_v, K, V, V_FIRST)
    b_s0 = gl.zeros([ROWS, BV], gl.float32, STATE)
    b_s1 = b_s0
    if HAS_S0:
        o_first, NEXT_FIRST = state_at(o_k, i_v * BV + o_v, K, V, S0_V_FIRST)
        b_s0 = gl.load(p_s0 + o_first)
        if NK == 2:
            b_s1 = gl.load(p_s0 + NEXT_FIRST + o_first)
    if PACKED:
        next_head, next_tail = head_and_tail(p_edges, i_row0)
    if FRAMED:
        o_c = gl.arange(0, BV, COLUMNS)
        before, here = frame(gl.load(p_hv + (o_c - V), mask=has_before, other=0.0)), frame(gl.load(p_hv + o_c))
        next_strong = is_strong(p_strong, 0, V)

    for i in range(n_here):
        at, phase = i & 1, (i >> 1) & 1
        head, tail = ROWS, 0
        if PACKED:
            head, tail = next_head, next_tail
        mbarrier.wait(full.index(at), phase)
        if WIDE:
            turn, phase_g = turn_of(i, 0, NK)
            s_g0 = s_g[0].index(turn)
            mbarrier.wait(full_g.index(turn), phase_g)
        else:
            s_g0 = s_g[0].index(at)
        b_d0 = sums_of(s_g0, s_l)
        if NK == 2 and not WIDE:
            s_g1 = s_g[1].index(at)
            b_d1 = sums_of(s_g1, s_l)
            b_d0 = warpgroup_mma_wait(1, (b_d0,))
        else:
            b_d0 = warpgroup_mma_wait(0, (b_d0,))
        b_k0, b_f0 = _decayed_keys(b_d0, s_k[0], s_g0, s_h[0], s_e[0], at, p_h, store_h, tail, PACKED, HAS_SN)
        if NK == 2:
            if WIDE:
                turn, phase_g = turn_of(i, 1, NK)
                s_g1 = s_g[0].index(turn)
                mbarrier.wait(full_g.index(turn), phase_g)
                b_d1 = sums_of(s_g1, s_l)
            b_d1 = warpgroup_mma_wait(0, (b_d1,))
            b_k1, b_f1 = _decayed_keys(
                b_d1, s_k[1], s_g1, s_h[1], s_e[1], at, p_h + ROWS, store_h, tail, PACKED, HAS_SN
            )
        tma.store_wait(NK if STORE_S else 0)  # the state before the last one has left the slot
        if WIDE:
            fence_async_shared()
        barrier()  # every warp has read k and g, and h lies there
        least = least_half_of(s_h, at, NK)
        if not WIDE:
            if least < CLOSED_HALF:  # there may be gates of -inf, and what was summed beside them is no number
                for t in gl.static_range(NK):
                    limit(s_g[t].index(at))
                b_d0 = warpgroup_mma_wait(0, (sums_of(s_g0, s_l),))
                b_k0, b_f0 = _decayed_keys(b_d0, s_k[0], s_g0, s_h[0], s_e[0], at, p_h, store_h, tail, PACKED, HAS_SN)
                if NK == 2:
                    b_d1 = warpgroup_mma_wait(0, (sums_of(s_g1, s_l),))
                    b_k1, b_f1 = _decayed_keys(
                        b_d1, s_k[1], s_g1, s_h[1], s_e[1], at, p_h + ROWS, store_h, tail, PACKED, HAS_SN
                    )
                barrier()
        p_h += K
        mbarrier.arrive(taken.index(at))
        if FRAMED:
            b_f = gl.convert_layout(gl.exp2(before + here), gl.SliceLayout(0, STATE))[None, :]
            b_s0 = b_s0 * b_f
            if NK == 2:
                b_s1 = b_s1 * b_f
        # the slot is free: `full` came after `empty` of the block before the last one
        s_s[0].index(at).store(rounded(b_s0))
        if NK == 2:
            s_s[1].index(at).store(rounded(b_s1))
        fence_async_shared()
        barrier()
        mbarrier.arrive(made.index(at))
        if FRAMED:  # of the next block, after the fence, which would wait for what is loaded
            i_next = gl.minimum(i + 1, n_here - 1)
            strong, next_strong = next_strong, is_strong(p_strong, i_next, V)
            before, here = here, frame(gl.load(p_hv + i_next * V + o_c))
        if PACKED:
            next_head, next_tail = head_and_tail(p_edges, i_row0 + gl.minimum(i + 1, n_here - 1) * ROWS)
        wanted = True if STORE_S else least <= LEAST_HALF
        if FRAMED and not STORE_S:
            wanted = wanted | strong
        if wanted:
            for t in gl.static_range(NK):
                async_store(d_s, [i_state + i * K + t * ROWS, i_v * BV], s_s[t].index(at))
        if STORE_FEW:
            if until == 0:
                for t in gl.static_range(NK):
                    async_store(d_few, [i_few + t * ROWS, i_v * BV], s_s[t].index(at))
                i_few += K
                until = every
            until -= 1
        if PACKED:
            if STORE_ST:
                if (head > 0) & (not passes(head, tail)):  # whose sequence ends here: `edges` does the rest
                    p_at = p_st + (sequence_of(p_marks, n_rows, i_row0 + i * ROWS) * n_heads + i_head) * K * V
                    gl.store(p_at + o_s, b_s0)
                    if NK == 2:
                        gl.store(p_at + NEXT + o_s, b_s1)
            b_e0 = b_f0
            b_f0 = b_e0 * as_factor(passes(head, tail))
            if NK == 2:
                b_e1 = b_f1
                b_f1 = b_e1 * as_factor(passes(head, tail))
            if HAS_SN:
                i_last = i_row0 + i * ROWS + ROWS - 1
                p_at = p_sn + (sequence_of(p_marks, n_rows, i_last) * n_heads + i_head) * K * V
                if not passes(head, tail):  # the state after the block is of a sequence that begins in it
                    b_s0 = gl.load(p_at + o_s)
                    b_f0 = b_e0
                    if NK == 2:
                        b_s1 = gl.load(p_at + NEXT + o_s)
                        b_f1 = b_e1
        if FRAMED:
            if strong:
                b_e = decay(gl.load(p_hv + i * V + o_v))[None, :]
                b_s0 = b_s0 * b_e
                if NK == 2:
                    b_s1 = b_s1 * b_e

        mbarrier.wait(full_v.index(at), phase)
        b_v = matrix(s_v.index(at))
        b_s0 = _added(b_s0, b_k0, b_f0, b_v, STATE)
        if NK == 2:
            b_s1 = _added(b_s1, b_k1, b_f1, b_v, STATE)
            b_s0, b_s1 = warpgroup_mma_wait(0, (b_s0, b_s1))
        else:
            b_s0 = warpgroup_mma_wait(0, (b_s0,))
    if STORE_ST and not PACKED:
        if store_st:
            if FRAMED:
                b_e = gl.exp2(frame(gl.load(p_hv + (n_here - 1) * V + o_v)))[None, :]
                b_s0 = b_s0 * b_e
                if NK == 2:
                    b_s1 = b_s1 * b_e
            gl.store(p_st + o_s, b_s0)
            if NK == 2:
                gl.store(p_st + NEXT + o_s, b_s1)
    tma.store_wait(0)
