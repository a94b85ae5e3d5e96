"""What the walk of wide heads (wide_walk.py) reads in place of q, k and g, on Hopper, in Gluon: q and k decayed, and
each chunk's scores, made once for all tiles of V. A program a chunk, which goes through 64 features at a time; three
of them share a multiprocessor, because what is made lies where what it is made of was: Q where q, K where k, and of the
parts of k e^{h - up} the leading bits where g.

    up = the sum of the gates of the rows up to the row;  after = of those after it;  h = half of the sum of all
    Q = scale q e^up,   K = k e^after,   A = tril((scale q e^{up - h}) (k e^{h - up})^T), in all two parts each

Chunks that are not mild: their A is not to be used, and prepare_strong.py's runs after this one; Q, K and h are
right for any gates.

Of packed sequences (packed.py) Q has the head's rows alone, K those from the tail on and A pairs of rows of one
sequence: up to these no gate counts of another one. f is h where one sequence passes, and elsewhere -inf; what a state
that enters there decays by to the chunk's end, or back in time to its start, is e.
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

from ...launch.tritons import async_load, async_store, barrier, reinterpreted
from ...tiles.hopper import ACCUMULATOR, ROWS, SHARED, SPREAD, TILE_BYTES, barriers, cut, matrix, rounded, wide
from .layouts import CLOSED_HALF, LEAST_GATE, LOG2_E, by_parts, cut_gates, limit, parts_of
from .packed import firsts_of_rows, head_and_tail, passes, same_scores


@gluon.jit
def _send(d_q, d_k, d_g, s_q, s_k, s_g, bar, t, i_batch, i_row, i_col):
    """For the t-th 64 features."""
    mbarrier.expect(bar.index(t % 2), (4 if d_g.dtype == gl.float32 else 3) * TILE_BYTES)
    async_load(d_g, [i_batch, i_row, i_col + t * ROWS], bar.index(t % 2), s_g.index(t % 2))
    async_load(d_q, [i_batch, i_row, i_col + t * ROWS], bar.index(t % 2), s_q.index(t % 2))
    async_load(d_k, [i_batch, i_row, i_col + t * ROWS], bar.index(t % 2), s_k.index(t % 2))


@gluon.jit
def _first_of(s_g, d_a):
    """Where a tile of gates is, room for one of A's or k's parts."""
    if s_g.dtype == gl.float32:
        OF_ROWS: gl.constexpr = d_a.layout
        return reinterpreted(s_g, gl.bfloat16, [2, 1, ROWS, ROWS], OF_ROWS).index(0)
    else:  # noqa: RET505 - only one of both is compiled
        return s_g


@gluon.jit
def _sums(s_m, s_g):
    """m g of a tile of gates, times log2(e): float32 ones are there in two parts."""
    b_sum = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    if s_g.dtype == gl.float32:
        s_parts = parts_of(s_g)
        b_sum = warpgroup_mma(s_m, s_parts.index(1), b_sum, use_acc=False, is_async=True)
        b_sum = warpgroup_mma(s_m, s_parts.index(0), b_sum, is_async=True)
    else:
        b_sum = warpgroup_mma(s_m, matrix(s_g), b_sum, use_acc=False, is_async=True)
    return b_sum


@gluon.jit
def _decays(s_up, s_after, s_g):
    """up, after and h of 64 features, from their gates, of which none counts as less than LEAST_GATE from then on.

    Products again in a branch, for what was summed beside -inf, would have ptxas wait for each product of the kernel;
    in a loop they are the same ones.
    """
    if s_g.dtype == gl.float32:
        cut_gates(s_g, LEAST_GATE)
    b_up, b_after = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR), gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_half = gl.zeros([ROWS], gl.float32, gl.SliceLayout(0, ACCUMULATOR))
    times, limited = gl.to_tensor(1), gl.to_tensor(False)
    while times > 0:
        b_up, b_after = _sums(s_up, s_g), _sums(s_after, s_g)
        b_up, b_after = warpgroup_mma_wait(0, (b_up, b_after))
        b_up, b_after = b_up * LOG2_E, b_after * LOG2_E
        b_half = _half_of(b_up)
        times -= 1
        if s_g.dtype != gl.float32:
            if (gl.min(b_half, axis=0) < CLOSED_HALF) & (not limited):  # there may be gates of -inf
                limit(s_g)
                times, limited = 1, True
    return b_up, b_after, b_half


@gluon.jit
def _half_of(b_up):
    """h of 64 features."""
    last = (gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)) == ROWS - 1)[:, None]
    return 0.5 * gl.sum(gl.where(last, b_up, 0.0), axis=0)


@gluon.jit
def _half_of_part(b_up, b_after, b_half, head, tail, BACK: gl.constexpr):
    """h of the rows from the tail on, or BACK of the head."""
    o_i = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR))
    if BACK:
        return 0.5 * gl.sum(gl.where((o_i == head - 1)[:, None], b_up, 0.0), axis=0)
    else:  # noqa: RET505 - only one of both is compiled
        return gl.where(tail == 0, b_half, 0.5 * gl.sum(gl.where((o_i == tail - 1)[:, None], b_after, 0.0), axis=0))


@gluon.jit(do_not_specialize=["T", "n_blocks", "first_block", "n_here"])
def prepare_hopper_kernel(
    d_q, d_k, d_g, p_h, p_f, p_e, p_marks, p_edges, d_qd, d_kd, d_a, scale, T, H, n_blocks, first_block, n_here,
    K: gl.constexpr, STORE_H: gl.constexpr, STORE_F: gl.constexpr, PACKED: gl.constexpr, ENTERS: gl.constexpr,
    BACK: gl.constexpr,
):  # fmt: skip
    """qd, kd [B, T', H, K] and a [B, T', H, 2*64] of n_here chunks from first_block on: Q, K, and A's leading bits
    beside the next ones, bf16, from their rows of q, k [B, T', H, K] in bf16 and g in that or float32. Float32, each if
    it is asked for: p_h [B*H, n_blocks, K], h; p_f [B*H, n_here, K], f, which is h but of packed sequences; p_e like
    it, e of chunks that a state enters in, for a walk BACK in time or not."""
    i_p = gl.program_id(0)
    i_c, i_bh = i_p % n_here, i_p // n_here
    i_batch, i_h, i_row = i_bh // H, i_bh % H, i_c * ROWS
    i_col = i_h * K
    p_h += (i_bh.to(gl.int64) * n_blocks + first_block + i_c) * K
    i_first = (i_bh.to(gl.int64) * n_here + i_c) * K
    head, tail = ROWS, 0
    if PACKED:
        head, tail = head_and_tail(p_edges, i_row)

    s_q = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, ROWS], d_q.layout)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, ROWS], d_k.layout)
    s_g = gl.allocate_shared_memory(d_g.dtype, [2, 1, ROWS, ROWS], d_g.layout)
    s_low = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, ROWS], d_a.layout)
    s_up = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    s_after = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    bar = barriers(2)
    o_i = gl.arange(0, ROWS, gl.SliceLayout(1, SPREAD))[:, None]
    o_j = gl.arange(0, ROWS, gl.SliceLayout(0, SPREAD))[None, :]
    s_up.store(gl.where(o_i >= o_j, 1.0, 0.0).to(gl.bfloat16))
    s_after.store(gl.where(o_i < o_j, 1.0, 0.0).to(gl.bfloat16))
    fence_async_shared()
    barrier()
    _send(d_q, d_k, d_g, s_q, s_k, s_g, bar, gl.to_tensor(0), i_batch, i_row, i_col)
    _send(d_q, d_k, d_g, s_q, s_k, s_g, bar, gl.to_tensor(1), i_batch, i_row, i_col)

    b_a = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    o_r = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR))[:, None]
    for t in range(K // ROWS):
        mbarrier.wait(bar.index(t % 2), t // 2)
        s_gates = s_g.index(t % 2)
        b_up, b_after, b_half = _decays(s_up, s_after, s_gates)
        if STORE_H:
            gl.store(p_h + t * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR)), b_half)
        if STORE_F:
            o_f = i_first + t * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
            b_f = b_half
            if PACKED:
                b_f = gl.where(passes(head, tail), b_half, float("-inf"))
            gl.store(p_f + o_f, b_f)
            if ENTERS:
                if not passes(head, tail):
                    gl.store(p_e + o_f, _half_of_part(b_up, b_after, b_half, head, tail, BACK))
        tma.store_wait(0)
        barrier()  # every warp is done with g, and with the parts of k before; Q and K before have left
        if (t > 0) & (t + 1 < K // ROWS):
            _send(d_q, d_k, d_g, s_q, s_k, s_g, bar, t + 1, i_batch, i_row, i_col)
        b_k = wide(matrix(s_k.index(t % 2)).load(ACCUMULATOR))
        b_kd = rounded(b_k * gl.exp2(b_after))
        if PACKED:
            b_kd = gl.where(o_r >= tail, b_kd, 0.0)
        matrix(s_k.index(t % 2)).store(b_kd)
        b_c = b_up - b_half[None, :]
        b_kh, b_kl = cut(b_k * gl.exp2(-b_c))
        s_high = _first_of(s_gates, d_a)
        matrix(s_high).store(b_kh)
        matrix(s_low).store(b_kl)
        b_q = wide(matrix(s_q.index(t % 2)).load(ACCUMULATOR)) * scale
        b_qd = rounded(b_q * gl.exp2(b_up))
        if PACKED:
            b_qd = gl.where(o_r < head, b_qd, 0.0)
        matrix(s_q.index(t % 2)).store(b_qd)
        b_qh, b_ql = cut(b_q * gl.exp2(b_c))
        fence_async_shared()
        barrier()
        b_a = by_parts(b_qh, b_ql, matrix(s_high).permute((1, 0)), matrix(s_low).permute((1, 0)), b_a, False)
        async_store(d_qd, [i_batch, i_row, i_col + t * ROWS], s_q.index(t % 2))
        async_store(d_kd, [i_batch, i_row, i_col + t * ROWS], s_k.index(t % 2))
        b_a, b_qh, b_ql = warpgroup_mma_wait(0, (b_a, b_qh, b_ql))
    s_high = _first_of(s_g.index((K // ROWS - 1) % 2), d_a)
    o_i = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR))[:, None]
    o_j = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))[None, :]
    if PACKED:
        b_a = same_scores(b_a, firsts_of_rows(p_marks, i_row))
    # above the diagonal the product grows instead of decaying; it may overflow and is thrown away here
    b_ah, b_al = cut(gl.where(o_i >= o_j, b_a, 0.0))
    barrier()  # every warp is done with the parts of k
    matrix(s_high).store(b_ah)
    matrix(s_low).store(b_al)
    fence_async_shared()
    barrier()
    async_store(d_a, [i_batch, i_row, i_h * 2 * ROWS], s_high)
    async_store(d_a, [i_batch, i_row, i_h * 2 * ROWS + ROWS], s_low)
    tma.store_wait(0)
