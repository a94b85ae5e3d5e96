"""What Hopper's own kernels share of gates, in Gluon: operands in parts, sums, what is mild. With what is in
tiles/hopper.py, which has nothing to do with gates."""

# mypy: disallow-untyped-defs=False
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...launch.tritons import barrier, reinterpreted
from ...tiles import gates
from ...tiles.gates import LOG2E, ROW_BLOCK_LIMIT_16_BIT
from ...tiles.hopper import (
    ACCUMULATOR,
    EVERYWHERE,
    OPERAND,
    ROWS,
    SHARED,
    SPREAD,
    barriers,
    leading,
    matrix,
    rest,
    rounded,
)

LOG2_E = gl.constexpr(LOG2E.value)
LEAST_HALF = gl.constexpr(-0.5 * ROW_BLOCK_LIMIT_16_BIT.value)  # log2 of half of a mild block's decay is above it
LEAST_GATE = gl.constexpr(gates.LEAST_GATE.value)
# Log2 of half of the decay of a block that has such a gate is below this.
CLOSED_HALF = gl.constexpr(0.25 * gates.LEAST_GATE.value * LOG2E.value)

GATES = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))  # a matrix of float32 over all threads
NO_NUMBER = gl.constexpr(gates.NO_NUMBER.value)


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
