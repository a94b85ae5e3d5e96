"""States in a pool: [slots, H, K, V] or [slots, H, V, K], any stride from one slot to the next, of which a launch takes
those that p_slots names. Loads and stores of a tile, and how float32 is rounded to what a pool holds.

A number in p_slots that is none of a slot, such as -1, is padding: there is no state to it, and it gets zeros. fp8
(e4m3) states have a scale for each column of V, p_scales [slots, H, V] float32: a program that holds all of K for its
columns finds it by itself. Scales are powers of two, so that what a step leaves as it is stays the same bits, however
the largest number of its column changes.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import interpreting
from ..schedule import cdiv, padded
from ..tiles.operands import state_offsets

# Triton's interpreter cuts bfloat16 off, and loses a carry on the way to fp8: it is given what needs no rounding.
BY_BITS: tl.constexpr = tl.constexpr(interpreting())
FP8_MAX: tl.constexpr = tl.constexpr(448.0)

ELEMENTS = 4096  # of a tile of a state
REGISTERS = 128  # of a thread: four programs of 4 warps an SM have enough on its way, and spill nothing
LEAST_BYTES = 32  # of a row of a tile that lies side by side: a sector of memory


class Tiles(NamedTuple):
    """How states are cut: BK covers K. It goes by a state's shape and type alone, so that a request's bits are the same
    in any batch."""

    BK: int
    BV: int
    over_v: int

    def num_warps(self, columns: int = 1, elements: int = ELEMENTS) -> int:
        """4, or 8 where tiles of BK rows, of BV or of so many columns, have more elements than that."""
        return 8 if self.BK * max(self.BV, columns) > elements else 4


def tiles_of(K: int, V: int, dtype: torch.dtype, v_first: bool, elements: int = ELEMENTS) -> Tiles:
    """The tiles of states of that shape, of so many elements at most."""
    BK, size = padded(K), dtype.itemsize
    least = 8 if v_first else max(8, LEAST_BYTES // size)
    BV = min(padded(V), max(least, elements // BK))
    return Tiles(BK, BV, cdiv(V, BV))


def sizes_of(state: Tensor, v_first: bool) -> tuple[int, int, int]:
    """H, K and V of a pool's states."""
    _, H, *last = state.shape
    K, V = reversed(last) if v_first else last
    return H, K, V


@triton.jit
def _tile(p_s, i_v, o_k, o_v, K: tl.constexpr, V: tl.constexpr, V_FIRST: tl.constexpr):
    """Pointers to tile i_v, [BK, BV], of a state, and which of them point into it. Where the tile lies is added to one
    pointer first: what differs between a thread's rows is constant then, and takes no registers."""
    BV: tl.constexpr = o_v.shape[0]
    p_tile = p_s + i_v * BV * (K if V_FIRST else 1)
    return p_tile + state_offsets(o_k, o_v, K, V, V_FIRST), (o_k < K)[:, None] & (o_v < V - i_v * BV)[None, :]


@triton.jit
def load_tile(p_s, i_v, o_k, o_v, K: tl.constexpr, V: tl.constexpr, V_FIRST: tl.constexpr):
    """Tile i_v of a state as it is kept; o_v: 0 to BV. p_s, here and below: of a slot and head, as p_scales are."""
    p_tile, m_tile = _tile(p_s, i_v, o_k, o_v, K, V, V_FIRST)
    return tl.load(p_tile, mask=m_tile, other=0.0)


@triton.jit
def as_float(b_x, p_scales, i_v, o_v, V: tl.constexpr):
    """What `load_tile` has, as float32."""
    b_s = b_x.to(tl.float32)
    if p_scales is not None:
        o_v += i_v * o_v.shape[0]
        b_s *= tl.load(p_scales + o_v, mask=o_v < V, other=0.0)[None, :]
    return b_s


@triton.jit
def store_tile(
    p_s, p_scales, b_s, i_seed, i_v, o_k, o_v,
    K: tl.constexpr, V: tl.constexpr, V_FIRST: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """The inverse of load_tile and as_float. STOCHASTIC: rounded up or down by chance, by bits drawn from i_seed
    (`seed`)."""
    TYPE: tl.constexpr = p_s.dtype.element_ty
    p_tile, m_tile = _tile(p_s, i_v, o_k, o_v, K, V, V_FIRST)
    o_v += i_v * o_v.shape[0]
    if p_scales is not None:
        # the least power of two that brings the largest number into range; 1e-30 keeps its inverse finite
        b_most = tl.maximum(tl.max(tl.abs(b_s), axis=0), 1e-30) / FP8_MAX
        b_bits = (b_most.to(tl.int32, bitcast=True) + 0x7FFFFF) & -0x800000
        b_scale = b_bits.to(tl.float32, bitcast=True)
        tl.store(p_scales + o_v, b_scale, mask=o_v < V)
        b_s *= (1.0 / b_scale)[None, :]
    if TYPE != tl.float32:
        if STOCHASTIC:
            b_s = rounded(b_s, _bits(i_seed, o_k, o_v, V), TYPE)
        elif BY_BITS:
            b_s = rounded(b_s, None, TYPE)
        if p_scales is not None:  # what lies within half a unit of it has been divided to more
            b_s = tl.minimum(tl.maximum(b_s, -FP8_MAX), FP8_MAX)
    tl.store(p_tile, b_s.to(TYPE), mask=m_tile)


@triton.jit
def _mixed(x):
    """A hash of 32 bits: multiplications and shifts of C. Wellons' "lowbias32" (Prospecting for Hash Functions, 2018),
    each bit of which depends on each of x."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def seed(i_time, i_h):
    """Where random bits of a head's state at a time begin; which slot the state lies in, and who else is in the batch,
    make no difference."""
    return _mixed(_mixed(tl.cast(i_time, tl.uint32)) + tl.cast(i_h, tl.uint32))


@triton.jit
def _bits(i_seed, o_k, o_v, V: tl.constexpr):
    """32 random bits for each element of a tile."""
    return _mixed((o_k[:, None] * V + o_v[None, :]).to(tl.uint32) ^ i_seed)


@triton.jit
def rounded(b_x, b_random, TYPE: tl.constexpr):
    """A float32 tile as numbers that TYPE holds: the next one above with as much chance as x is nearer to it. Without
    random bits to nearest."""
    b_bits = b_x.to(tl.uint32, bitcast=True)
    if TYPE == tl.bfloat16:  # float32's upper half
        b_up = 0x7FFF + ((b_bits >> 16) & 1) if b_random is None else b_random >> 16
        b_y = ((b_bits + b_up) & 0xFFFF0000).to(tl.float32, bitcast=True)
    else:
        MANTISSA: tl.constexpr = 10 if TYPE == tl.float16 else 3
        LEAST: tl.constexpr = 127 - 14 if TYPE == tl.float16 else 127 - 6  # exponent; numbers below have its unit
        LEFT: tl.constexpr = 23 - MANTISSA  # bits: with more the sum below would be rounded itself
        b_exponent = tl.maximum((b_bits >> 23) & 0xFF, LEAST) - MANTISSA
        b_unit = (b_exponent << 23).to(tl.float32, bitcast=True)
        b_inverse = ((254 - b_exponent) << 23).to(tl.float32, bitcast=True)
        b_up = 0.5 if b_random is None else (b_random >> (32 - LEFT)).to(tl.float32) * (1.0 / (1 << LEFT))
        b_y = tl.floor(tl.abs(b_x) * b_inverse + b_up) * b_unit
        b_y = tl.where(b_x < 0.0, -b_y, b_y)
    return tl.where(b_x == b_x, b_y, b_x)
