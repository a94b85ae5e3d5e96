"""Casts of Triton's interpreter, without asking twice what they are: see interpreter_operators.py.

bfloat16, which NumPy has not, is made of float32's bits, and those of its: cut off, or rounded up at a half without the
carry into the exponent. What has an exponent of 0 and is not 0 is left to Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

# Types that NumPy casts into each other as Triton does; those of 16 bits only to float32 and from it.
_CAST = {"int8", "int16", "int32", "int64", "fp32", "fp64"}
_HALF = {"fp16", "bf16"}
# As NumPy has them: of Python's numbers it would ask each time what they are.
_SIZE, _SMALL, _ONE = np.uint16(0x7FFF), np.uint16(0x7F), np.uint16(1)
_SIZE_32, _SMALL_32, _ONE_32 = np.uint32(0x7FFFFFFF), np.uint32(0x7FFFFF), np.uint32(1)
_SIXTEEN = np.uint32(16)


def widened(x: Any) -> Any:
    """Bits of bfloat16 as those of float32, uint32; None where a number is left to Triton."""
    bits: Any = np.ascontiguousarray(x).view(np.uint16)
    if np.count_nonzero((bits & _SIZE) - _ONE < _SMALL):  # 0 - 1 is the largest number here
        return None
    return bits.astype(np.uint32) << _SIXTEEN


def narrowed(x: Any, rounds: bool) -> Any:
    """Bits of float32 as those of bfloat16, uint16; None where a number is left to Triton."""
    bits: Any = np.ascontiguousarray(x).view(np.uint32)
    if np.count_nonzero((bits & _SIZE_32) - _ONE_32 < _SMALL_32):
        return None
    kept = bits >> _SIXTEEN
    if rounds:
        kept = (kept & 0xFF80) | ((kept & 0x7F) + (bits >> 15 & 1))
    return kept.astype(np.uint16)


def cast_type(of: Any, to: Any) -> Any:
    """The type of a tile or a number of type ``of`` whose elements become ``to`` in one step; None where Triton takes
    more."""
    one, other = of.scalar.name, to.name
    if not ((one in _CAST | {"int1"} and other in _CAST) or {one, other} in ({"fp32", half} for half in _HALF)):
        return None
    return type_of(to, _shape(of))


def bits_type(of: Any, to: Any) -> Any:
    """Likewise where the bits stay; None where these are pointers, or more or fewer."""
    sizes = {0 if x.is_ptr() else x.primitive_bitwidth for x in (of.scalar, to)}
    return None if 0 in sizes or len(sizes) > 1 else type_of(to, _shape(of))


def type_of(element: Any, shape: list[int]) -> Any:
    """Of a tile of that shape, or of a number, which has none."""
    return tl.core.block_type(element, shape) if shape else element


def _shape(of: Any) -> list[int]:
    return list(of.shape) if of.is_block() else []


def casting(of: Any, to: Any, numbers: Any, bits: bool) -> Callable[[Any], Any]:
    """What makes an array of elements ``of`` one of those, NumPy's ``numbers``, as the interpreter's builder does. It
    answers None where that is left to Triton."""
    if bits:
        return lambda x: x.view(numbers)
    if of == tl.bfloat16:
        return lambda x: None if (found := widened(x)) is None else found.view(numbers)
    if to == tl.bfloat16:
        return lambda x: narrowed(x, False)
    return lambda x: x.astype(numbers)
