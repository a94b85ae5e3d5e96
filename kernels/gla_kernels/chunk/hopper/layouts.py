"""What Hopper's own kernels share, in Gluon: layouts, conversions between float32 and bfloat16, operands in parts.

An accumulator of 64 rows and columns, cut to bfloat16, lies as the left operand of the next product wants it: nothing
moves between threads from one to the other.
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

from ...launch.tritons import barrier, reinterpreted
from ...tiles import gates
from ...tiles.gates import LOG2E, ROW_BLOCK_LIMIT_16_BIT

ROWS = gl.constexpr(64)  # of a chunk; features of a tile, too
TILE_BYTES = gl.constexpr(64 * 64 * 2)
WARPS = gl.constexpr(4)  # a warpgroup
LOG2_E = gl.constexpr(LOG2E.value)
LEAST_HALF = gl.constexpr(-0.5 * ROW_BLOCK_LIMIT_16_BIT.value)  # log2 of half of a mild block's decay is above it
LEAST_GATE = gl.constexpr(gates.LEAST_GATE.value)
# Log2 of half of the decay of a block that has such a gate is below this.
CLOSED_HALF = gl.constexpr(0.25 * gates.LEAST_GATE.value * LOG2E.value)

# An accumulator, what of it is the left operand of a product, and what products read and write in shared memory.
ACCUMULATOR = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
OPERAND = gl.constexpr(gl.DotOperandLayout(0, ACCUMULATOR.value, 2))
SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
SPREAD = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))  # a matrix over all threads
EVERYWHERE = gl.constexpr(gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0]))  # a row: all of it in every warp
LINE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))  # a row in shared memory
GATES = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))  # a matrix of float32 over all threads
NO_NUMBER = gl.constexpr(gates.NO_NUMBER.value)


@gluon.jit
def matrix(s_x):
    """A tile of rows in shared memory, [1, rows, columns], as a matrix."""
    return s_x.reshape([s_x.shape[1], s_x.shape[2]])


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr = 1):
    """So many barriers in memory, each of so many arrivals. Those of different kinds want allocations of their own: the
    compiler has warps wait for each other between accesses to one."""
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars


# Conversions take two numbers at once, and only those that round take the slow unit. In assembly, too, what the
# compiler would make a fused operation of, with a sign to turn by another one.


@gluon.jit
def wide(b_x):
    """bfloat16 as float32."""
    return gl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=&r,=&r,r", [b_x], dtype=gl.float32, is_pure=True, pack=2
    )


@gluon.jit
def rounded(b_x):
    """float32 rounded to bfloat16."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [b_x], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def leading(b_x):
    """`tiles.leading` as bfloat16."""
    return gl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, 0x7632;", "=r,r,r", [b_x], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def rest(b_x):
    """What `leading` leaves, float32."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 t; and.b32 t, $1, 0xffff0000; sub.f32 $0, $1, t; }", "=r,r", [b_x], gl.float32, True, 1
    )


@gluon.jit
def cut(b_x):
    """`tiles.cut`."""
    return leading(b_x), leading(rest(b_x))


@gluon.jit
def features_first(s_x):
    """A tile of rows in shared memory, [1, rows, features], as float32 [features, rows]."""
    return wide(matrix(s_x).permute((1, 0)).load(ACCUMULATOR))


@gluon.jit
def inverse_exp2(b_x):
    """2^-x."""
    return gl.inline_asm_elementwise(
        "{ .reg .f32 t; neg.f32 t, $1; ex2.approx.ftz.f32 $0, t; }", "=f,f", [b_x], gl.float32, True, 1
    )


@gluon.jit
def by_parts(b_h, b_l, s_high, s_low, b_acc, FIRST: gl.constexpr):
    """acc + x y for a left operand and a right one in two parts each, but for the product of the low ones, begun.
    FIRST: nothing has been added up yet."""
    b_h, b_l = gl.convert_layout(b_h, OPERAND, True), gl.convert_layout(b_l, OPERAND, True)
    b_acc = warpgroup_mma(b_h, s_high, b_acc, use_acc=not FIRST, is_async=True)
    b_acc = warpgroup_mma(b_h, s_low, b_acc, is_async=True)
    return warpgroup_mma(b_l, s_high, b_acc, is_async=True)


# Gates. In float32 they are multiplied in two parts of bfloat16, and products read them from registers, or from where
# they came to in shared memory, which has just the bytes of both.


@gluon.jit
def gates_in_parts(b_g, LEAST: gl.constexpr):
    """Gates in float32, of which none counts as less than LEAST, as the sum of two in bfloat16: 16 bits of each."""
    b_g = gl.maximum(b_g, LEAST, propagate_nan=NO_NUMBER)
    return leading(b_g), rounded(rest(b_g))


@gluon.jit
def sums_of(s_g, s_m):
    """g^T m, [features, ROWS], begun, for gates [1, ROWS, features] and a matrix m of few bits. Of float32 gates it is
    there already: operands in registers are not to be written before the products are done."""
    b_sum = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    if s_g.dtype == gl.float32:
        b_high, b_low = gates_in_parts(matrix(s_g).permute((1, 0)).load(ACCUMULATOR), LEAST_GATE)
        b_high, b_low = gl.convert_layout(b_high, OPERAND, True), gl.convert_layout(b_low, OPERAND, True)
        b_sum = warpgroup_mma(b_low, s_m, b_sum, use_acc=False, is_async=True)
        b_sum = warpgroup_mma(b_high, s_m, b_sum, is_async=True)
        b_sum, b_high, b_low = warpgroup_mma_wait(0, (b_sum, b_high, b_low))
        return b_sum
    else:  # noqa: RET505 - only one of both is compiled
        return warpgroup_mma(matrix(s_g).permute((1, 0)), s_m, b_sum, use_acc=False, is_async=True)


@gluon.jit
def limit(s_g):
    """Have no gate of a tile of bfloat16 in shared memory count as less than LEAST_GATE."""
    s_m = matrix(s_g)
    s_m.store(gl.maximum(s_m.load(SPREAD).to(gl.float32), LEAST_GATE, propagate_nan=NO_NUMBER).to(gl.bfloat16))
    fence_async_shared()
    barrier()


@gluon.jit
def parts_of(s_g):
    """Where `cut_gates` leaves both parts, [2, ROWS, ROWS]."""
    return reinterpreted(s_g, gl.bfloat16, [2, ROWS, ROWS], SHARED)


@gluon.jit
def cut_gates(s_g, LEAST: gl.constexpr):
    """`gates_in_parts` of a tile [1, ROWS, ROWS] in shared memory, where it lies."""
    b_high, b_low = gates_in_parts(matrix(s_g).load(GATES), LEAST)
    barrier()  # every warp has read it
    parts_of(s_g).index(0).store(b_high)
    parts_of(s_g).index(1).store(b_low)
    fence_async_shared()
    barrier()


@gluon.jit
def each(dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr, NK: gl.constexpr):
    """Room in shared memory for each 64 features of NK."""
    a = gl.allocate_shared_memory(dtype, shape, layout)
    if NK == 1:
        return (a,)
    else:  # noqa: RET505 - only one of both is compiled
        return (a, gl.allocate_shared_memory(dtype, shape, layout))


@gluon.jit
def barriers_each(NK: gl.constexpr):
    """Two barriers for each 64 features."""
    a = barriers(2)
    if NK == 1:
        return (a,)
    else:  # noqa: RET505 - only one of both is compiled
        return (a, barriers(2))


@gluon.jit
def turn_of(i, t: gl.constexpr, NK: gl.constexpr):
    """For the t-th 64 features of the i-th block: which of NK + 1 places it is their turn for, and the phase of that
    place's barrier."""
    n = i * NK + t
    return n % (NK + 1), (n // (NK + 1)) & 1


@gluon.jit
def halves(p_row, NK: gl.constexpr):
    """A block's row of p_h, all of it in every warp."""
    o_k = gl.arange(0, ROWS, gl.SliceLayout(0, EVERYWHERE))
    if NK == 1:
        return (gl.load(p_row + o_k),)
    else:  # noqa: RET505 - only one of both is compiled
        return (gl.load(p_row + o_k), gl.load(p_row + ROWS + o_k))


@gluon.jit
def least_of(h, NK: gl.constexpr):
    """The least of `halves`; the same in every thread."""
    least = h[0]
    if NK == 2:
        least = gl.minimum(least, h[1])
    return gl.min(least, axis=0)


@gluon.jit
def is_mild(h, NK: gl.constexpr):
    """Whether a block is mild, from `halves`; the same in every thread."""
    return least_of(h, NK) > LEAST_HALF


@gluon.jit
def _least_half(s_h, at):
    """Of 64 features, the least h."""
    return gl.min(s_h.index(at).load(gl.SliceLayout(0, EVERYWHERE)), axis=0)


@gluon.jit
def least_half_of(s_h, at, NK: gl.constexpr):
    """Of all features, the least h: the same in every thread."""
    least = _least_half(s_h[0], at)
    if NK == 2:
        least = gl.minimum(least, _least_half(s_h[1], at))
    return least
