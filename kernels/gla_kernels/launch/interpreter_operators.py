"""Arithmetic, comparisons, choices and casts of Triton's interpreter, without asking twice what they are.

Of each ``b_x + b_y`` Triton asks anew whether these are numbers, pointers or tiles, what type the sum has and which
operand must be cast, and copies both into one shape. All of that follows from the two types, so here it is worked out
once for each pair of them. What then computes is the function of NumPy's that the interpreter's builder calls. Where
somebody has put another into the builder, where there is more to do, or something to refuse, Triton is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import triton.language as tl

from .interpreter_casts import bits_type, cast_type, casting, type_of

# What NumPy calls them, and the interpreter's builder for floats and for integers.
_NUMBERS = {
    "add": (np.add, "create_fadd", "create_add"),
    "sub": (np.subtract, "create_fsub", "create_sub"),
    "mul": (np.multiply, "create_fmul", "create_mul"),
}
_BITS = {"and": (np.bitwise_and, "", "create_and"), "or": (np.bitwise_or, "", "create_or")}
# Quotients are cut off, as remainders are: -7 // 2 is -3, and -7 % 2 is -1.
_QUOTIENTS = {
    "floordiv": (lambda x, y: (x - np.fmod(x, y)) // y, "", "create_sdiv"),
    "mod": (np.fmod, "", "create_srem"),
}
_FLAGS = {
    "lt": (np.less, "create_fcmpOLT", "create_icmpSLT"),
    "le": (np.less_equal, "create_fcmpOLE", "create_icmpSLE"),
    "gt": (np.greater, "create_fcmpOGT", "create_icmpSGT"),
    "ge": (np.greater_equal, "create_fcmpOGE", "create_icmpSGE"),
    "eq": (np.equal, "create_fcmpOEQ", "create_icmpEQ"),
    "ne": (np.not_equal, "create_fcmpUNE", "create_icmpNE"),
}
_NAMES: dict[str, Any] = _NUMBERS | _BITS | _QUOTIENTS | _FLAGS
_ALL = slice(None)

Operation = Callable[..., Any]


class Operators:
    """What a kernel calls in the place of Triton's own. interpreter: the module ``triton.runtime.interpreter``."""

    def __init__(self, interpreter: Any) -> None:
        self._builder, self._semantic = interpreter.interpreter_builder, interpreter.interpreter_semantic
        self._np_dtype, self._handle_kind = interpreter._get_np_dtype, _handles_of(interpreter.TensorHandle)
        self.watched = {name for name in vars(self._builder) if name.startswith("create_")}  # not the class's own
        self._constants: dict[tuple[Any, ...], Any] = {}

    def replace(self, put: Callable[[Any, str, Operation], None]) -> None:
        """Put them where Triton's are: ``put(owner, name, operation)``."""
        tensor = tl.core.tensor
        for name in _NAMES:
            put(tensor, f"__{name}__", self._operator(name, getattr(tensor, f"__{name}__")))
        for name in _NUMBERS:
            put(tensor, f"__r{name}__", self._reflected(name, getattr(tensor, f"__r{name}__")))
        put(tensor, "__neg__", self._negated(tensor.__neg__))
        put(tensor, "__getitem__", self._indexed(tensor.__getitem__))
        put(tensor, "to", self._to(tensor.to))
        put(tl, "cast", self._to(tl.cast))
        put(tl, "where", self._where(tl.where))

    def maker(self, type_: Any) -> Callable[[Any, Any], Any]:
        """``make(data, element)``: a tile, or a number, of this type, from an array of as many numbers. element: what
        Triton calls those of its array, which is another type for flags."""
        new, kind, hold = object.__new__, self._handle_kind, self.holder(type_)

        def make(data: Any, element: Any) -> Any:
            handle = new(kind)
            handle.data, handle.dtype = data, element
            return hold(handle)

        return make

    def holder(self, type_: Any) -> Callable[[Any], Any]:
        """``hold(handle)``: a tile, or a number, of this type, from what the interpreter's builder answers."""
        new, tensor = object.__new__, tl.core.tensor
        described = {**vars(tensor(None, type_)), "type": type_, "dtype": type_.scalar}

        def hold(handle: Any) -> Any:
            made, values = new(tensor), described.copy()
            values["handle"] = handle
            made.__dict__ = values
            return made

        return hold

    def _operator(self, name: str, triton: Operation) -> Operation:
        known: dict[tuple[str, str], tuple[Any, Any, Any]] = {}
        tensor, own_type = tl.core.tensor, name in _FLAGS

        def operator(left: Any, right: Any) -> Any:
            other = right
            if right.__class__ is not tensor:
                if isinstance(right, tl.constexpr):
                    right = right.value
                other = right if isinstance(right, tensor) else self.constant(right, left.dtype, own_type)
                if other is None:
                    return triton(left, right)
            key = left.type.name, other.type.name
            if key not in known:
                known[key] = self._computation(name, left.type, other.type)
            compute, make, tile = known[key]
            x, y = left.handle.data, other.handle.data
            if compute is None or not (tile is None or (y if tile else x).flags.c_contiguous):
                return triton(left, right)
            return make(compute(x, y), left.handle.dtype)

        return operator

    def _computation(self, name: str, left: Any, right: Any) -> tuple[Any, Any, Any]:
        """Of two arrays an operator makes which, from that which tile or number, and which of both is a tile beside a
        number: NumPy may repeat that only where the tile is contiguous. Elsewhere Triton must copy it into the tile's
        shape: how a tile lies in memory decides how the result does, and so in which order it is summed."""
        compute, of_floats, of_integers = _NAMES[name]
        called = "create_addptr" if left.scalar.is_ptr() else of_floats if left.scalar.is_floating() else of_integers
        type_ = result_type(name, left, right)
        if type_ is None or called in self.watched:
            return None, None, None
        tile = None if left.is_block() == right.is_block() else int(right.is_block())
        if not left.scalar.is_ptr():
            return compute, self.maker(type_), tile
        width = np.uint64(max(1, left.scalar.element_ty.primitive_bitwidth // 8))
        return lambda x, y: x + np.multiply(y, width, dtype=np.uint64, casting="unsafe"), self.maker(type_), tile

    def _reflected(self, name: str, triton: Operation) -> Operation:
        operator = self._operator(name, lambda left, right: None)

        def reflected(right: Any, left: Any) -> Any:
            """number + tile; of two tiles the left one is asked."""
            constant = self.constant(left, right.dtype, False)
            found = None if constant is None else operator(constant, right)
            return triton(right, left) if found is None else found

        return reflected

    def _negated(self, triton: Operation) -> Operation:
        subtract = self._operator("sub", lambda left, right: None)

        def negated(x: Any) -> Any:
            """0 - x of integers, whose zero has no sign."""
            zero = self.constant(0, x.dtype, False) if x.dtype.is_int_signed() else None
            found = None if zero is None else subtract(zero, x)
            return triton(x) if found is None else found

        return negated

    def _indexed(self, triton: Operation) -> Operation:
        known: dict[tuple[str, bool], Any] = {}

        def indexed(tile: Any, index: Any) -> Any:
            """``b_x[:, None]`` and ``b_x[None, :]`` of a row of numbers."""
            if len(tile.type.shape) != 1 or not _is_column_or_row(index):
                return triton(tile, index)
            key = tile.type.name, index[1] is None
            if key not in known:
                shape = (*tile.type.shape, 1) if key[1] else (1, *tile.type.shape)
                known[key] = shape, self.maker(tl.core.block_type(tile.dtype, list(shape)))
            shape, make = known[key]
            return make(tile.handle.data.reshape(shape), tile.handle.dtype)

        return indexed

    def _cast(self, of: Any, to: Any, bits: bool) -> tuple[Any, Any] | None:
        """What makes elements ``to`` of a tile's array, and tiles of them; None where all of that is left to Triton."""
        type_ = (bits_type if bits else cast_type)(of, to)
        if type_ is None or (bits and "create_bitcast" in self.watched):
            return None
        return casting(of.scalar, to, self._np_dtype(to), bits), self.maker(type_)

    def _to(self, triton: Operation) -> Operation:
        known: dict[tuple[str, str, bool], tuple[Any, Any] | None] = {}
        tensor = tl.core.tensor

        def to(tile: Any, dtype: Any, *how: Any, **named: Any) -> Any:
            """A tile, or a number, as it is or of other elements, rounded as ever, or of other elements' bits."""
            if isinstance(dtype, tl.constexpr):
                dtype = dtype.value
            bits = named == {"bitcast": True}
            if how or (named and not bits) or not (isinstance(dtype, tl.dtype) and isinstance(tile, tensor)):
                return triton(tile, dtype, *how, **named)
            if dtype.name == tile.dtype.name:
                return tile
            key = tile.type.name, dtype.name, bits
            if key not in known:
                known[key] = self._cast(tile.type, dtype, bits)
            cast = known[key]
            data = None if cast is None else cast[0](tile.handle.data)
            return triton(tile, dtype, **named) if cast is None or data is None else cast[1](data, dtype)

        return to

    def _where(self, triton: Operation) -> Operation:
        known: dict[tuple[str, str, str], Any] = {}
        tensor, watched = tl.core.tensor, "create_select" in self.watched

        def where(condition: Any, x: Any, y: Any) -> Any:
            """Of two tiles, or of a tile and a number."""
            tile = x if isinstance(x, tensor) else y
            if not (isinstance(condition, tensor) and isinstance(tile, tensor)):
                return triton(condition, x, y)
            a = x if tile is x else self.constant(x, tile.dtype, False)
            b = y if isinstance(y, tensor) else self.constant(y, tile.dtype, False)
            if a is None or b is None:
                return triton(condition, x, y)
            key = condition.type.name, a.type.name, b.type.name
            if key not in known:
                type_ = selected_type(condition.type, a.type, b.type)
                known[key] = None if type_ is None or watched else self.maker(type_)
            make = known[key]
            if make is None or not _whole(condition, a, b):
                return triton(condition, x, y)
            return make(np.where(condition.handle.data, a.handle.data, b.handle.data), b.handle.dtype)

        return where

    def constant(self, value: Any, dtype: Any, own_type: bool) -> Any:
        """A number as Triton makes it: of its own type, or of that of the other operand where it has no say in it."""
        kind = type(value)
        if kind is not int and kind is not float:
            return None
        key = kind, value, None if own_type else dtype.name
        if key not in self._constants:
            self._constants[key] = self._new_constant(value, dtype, own_type)
        return self._constants[key]

    def _new_constant(self, value: int | float, dtype: Any, own_type: bool) -> Any:
        if own_type:
            return self._semantic.to_tensor(value)
        if not (dtype.is_standard_floating() or _holds(dtype, value)):
            return None
        return self._semantic.scalar_constant(value, dtype=dtype)


def _handles_of(handle: Any) -> Any:
    """The interpreter's handles, with attributes only once somebody asks for them."""
    return type("Handle", (handle,), {"attr": cached_property(lambda _: {})})


def _is_column_or_row(index: Any) -> bool:
    if index.__class__ is not tuple or len(index) != 2:
        return False
    first, second = index
    kept = second if first is None else first if second is None else None
    return kept.__class__ is slice and kept == _ALL


def _whole(*operands: Any) -> bool:
    """Whether NumPy may repeat a number beside tiles: see `Operators._computation`."""
    tiles = [x.handle.data for x in operands if x.type.is_block()]
    return len(tiles) == len(operands) or all(tile.flags.c_contiguous for tile in tiles)


def result_type(name: str, left: Any, right: Any) -> Any:
    """The type of ``left name right`` in Triton, or None where an operand is cast, no such operation is, or the tiles
    differ in rank."""
    if not _taken(name, left.scalar, right.scalar):
        return None
    shape = common_shape(left, right)
    return None if shape is None else type_of(tl.int1 if name in _FLAGS else left.scalar, shape)


def _taken(name: str, left: Any, right: Any) -> bool:
    """Whether two elements are taken as they are."""
    if left.is_ptr():
        return name == "add" and not right.is_ptr() and bool(right.is_int_signed())
    if name in _BITS:
        return bool(left.is_int() and left == right)
    same = left == right or (left == tl.int64 and right == tl.int32)  # which NumPy casts as Triton does
    return bool(same and (name not in _QUOTIENTS or left.is_int_signed()))


def selected_type(condition: Any, x: Any, y: Any) -> Any:
    """The type of ``tl.where(condition, x, y)``, or None where an operand is cast or the tiles differ in rank."""
    shape = common_shape(condition, x, y)
    if shape is None or not condition.is_block() or condition.scalar != tl.int1 or x.scalar != y.scalar:
        return None
    return type_of(x.scalar, shape)


def common_shape(*types: Any) -> list[int] | None:
    """The shape of an operation on tiles and numbers; of numbers alone []. None where tiles differ in rank, or do not
    fit."""
    shapes = [x.shape for x in types if x.is_block()]
    if len({len(shape) for shape in shapes}) > 1:
        return None
    sizes = [set(each) - {1} for each in zip(*shapes, strict=True)]
    return None if any(len(size) > 1 for size in sizes) else [max(size, default=1) for size in sizes]


def _holds(dtype: Any, value: int | float) -> bool:
    """Whether a type of integers holds the number; flags are no integers here."""
    if not dtype.is_int() or dtype.is_bool() or not isinstance(value, int):
        return False
    return bool(dtype.get_int_min_value() <= value <= dtype.get_int_max_value())
