"""The gradients of the states and dV in one walk backward in time, on Hopper, in Gluon: what grad_states_kernel and
grad_v.py compute, where a chunk is one row block of 64. dV reads no gradient of a state from memory.

    C = M g,  Q = scale q e^C,  K = k e^-C             M[i, j] = 1/2 for i >= j, else -1/2
    A^T = triu(K Q^T)                                  of two bf16 parts each
    dv = A^T dO + bf16(K e^h) bf16(dS)                 A^T in two bf16 parts
    dS <- e^h (e^h dS + bf16(Q)^T dO)

A program walks over a segment with all of K and BV columns of V, and has an SM to itself. Two groups of four warps,
each a block behind or ahead of the other:

    scores   (grad_walk_scores.py) loads q, k, g; makes C, the exponentials, A^T. Leaves Q's and K e^h's bf16 in shared
             memory where q and k were, A^T's parts beside them. The left operands of its products come from registers.
             C of the next block is begun before this one's scores are waited for.
    walk     loads dO; holds dS in its accumulators; stores bf16(dS) and dv.

A row block that is not mild has M = 1 for i >= j, else 0: then Q = scale q e^(sum of gates up to the row), right at any
gate strength, and dS <- e^2h dS + bf16(Q)^T dO. Its dv is sent beyond the last row, where nothing is written:
`grad_v_strong_kernel` runs after this one.

Gates in float32 have the room of two blocks' in bfloat16, and are sent for as soon as C of the block before is there.
The scores' part cuts them in two where they lie, and C takes two products. So Q's low part has a place of its own, and
dv is laid down where A^T's parts were.

Gates of the value side have one place: the walk's part sums a block's, M g, has dO in its frames where dO lies, and
sends for the next block's. For their room dv of 128 columns is laid down where A^T's parts were.

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

from ...launch.tritons import async_load, async_store, barrier, reinterpreted
from ...tiles.hopper import LINE, ROWS, SHARED, SPREAD, TILE_BYTES, barriers, each, matrix, rounded, state_at
from .frames import COLUMNS, decay, enter, frame, is_strong, send_gates, store_low
from .grad_walk_scores import scores_part
from .layouts import LOG2_E, barriers_each, halves, inverse_exp2, is_mild
from .packed import as_factor, head_and_tail, passes, sequence_of

REGISTERS = gl.constexpr(248)  # of a thread of either part


# --- Loads: of the i-th block of the walk, where there is one ---------------------------------------------------------


@gluon.jit
def _expect_do(i, n_here, bar_do, BV: gl.constexpr):
    mbarrier.expect(bar_do.index(i & 1), BV // ROWS * TILE_BYTES, i < n_here)


@gluon.jit
def _send_for_do(i, n_here, d_do, s_do, bar_do, i_batch, i_row0, i_out):
    at = [i_batch, i_row0 + (n_here - 1 - i) * ROWS, i_out]
    async_load(d_do, at, bar_do.index(i & 1), s_do.index(i & 1), i < n_here)


# --- The walk ---------------------------------------------------------------------------------------------------------


@gluon.jit
def _decays(h, mild):
    """By what dS is multiplied before and after a block adds to it."""
    return gl.exp2(gl.where(mild, h, 2.0 * h)), gl.exp2(gl.where(mild, h, 0.0))


@gluon.jit
def _decay_of_head(p_g, i_row, stride, head, OUT: gl.constexpr):
    """By what 64 features of a state decay over a chunk's first rows, ``head`` of them. p_g: of the head's features."""
    o_i, o_k = gl.arange(0, ROWS, gl.SliceLayout(1, SPREAD)), gl.arange(0, ROWS, gl.SliceLayout(0, SPREAD))
    p_g += (i_row + o_i).to(gl.int64)[:, None] * stride + o_k[None, :]
    b_g = gl.load(p_g, mask=(o_i < head)[:, None], other=0.0).to(gl.float32)
    return gl.convert_layout(gl.exp2(gl.sum(b_g, axis=0) * LOG2_E), gl.SliceLayout(1, OUT))


@gluon.jit
def _walk_part(
    d_do, d_gv, d_of, d_ds, d_dv, p_h, p_dst, p_ds0, p_g, p_marks, p_edges, p_dsn, p_hv, p_strong, p_low,
    s_q, s_k, s_do, s_gv, s_ds, s_dv, s_ah, s_al, bar_do, bar_gv, bar_full, bar_empty,
    i_batch, i_row0, i_out, i_v, i_state, i_beyond, n_rows, stride, i_head, n_heads, store_ds0, has_after, n_here,
    T, stride_v,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, HAS_DST: gl.constexpr, STORE_DS0: gl.constexpr,
    PACKED: gl.constexpr, HAS_DSN: gl.constexpr, V_FIRST: gl.constexpr, DST_V_FIRST: gl.constexpr,
    LENT: gl.constexpr, FRAMED: gl.constexpr,
):  # fmt: skip
    """dS, led backward in time, and dv. LENT: dv leaves from where A^T's parts are. With d_gv do is led into frames
    where it lies, and dv of 64 columns out of them: for 128 there are no registers that would hold e^-C meanwhile."""
    NK: gl.constexpr = K // ROWS
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    for i in gl.static_range(2):
        _expect_do(gl.to_tensor(i), n_here, bar_do, BV)
    barrier()
    for i in gl.static_range(2):
        _send_for_do(gl.to_tensor(i), n_here, d_do, s_do, bar_do, i_batch, i_row0, i_out)
    if d_gv is not None:
        send_gates(d_gv, s_gv, bar_gv, i_batch, i_row0 + (n_here - 1) * ROWS, i_out, n_here > 0)
    b_zero = gl.zeros([ROWS, BV], gl.float32, OUT)
    b_da, b_db = b_zero, b_zero  # dS: features 0..63, 64..127
    o_f, o_v = gl.arange(0, ROWS, gl.SliceLayout(1, OUT)), i_v * BV + gl.arange(0, BV, gl.SliceLayout(0, OUT))
    o_s, NEXT = state_at(o_f, o_v, K, V, V_FIRST)
    if HAS_DST:
        o_last, NEXT_LAST = state_at(o_f, o_v, K, V, DST_V_FIRST)
        b_da = gl.load(p_dst + o_last)
        if NK == 2:
            b_db = gl.load(p_dst + NEXT_LAST + o_last)
    if PACKED:
        next_head, next_tail = head_and_tail(p_edges, i_row0 + (n_here - 1) * ROWS)
    if FRAMED:
        o_c, p_last = gl.arange(0, BV, COLUMNS), p_hv + (n_here - 1) * V
        after, here = frame(gl.load(p_last + V + o_c, mask=has_after, other=0.0)), frame(gl.load(p_last + o_c))
        next_strong = is_strong(p_strong, n_here - 1, V)

    for i in range(n_here):
        i_b = n_here - 1 - i
        i_row, head, tail = i_row0 + i_b * ROWS, ROWS, 0
        if PACKED:
            head, tail = next_head, next_tail
            next_head, next_tail = head_and_tail(p_edges, i_row0 + gl.maximum(i_b - 1, 0) * ROWS)
        p_row = p_h + i_b * K
        o_k = gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
        h_all, h_a = halves(p_row, NK), gl.load(p_row + o_k)
        h_b = h_a
        if NK == 2:
            h_b = gl.load(p_row + ROWS + o_k)
        if FRAMED:
            b_f = gl.convert_layout(gl.exp2(after + here), gl.SliceLayout(0, OUT))[None, :]
            b_da = b_da * b_f
            if NK == 2:
                b_db = b_db * b_f
        # dS, of the state after this block
        s_ds[0].store(rounded(b_da))
        if NK == 2:
            s_ds[1].store(rounded(b_db))
        fence_async_shared()
        tma.store_wait(0)  # dv of the block before has left
        barrier()
        for t in gl.static_range(NK):
            async_store(d_ds, [i_state + i_b * K + t * ROWS, i_v * BV], s_ds[t])
        if FRAMED:  # of the block before, after the fence, which would wait for what is loaded
            i_next = gl.maximum(i_b - 1, 0)
            strong, next_strong = next_strong, is_strong(p_strong, i_next, V)
            after, here = here, frame(gl.load(p_hv + i_next * V + o_c))

        # dv first, then what the block adds to dS
        t_do = matrix(s_do.index(i & 1))
        mbarrier.wait(bar_do.index(i & 1), (i >> 1) & 1)
        if d_gv is not None:
            mbarrier.wait(bar_gv.index(0), i & 1)
            b_c = enter(t_do, s_gv, p_hv + i_b * V, strong, i_row)
            async_store(d_of, [i_batch, i_row, i_out], s_do.index(i & 1))
            send_gates(d_gv, s_gv, bar_gv, i_batch, i_row - ROWS, i_out, i + 1 < n_here)
        mbarrier.wait(bar_full, i & 1)
        b_dv = warpgroup_mma(s_ah, t_do, b_zero, use_acc=False, is_async=True)
        b_dv = warpgroup_mma(s_al, t_do, b_dv, is_async=True)
        for t in gl.static_range(NK):
            b_dv = warpgroup_mma(matrix(s_k[t].index(i % 3)), s_ds[t], b_dv, is_async=True)
        mild = is_mild(h_all, NK)
        before_a, after_a = _decays(h_a, mild)
        if PACKED:
            if STORE_DS0:
                if (not passes(head, tail)) & (tail < ROWS):  # a sequence begins here: `edges` does the rest
                    p_at = p_ds0 + (sequence_of(p_marks, n_rows, i_row + ROWS - 1) * n_heads + i_head) * K * V
                    gl.store(p_at + o_s, b_da)
                    if NK == 2:
                        gl.store(p_at + NEXT + o_s, b_db)
            before_a = before_a * as_factor(passes(head, tail))
        b_da = b_da * before_a[:, None]
        if FRAMED:
            if strong:
                b_e = decay(gl.load(p_hv + i_b * V + gl.arange(0, BV, gl.SliceLayout(0, OUT))))[None, :]
                b_da = b_da * b_e
                if NK == 2:
                    b_db = b_db * b_e
        if PACKED and HAS_DSN:
            p_at = p_dsn + (sequence_of(p_marks, n_rows, i_row) * n_heads + i_head) * K * V
            if (not passes(head, tail)) & (head > 0):  # one that came from before ends here
                b_e = _decay_of_head(p_g, i_row, stride, head, OUT) / after_a
                b_da = gl.load(p_at + o_s) * b_e[:, None]
        b_da = warpgroup_mma(matrix(s_q[0].index(i % 3)).permute((1, 0)), t_do, b_da, is_async=True)
        if NK == 2:
            before_b, after_b = _decays(h_b, mild)
            if PACKED:
                before_b = before_b * as_factor(passes(head, tail))
            b_db = b_db * before_b[:, None]
            if PACKED and HAS_DSN:
                if (not passes(head, tail)) & (head > 0):
                    b_e = _decay_of_head(p_g + ROWS, i_row, stride, head, OUT) / after_b
                    b_db = gl.load(p_at + NEXT + o_s) * b_e[:, None]
            b_db = warpgroup_mma(matrix(s_q[1].index(i % 3)).permute((1, 0)), t_do, b_db, is_async=True)
        b_dv = warpgroup_mma_wait(NK, (b_dv,))
        if LENT:
            barrier()  # every warp is done with A^T
        if d_gv is not None and BV == ROWS:
            b_dv = b_dv * inverse_exp2(b_c)
        if FRAMED:
            store_low(p_low, b_dv, i_row, T, stride_v)
        matrix(s_dv).store(rounded(b_dv))
        fence_async_shared()
        barrier()
        # sent always, so that there are as many copies on their way whatever the gates
        i_to = gl.where(mild, i_row0 + i_b * ROWS, i_beyond)
        async_store(d_dv, [i_batch, i_to, i_out], s_dv)
        if NK == 2:
            b_da, b_db = warpgroup_mma_wait(0, (b_da, b_db))
            b_db = b_db * after_b[:, None]
        else:
            b_da = warpgroup_mma_wait(0, (b_da,))
        b_da = b_da * after_a[:, None]
        _expect_do(i + 2, n_here, bar_do, BV)
        tma.store_wait(0 if LENT else 1)  # dS has left, dv may still be leaving
        barrier()  # every warp is done with what scores left and with dO
        mbarrier.arrive(bar_empty, count=1)
        _send_for_do(i + 2, n_here, d_do, s_do, bar_do, i_batch, i_row0, i_out)
    if STORE_DS0 and not PACKED:
        if store_ds0:
            if FRAMED:
                b_e = gl.exp2(frame(gl.load(p_hv + gl.arange(0, BV, gl.SliceLayout(0, OUT)))))[None, :]
                b_da = b_da * b_e
                if NK == 2:
                    b_db = b_db * b_e
            gl.store(p_ds0 + o_s, b_da)
            if NK == 2:
                gl.store(p_ds0 + NEXT + o_s, b_db)
    tma.store_wait(0)


# --- Both parts -------------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["T", "n_seg", "first_seg", "n_end", "n_stored", "seg_rows", "n_rows"])
def grad_walk_hopper_kernel(
    d_q, d_k, d_g, d_do, d_gv, d_of, p_h, p_dst, d_ds, p_ds0, p_g, p_marks, p_edges, p_dsn, p_hv, p_strong, p_low, d_dv,
    scale, T, H, n_seg, first_seg, n_end, n_stored, seg_rows, n_rows, n_heads,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, HAS_DST: gl.constexpr, STORE_DS0: gl.constexpr,
    PACKED: gl.constexpr, HAS_DSN: gl.constexpr, V_FIRST: gl.constexpr, DST_V_FIRST: gl.constexpr,
    FRAMED: gl.constexpr,
):  # fmt: skip
    """dv [B, T, H, V] of n_seg segments from first_seg on, of row blocks that are mild; all else as
    `grad_states_kernel` has it, with a gradient after every row block. bf16; K is 64 or 128, BV 64 or 128.
    p_h [B*H, n_blocks, K]: see `states_kernel`. scale > 0. FRAMED: do and dv are in frames of the value side, see
    `walk.walk_hopper_kernel`; p_low is given what dv, rounded, leaves. With p_gv [B, T, H, V], bfloat16 and of that
    side, do is led into frames here, and p_of, like do, is given it; where BV is 64 dv is led out. Beside bfloat16
    gates only."""
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
        p_dst += (i_bh.to(gl.int64) * n_end + (first_seg + i_seg) % n_end) * K * V
    if STORE_DS0 and not PACKED:
        p_ds0 += i_bh.to(gl.int64) * K * V
    if PACKED:
        p_g += i_h * K
    if FRAMED:
        p_hv += (i_bh.to(gl.int64) * n_blocks + first) * V + i_v * BV
        p_strong += (i_bh.to(gl.int64) * n_blocks + first) * (V // ROWS)
        p_low += i_batch.to(gl.int64) * T * H * V + i_out

    GATE: gl.constexpr = d_g.dtype
    WIDE: gl.constexpr = GATE == gl.float32
    OF_GATES: gl.constexpr = d_g.layout
    OF_ROWS: gl.constexpr = d_q.layout
    OF_STATES: gl.constexpr = d_ds.layout
    s_q = each(gl.bfloat16, [3, 1, ROWS, ROWS], OF_ROWS, NK)
    s_k = each(gl.bfloat16, [3, 1, ROWS, ROWS], OF_ROWS, NK)
    s_g = each(GATE, [1 if WIDE else 2, 1, ROWS, ROWS], OF_GATES, NK)
    s_do = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
    s_ds = each(gl.bfloat16, [ROWS, BV], OF_STATES, NK)
    LENT: gl.constexpr = WIDE or (d_gv is not None and BV > ROWS)
    s_ql, s_gv, bar_gv = s_g, s_do, ()
    if d_gv is not None:
        s_gv = gl.allocate_shared_memory(gl.bfloat16, [1, 1, ROWS, BV], OF_ROWS)
        bar_gv = barriers(1)
    if WIDE:  # float32 gates have twice the room, but once, and no part of Q comes to where they were
        s_ql = each(gl.bfloat16, [1, 1, ROWS, ROWS], OF_ROWS, NK)
    if LENT:
        s_a = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, ROWS], SHARED)
        s_ah, s_al = s_a.index(0), s_a.index(1)
        s_dv = reinterpreted(s_a, gl.bfloat16, [1, ROWS, BV], OF_ROWS)
    else:
        s_dv = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, BV], OF_ROWS)
        s_ah = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
        s_al = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    s_e = each(gl.float32, [2, ROWS], LINE, NK)
    bar_q, bar_k, bar_g, bar_do = barriers_each(NK), barriers_each(NK), barriers_each(NK), barriers(2)
    one_full, one_empty = barriers(1), barriers(1)
    bar_full, bar_empty = one_full.index(0), one_empty.index(0)
    fence_async_shared()
    barrier()

    gl.warp_specialize(
        [
            (
                _walk_part,
                (
                    d_do, d_gv, d_of, d_ds, d_dv,
                    p_h, p_dst, p_ds0, p_g, p_marks, p_edges, p_dsn, p_hv, p_strong, p_low,
                    s_q, s_k, s_do, s_gv, s_ds, s_dv, s_ah, s_al, bar_do, bar_gv, bar_full, bar_empty,
                    i_batch, i_row0, i_out, i_v, i_state, i_beyond, n_rows, H * K, i_h, n_heads, i_seg == 0,
                    first + n_here < n_blocks, n_here, T, H * V,
                    K, V, BV, HAS_DST, STORE_DS0, PACKED, HAS_DSN, V_FIRST, DST_V_FIRST, LENT, FRAMED,
                ),
            ),
            (
                scores_part,
                (
                    d_q, d_k, d_g, p_h, s_q, s_k, s_g, s_ql, s_ah, s_al, s_e, bar_q, bar_k, bar_g, bar_full, bar_empty,
                    p_marks, p_edges, n_rows, i_batch, i_row0, i_col, n_here, scale, K, PACKED,
                ),
            ),
        ],
        [4],
        [REGISTERS],
    )  # fmt: skip
