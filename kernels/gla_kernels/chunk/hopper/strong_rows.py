"""o and dv of the chunks that Hopper's own kernels leave undone, in Gluon: by the scores of strong_gates.py, and from
the states or their gradients. Where chunks are few, of all of them, in place of the passes' own kernels."""

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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ...launch.tritons import async_load, async_store, barrier, reinterpreted
from ...tiles.hopper import ACCUMULATOR, ROWS, SHARED, TILE_BYTES, barriers, leading, matrix, rounded, wide
from .layouts import LOG2_E
from .packed import head_and_tail
from .strong_gates import after, begin_each, hidden_zero, rows, scores, send_rows, share_of, tiles_of, up_to


@gluon.jit
def _send_tile(
    d_x, d_s, s_x, s_s, bar, i_batch, i_row, i_out, i_state, i_v, NK: gl.constexpr, BV: gl.constexpr, X: gl.constexpr
):  # fmt: skip
    """For a tile of V: of the state, from column i_v on, and of x, from i_out on; not X: but for x."""
    mbarrier.expect(bar, (NK + X) * (BV // ROWS) * TILE_BYTES)
    if X:
        async_load(d_x, [i_batch, i_row, i_out], bar, s_x.index(0))
    for t in gl.static_range(NK):
        async_load(d_s, [i_state + t * ROWS, i_v], bar, s_s.index(t))


@gluon.jit
def _rows_part(
    d_q, d_k, d_g, d_x, d_s, d_y, p_h, p_marks, p_edges,
    scale, H, n_blocks, n_here, first_chunk, n_stored, share, n_rows,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, RUN: gl.constexpr, MOST: gl.constexpr, BACK: gl.constexpr,
    PACKED: gl.constexpr, ALL: gl.constexpr,
):  # fmt: skip
    """Rows of o of the chunks of a share that are not mild, from x = v and the states; BACK: of dv, from x = do and the
    gradients of states. Of RUN tiles of V, for which scores and decayed rows are made once, and stay in registers; so
    every other tile comes to where gates and rows were, while the one before it is multiplied. ALL: of a chunk, mild or
    not, whose scores may be made before the launch before is done, which writes states alone."""
    NK: gl.constexpr = K // ROWS
    NV: gl.constexpr = V // (BV * RUN)
    WIDE: gl.constexpr = d_g.dtype == gl.float32
    PARTS_OF_G: gl.constexpr = 2 if WIDE else 1
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    if ALL:
        i_v, i_p = gl.program_id(0) % NV, gl.program_id(0) // NV
        i_first, i_bh, bits = i_p % n_here, i_p // n_here, gl.to_tensor(1)
        i_end = i_first + 1
    else:
        i_v, i_bh, i_first, i_end, p_h, bits = share_of(p_h, n_blocks, n_here, first_chunk, share, K, K, NV, MOST)
    if bits != 0:
        OF_ROWS: gl.constexpr = d_x.layout
        OF_STATES: gl.constexpr = d_s.layout
        if RUN > 1:
            s_rows = gl.allocate_shared_memory(gl.bfloat16, [2 * NK, 1, ROWS, ROWS], d_q.layout)
            t_q, t_k = tiles_of(s_rows, 0, NK), tiles_of(s_rows, NK, NK)
        else:
            s_q = gl.allocate_shared_memory(gl.bfloat16, [NK, 1, ROWS, ROWS], d_q.layout)
            s_k = gl.allocate_shared_memory(gl.bfloat16, [NK, 1, ROWS, ROWS], d_k.layout)
            t_q, t_k = tiles_of(s_q, 0, NK), tiles_of(s_k, 0, NK)
        s_g = gl.allocate_shared_memory(d_g.dtype, [NK, 1, ROWS, ROWS], d_g.layout)
        s_s = gl.allocate_shared_memory(gl.bfloat16, [NK, ROWS, BV], d_s.layout)
        bar, bar_s = barriers(1).index(0), barriers(1).index(0)
        if WIDE:  # x comes to where scores' operands were, so that two programs still fit an SM
            s_parts = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, ROWS], SHARED)
            s_high, s_low = s_parts.index(0), s_parts.index(1)
            s_x = reinterpreted(s_parts, gl.bfloat16, [1, 1, ROWS, BV], OF_ROWS)
            bar_x = barriers(1).index(0)
        else:
            s_x = gl.allocate_shared_memory(gl.bfloat16, [1, 1, ROWS, BV], OF_ROWS)
            s_high = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
            s_low = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
        t_x, t_s = (s_x,), (s_s,)
        if RUN > 1:
            if WIDE or K >= BV:  # the gates take as much
                s_next = reinterpreted(s_g, gl.bfloat16, [1, 1, ROWS, BV], OF_ROWS)
            else:
                s_next = gl.allocate_shared_memory(gl.bfloat16, [1, 1, ROWS, BV], OF_ROWS)
            t_x, t_s = (s_x, s_next), (s_s, reinterpreted(s_rows, gl.bfloat16, [NK, ROWS, BV], OF_STATES))  # type: ignore[assignment]
            bars = barriers(2)
        fence_async_shared()
        barrier()
        i_batch, i_h = i_bh // H, i_bh % H
        turn = gl.to_tensor(0)
        for i_c in range(i_first, i_end):
            if (bits >> (i_c - i_first)) & 1 != 0:
                nil = hidden_zero(i_c)
                i_row, i_state = (first_chunk + i_c) * ROWS, (i_bh * n_stored + i_c) * K
                i_col = i_v * (RUN * BV)
                i_out = i_h * V + i_col
                if RUN > 1 or (bits << 1 >> (i_c - i_first)) & 1 == 0:  # else the chunk before has sent for them
                    send_rows(d_q, d_k, d_g, t_q, t_k, s_g, bar, i_batch, i_row, i_h * K, NK)
                if not ALL:
                    _send_tile(d_x, d_s, s_x, s_s, bar_s, i_batch, i_row, i_out, i_state, i_col, NK, BV, not WIDE)
                mbarrier.wait(bar, turn & 1)
                turn += 1
                b_a = scores(t_q, t_k, s_g, s_high, s_low, nil, p_marks, n_rows, i_row, NK, BACK, PACKED)
                if ALL:
                    gdc_wait()
                    _send_tile(d_x, d_s, s_x, s_s, bar_s, i_batch, i_row, i_out, i_state, i_col, NK, BV, not WIDE)
                if WIDE:
                    fence_async_shared()
                    barrier()  # every warp is done with the scores' operands
                    mbarrier.expect(bar_x, BV // ROWS * TILE_BYTES)
                    async_load(d_x, [i_batch, i_row, i_out], bar_x, s_x.index(0))
                head, tail = ROWS, 0
                if PACKED:
                    head, tail = head_and_tail(p_edges, i_row)
                b_y = gl.zeros([ROWS, BV], gl.float32, OUT)
                b_gates, b_rows = begin_each(after(nil) if BACK else up_to(nil), s_g, NK), ()
                for t in gl.static_range(NK):
                    b_e = gl.exp2(warpgroup_mma_wait((NK - 1) * (1 if t else PARTS_OF_G), (b_gates[t],)) * LOG2_E)
                    b_x = wide(matrix((t_k if BACK else t_q)[t]).load(ACCUMULATOR)) * b_e
                    if PACKED:
                        o_i, _ = rows(nil)
                        b_x = gl.where((o_i >= tail) if BACK else (o_i < head), b_x, 0.0)
                    b_x = gl.convert_layout(rounded(b_x), LEFT, True)
                    if t == 0:
                        mbarrier.wait(bar_s, (turn & 1) ^ 1)
                    b_y = warpgroup_mma(b_x, s_s.index(t + nil), b_y, is_async=True)
                    b_rows = b_rows + (b_x,)  # type: ignore[assignment]  # noqa: RUF005
                if RUN == 1 and not ALL:
                    # the next chunk's, if that is not mild, either
                    if (i_c + 1 < i_end) & ((bits >> (i_c - i_first) >> 1) & 1 != 0):
                        fence_async_shared()
                        barrier()  # every warp is done with gates and rows
                        send_rows(d_q, d_k, d_g, t_q, t_k, s_g, bar, i_batch, i_row + ROWS, i_h * K, NK)
                if BACK:
                    b_a = b_a * scale
                b_high = leading(b_a)
                b_low = gl.convert_layout(rounded(b_a - wide(b_high)), LEFT, True)
                b_high = gl.convert_layout(b_high, LEFT, True)
                if RUN > 1:
                    fence_async_shared()
                    barrier()  # every warp is done with gates and rows
                    _send_tile(
                        d_x, d_s, t_x[1], t_s[1], bars.index(1), i_batch, i_row, i_out + BV, i_state, i_col + BV,  # type: ignore[misc]
                        NK, BV, True,
                    )  # fmt: skip
                if WIDE:
                    mbarrier.wait(bar_x, (turn & 1) ^ 1)
                for i in gl.static_range(RUN):
                    if i > 0:
                        mbarrier.wait(bars.index(i % 2), ((turn - 1) * ((RUN - 1 + i % 2) // 2) + (i - 1) // 2) & 1)
                        b_y = gl.zeros([ROWS, BV], gl.float32, OUT)
                        for t in gl.static_range(NK):
                            b_y = warpgroup_mma(b_rows[t], t_s[i % 2].index(t + nil), b_y, is_async=True)
                    s_at = t_x[i % 2].index(nil)
                    b_y = warpgroup_mma(b_high, matrix(s_at), b_y, is_async=True)
                    b_y = warpgroup_mma(b_low, matrix(s_at), b_y, is_async=True)
                    b_y = warpgroup_mma_wait(0, (b_y,))
                    if not BACK:
                        b_y = b_y * scale
                    barrier()  # every warp is done with x
                    matrix(s_at).store(rounded(b_y))
                    fence_async_shared()
                    barrier()
                    async_store(d_y, [i_batch, i_row, i_out + i * BV], s_at)
                    if i + 2 < RUN:
                        tma.store_wait(0)
                        barrier()
                        _send_tile(
                            d_x, d_s, t_x[i % 2], t_s[i % 2], bars.index(i % 2), i_batch, i_row, i_out + (i + 2) * BV,
                            i_state, i_col + (i + 2) * BV, NK, BV, True,
                        )  # fmt: skip
                tma.store_wait(0)
                barrier()


@gluon.jit(do_not_specialize=["n_blocks", "n_here", "first_chunk", "n_stored", "share", "n_rows"])
def output_strong_hopper_kernel(
    d_q, d_k, d_v, d_g, d_s, p_h, p_marks, p_edges, d_o,
    scale, H, n_blocks, n_here, first_chunk, n_stored, share, n_rows,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, RUN: gl.constexpr, MOST: gl.constexpr, EARLY: gl.constexpr,
    PACKED: gl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of n_here chunks from first_chunk on: of those that are not mild. For the tensors see
    `output.output_kernel`. RUN: tiles of V a program, for which it makes scores once. EARLY: it may have begun before
    the walk whose states it reads was done."""
    if EARLY:
        gdc_wait()
    _rows_part(
        d_q, d_k, d_g, d_v, d_s, d_o, p_h, p_marks, p_edges,
        scale, H, n_blocks, n_here, first_chunk, n_stored, share, n_rows,
        K, V, BV, RUN, MOST, False, PACKED, False,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["n_blocks", "n_here", "first_chunk", "n_stored", "share", "n_rows"])
def grad_v_strong_hopper_kernel(
    d_q, d_k, d_g, d_do, d_ds, p_h, p_marks, p_edges, d_dv,
    scale, H, n_blocks, n_here, first_chunk, n_stored, share, n_rows,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, RUN: gl.constexpr, MOST: gl.constexpr, EARLY: gl.constexpr,
    PACKED: gl.constexpr,
):  # fmt: skip
    """dv [B, T, H, V] of n_here chunks from first_chunk on: of those that are not mild. For the tensors see
    `grad_v.grad_v_kernel`, for RUN `output_strong_hopper_kernel`. EARLY: it may have begun before the launch before it
    was done, and so may the next one, once that is: whatever was launched before this is there for it."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    _rows_part(
        d_q, d_k, d_g, d_do, d_ds, d_dv, p_h, p_marks, p_edges,
        scale, H, n_blocks, n_here, first_chunk, n_stored, share, n_rows,
        K, V, BV, RUN, MOST, True, PACKED, False,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["n_here", "first_chunk", "n_stored"])
def output_hopper_kernel(
    d_q, d_k, d_v, d_g, d_s, d_o, scale, H, n_here, first_chunk, n_stored,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of n_here chunks from first_chunk on, mild or not, a program a chunk and tile of V. It begins
    before the pass is done whose states it reads. For the tensors see `output.output_kernel`."""
    _rows_part(
        d_q, d_k, d_g, d_v, d_s, d_o, None, None, None,
        scale, H, 0, n_here, first_chunk, n_stored, 1, 0,
        K, V, BV, 1, 1, False, False, True,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["n_here", "first_chunk", "n_stored"])
def grad_v_hopper_kernel(
    d_q, d_k, d_g, d_do, d_ds, d_dv, scale, H, n_here, first_chunk, n_stored,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr,
):  # fmt: skip
    """The same of dv [B, T, H, V]. For the tensors see `grad_v.grad_v_kernel`."""
    _rows_part(
        d_q, d_k, d_g, d_do, d_ds, d_dv, None, None, None,
        scale, H, 0, n_here, first_chunk, n_stored, 1, 0,
        K, V, BV, 1, 1, True, False, True,
    )  # fmt: skip
