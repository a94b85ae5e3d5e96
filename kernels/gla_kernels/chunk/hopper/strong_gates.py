"""What Hopper's own kernels leave undone, in Gluon: chunks of one row block of 64 that decay by too much for an anchor.

Their scores come by halving. Two rows j < i of a chunk lie in different halves of just one of its blocks of 2, 4, 8 ..
64 rows. From the border in that block's middle, both decays are sums of the gates between and at most 1:

    A_ij = sum_k (q_ik e^{gates from the border to i}) (k_jk e^{gates after j, up to the border})

So A is its diagonal, which no gate touches, and a sum over levels, one for each size of blocks. At each of them every
row is scaled once,

    Z_i = q_i e^{..} in a block's later half,  k_i e^{..} in its earlier one,

and of Z Z^T the pairs of that level are kept. But pairs of rows in one block that decays little need no level: an
anchor in its middle serves them all, in one product. How many rows such blocks have, 8 to 64, goes by the gates
(`levels_of`). 8 always can, for a gate counts as FORGETS at least: what that lets through is less than rounding leaves.

Every tile lies as its products' accumulators do, so that sums of gates, exponentials, rows and their operands never
move between threads; the matrices that gates are summed by are made where the tensor core wants them. A program has
four warps, and two fit an SM. It looks at its share of a head's chunks at once, and mostly finds that all are mild.
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ...launch.tritons import async_load, async_store, barrier, reinterpreted
from ...tiles.hopper import (
    ACCUMULATOR,
    OPERAND,
    ROWS,
    SHARED,
    SPREAD,
    TILE_BYTES,
    barriers,
    cut,
    leading,
    matrix,
    rounded,
    wide,
)
from .layouts import LEAST_HALF, LOG2_E, by_parts, cut_gates, parts_of
from .packed import ends, firsts_of_rows, head_and_tail, same_scores

FORGETS = gl.constexpr(-18.0)  # natural logarithm: 2^-26. The middle of 8 such gates is within LEAST_HALF
PARTS = gl.constexpr(3)  # products of `by_parts`
MOST_LEVELS = gl.constexpr(3)  # down to blocks of 8 rows
CHUNKS = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))  # h of a share's chunks


# --- Which chunks -----------------------------------------------------------------------------------------------------


@gluon.jit
def share_of(
    p_h, n_blocks, n_here, first_chunk, share,
    K: gl.constexpr, FEATURES: gl.constexpr, TILES: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """A program's tile, of TILES a chunk, its head, its chunks i_first .. i_end-1, the head's h, from the tile's first
    feature on where it has but FEATURES of them, and a bit for each of these chunks: 1 where it is not mild there."""
    n_shares = (n_here + share - 1) // share
    i_p = gl.program_id(0)
    i_tile, i_p = i_p % TILES, i_p // TILES
    i_first, i_bh = (i_p % n_shares) * share, i_p // n_shares
    i_end = gl.minimum(i_first + share, n_here)
    p_h += (i_bh.to(gl.int64) * n_blocks + first_chunk) * K
    if FEATURES < K:
        p_h += i_tile * FEATURES
    o_c = i_first + gl.arange(0, MOST, gl.SliceLayout(1, CHUNKS))
    o_k = gl.arange(0, FEATURES, gl.SliceLayout(0, CHUNKS))
    b_h = gl.load(p_h + o_c[:, None] * K + o_k[None, :], mask=(o_c < i_end)[:, None], other=0.0)
    bits = gl.sum(gl.where(gl.min(b_h, axis=1) > LEAST_HALF, 0, 1 << (o_c - i_first)), axis=0)
    return i_tile, i_bh, i_first, i_end, p_h, bits


@gluon.jit
def hidden_zero(i_c):
    """0, which the compiler cannot know. What is made with it is made where it is used; all else that no chunk changes
    the compiler makes once, before the loop over chunks, and spills it."""
    return gl.minimum(i_c, 0)


# --- Matrices of 0 and 1, by which gates are summed -------------------------------------------------------------------


@gluon.jit
def rows(nil):
    """Indices of an accumulator's rows and columns, [ROWS, 1] and [1, ROWS]. nil: `hidden_zero`, here and below."""
    o_i, o_j = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)), gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    return o_i[:, None] + nil, o_j[None, :]


@gluon.jit
def eights(nil):
    """To which eight rows of the chunk they belong: the same for many of a thread's numbers, so that masks take few
    instructions."""
    o_i, o_j = rows(nil)
    return o_i >> 3, o_j >> 3


