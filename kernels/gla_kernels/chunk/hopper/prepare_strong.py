"""Scores of the chunks of wide heads that prepare.py leaves undone, in Gluon: those of strong_gates.py, summed over 128
features at a time."""

# mypy: disallow-untyped-defs=False
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from ...launch.tritons import async_store, barrier, reinterpreted
from ...tiles.hopper import ACCUMULATOR, ROWS, SHARED, barriers, cut
from .strong_gates import hidden_zero, scores, send_rows, share_of, tiles_of

SUMS = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))


@gluon.jit(do_not_specialize=["n_blocks", "n_here", "first_chunk", "share"])
def prepare_strong_hopper_kernel(
    d_q, d_k, d_g, d_a, p_h, p_marks, scale, H, n_blocks, n_here, first_chunk, share,
    K: gl.constexpr, MOST: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """a [B, T', H, 2*64] of those of n_here chunks from first_chunk on that are not mild: scale times their scores,
    leading bits beside the next ones, from rows of q, k, g [B, T, H, K]. p_h [B*H, n_blocks, K]: log2 of half of each
    one's decay. PACKED: of rows of one sequence alone; p_marks: of `packed.marks`."""
    NK: gl.constexpr = 2
    _, i_bh, i_first, i_end, p_h, bits = share_of(p_h, n_blocks, n_here, first_chunk, share, K, K, 1, MOST)
    if bits != 0:
        OF_SCORES: gl.constexpr = d_a.layout
        s_q = gl.allocate_shared_memory(gl.bfloat16, [NK, 1, ROWS, ROWS], d_q.layout)
        s_k = gl.allocate_shared_memory(gl.bfloat16, [NK, 1, ROWS, ROWS], d_k.layout)
        s_g = gl.allocate_shared_memory(d_g.dtype, [NK, 1, ROWS, ROWS], d_g.layout)
        # parts of the products' operands, and then of a
        s_parts = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, ROWS], SHARED)
        s_high, s_low = s_parts.index(0), s_parts.index(1)
        s_a = reinterpreted(s_parts, gl.bfloat16, [2, 1, ROWS, ROWS], OF_SCORES)
        s_sum = gl.allocate_shared_memory(gl.float32, [ROWS, ROWS], SUMS)  # in registers it would be spilled
        t_q, t_k = tiles_of(s_q, 0, NK), tiles_of(s_k, 0, NK)
        bar = barriers(1).index(0)
        fence_async_shared()
        barrier()
        i_batch, i_h = i_bh // H, i_bh % H
        turn = gl.to_tensor(0)
        for i_c in range(i_first, i_end):
            if (bits >> (i_c - i_first)) & 1 != 0:
                i_row = (first_chunk + i_c) * ROWS
                for i in range(K // (NK * ROWS)):
                    send_rows(d_q, d_k, d_g, t_q, t_k, s_g, bar, i_batch, i_row, i_h * K + i * NK * ROWS, NK)
                    mbarrier.wait(bar, turn & 1)
                    turn += 1
                    b_a = scores(
                        t_q, t_k, s_g, s_high, s_low, hidden_zero(i_c), p_marks, 0, i_row, NK, False, PACKED
                    )  # fmt: skip
                    if i > 0:
                        b_a += s_sum.load(ACCUMULATOR)
                    s_sum.store(b_a)
                    fence_async_shared()
                    barrier()  # every warp is done with these rows, and with the operands
                b_high, b_low = cut(s_sum.load(ACCUMULATOR) * scale)
                s_high.store(b_high)
                s_low.store(b_low)
                fence_async_shared()
                barrier()
                async_store(d_a, [i_batch, i_c * ROWS, i_h * 2 * ROWS], s_a.index(0))
                async_store(d_a, [i_batch, i_c * ROWS, i_h * 2 * ROWS + ROWS], s_a.index(1))
                tma.store_wait(0)
                barrier()
