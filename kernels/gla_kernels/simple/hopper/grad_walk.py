"""All gradients in one walk back over time, on Hopper, in Gluon: what states.py back in time, grad_v.py and grad_qk.py
compute, with chunks of 64 rows. No gradient of a chunk's state is in memory, and each row is read once.

With c the sums of a chunk's gates, e = e^c, f = e^{c_C - c}, E = e^{c_C} and D of decays.py:

    A  = scale (Q K^T) D,                      dA = scale (dO V^T) D
    dV = A^T dO + f (K dS)                     dQ = scale e (dO S^T) + dA K
    dS <- E dS + (scale e Q)^T dO              dK = f (V dS^T) + dA^T Q

and dg as grad_qk.py has it, of which E sum(S dS) is summed here by the state's part.

A program walks over all chunks of a head with all of K and up to 128 columns of V, and has an SM to itself. dq, dk and
dg are sums over V: of a head of more columns several programs each leave a part, as heads that share q and k do. One
warp sends for the next rows; four (`_state_part`) lead dS along in their registers and make dV; four for each 64
features (grad_walk_rows.py) make dQ and dK, the first of them A and dg, too, the last dA.

Shared memory (K = BV = 128): 2 stages of q, k, v, dO 128 KiB, of which q's and k's places come to hold dq and dk; S 32;
dS as bf16 32; A, dA 8 each; dv 16. Barriers, each of one arrival a chunk from each group of warps that is named:

    full      q, k, v, dO have come, two stages               producer -> all
    full_s    S has come                                      producer -> all
    made_ds   dS of the state after the chunk lies there      state -> rows
    made_a    A lies there                                    first rows -> state
    made_da   dA and its diagonal lie there                   last rows -> first rows
    free_ds   dS has been read                                rows -> state
    free_da   dA and what was summed have been read           first rows -> last rows
    summed    what dg is summed of lies there                 last rows -> first rows
    read      the state's part has read the stage             state -> rows
    empty     dq and dk have left the stage                   rows -> producer
    empty_s   S has been read                                 rows, state -> producer
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
    wide,
)
from .grad_walk_rows import rows_part
from .sums import all_of, in_parts, sums_of

# Registers of a thread: of the state's part, where one rows' part beside it gets as many; where there are two, of the
# state's and each of these; of a thread that only loads.
REGISTERS, STATE_REGISTERS, ROWS_REGISTERS = gl.constexpr(240), gl.constexpr(232), gl.constexpr(128)
FEW_REGISTERS = gl.constexpr(24)


@gluon.jit
def _load_part(
    d_q, d_k, d_v, d_do, d_s, s_q, s_k, s_v, s_do, s_s, full, full_s, empty, empty_s,
    i_batch, i_row0, i_col, i_out, i_state, i_v, n_here, K: gl.constexpr, BV: gl.constexpr,
):  # fmt: skip
    """Send for every chunk, the last one first, as soon as its stage is free."""
    NK: gl.constexpr = K // ROWS
    NV: gl.constexpr = BV // ROWS
    for i in range(n_here):
        i_b, at = n_here - 1 - i, i & 1
        i_row, bar = i_row0 + i_b * ROWS, full.index(at)
        mbarrier.wait(empty.index(at), ((i >> 1) & 1) ^ 1)
        mbarrier.expect(bar, 2 * (NK + NV) * TILE_BYTES)
        for t in gl.static_range(NK):
            async_load(d_q, [i_batch, i_row, i_col + t * ROWS], bar, s_q[t].index(at))
            async_load(d_k, [i_batch, i_row, i_col + t * ROWS], bar, s_k[t].index(at))
        async_load(d_do, [i_batch, i_row, i_out], bar, s_do.index(at))
        async_load(d_v, [i_batch, i_row, i_out], bar, s_v.index(at))
        mbarrier.wait(empty_s.index(0), (i & 1) ^ 1)
        mbarrier.expect(full_s.index(0), NK * NV * TILE_BYTES)
        for t in gl.static_range(NK):
            async_load(d_s, [i_state + i_b * K + t * ROWS, i_v], full_s.index(0), s_s[t])


@gluon.jit
def _crossing(s_s, b_ds, OUT: gl.constexpr):
    """Of 64 features, the sums of S dS over V."""
    return gl.sum(wide(s_s.load(OUT)) * b_ds, axis=1)


@gluon.jit
def _queries(s_q, b_e, OUT: gl.constexpr):
    """(scale e Q)^T of 64 features, as an operand."""
    b_q = rounded(features_first(s_q) * b_e[None, :])
    return gl.convert_layout(b_q, gl.DotOperandLayout(0, OUT, 2), True)


@gluon.jit
def _state_part(
    d_dv, p_c, p_dst, p_ds0, s_q, s_k, s_do, s_s, s_ds, s_a, s_dv, s_phi,
    full, full_s, made_ds, made_a, free_ds, read, empty_s, scale, i_batch, i_row0, i_out, n_here,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, HAS_DST: gl.constexpr, STORE_DS0: gl.constexpr,
    V_FIRST: gl.constexpr, GRAD_G: gl.constexpr,
):  # fmt: skip
    """Lead dS along, lay it down for the rows' part, and make dv."""
    NK: gl.constexpr = K // ROWS
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    b_zero = gl.zeros([ROWS, BV], gl.float32, OUT)
    b_da, b_db = b_zero, b_zero  # dS: features 0..63, 64..127
    o_f, o_v = gl.arange(0, ROWS, gl.SliceLayout(1, OUT)), gl.arange(0, BV, gl.SliceLayout(0, OUT))
    o_s, NEXT = state_at(o_f, o_v, K, V, V_FIRST)
    if HAS_DST:
        b_da = gl.load(p_dst + o_s)
        if NK == 2:
            b_db = gl.load(p_dst + NEXT + o_s)
    o_i = gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
    b_next = gl.load(p_c + (n_here - 1) * ROWS + o_i)

    for i in range(n_here):
        at, phase, i_b = i & 1, (i >> 1) & 1, n_here - 1 - i
        mbarrier.wait(free_ds.index(0), (i & 1) ^ 1)
        s_ds[0].store(rounded(b_da))
        if NK == 2:
            s_ds[1].store(rounded(b_db))
        b_ch, b_cl = in_parts(b_next)
        all_high, all_low = all_of(p_c, i_b)
        decay = gl.exp2(all_high)
        tma.store_wait(0)  # dv of the chunk before has left
        fence_async_shared()
        barrier()
        mbarrier.arrive(made_ds.index(0), count=1)
        b_next = gl.load(p_c + gl.maximum(i_b - 1, 0) * ROWS + o_i)

        # one after another, for beside dS registers hold no two of dv, S and the queries
        mbarrier.wait(full.index(at), phase)
        t_do = matrix(s_do.index(at))
        b_dv = b_zero
        for t in gl.static_range(NK):
            b_dv = warpgroup_mma(matrix(s_k[t].index(at)), s_ds[t], b_dv, use_acc=t > 0, is_async=True)
        b_f = gl.exp2((all_high - b_ch) + (all_low - b_cl))
        b_dv = warpgroup_mma_wait(0, (b_dv,)) * b_f[:, None]
        mbarrier.wait(made_a.index(0), i & 1)
        b_dv = warpgroup_mma_wait(0, (warpgroup_mma(s_a.permute((1, 0)), t_do, b_dv, is_async=True),))
        matrix(s_dv).store(rounded(b_dv))
        if GRAD_G:
            mbarrier.wait(full_s.index(0), i & 1)
            b_phi = _crossing(s_s[0], b_da, OUT)
            if NK == 2:
                b_phi += _crossing(s_s[1], b_db, OUT)
            s_phi.index(at).store(b_phi * decay)
            barrier()  # every warp has read S
            mbarrier.arrive(empty_s.index(0), count=1)
        b_e = scale * gl.exp2(sums_of(p_c, i_b, gl.SliceLayout(0, ACCUMULATOR))[0])
        b_da = warpgroup_mma(_queries(s_q[0].index(at), b_e, OUT), t_do, b_da * decay, is_async=True)
        if NK == 2:
            b_db = warpgroup_mma(_queries(s_q[1].index(at), b_e, OUT), t_do, b_db * decay, is_async=True)
            b_da, b_db = warpgroup_mma_wait(0, (b_da, b_db))
        else:
            b_da = warpgroup_mma_wait(0, (b_da,))
        fence_async_shared()
        barrier()  # dv lies there, and every warp is done with the stage
        mbarrier.arrive(read.index(at), count=1)
        async_store(d_dv, [i_batch, i_row0 + i_b * ROWS, i_out], s_dv)
    if STORE_DS0:
        gl.store(p_ds0 + o_s, b_da)
        if NK == 2:
            gl.store(p_ds0 + NEXT + o_s, b_db)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["B", "T", "n_chunks", "first_chunk", "n_here", "n_stored"])
