"""States and the forward output in one walk over time, on Hopper, in Gluon: what states.py and output.py compute, where
a chunk is one row block of 64. The output reads no state from memory.

A program walks over a segment with a state of all of K and BV columns of V. Three groups of warps have a part each. One
warp sends for the next row blocks; four lead the state along in their registers (states.py's arithmetic); four compute
the block's output (output.py's), and of a block's work only the first product of O needs the state before it.

    state      D[i] = sum of the gates of the rows after i;  h = half of the sum of all:  one product with L (below)
               S <- e^{2h} S + (k e^D as bf16)^T V             transposed, features first: k e^D never leaves registers
    output     C = M g,  M[i, j] = 1/2 for i >= j, else -1/2;  A = tril((q e^C)(k e^-C)^T), all in two parts each
               O = scale [(q e^C e^h as bf16) S + A V]

L[j, i] = 1 for j > i, and for i = 63, where there is nothing after, for every j: that row's sum is the block's.
Blocks that are not mild: their rows of o are not stored (`output_strong_kernel` runs after this one); the states
and h are right for any gates.

Shared memory (K = BV = 128): 2 stages of q, k, g, v 128 KiB (k's and q's places come to hold k e^-C's parts), the state
as bf16 2 x 32, o 16, L and M 8 each; h and e^h of 2 blocks. One program an SM.

Gates in float32 have one stage, of 32 KiB. The state's part reads them into registers, in two parts of bfloat16 that
are the left operands of D, and leaves C = h - D in their place, in float32: the output's part has no product of gates,
and no M. 64 features each come as soon as the output's part has read the C of the block before: a block ahead.

Barriers, two of each, for even and odd blocks; each counts one arrival a block, in `full*` the one with the expected
bytes:

    full      q, k, g have come                                               producer -> state, output
    full_v    v has come                                                      producer -> state, output
    taken     the state's part has read k and g, and h lies there             state -> output
    made      the state before the block lies in its slot                     state -> output
    empty     q, k, g, h and the slot are done with (k, g by both: `taken`)   output -> producer; `full` tells the state
    empty_v   v is done with (by both: `made` of the next block)              output -> producer

With gates in float32 `full` is of q and k, `taken` also says that C lies there, and there are one of each of these, for
each 64 features:

    full_g    g has come                                                      producer -> state
    empty_g   C is done with                                                  output -> producer
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
from .layouts import (
    ACCUMULATOR,
    CLOSED_HALF,
    EVERYWHERE,
    LEAST_HALF,
    LINE,
    LOG2_E,
    ROWS,
    SHARED,
    SPREAD,
    TILE_BYTES,
    barriers,
    barriers_alone,
    by_parts,
    cut,
    each,
    inverse_exp2,
    limit,
    matrix,
    rounded,
    sums_of,
    wide,
)
from .packed import as_factor, firsts_of_rows, head_and_tail, passes, same_scores, sequence_of, state_at
from .strong_gates import hidden_zero

REGISTERS = gl.constexpr(240)  # of a thread of the state's part; the output's gets as many
FEW_REGISTERS = gl.constexpr(24)  # of one that only loads


# --- Loads ------------------------------------------------------------------------------------------------------------


@gluon.jit
def _send_gates(i, d_g, s_g, full_g, empty_g, i_batch, i_row, i_col):
    """For 64 features of the i-th block's gates in float32, whose place blocks have one after another."""
    mbarrier.wait(empty_g, (i & 1) ^ 1)
    mbarrier.expect(full_g, 2 * TILE_BYTES)
    async_load(d_g, [i_batch, i_row, i_col], full_g, s_g.index(0))