@gluon.jit
def as_operand(b_x):
    """Numbers of 8 bits as the left operand of a product."""
    return gl.convert_layout(leading(b_x), OPERAND, True)


@gluon.jit
def begin_gates(b_m, s_g):
    """m @ g for a left operand m, begun: two products for gates in float32."""
    b_sum = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    if s_g.dtype == gl.float32:
        b_sum = warpgroup_mma(b_m, parts_of(s_g).index(1), b_sum, use_acc=False, is_async=True)
        return warpgroup_mma(b_m, parts_of(s_g).index(0), b_sum, is_async=True)
    else:  # noqa: RET505 - only one of both is compiled
        return warpgroup_mma(b_m, matrix(s_g), b_sum, use_acc=False, is_async=True)


@gluon.jit
def gates_by(b_m, s_g):
    """Log2 of decays: (m @ g) log2(e)."""
    return warpgroup_mma_wait(0, (begin_gates(as_operand(b_m), s_g),)) * LOG2_E


@gluon.jit
def begin_each(b_m, s_g, NK: gl.constexpr):
    """m @ g of NK tiles, begun."""
    b_m = as_operand(b_m)
    if NK == 1:
        return (begin_gates(b_m, s_g.index(0)),)
    else:  # noqa: RET505 - only one of both is compiled
        return begin_gates(b_m, s_g.index(0)), begin_gates(b_m, s_g.index(1))


@gluon.jit
def up_to(nil):
    """m @ g: the gates up to each row."""
    o_i, o_s = rows(nil)
    return gl.where(o_s <= o_i, 1.0, 0.0)


@gluon.jit
def after(nil):
    """m @ g: the gates after each row."""
    o_i, o_s = rows(nil)
    return gl.where(o_s > o_i, 1.0, 0.0)


@gluon.jit
def to_border(half, nil):
    """m @ g: the gates between each row and the border in its block's middle. A later row counts its own gate, an
    earlier one those after its own. half: rows of half a block, 8 at least."""
    o_i, o_s = rows(nil)
    o_i8, o_s8 = eights(nil)
    half8 = half >> 3
    later = (o_i8 & half8) != 0
    return gl.where((o_s8 & -half8) == (o_i8 & -half8), gl.where((o_s <= o_i) == later, 1.0, 0.0), 0.0)