def simple_grad_walk_hopper_kernel(
    d_q, d_k, d_v, d_do, d_s, p_c, p_dst, p_ds0, p_dg, d_dq, d_dk, d_dv,
    scale, B, T, H, n_chunks, first_chunk, n_here, n_stored,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, GK: gl.constexpr, HAS_DST: gl.constexpr,
    STORE_DS0: gl.constexpr, V_FIRST: gl.constexpr, GRAD_G: gl.constexpr,
):  # fmt: skip
    """dq, dk [B, T, H, K] and dv [B, T, H, V], bf16, and where GRAD_G, p_dg [B, T, H], of n_here chunks from
    first_chunk on. p_s [B*H, n_stored, K, V]: the states before them. p_dst, p_ds0 [B*H, K, V], float32: the gradient
    of the state after them, zero without HAS_DST, and where STORE_DS0, of that before; V_FIRST: [.., V, K]. p_c: see
    `simple_decays_kernel`. K and BV are 64 or 128. Of V / BV parts of V and GK heads that share each one of q and k,
    what each adds to dq and dk lies in [GK, V / BV, B, T, H // GK, K], and to dg in [V / BV, B, T, H]."""
    NK: gl.constexpr = K // ROWS
    NV: gl.constexpr = V // BV
    i_v, i_bh = gl.program_id(0) % NV * BV, gl.program_id(0) // NV
    i_batch, i_h = i_bh // H, i_bh % H
    i_row0, i_col, i_out, i_state = first_chunk * ROWS, i_h // GK * K, i_h * V + i_v, i_bh * n_stored * K
    i_part = i_v // BV * B + i_batch  # of a gradient that is to be added up over V
    if GRAD_G:
        p_dg += i_part.to(gl.int64) * T * H + i_h
    i_part += i_h % GK * NV * B
    p_c += (i_bh.to(gl.int64) * n_chunks + first_chunk) * ROWS
    i_ds = i_bh.to(gl.int64) * K * V + (i_v * K if V_FIRST else i_v)
    if HAS_DST:
        p_dst += i_ds
    if STORE_DS0:
        p_ds0 += i_ds

    OF_ROWS: gl.constexpr = d_q.layout
    OF_STATES: gl.constexpr = d_s.layout
    s_q = each(gl.bfloat16, [2, 1, ROWS, ROWS], OF_ROWS, NK)
    s_k = each(gl.bfloat16, [2, 1, ROWS, ROWS], OF_ROWS, NK)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
    s_do = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
    s_s = each(gl.bfloat16, [ROWS, BV], OF_STATES, NK)
    s_ds = each(gl.bfloat16, [ROWS, BV], OF_STATES, NK)
    s_dv = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, BV], OF_ROWS)
    s_a = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    s_da = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    s_own = gl.allocate_shared_memory(gl.float32, [ROWS], LINE)
    s_phi = gl.allocate_shared_memory(gl.float32, [2, ROWS], LINE)
    s_r = each(gl.float32, [2, ROWS], LINE, NK)
    full, read, empty = barriers(2), barriers(2), barriers(2, NK)
    full_s, made_ds, made_a, made_da = barriers(1), barriers(1), barriers(1), barriers(1)
    free_ds, free_da, summed = barriers(1, NK), barriers(1), barriers(1)
    empty_s = barriers(1, NK + 1 if GRAD_G else NK)
    fence_async_shared()
    barrier()

    if NK == 1:
        gl.warp_specialize(
            [
                (
                    rows_part,
                    (
                        d_dq, d_dk, p_c, p_dg, s_q, s_k, s_v, s_do, s_s, s_ds, s_a, s_da, s_own, s_phi, s_r,
                        full, full_s, made_ds, made_a, made_da, free_ds, free_da, summed, read, empty, empty_s,
                        scale, i_part, i_row0, i_col, T, H, n_here, NK, 0, GRAD_G,
                    ),
                ),
                (
                    _state_part,
                    (
                        d_dv, p_c, p_dst, p_ds0, s_q, s_k, s_do, s_s, s_ds, s_a, s_dv, s_phi,
                        full, full_s, made_ds, made_a, free_ds, read, empty_s,
                        scale, i_batch, i_row0, i_out, n_here,
                        K, V, BV, HAS_DST, STORE_DS0, V_FIRST, GRAD_G,
                    ),
                ),
                (
                    _load_part,
                    (
                        d_q, d_k, d_v, d_do, d_s, s_q, s_k, s_v, s_do, s_s, full, full_s, empty, empty_s,
                        i_batch, i_row0, i_col, i_out, i_state, i_v, n_here, K, BV,
                    ),
                ),
            ],
            [4, 1],
            [REGISTERS, FEW_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (
                    rows_part,
                    (
                        d_dq, d_dk, p_c, p_dg, s_q, s_k, s_v, s_do, s_s, s_ds, s_a, s_da, s_own, s_phi, s_r,
                        full, full_s, made_ds, made_a, made_da, free_ds, free_da, summed, read, empty, empty_s,
                        scale, i_part, i_row0, i_col, T, H, n_here, NK, 0, GRAD_G,
                    ),
                ),
                (
                    _state_part,
                    (
                        d_dv, p_c, p_dst, p_ds0, s_q, s_k, s_do, s_s, s_ds, s_a, s_dv, s_phi,
                        full, full_s, made_ds, made_a, free_ds, read, empty_s,
                        scale, i_batch, i_row0, i_out, n_here,
                        K, V, BV, HAS_DST, STORE_DS0, V_FIRST, GRAD_G,
                    ),
                ),
                (
                    rows_part,
                    (
                        d_dq, d_dk, p_c, p_dg, s_q, s_k, s_v, s_do, s_s, s_ds, s_a, s_da, s_own, s_phi, s_r,
                        full, full_s, made_ds, made_a, made_da, free_ds, free_da, summed, read, empty, empty_s,
                        scale, i_part, i_row0, i_col, T, H, n_here, NK, 1, GRAD_G,
                    ),
                ),
                (
                    _load_part,
                    (
                        d_q, d_k, d_v, d_do, d_s, s_q, s_k, s_v, s_do, s_s, full, full_s, empty, empty_s,
                        i_batch, i_row0, i_col, i_out, i_state, i_v, n_here, K, BV,
                    ),
                ),
            ],
            [4, 4, 1],
            [STATE_REGISTERS, ROWS_REGISTERS, FEW_REGISTERS],
        )  # fmt: skip
