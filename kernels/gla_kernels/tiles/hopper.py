"""What kernels in Gluon for Hopper share, whatever they compute: layouts, tiles in shared memory, barriers, conversions
between float32 and bfloat16.

An accumulator of 64 rows and columns, cut to bfloat16, lies as the left operand of the next product wants it: nothing
moves between threads from one to the other.
"""

# mypy: disallow-untyped-defs=False
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

ROWS = gl.constexpr(64)  # of a chunk; features of a tile, too
TILE_BYTES = gl.constexpr(64 * 64 * 2)

# An accumulator, what of it is the left operand of a product, and what products read and write in shared memory.
ACCUMULATOR = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
OPERAND = gl.constexpr(gl.DotOperandLayout(0, ACCUMULATOR.value, 2))
SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
SPREAD = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))  # a matrix over all threads
EVERYWHERE = gl.constexpr(gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0]))  # a row: all of it in every warp
LINE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))  # a row in shared memory


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


@gluon.jit
def each(dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr, NK: gl.constexpr):
    """Room in shared memory for each 64 features of NK."""
    a = gl.allocate_shared_memory(dtype, shape, layout)
    if NK == 1:
        return (a,)
    else:  # noqa: RET505 - only one of both is compiled
        return (a, gl.allocate_shared_memory(dtype, shape, layout))


# Conversions take two numbers at once, and only those that round take the slow unit. In assembly, too, what the
# compiler would make a fused operation of, with a sign to turn by another one.


@gluon.jit
def wide(b_x):
    """bfloat16 as float32."""
    return gl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=&r,=&r,r", [b_x], dtype=gl.float32, is_pure=True, pack=2
    )


@gluon.jit
def bits(b_x):
    """float32 as int32, bit by bit."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [b_x], dtype=gl.int32, is_pure=True, pack=1)


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
def state_at(o_k, o_v, K: gl.constexpr, V: gl.constexpr, V_FIRST: gl.constexpr):
    """Where 64 features of a state in float32 lie, and how far behind them the next 64."""
    if V_FIRST:
        return o_v[None, :] * K + o_k[:, None], ROWS
    else:  # noqa: RET505 - only one of both is compiled
        return o_k[:, None] * V + o_v[None, :], ROWS * V