@gluon.jit
def from_middle(levels, nil):
    """m @ g: half of the gates of a row's block up to that row, less half of those after it, so that differences in a
    block are the gates between two rows. levels: how many there are above such blocks."""
    o_i, o_s = rows(nil)
    o_i8, o_s8 = eights(nil)
    return gl.where((o_i8 ^ o_s8) < (ROWS // 8 >> levels), gl.where(o_s <= o_i, 0.5, -0.5), 0.0)


# --- Gates and rows of 64 features ------------------------------------------------------------------------------------


@gluon.jit
def _larger(b_x, b_y):
    """The larger one of bfloat16, two numbers at once; the other one of a NaN."""
    return gl.inline_asm_elementwise("max.bf16x2 $0, $1, $2;", "=r,r,r", [b_x, b_y], gl.bfloat16, True, 2)


@gluon.jit
def clamp(s_g):
    """Gates count as FORGETS at least. Those in float32 lie there in two parts from now on."""
    if s_g.dtype == gl.float32:
        cut_gates(s_g, FORGETS)
    else:
        s_m = matrix(s_g)
        s_m.store(_larger(s_m.load(SPREAD), gl.full([ROWS, ROWS], FORGETS, gl.bfloat16, SPREAD)))
        fence_async_shared()
        barrier()


@gluon.jit
def levels_of(s_g, nil, NK: gl.constexpr):
    """How many levels there are above the largest blocks that are mild in all of NK tiles. Where 16 rows would decay
    too much even if all rows decayed alike, only the smallest blocks are left."""
    PARTS_OF_G: gl.constexpr = 2 if s_g.dtype == gl.float32 else 1
    levels, mild = gl.to_tensor(0), False
    while (not mild) & (levels < MOST_LEVELS):
        b_gates = begin_each(from_middle(levels, nil), s_g, NK)
        b_c = warpgroup_mma_wait((NK - 1) * PARTS_OF_G, (b_gates[0],))
        if NK > 1:
            b_c = gl.minimum(b_c, warpgroup_mma_wait(0, (b_gates[1],)))
        least = gl.min(gl.min(b_c, axis=1), axis=0) * LOG2_E
        mild = least > LEAST_HALF
        if not mild:
            levels = gl.where(least <= 4 * LEAST_HALF, MOST_LEVELS, levels + 1)
    return levels


@gluon.jit
def either(b_x, b_y, m_x):
    """x where m_x, else y: bfloat16, two numbers at once."""
    return gl.inline_asm_elementwise(
        "lop3.b32 $0, $3, $1, $2, 0xca;", "=r,r,r,r,r", [b_x, b_y, gl.where(m_x, -1, 0)], gl.bfloat16, True, 2
    )


@gluon.jit
def rows_of_level(half, s_q, s_k, nil):
    """Z before its decay: q of later rows, k of earlier ones, bfloat16."""
    o_i, _ = rows(nil)
    return either(matrix(s_q).load(ACCUMULATOR), matrix(s_k).load(ACCUMULATOR), (o_i & half) != 0)


@gluon.jit
def lay_down(b_high, b_low, s_high, s_low):
    """Both parts of a tile to shared memory, where every warp is done with what was there, for products to read."""
    barrier()
    s_high.store(b_high)
    s_low.store(b_low)
    fence_async_shared()
    barrier()


@gluon.jit
def _tiles(s_x, FIRST: gl.constexpr, NK: gl.constexpr):
    """NK tiles of rows in shared memory, from one on."""
    if NK == 1:
        return (s_x.index(FIRST),)
    else:  # noqa: RET505 - only one of both is compiled
        return s_x.index(FIRST), s_x.index(FIRST + 1)


# --- Scores -----------------------------------------------------------------------------------------------------------


@gluon.jit
def _add_scores(b_a, b_x, b_y, s_high, s_low, t: gl.constexpr):
    """a + x y^T of the t-th tile, begun. The tile before is multiplied meanwhile, until x and y are to be laid down."""
    b_high, b_low = cut(b_y)
    if t:
        b_a = warpgroup_mma_wait(0, (b_a,))
    lay_down(b_high, b_low, s_high, s_low)
    b_high, b_low = cut(b_x)
    return by_parts(b_high, b_low, s_high.permute((1, 0)), s_low.permute((1, 0)), b_a, t == 0)


@gluon.jit
def _scores(
    t_q, t_k, s_g, s_high, s_low, nil, p_marks, n_rows, i_row,
    NK: gl.constexpr, BACK: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """Scores of a chunk's rows, [ROWS, ROWS], or, BACK, their transpose. Gates are clamped here."""
    PARTS_OF_G: gl.constexpr = 2 if s_g.dtype == gl.float32 else 1
    o_i, o_j = rows(nil)
    o_i8, o_j8 = eights(nil)
    for t in gl.static_range(NK):
        clamp(s_g.index(t))
    levels = levels_of(s_g, nil, NK)
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_self = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, ACCUMULATOR))
    b_gates, b_a = begin_each(from_middle(levels, nil), s_g, NK), b_zero
    for t in gl.static_range(NK):
        b_c = warpgroup_mma_wait(PARTS if t else (NK - 1) * PARTS_OF_G, (b_gates[t],)) * LOG2_E
        b_q, b_k = wide(matrix(t_q[t]).load(ACCUMULATOR)), wide(matrix(t_k[t]).load(ACCUMULATOR))
        b_self += gl.sum(b_q * b_k, axis=1)
        b_q, b_k = b_q * gl.exp2(b_c), b_k * gl.exp2(-b_c)
        b_a = _add_scores(b_a, b_k if BACK else b_q, b_q if BACK else b_k, s_high, s_low, t)
    b_a = warpgroup_mma_wait(0, (b_a,))
    m_block = ((o_i8 ^ o_j8) < (ROWS // 8 >> levels)) & ((o_i < o_j) if BACK else (o_i > o_j))
    b_a = gl.where(m_block, b_a, gl.where(o_i == o_j, b_self[:, None], 0.0))  # a row's own goes through no gate
    for i_level in range(levels):
        half = ROWS >> (i_level + 1)
        b_gates, b_new = begin_each(to_border(half, nil), s_g, NK), b_zero
        for t in gl.static_range(NK):
            b_e = gl.exp2(warpgroup_mma_wait(PARTS if t else (NK - 1) * PARTS_OF_G, (b_gates[t],)) * LOG2_E)
            b_z = wide(rows_of_level(half, t_q[t], t_k[t], nil)) * b_e
            b_new = _add_scores(b_new, b_z, b_z, s_high, s_low, t)
        b_new = warpgroup_mma_wait(0, (b_new,))
        half8 = half >> 3
        partners = gl.where((o_i8 & half8) == (0 if BACK else half8), (o_i8 & -half8) ^ half8, -1)
        b_a = gl.where((o_j8 & -half8) == partners, b_new, b_a)
    if PACKED:
        if BACK:
            b_a = gl.where(o_j < ends(p_marks, n_rows, i_row, gl.SliceLayout(1, ACCUMULATOR))[:, None], b_a, 0.0)
        else:
            b_a = same_scores(b_a, firsts_of_rows(p_marks, i_row))
    return b_a


@gluon.jit
def _send_rows(d_q, d_k, d_g, t_q, t_k, s_g, bar, i_batch, i_row, i_col, NK: gl.constexpr):
    """For a chunk's gates, queries and keys."""
    mbarrier.expect(bar, (4 if d_g.dtype == gl.float32 else 3) * NK * TILE_BYTES)
    for t in gl.static_range(NK):
        async_load(d_g, [i_batch, i_row, i_col + t * ROWS], bar, s_g.index(t))
        async_load(d_q, [i_batch, i_row, i_col + t * ROWS], bar, t_q[t])
        async_load(d_k, [i_batch, i_row, i_col + t * ROWS], bar, t_k[t])


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
    PACKED: gl.constexpr,
):  # fmt: skip
    """Rows of o of the chunks of a share that are not mild, from x = v and the states; BACK: of dv, from x = do and the
    gradients of states. Of RUN tiles of V, for which scores and decayed rows are made once, and stay in registers; so
    every other tile comes to where gates and rows were, while the one before it is multiplied."""
    NK: gl.constexpr = K // ROWS
    NV: gl.constexpr = V // (BV * RUN)
    WIDE: gl.constexpr = d_g.dtype == gl.float32
    PARTS_OF_G: gl.constexpr = 2 if WIDE else 1
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BV, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    i_v, i_bh, i_first, i_end, p_h, bits = share_of(p_h, n_blocks, n_here, first_chunk, share, K, K, NV, MOST)
    if bits != 0:
        OF_ROWS: gl.constexpr = d_x.layout
        OF_STATES: gl.constexpr = d_s.layout
        if RUN > 1:
            s_rows = gl.allocate_shared_memory(gl.bfloat16, [2 * NK, 1, ROWS, ROWS], d_q.layout)
            t_q, t_k = _tiles(s_rows, 0, NK), _tiles(s_rows, NK, NK)
        else:
            s_q = gl.allocate_shared_memory(gl.bfloat16, [NK, 1, ROWS, ROWS], d_q.layout)
            s_k = gl.allocate_shared_memory(gl.bfloat16, [NK, 1, ROWS, ROWS], d_k.layout)
            t_q, t_k = _tiles(s_q, 0, NK), _tiles(s_k, 0, NK)
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
                    _send_rows(d_q, d_k, d_g, t_q, t_k, s_g, bar, i_batch, i_row, i_h * K, NK)
                _send_tile(d_x, d_s, s_x, s_s, bar_s, i_batch, i_row, i_out, i_state, i_col, NK, BV, not WIDE)
                mbarrier.wait(bar, turn & 1)
                turn += 1
                b_a = _scores(t_q, t_k, s_g, s_high, s_low, nil, p_marks, n_rows, i_row, NK, BACK, PACKED)
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
                if RUN == 1:
                    # the next chunk's, if that is not mild, either
                    if (i_c + 1 < i_end) & ((bits >> (i_c - i_first) >> 1) & 1 != 0):
                        fence_async_shared()
                        barrier()  # every warp is done with gates and rows
                        _send_rows(d_q, d_k, d_g, t_q, t_k, s_g, bar, i_batch, i_row + ROWS, i_h * K, NK)
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
        K, V, BV, RUN, MOST, False, PACKED,
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
    was done, and so may the next one."""
    if EARLY:
        gdc_launch_dependents()
    _rows_part(
        d_q, d_k, d_g, d_do, d_ds, d_dv, p_h, p_marks, p_edges,
        scale, H, n_blocks, n_here, first_chunk, n_stored, share, n_rows,
        K, V, BV, RUN, MOST, True, PACKED,
    )  # fmt: skip
    if EARLY:
        gdc_wait()  # whoever waits for this launch waits for the one before it
