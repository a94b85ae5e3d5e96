"""Loading and storing tiles of rows, and products of tiles: what every kernel of the chunkwise form shares.

Names: p_ pointer, i_ index, o_ offsets, m_ mask, b_ tile (block) in registers. A row is one token of one head; rows of
the layout [B, T, H, D] lie ``stride`` = H*D elements apart.
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
from typing import Any

import torch
import triton
import triton.language as tl

from ..launch import interpreting


def operand_type(dtype: torch.dtype, K: int) -> tuple[Any, str]:
    """Type of the tensor-core operands, and what float32 operands are cut to.

    bf16: bf16 products, tf32 where a decayed operand would lose bits that count (inside a sub-chunk).
    fp16: tf32, which has the same 10 mantissa bits but float32's range: states and scores overflow 65504 easily.
    fp32: three tf32 products, within a few units of float32's last place; plain float32 products where K is so large
    that the split operands would not fit the shared memory of an A100.
    The interpreter's bf16 product is wrong, so it computes bf16 inputs in float32.
    """
    if dtype == torch.bfloat16 and not interpreting():
        return tl.bfloat16, "tf32"
    if dtype == torch.float32:
        return tl.float32, "tf32x3" if K <= 256 else "ieee"
    return tl.float32, "tf32"


@triton.jit
def load_tile(p_x, i_row, T, stride, o_d, D: tl.constexpr, BT: tl.constexpr):
    """Rows i_row .. i_row+BT-1, columns o_d -> [BT, BD]; rows from T on and columns from D on read as 0."""
    o_r = tl.arange(0, BT)
    m_x = (i_row + o_r < T)[:, None] & (o_d < D)[None, :]
    p_x += tl.cast(i_row, tl.int64) * stride
    return tl.load(p_x + o_r[:, None] * stride + o_d[None, :], mask=m_x, other=0.0)


@triton.jit
def store_tile(p_x, b_x, i_row, T, stride, o_d, D: tl.constexpr, BT: tl.constexpr):
    """The inverse of load_tile: rows from T on and columns from D on are not written."""
    o_r = tl.arange(0, BT)
    m_x = (i_row + o_r < T)[:, None] & (o_d < D)[None, :]
    p_x += tl.cast(i_row, tl.int64) * stride
    tl.store(p_x + o_r[:, None] * stride + o_d[None, :], b_x.to(p_x.dtype.element_ty), mask=m_x)


@triton.jit
def load_row(p_x, i_row, m_row, stride, o_d, D: tl.constexpr):
    """Row i_row as float32 [BD], zeros where m_row is false."""
    return tl.load(p_x + tl.cast(i_row, tl.int64) * stride + o_d, mask=m_row & (o_d < D), other=0.0).to(tl.float32)


@triton.jit
def state_offsets(o_k, o_v, K: tl.constexpr, V: tl.constexpr, V_FIRST: tl.constexpr):
    """Where a state's tile [BK, BV] lies in a [K, V] matrix, or V_FIRST, in a [V, K] one."""
    return o_v[None, :] * K + o_k[:, None] if V_FIRST else o_k[:, None] * V + o_v[None, :]


@triton.jit
def load_state(p_s, o_k, o_v, K: tl.constexpr, V: tl.constexpr, V_FIRST: tl.constexpr = False):
    """A state's tile [BK, BV] as float32, from a [K, V] matrix, or V_FIRST, from a [V, K] one."""
    m_s = (o_k < K)[:, None] & (o_v < V)[None, :]
    return tl.load(p_s + state_offsets(o_k, o_v, K, V, V_FIRST), mask=m_s, other=0.0).to(tl.float32)


@triton.jit
def load_operand(p_s, o_k, o_v, K: tl.constexpr, V: tl.constexpr, V_FIRST: tl.constexpr = False):
    """`load_state` in the type that it is kept in, without a detour through float32."""
    m_s = (o_k < K)[:, None] & (o_v < V)[None, :]
    return tl.load(p_s + state_offsets(o_k, o_v, K, V, V_FIRST), mask=m_s, other=0.0)


@triton.jit
def store_state(p_s, b_s, o_k, o_v, K: tl.constexpr, V: tl.constexpr, V_FIRST: tl.constexpr = False):
    """The inverse of load_state."""
    m_s = (o_k < K)[:, None] & (o_v < V)[None, :]
    tl.store(p_s + state_offsets(o_k, o_v, K, V, V_FIRST), b_s.to(p_s.dtype.element_ty), mask=m_s)


@triton.jit
def operand(b_x, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """x exactly as a tensor core will read it: cast to DOT, and a float32 rounded to tf32 where that is what is left.

    The hardware would cut the bits off by itself; rounding first is unbiased, and lets two kernels agree on the value.
    What is no number stays none: products leave it as 0x7fffffff, which rounding as an integer would turn into -0.
    """
    if DOT == tl.float32 and PRECISION == "tf32":
        b_y = b_x.to(tl.float32)
        b_bits = (b_y.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        b_y = tl.where(b_y == b_y, b_bits.to(tl.float32, bitcast=True), b_y)
    else:
        b_y = b_x.to(DOT)
    return b_y


@triton.jit
def dot(b_x, b_y, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """x @ y with float32 accumulation. DOT is the operands' type; PRECISION is what a float32 operand is cut to."""
    return tl.dot(b_x.to(DOT), b_y.to(DOT), input_precision=PRECISION)


@triton.jit
def leading(b_x):
    """A float32 tile cut off after the 8 bits that bfloat16 holds, in float32."""
    return (b_x.to(tl.int32, bitcast=True) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def split(b_x, DOT: tl.constexpr):
    """A float32 tile as two of type DOT, bfloat16: its leading 8 bits, and the next 8 of what is left, rounded."""
    b_high = leading(b_x)
    return b_high.to(DOT), (b_x - b_high).to(DOT)


@triton.jit
def cut(b_x, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """A float32 tile as two operands: where DOT is bfloat16, its leading 8 bits and the 8 after those, else the tile as
    a tensor core reads it, twice.

    Both are cut off, not rounded, so that bfloat16 holds them as they are and `fine` needs no conversion: one to
    bfloat16 and back is many times slower than a cut.
    """
    if DOT == tl.bfloat16:
        b_top = leading(b_x)
        b_high, b_low = b_top.to(DOT), leading(b_x - b_top).to(DOT)
    else:
        b_high = operand(b_x, DOT, PRECISION)
        b_low = b_high
    return b_high, b_low


@triton.jit
def fine(b_x, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """The sum of what `cut` gives, or the one operand, in float32: two products, or two kernels, then agree on the
    value."""
    if DOT == tl.bfloat16:
        b_high = leading(b_x)
        b_y = b_high + leading(b_x - b_high)
    else:
        b_y = operand(b_x, DOT, PRECISION)
    return b_y


@triton.jit
def dot_half(b_x, b_y, b_acc, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """acc + x @ y of a float32 tile x and a tile y that DOT holds as it is: two products where DOT is bfloat16."""
    if DOT == tl.bfloat16:
        b_xh, b_xl = split(b_x, DOT)
        b_acc = tl.dot(b_xh, b_y.to(DOT), b_acc)
        b_acc = tl.dot(b_xl, b_y.to(DOT), b_acc)
    else:
        b_acc = tl.dot(b_x.to(tl.float32), b_y.to(tl.float32), b_acc, input_precision=PRECISION)
    return b_acc
