"""Chunks of one row block of 64 that decay by too much for an anchor, which Hopper's own kernels leave undone, in
Gluon: which they are, and their scores. strong_rows.py and strong_grad_qk.py have the kernels.

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
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...launch.tritons import async_load, barrier
from ...tiles.hopper import (
    ACCUMULATOR,
    OPERAND,
    ROWS,
    SPREAD,
    TILE_BYTES,
    cut,
    leading,
    matrix,
    wide,
)
from .layouts import LEAST_HALF, LOG2_E, by_parts, cut_gates, parts_of
from .packed import ends, firsts_of_rows, same_scores

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


# --- Rows -----------------------------------------------------------------------------------------------------------


@gluon.jit
def tiles_of(s_x, FIRST: gl.constexpr, NK: gl.constexpr):
    """NK tiles of rows in shared memory, from one on."""
    if NK == 1:
        return (s_x.index(FIRST),)
    else:  # noqa: RET505 - only one of both is compiled
        return s_x.index(FIRST), s_x.index(FIRST + 1)


@gluon.jit
def send_rows(d_q, d_k, d_g, t_q, t_k, s_g, bar, i_batch, i_row, i_col, NK: gl.constexpr):
    """For a chunk's gates, queries and keys."""
    mbarrier.expect(bar, (4 if d_g.dtype == gl.float32 else 3) * NK * TILE_BYTES)
    for t in gl.static_range(NK):
        async_load(d_g, [i_batch, i_row, i_col + t * ROWS], bar, s_g.index(t))
        async_load(d_q, [i_batch, i_row, i_col + t * ROWS], bar, t_q[t])
        async_load(d_k, [i_batch, i_row, i_col + t * ROWS], bar, t_k[t])


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
    """The larger one of bfloat16, two numbers at once; NaN where either is."""
    return gl.inline_asm_elementwise("max.NaN.bf16x2 $0, $1, $2;", "=r,r,r", [b_x, b_y], gl.bfloat16, True, 2)


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
def scores(
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