@gluon.jit
def _load_part(
    d_q, d_k, d_v, d_g, s_q, s_k, s_v, s_g, full, full_v, full_g, empty, empty_v, empty_g,
    i_batch, i_row0, i_col, i_out, n_here, K: gl.constexpr, BV: gl.constexpr,
):  # fmt: skip
    """Send for every block as soon as its stage is free."""
    WIDE: gl.constexpr = d_g.dtype == gl.float32
    for i in range(n_here):
        at, phase, i_row = i & 1, (i >> 1) & 1, i_row0 + i * ROWS
        bar, bar_v = full.index(at), full_v.index(at)
        mbarrier.wait(empty.index(at), phase ^ 1)
        mbarrier.expect(bar, (2 if WIDE else 3) * (K // ROWS) * TILE_BYTES)
        for t in gl.static_range(K // ROWS):
            if not WIDE:
                async_load(d_g, [i_batch, i_row, i_col + t * ROWS], bar, s_g[t].index(at))
            async_load(d_k, [i_batch, i_row, i_col + t * ROWS], bar, s_k[t].index(at))
            async_load(d_q, [i_batch, i_row, i_col + t * ROWS], bar, s_q[t].index(at))
        if WIDE:
            _send_gates(i, d_g, s_g[0], full_g[0], empty_g[0], i_batch, i_row, i_col)
        mbarrier.wait(empty_v.index(at), phase ^ 1)
        mbarrier.expect(bar_v, BV // ROWS * TILE_BYTES)
        async_load(d_v, [i_batch, i_row, i_out], bar_v, s_v.index(at))
        if WIDE:
            if K // ROWS == 2:
                _send_gates(i, d_g, s_g[1], full_g[1], empty_g[1], i_batch, i_row, i_col + ROWS)


# --- The state --------------------------------------------------------------------------------------------------------


@gluon.jit
def _decayed_keys(
    b_d, s_k, s_g, s_h, s_e, at, p_h, store_h, nil, tail, PACKED: gl.constexpr, HAS_SN: gl.constexpr
):  # fmt: skip
    """(k e^D)^T of 64 features as an operand, and what the state decays by; h is laid down, and C where float32 gates
    are. PACKED: of the rows from tail on alone."""
    b_k = wide(matrix(s_k.index(at)).permute((1, 0)).load(ACCUMULATOR))
    last = (gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR)) == ROWS - 1)[None, :]
    total = gl.sum(gl.where(last, b_d, 0.0), axis=1) * LOG2_E
    half = 0.5 * total
    s_h.index(at).store(half)
    s_e.index(at).store(gl.exp2(half))
    gl.store(p_h + gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)), half, mask=store_h)
    b_c = gl.where(last, 0.0, b_d * LOG2_E)
    if s_g.dtype == gl.float32:
        matrix(s_g.index(nil)).permute((1, 0)).store(half[:, None] - b_c)
    b_e = gl.exp2(b_c)
    if PACKED:
        o_i = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
        b_e = gl.where((o_i >= tail)[None, :], b_e, 0.0)
        if HAS_SN:  # the gates from the tail on are those after the row before it
            total = gl.sum(gl.where((o_i == (tail - 1) & (ROWS - 1))[None, :], b_d, 0.0), axis=1) * LOG2_E
    return rounded(b_k * b_e), gl.exp2(total)


@gluon.jit
def _added(b_s, b_k, b_f, b_v, STATE: gl.constexpr):
    """64 features of the state after a block, begun: f s + k^T v."""
    b_s = b_s * gl.convert_layout(b_f, gl.SliceLayout(1, STATE), True)[:, None]
    b_k = gl.convert_layout(b_k, gl.DotOperandLayout(0, STATE, 2), True)
    return warpgroup_mma(b_k, b_v, b_s, is_async=True)


@gluon.jit
def _least(s_h, at):
    """Of 64 features, the least h."""
    return gl.min(s_h.index(at).load(gl.SliceLayout(0, EVERYWHERE)), axis=0)


@gluon.jit
def _least_of(s_h, at, NK: gl.constexpr):
    """Of all features, the least h: the same in every thread."""
    least = _least(s_h[0], at)
    if NK == 2:
        least = gl.minimum(least, _least(s_h[1], at))
    return least


