"""States and outputs in one walk over time, on Hopper, in Gluon: what states.py and output.py compute, with chunks of
64 rows. Each row is read once, and the output reads no state from memory.

With c the sums of a chunk's gates, e = e^c, f = e^{c_C - c}, E = e^{c_C} and D of decays.py:

    A = scale (Q K^T) D,          O = scale e (Q S) + A V,          S <- E S + (f K)^T V

A program walks over all chunks of a head with all of K and up to 128 columns of V, and has an SM to itself. One warp
sends for the next rows; four (`_state_part`) lead S along in their registers and lay it down before each chunk; four
(`_output_part`) make the outputs. Only Q S needs the state of before: a chunk's A is made a chunk ahead, while its
predecessor's A V is on its way.

Shared memory (K = BV = 128): 2 stages of q, k, v 96 KiB; the state as bf16 2 x 32; o 16. Barriers, two of each, for
even and odd chunks, of one arrival a chunk from each that is named:

    full      q, k, v have come                          producer -> state, output
    made      the state before the chunk lies there      state -> output
    free      the state has been read                    output -> state
    empty     q, k and v have been read                  state, output -> producer
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
from .sums import all_of, decays, in_parts, sums_of

REGISTERS, FEW_REGISTERS = gl.constexpr(240), gl.constexpr(24)  # of a thread that computes, of one that only loads


@gluon.jit
def _load_part(
    d_q, d_k, d_v, s_q, s_k, s_v, full, empty, i_batch, i_row0, i_col, i_out, n_here, K: gl.constexpr, BV: gl.constexpr
):
    """Send for every chunk as soon as its stage is free."""
    NK: gl.constexpr = K // ROWS
    for i in range(n_here):
        at, i_row = i & 1, i_row0 + i * ROWS
        bar = full.index(at)
        mbarrier.wait(empty.index(at), ((i >> 1) & 1) ^ 1)
        mbarrier.expect(bar, (2 * NK + BV // ROWS) * TILE_BYTES)
        for t in gl.static_range(NK):
            async_load(d_k, [i_batch, i_row, i_col + t * ROWS], bar, s_k[t].index(at))
            async_load(d_q, [i_batch, i_row, i_col + t * ROWS], bar, s_q[t].index(at))
        async_load(d_v, [i_batch, i_row, i_out], bar, s_v.index(at))


@gluon.jit
def _added(b_s, s_k, s_v, decay, b_f, OUT: gl.constexpr):
    """64 features of the state after a chunk, begun: E S + (f K)^T V."""
    b_k = rounded(features_first(s_k) * b_f[None, :])
    b_k = gl.convert_layout(b_k, gl.DotOperandLayout(0, OUT, 2), True)
    return warpgroup_mma(b_k, matrix(s_v), b_s * decay, is_async=True)


@gluon.jit
def _state_part(
    d_s, p_c, p_s0, p_st, s_k, s_v, s_s, full, made, free, empty, i_state, i_v, n_here,
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
        at, phase = i & 1, (i >> 1) & 1
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
        all_high, all_low = all_of(p_c, i)
        b_ch, b_cl = sums_of(p_c, i, gl.SliceLayout(0, ACCUMULATOR))
        decay, b_f = gl.exp2(all_high), gl.exp2((all_high - b_ch) + (all_low - b_cl))
        mbarrier.wait(full.index(at), phase)
        b_sa = _added(b_sa, s_k[0].index(at), s_v.index(at), decay, b_f, OUT)
        if NK == 2:
            b_sb = _added(b_sb, s_k[1].index(at), s_v.index(at), decay, b_f, OUT)
            b_sa, b_sb = warpgroup_mma_wait(0, (b_sa, b_sb))
        else:
            b_sa = warpgroup_mma_wait(0, (b_sa,))
        barrier()  # every warp is done with k and v
        mbarrier.arrive(empty.index(at), count=1)
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
def _output_part(
    d_o, p_c, s_q, s_k, s_v, s_s, s_o, full, made, free, empty, scale, i_batch, i_row0, i_out, n_here,
    K: gl.constexpr, BV: gl.constexpr,
):  # fmt: skip
    """O of every chunk, which leaves in the next turn."""
    NK: gl.constexpr = K // ROWS
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, ACCUMULATOR)
    b_zero = gl.zeros([ROWS, BV], gl.float32, OUT)
    b_out = rounded(b_zero)
    b_ch, b_cl = sums_of(p_c, 0, OF_ROWS)
    mbarrier.wait(full.index(0), 0)
    b_a = warpgroup_mma_wait(0, (_scores(s_q, s_k, 0, NK),))
    b_ad = rounded(b_a * (decays(p_c, 0, b_ch, b_cl) * scale))

    for i in range(n_here):
        at, phase, i_next = i & 1, (i >> 1) & 1, gl.minimum(i + 1, n_here - 1)
        b_e = scale * gl.exp2(b_ch)
        b_next = gl.load(p_c + i_next * ROWS + gl.arange(0, ROWS, OF_ROWS))
        mbarrier.wait(made.index(at), phase)
        b_o = b_zero
        for t in gl.static_range(NK):
            b_o = warpgroup_mma(matrix(s_q[t].index(at)), s_s[t].index(at), b_o, use_acc=t > 0, is_async=True)
        if i > 0:  # the chunk before, under the product
            matrix(s_o).store(b_out)
            fence_async_shared()
            barrier()
            async_store(d_o, [i_batch, i_row0 + (i - 1) * ROWS, i_out], s_o)
        b_o = warpgroup_mma_wait(0, (b_o,)) * gl.convert_layout(b_e, gl.SliceLayout(1, OUT), True)[:, None]
        barrier()  # every warp has read the state
        mbarrier.arrive(free.index(at), count=1)
        b_o = warpgroup_mma(gl.convert_layout(b_ad, LEFT, True), matrix(s_v.index(at)), b_o, is_async=True)
        # scores of the next chunk; of the last one's, which nobody asks for, the operand is what lies there
        mbarrier.wait(full.index(at ^ 1), ((i + 1) >> 1) & 1, pred=i + 1 < n_here)
        b_a = _scores(s_q, s_k, at ^ 1, NK)
        b_ch, b_cl = in_parts(b_next)
        b_d = decays(p_c, i_next, b_ch, b_cl) * scale
        b_o, b_a = warpgroup_mma_wait(0, (b_o, b_a))
        b_ad = rounded(b_a * b_d)
        b_out = rounded(b_o)
        tma.store_wait(0)
        barrier()  # every warp is done with q, k and v, and o of the chunk before has left
        mbarrier.arrive(empty.index(at), count=1)
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
    s_q = each(gl.bfloat16, [2, 1, ROWS, ROWS], OF_ROWS, NK)
    s_k = each(gl.bfloat16, [2, 1, ROWS, ROWS], OF_ROWS, NK)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
    s_s = each(gl.bfloat16, [2, ROWS, BV], SHARED, NK)
    s_o = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, BV], OF_ROWS)
    full, made, free, empty = barriers(2), barriers(2), barriers(2), barriers(2, 2)
    fence_async_shared()
    barrier()

    gl.warp_specialize(
        [
            (
                _output_part,
                (
                    d_o, p_c, s_q, s_k, s_v, s_s, s_o, full, made, free, empty, scale, i_batch, i_row0, i_out, n_here,
                    K, BV,
                ),
            ),
            (
                _state_part,
                (
                    d_s, p_c, p_s0, p_st, s_k, s_v, s_s, full, made, free, empty, i_state, i_v, n_here,
                    K, V, BV, HAS_S0, STORE_S, STORE_ST, V_FIRST,
                ),
            ),
            (
                _load_part,
                (d_q, d_k, d_v, s_q, s_k, s_v, full, empty, i_batch, i_row0, i_col, i_out, n_here, K, BV),
            ),
        ],
        [4, 1],
        [REGISTERS, FEW_REGISTERS],
    )  # fmt: skip
