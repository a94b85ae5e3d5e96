"""States and outputs in one walk over time, on Hopper, in Gluon: what states.py and output.py compute, with chunks of
64 rows. Each row is read once, and the output reads no state from memory.

With c the sums of a chunk's gates, e = e^c, f = e^{c_C - c}, E = e^{c_C} and D of decays.py:

    A = scale (Q K^T) D,          O = scale e (Q S) + A V,          S <- E S + (f K)^T V

A program walks over all chunks of a head with all of K and up to 128 columns of V, and has an SM to itself. One warp
sends for the next rows, and makes decays of their sums (decays.py); four (`_state_part`) lead S along in registers and
lay it down before each chunk; four (`_output_part`) make the outputs. Only Q S needs the state of before: a chunk's A
is made a chunk ahead, while its predecessor's A V is on its way.

Shared memory (K = BV = 128): 3 stages of q, k 96 KiB, 2 of v 32; the state as bf16 2 x 32; o 16; of each stage the
decays' parts. Barriers, as many as there are stages, of one arrival a chunk from each that is named:

    full      q, k have come                             producer -> state, output
    full_v    v has come                                 producer -> state, output
    summed    what decays are made of lies there         producer -> state, output
    made      the state before the chunk lies there      state -> output
    free      the state has been read                    output -> state
    empty     q, k and the decays have been read         state, output -> producer
    empty_v   v has been read                            state, output -> producer
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
    LINE,
    ROWS,
    SHARED,
    TILE_BYTES,
    barriers,
    each,
    features_first,
    matrix,
    rounded,
    state_at,
)
from .sums import all_of, decays, sums_of

REGISTERS, FEW_REGISTERS = gl.constexpr(232), gl.constexpr(40)  # of a thread that computes, of one that loads
STAGES = gl.constexpr(3)  # of q and k: scores of a chunk are begun a chunk ahead
ONE_WARP = gl.constexpr(gl.BlockedLayout([2], [32], [1], [0]))


@gluon.jit
def _load_part(
    d_q, d_k, d_v, p_c, s_q, s_k, s_v, s_c, full, full_v, summed, empty, empty_v, i_batch, i_row0, i_col, i_out, n_here,
    K: gl.constexpr, BV: gl.constexpr,
):  # fmt: skip
    """Send for every chunk as soon as its stage is free. s_c, of each stage: the sums of gates in two parts, and the
    decays from the chunk's start and to its end."""
    NK: gl.constexpr = K // ROWS
    for i in range(n_here):
        at, i_row = i % STAGES, i_row0 + i * ROWS
        bar, bar_v = full.index(at), full_v.index(i & 1)
        mbarrier.wait(empty.index(at), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(bar, 2 * NK * TILE_BYTES)
        for t in gl.static_range(NK):
            async_load(d_k, [i_batch, i_row, i_col + t * ROWS], bar, s_k[t].index(at))
            async_load(d_q, [i_batch, i_row, i_col + t * ROWS], bar, s_q[t].index(at))
        b_high, b_low = sums_of(p_c, i, ONE_WARP)
        all_high, all_low = all_of(p_c, i)
        s_c[0].index(at).store(b_high)
        s_c[1].index(at).store(b_low)
        s_c[2].index(at).store(gl.exp2(b_high))
        s_c[3].index(at).store(gl.exp2((all_high - b_high) + (all_low - b_low)))
        barrier()
        mbarrier.arrive(summed.index(at), count=1)
        mbarrier.wait(empty_v.index(i & 1), ((i >> 1) & 1) ^ 1)
        mbarrier.expect(bar_v, BV // ROWS * TILE_BYTES)
        async_load(d_v, [i_batch, i_row, i_out], bar_v, s_v.index(i & 1))


@gluon.jit
def added(b_s, s_k, s_v, decay, b_f, OUT: gl.constexpr):
    """64 features of the state after a chunk, begun: E S + (f K)^T V."""
    b_k = rounded(features_first(s_k) * b_f[None, :])
    b_k = gl.convert_layout(b_k, gl.DotOperandLayout(0, OUT, 2), True)
    return warpgroup_mma(b_k, matrix(s_v), b_s * decay, is_async=True)


@gluon.jit
def _state_part(
    d_s, p_c, p_s0, p_st, s_k, s_v, s_s, s_c, full, full_v, summed, made, free, empty, empty_v, i_state, i_v, n_here,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr,
    HAS_S0: gl.constexpr, STORE_S: gl.constexpr, STORE_ST: gl.constexpr, V_FIRST: gl.constexpr,
):  # fmt: skip
    """Lead S along; lay it down before each chunk, for the output's part, and, where STORE_S, store it."""
    NK: gl.constexpr = K // ROWS
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    b_sa = gl.zeros([ROWS, BV], gl.float32, OUT)
    b_sb = b_sa  # S: features 0..63, 64..127
    o_f, o_v = gl.arange(0, ROWS, gl.SliceLayout(1, OUT)), gl.arange(0, BV, gl.SliceLayout(0, OUT))
    o_s, NEXT = state_at(o_f, o_v, K, V, V_FIRST)
    if HAS_S0:
        b_sa = gl.load(p_s0 + o_s)
        if NK == 2:
            b_sb = gl.load(p_s0 + NEXT + o_s)

    for i in range(n_here):
        at, phase, stage, turn = i & 1, (i >> 1) & 1, i % STAGES, (i // STAGES) & 1
        decay = gl.exp2(all_of(p_c, i)[0])
        mbarrier.wait(free.index(at), phase ^ 1)
        if STORE_S:
            tma.store_wait(NK)  # the state of the chunk before the last one has left
            barrier()
        s_s[0].index(at).store(rounded(b_sa))
        if NK == 2:
            s_s[1].index(at).store(rounded(b_sb))
        fence_async_shared()
        barrier()
        mbarrier.arrive(made.index(at), count=1)
        if STORE_S:
            for t in gl.static_range(NK):
                async_store(d_s, [i_state + i * K + t * ROWS, i_v], s_s[t].index(at))
        mbarrier.wait(summed.index(stage), turn)
        b_f = s_c[3].index(stage).load(gl.SliceLayout(0, ACCUMULATOR))
        mbarrier.wait(full.index(stage), turn)
        mbarrier.wait(full_v.index(at), phase)
        b_sa = added(b_sa, s_k[0].index(stage), s_v.index(at), decay, b_f, OUT)
        if NK == 2:
            b_sb = added(b_sb, s_k[1].index(stage), s_v.index(at), decay, b_f, OUT)
            b_sa, b_sb = warpgroup_mma_wait(0, (b_sa, b_sb))
        else:
            b_sa = warpgroup_mma_wait(0, (b_sa,))
        barrier()  # every warp is done with k and v
        mbarrier.arrive(empty.index(stage), count=1)
        mbarrier.arrive(empty_v.index(at), count=1)
    if STORE_ST:
        gl.store(p_st + o_s, b_sa)
        if NK == 2:
            gl.store(p_st + NEXT + o_s, b_sb)
    tma.store_wait(0)


@gluon.jit
def _scores(s_q, s_k, at, NK: gl.constexpr):
    """Q K^T, begun."""
    b_a = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    for t in gl.static_range(NK):
        t_k = matrix(s_k[t].index(at)).permute((1, 0))
        b_a = warpgroup_mma(matrix(s_q[t].index(at)), t_k, b_a, use_acc=t > 0, is_async=True)
    return b_a


@gluon.jit
def _decays(s_c, at):
    """`decays` of a stage."""
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, ACCUMULATOR)
    OF_COLUMNS: gl.constexpr = gl.SliceLayout(0, ACCUMULATOR)
    s_high, s_low = s_c[0].index(at), s_c[1].index(at)
    return decays(s_high.load(OF_ROWS), s_low.load(OF_ROWS), s_high.load(OF_COLUMNS), s_low.load(OF_COLUMNS))


@gluon.jit
def _output_part(
    d_o, s_q, s_k, s_v, s_s, s_o, s_c, full, full_v, summed, made, free, empty, empty_v,
    scale, i_batch, i_row0, i_out, n_here, K: gl.constexpr, BV: gl.constexpr,
):  # fmt: skip
    """O of every chunk, which leaves in the next turn."""
    NK: gl.constexpr = K // ROWS
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    b_zero = gl.zeros([ROWS, BV], gl.float32, OUT)
    b_out = rounded(b_zero)
    mbarrier.wait(full.index(0), 0)
    mbarrier.wait(summed.index(0), 0)
    b_a = warpgroup_mma_wait(0, (_scores(s_q, s_k, 0, NK),))
    b_ad = rounded(b_a * (_decays(s_c, 0) * scale))

    for i in range(n_here):
        at, phase, stage = i & 1, (i >> 1) & 1, i % STAGES
        after, turn = (i + 1) % STAGES, ((i + 1) // STAGES) & 1
        mbarrier.wait(made.index(at), phase)
        b_o = b_zero
        for t in gl.static_range(NK):
            b_o = warpgroup_mma(matrix(s_q[t].index(stage)), s_s[t].index(at), b_o, use_acc=t > 0, is_async=True)
        if i > 0:  # the chunk before, under the product
            matrix(s_o).store(b_out)
            fence_async_shared()
            barrier()
            async_store(d_o, [i_batch, i_row0 + (i - 1) * ROWS, i_out], s_o)
        b_e = scale * s_c[2].index(stage).load(gl.SliceLayout(1, OUT))
        b_o = warpgroup_mma_wait(0, (b_o,)) * b_e[:, None]
        barrier()  # every warp has read the state
        mbarrier.arrive(free.index(at), count=1)
        mbarrier.wait(full_v.index(at), phase)
        b_o = warpgroup_mma(gl.convert_layout(b_ad, LEFT, True), matrix(s_v.index(at)), b_o, is_async=True)
        # scores of the next chunk; of the last one's, which nobody asks for, the operand is what lies there
        mbarrier.wait(full.index(after), turn, pred=i + 1 < n_here)
        mbarrier.wait(summed.index(after), turn, pred=i + 1 < n_here)
        b_a = _scores(s_q, s_k, after, NK)
        b_d = _decays(s_c, after) * scale
        b_o, b_a = warpgroup_mma_wait(0, (b_o, b_a))
        b_ad = rounded(b_a * b_d)
        b_out = rounded(b_o)
        tma.store_wait(0)
        barrier()  # every warp is done with q, k and v, and o of the chunk before has left
        mbarrier.arrive(empty.index(stage), count=1)
        mbarrier.arrive(empty_v.index(at), count=1)
    matrix(s_o).store(b_out)
    fence_async_shared()
    barrier()
    async_store(d_o, [i_batch, i_row0 + (n_here - 1) * ROWS, i_out], s_o)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["T", "n_chunks", "first_chunk", "n_here", "n_stored"])
def simple_walk_hopper_kernel(
    d_q, d_k, d_v, d_s, p_c, p_s0, p_st, d_o, scale, T, H, n_chunks, first_chunk, n_here, n_stored,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, GK: gl.constexpr, HAS_S0: gl.constexpr,
    STORE_S: gl.constexpr, STORE_ST: gl.constexpr, V_FIRST: gl.constexpr,
):  # fmt: skip
    """o [B, T, H, V], bf16, of n_here chunks from first_chunk on, and where STORE_S, p_s [B*H, n_stored, K, V], the
    states before them. p_s0, p_st [B*H, K, V], float32: the state before the first of them, zero without HAS_S0, and
    where STORE_ST, after the last; V_FIRST: [.., V, K]. p_c: see `simple_decays_kernel`. K and BV are 64 or 128, and GK
    heads share each one of q and k."""
    NK: gl.constexpr = K // ROWS
    NV: gl.constexpr = V // BV
    i_v, i_bh = gl.program_id(0) % NV * BV, gl.program_id(0) // NV
    i_batch, i_h = i_bh // H, i_bh % H
    i_row0, i_col, i_out, i_state = first_chunk * ROWS, i_h // GK * K, i_h * V + i_v, i_bh * n_stored * K
    p_c += (i_bh.to(gl.int64) * n_chunks + first_chunk) * ROWS
    i_end = i_bh.to(gl.int64) * K * V + (i_v * K if V_FIRST else i_v)
    if HAS_S0:
        p_s0 += i_end
    if STORE_ST:
        p_st += i_end

    OF_ROWS: gl.constexpr = d_q.layout
    s_q = each(gl.bfloat16, [STAGES, 1, ROWS, ROWS], OF_ROWS, NK)
    s_k = each(gl.bfloat16, [STAGES, 1, ROWS, ROWS], OF_ROWS, NK)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
    s_s = each(gl.bfloat16, [2, ROWS, BV], SHARED, NK)
    s_o = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, BV], OF_ROWS)
    s_c = each(gl.float32, [STAGES, ROWS], LINE, 2) + each(gl.float32, [STAGES, ROWS], LINE, 2)
    full, summed, empty = barriers(STAGES), barriers(STAGES), barriers(STAGES, 2)
    full_v, made, free, empty_v = barriers(2), barriers(2), barriers(2), barriers(2, 2)
    fence_async_shared()
    barrier()

    gl.warp_specialize(
        [
            (
                _output_part,
                (
                    d_o, s_q, s_k, s_v, s_s, s_o, s_c, full, full_v, summed, made, free, empty, empty_v,
                    scale, i_batch, i_row0, i_out, n_here, K, BV,
                ),
            ),
            (
                _state_part,
                (
                    d_s, p_c, p_s0, p_st, s_k, s_v, s_s, s_c, full, full_v, summed, made, free, empty, empty_v,
                    i_state, i_v, n_here, K, V, BV, HAS_S0, STORE_S, STORE_ST, V_FIRST,
                ),
            ),
            (
                _load_part,
                (
                    d_q, d_k, d_v, p_c, s_q, s_k, s_v, s_c, full, full_v, summed, empty, empty_v,
                    i_batch, i_row0, i_col, i_out, n_here, K, BV,
                ),
            ),
        ],
        [4, 1],
        [REGISTERS, FEW_REGISTERS],
    )  # fmt: skip