@gluon.jit
def _state_part(
    d_s, d_few, p_s0, p_st, p_h, p_marks, p_edges, p_sn,
    s_k, s_v, s_g, s_s, s_l, s_h, s_e, full, full_v, full_g, taken, made,
    i_state, i_few, until, every, i_v, i_row0, n_rows, i_head, n_heads, store_h, store_st, n_here,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr,
    HAS_S0: gl.constexpr, STORE_S: gl.constexpr, STORE_FEW: gl.constexpr, STORE_ST: gl.constexpr,
    PACKED: gl.constexpr, HAS_SN: gl.constexpr, V_FIRST: gl.constexpr, S0_V_FIRST: gl.constexpr,
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

    for i in range(n_here):
        at, phase = i & 1, (i >> 1) & 1
        nil = hidden_zero(i_state + i)
        head, tail = ROWS, 0
        if PACKED:
            head, tail = next_head, next_tail
        mbarrier.wait(full.index(at), phase)
        if WIDE:
            mbarrier.wait(full_g[0], i & 1)
            b_d0 = sums_of(s_g[0].index(nil), s_l)
        else:
            b_d0 = sums_of(s_g[0].index(at), s_l)
        if NK == 2 and not WIDE:
            b_d1 = sums_of(s_g[1].index(at), s_l)
            b_d0 = warpgroup_mma_wait(1, (b_d0,))
        else:
            b_d0 = warpgroup_mma_wait(0, (b_d0,))
        b_k0, b_f0 = _decayed_keys(b_d0, s_k[0], s_g[0], s_h[0], s_e[0], at, p_h, store_h, nil, tail, PACKED, HAS_SN)
        if NK == 2:
            if WIDE:  # which come half a block later
                mbarrier.wait(full_g[1], i & 1)
                b_d1 = sums_of(s_g[1].index(nil), s_l)
            b_d1 = warpgroup_mma_wait(0, (b_d1,))
            b_k1, b_f1 = _decayed_keys(
                b_d1, s_k[1], s_g[1], s_h[1], s_e[1], at, p_h + ROWS, store_h, nil, tail, PACKED, HAS_SN
            )
        tma.store_wait(NK if STORE_S else 0)  # the state before the last one has left the slot
        if WIDE:
            fence_async_shared()
        barrier()  # every warp has read k and g, and h lies there
        least = _least_of(s_h, at, NK)
        if not WIDE:
            if least < CLOSED_HALF:  # there may be gates of -inf, and what was summed beside them is no number
                for t in gl.static_range(NK):
                    limit(s_g[t].index(at))
                b_d0 = warpgroup_mma_wait(0, (sums_of(s_g[0].index(at), s_l),))
                b_k0, b_f0 = _decayed_keys(
                    b_d0, s_k[0], s_g[0], s_h[0], s_e[0], at, p_h, store_h, nil, tail, PACKED, HAS_SN
                )
                if NK == 2:
                    b_d1 = warpgroup_mma_wait(0, (sums_of(s_g[1].index(at), s_l),))
                    b_k1, b_f1 = _decayed_keys(
                        b_d1, s_k[1], s_g[1], s_h[1], s_e[1], at, p_h + ROWS, store_h, nil, tail, PACKED, HAS_SN
                    )
                barrier()
        p_h += K
        mbarrier.arrive(taken.index(at))
        # the slot is free: `full` came after `empty` of the block before the last one
        s_s[0].index(at).store(rounded(b_s0))
        if NK == 2:
            s_s[1].index(at).store(rounded(b_s1))
        fence_async_shared()
        barrier()
        mbarrier.arrive(made.index(at))
        if PACKED:
            next_head, next_tail = head_and_tail(p_edges, i_row0 + gl.minimum(i + 1, n_here - 1) * ROWS)
        wanted = True if STORE_S else least <= LEAST_HALF
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
            gl.store(p_st + o_s, b_s0)
            if NK == 2:
                gl.store(p_st + NEXT + o_s, b_s1)
    tma.store_wait(0)


# --- The output -------------------------------------------------------------------------------------------------------


@gluon.jit
def _sums(s_g, s_m, at):
    """M g of 64 features, begun."""
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    return warpgroup_mma(s_m, matrix(s_g.index(at)), b_zero, use_acc=False, is_async=True)


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
    if PACKED:
        b_x = gl.where((gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)) < head)[:, None], b_x, 0.0)
    return b_qh, b_ql, rounded(b_x)


@gluon.jit
def _scores(b_qh, b_ql, s_q, s_k, at, b_a, FIRST: gl.constexpr):
    """a + (q e^C)(k e^-C)^T, begun."""
    s_high, s_low = matrix(s_k.index(at)).permute((1, 0)), matrix(s_q.index(at)).permute((1, 0))
    return by_parts(b_qh, b_ql, s_high, s_low, b_a, FIRST)


@gluon.jit
def _output_part(
    d_o, p_marks, p_edges, s_q, s_k, s_v, s_g, s_s, s_o, s_m, s_h, s_e,
    full, full_v, taken, made, empty, empty_v, empty_g,
    scale, i_batch, i_row0, i_out, n_here, K: gl.constexpr, BV: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """O of every block. Its last product ends in the next turn, while that one's keys are prepared."""
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    NK: gl.constexpr = K // ROWS
    WIDE: gl.constexpr = s_g[0].dtype == gl.float32
    b_o = warpgroup_mma_init(gl.zeros([ROWS, BV], gl.float32, OUT))
    mild = n_here < 0  # of the block before
    if PACKED:
        next_head, _ = head_and_tail(p_edges, i_row0)
        b_next = firsts_of_rows(p_marks, i_row0)
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
            head, b_first = next_head, b_next
        if WIDE:
            mbarrier.wait(taken.index(at), phase)
            nil = hidden_zero(i_row0 + i)
            b_c = matrix(s_g[0].index(nil)).load(ACCUMULATOR)
        else:
            b_c = b_c0 * LOG2_E
        b_qw = _keys(b_c, s_q[0], s_k[0], at, taken, phase, not WIDE)
        b_x = wide(b_qw) * gl.exp2(b_c)
        b_out, b_x = warpgroup_mma_wait(0, (b_o, b_x))  # with b_x, or the compiler makes it only after the wait
        b_out = rounded(b_out * scale)
        b_qh, b_ql, b_qd = _queries(b_x, s_e[0], at, head, PACKED)
        fence_async_shared()
        tma.store_wait(0)
        barrier()  # the keys lie there; every warp is done with the block before; its o may be laid down
        if WIDE:
            mbarrier.arrive(empty_g[0])
        elif NK == 2:
            b_c1 = _sums(s_g[1], s_m, at)
        b_a = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
        b_a = _scores(b_qh, b_ql, s_q[0], s_k[0], at, b_a, True)
        matrix(s_o).store(b_out)
        mbarrier.wait(made.index(at), phase)  # which comes after the state's part has read the v of the block before
        mbarrier.arrive(empty_v.index(at ^ 1), pred=i > 0)
        b_o = gl.zeros([ROWS, BV], gl.float32, OUT)
        b_o = warpgroup_mma(gl.convert_layout(b_qd, LEFT, True), s_s[0].index(at), b_o, use_acc=False, is_async=True)
        if NK == 2:
            if WIDE:  # noqa: SIM108 - only one of both is compiled
                b_c = matrix(s_g[1].index(nil)).load(ACCUMULATOR)
            else:
                b_c = warpgroup_mma_wait(4, (b_c1,)) * LOG2_E
            b_qw = _keys(b_c, s_q[1], s_k[1], at, taken, phase, False)
            b_a = warpgroup_mma_init(warpgroup_mma_wait(1, (b_a,)))  # registers for the queries
            b_qh, b_ql, b_qd = _queries(wide(b_qw) * gl.exp2(b_c), s_e[1], at, head, PACKED)
        fence_async_shared()
        barrier()  # the keys and the o of the block before lie there
        if mild:
            async_store(d_o, [i_batch, i_row0 + (i - 1) * ROWS, i_out], s_o)
        if NK == 2:
            if WIDE:
                mbarrier.arrive(empty_g[1])
            b_a = _scores(b_qh, b_ql, s_q[1], s_k[1], at, b_a, False)
            b_o = warpgroup_mma(gl.convert_layout(b_qd, LEFT, True), s_s[1].index(at), b_o, is_async=True)
        mild = _least_of(s_h, at, NK) > LEAST_HALF

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
            b_a = same_scores(b_a, b_first)
        b_ah, b_al = cut(b_a)
        if WIDE:
            b_o = warpgroup_mma_wait(0, (b_o,))
        else:
            b_o, b_c0 = warpgroup_mma_wait(0, (b_o, b_c0))
        b_o = warpgroup_mma_init(b_o)
        barrier()  # every warp is done with q, k, g, h and the state
        mbarrier.arrive(empty.index(at))
        if PACKED:
            i_next = i_row0 + gl.minimum(i + 1, n_here - 1) * ROWS
            next_head, _ = head_and_tail(p_edges, i_next)
            b_next = firsts_of_rows(p_marks, i_next)
        mbarrier.wait(full_v.index(at), phase)
        b_v = matrix(s_v.index(at))
        b_o = warpgroup_mma(gl.convert_layout(b_ah, LEFT, True), b_v, b_o, is_async=True)
        b_o = warpgroup_mma(gl.convert_layout(b_al, LEFT, True), b_v, b_o, is_async=True)
    b_out = warpgroup_mma_wait(0, (b_o,))
    tma.store_wait(0)
    barrier()
    matrix(s_o).store(rounded(b_out * scale))
    fence_async_shared()
    barrier()
    if mild:
        async_store(d_o, [i_batch, i_row0 + (n_here - 1) * ROWS, i_out], s_o)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["T", "n_seg", "first_seg", "n_start", "n_stored", "seg_rows", "n_few", "every", "n_rows"])
def walk_hopper_kernel(
    d_q, d_k, d_v, d_g, p_s0, d_s, d_few, p_h, p_st, p_marks, p_edges, p_sn, d_o,
    scale, T, H, n_seg, first_seg, n_start, n_stored, seg_rows, n_few, every, n_rows, n_heads,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr,
    HAS_S0: gl.constexpr, STORE_S: gl.constexpr, STORE_FEW: gl.constexpr, STORE_ST: gl.constexpr,
    PACKED: gl.constexpr, HAS_SN: gl.constexpr, V_FIRST: gl.constexpr, S0_V_FIRST: gl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of n_seg segments from first_seg on, of row blocks that are mild; all else as `states_kernel` has
    it, with a state before every row block, or without STORE_S before those alone that are not mild: the only ones that
    the forward pass itself asks for. With STORE_FEW, p_few [B*H, n_few, K, V] is given the states before every so many
    row blocks of the sequence. bf16; K is 64 or 128, BV 64 or 128. The rest as in `states_kernel`."""
    NK: gl.constexpr = K // ROWS
    NV: gl.constexpr = V // BV
    i_p = gl.program_id(0)
    i_v, i_seg, i_bh = i_p % NV, (i_p // NV) % n_seg, i_p // (NV * n_seg)
    i_batch, i_h = i_bh // H, i_bh % H
    i_col, i_out = i_h * K, i_h * V + i_v * BV
    seg_blocks = seg_rows // ROWS
    n_blocks = (T + ROWS - 1) // ROWS
    first = (first_seg + i_seg) * seg_blocks
    n_here = gl.minimum(n_blocks - first, seg_blocks)
    i_row0, i_state = first * ROWS, (i_bh * n_stored + i_seg * seg_blocks) * K
    n_before = (first + every - 1) // every  # states of those that are kept
    i_few, until = (i_bh * n_few + n_before) * K, n_before * every - first
    p_h += (i_bh.to(gl.int64) * n_blocks + first) * K
    if HAS_S0:
        p_s0 += (i_bh.to(gl.int64) * n_start + (first_seg + i_seg) % n_start) * K * V
    if STORE_ST and not PACKED:
        p_st += i_bh.to(gl.int64) * K * V

    GATE: gl.constexpr = d_g.dtype
    WIDE: gl.constexpr = GATE == gl.float32
    OF_GATES: gl.constexpr = d_g.layout
    OF_ROWS: gl.constexpr = d_q.layout
    OF_STATES: gl.constexpr = d_s.layout
    s_q = each(gl.bfloat16, [2, 1, ROWS, ROWS], OF_ROWS, NK)
    s_k = each(gl.bfloat16, [2, 1, ROWS, ROWS], OF_ROWS, NK)
    s_g = each(GATE, [1 if WIDE else 2, 1, ROWS, ROWS], OF_GATES, NK)
    s_s = each(gl.bfloat16, [2, ROWS, BV], OF_STATES, NK)
    s_h, s_e = each(gl.float32, [2, ROWS], LINE, NK), each(gl.float32, [2, ROWS], LINE, NK)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
    s_o = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, BV], OF_ROWS)
    s_l = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    s_m = s_l
    full_g, empty_g = (), ()
    if WIDE:
        full_g, empty_g = barriers_alone(NK), barriers_alone(NK)
    else:
        s_m = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    full, full_v, taken, made = barriers(2), barriers(2), barriers(2), barriers(2)
    empty, empty_v = barriers(2), barriers(2)
    o_i, o_j = (
        gl.arange(0, ROWS, gl.SliceLayout(1, SPREAD))[:, None],
        gl.arange(0, ROWS, gl.SliceLayout(0, SPREAD))[None, :],
    )
    if not WIDE:
        s_m.store(gl.where(o_i >= o_j, 0.5, -0.5).to(gl.bfloat16))
    s_l.store(gl.where((o_i > o_j) | (o_j == ROWS - 1), 1.0, 0.0).to(gl.bfloat16))
    fence_async_shared()
    barrier()

    gl.warp_specialize(
        [
            (
                _output_part,
                (
                    d_o, p_marks, p_edges, s_q, s_k, s_v, s_g, s_s, s_o, s_m, s_h, s_e,
                    full, full_v, taken, made, empty, empty_v, empty_g,
                    scale, i_batch, i_row0, i_out, n_here, K, BV, PACKED,
                ),
            ),
            (
                _state_part,
                (
                    d_s, d_few, p_s0, p_st, p_h, p_marks, p_edges, p_sn,
                    s_k, s_v, s_g, s_s, s_l, s_h, s_e, full, full_v, full_g, taken, made,
                    i_state, i_few, until, every, i_v, i_row0, n_rows, i_h, n_heads,
                    i_v == 0, i_seg == n_seg - 1, n_here,
                    K, V, BV, HAS_S0, STORE_S, STORE_FEW, STORE_ST, PACKED, HAS_SN, V_FIRST, S0_V_FIRST,
                ),
            ),
            (
                _load_part,
                (
                    d_q, d_k, d_v, d_g, s_q, s_k, s_v, s_g, full, full_v, full_g, empty, empty_v, empty_g,
                    i_batch, i_row0, i_col, i_out, n_here, K, BV,
                ),
            ),
        ],
        [4, 1],
        [REGISTERS, FEW_REGISTERS],
    )  # fmt: skip
