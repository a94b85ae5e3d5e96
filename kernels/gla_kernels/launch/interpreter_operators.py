"""Sums, products, comparisons, choices and loads of Triton's interpreter, without asking twice what they are.

Of each ``b_x + b_y`` Triton asks anew whether these are numbers, pointers or tiles, what type the sum has and which
operand must be cast, and copies both into one shape. All of that follows from the two types, so here it is worked out
once for each pair of them. What then computes is the interpreter's builder as ever, which leaves the shapes to NumPy.
Where there is more to do, or something to refuse, Triton is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl

from .tritons import masked_load

# What the interpreter's builder calls them: for floats, for integers.
_NUMBERS = {
    "add": ("create_fadd", "create_add"),
    "sub": ("create_fsub", "create_sub"),
    "mul": ("create_fmul", "create_mul"),
}
_BITS = {"and": ("", "create_and"), "or": ("", "create_or")}
_FLAGS = {
    "lt": ("create_fcmpOLT", "create_icmpSLT"),
    "le": ("create_fcmpOLE", "create_icmpSLE"),
    "gt": ("create_fcmpOGT", "create_icmpSGT"),
    "ge": ("create_fcmpOGE", "create_icmpSGE"),
    "eq": ("create_fcmpOEQ", "create_icmpEQ"),
    "ne": ("create_fcmpUNE", "create_icmpNE"),
}
_NAMES = _NUMBERS | _BITS | _FLAGS
_COLUMN, _ROW = (slice(None), None), (None, slice(None))

Operation = Callable[..., Any]


class Operators:
    """What a kernel calls in the place of Triton's own. interpreter: the module ``triton.runtime.interpreter``."""

    def __init__(self, interpreter: Any) -> None:
        self._builder, self._semantic = interpreter.interpreter_builder, interpreter.interpreter_semantic
        self._handle = interpreter.TensorHandle
        self._constants: dict[tuple[Any, ...], Any] = {}

    def replace(self, put: Callable[[Any, str, Operation], None]) -> None:
        """Put them where Triton's are: ``put(owner, name, operation)``."""
        tensor = tl.core.tensor
        for name in _NAMES:
            put(tensor, f"__{name}__", self._operator(name, getattr(tensor, f"__{name}__")))
        for name in _NUMBERS:
            put(tensor, f"__r{name}__", self._reflected(name, getattr(tensor, f"__r{name}__")))
        put(tensor, "__getitem__", self._indexed(tensor.__getitem__))
        put(tl, "where", self._where(tl.where))
        put(tl, "load", self._load(tl.load))

    def _operator(self, name: str, triton: Operation) -> Operation:
        known: dict[tuple[str, str], tuple[Any, Any, bool]] = {}
        tensor, own_type = tl.core.tensor, name in _FLAGS

        def operator(left: Any, right: Any) -> Any:
            other = right
            if not isinstance(right, tensor):
                if isinstance(right, tl.constexpr):
                    right = right.value
                other = right if isinstance(right, tensor) else self._constant(right, left.dtype, own_type)
                if other is None:
                    return triton(left, right)
            key = left.type.name, other.type.name
            if key not in known:
                alike = left.type.is_block() == other.type.is_block()
                known[key] = result_type(name, left.type, other.type), self._compute(name, left.dtype), alike
            type_, compute, alike = known[key]
            if type_ is None or not (alike or self._whole(left, other)):
                return triton(left, right)
            return tensor(compute(left.handle, other.handle), type_)

        return operator

    def _reflected(self, name: str, triton: Operation) -> Operation:
        operator = self._operator(name, lambda left, right: None)

        def reflected(right: Any, left: Any) -> Any:
            """number + tile; of two tiles the left one is asked."""
            constant = self._constant(left, right.dtype, False)
            found = None if constant is None else operator(constant, right)
            return triton(right, left) if found is None else found

        return reflected

    def _compute(self, name: str, element: Any) -> Any:
        """What the builder does for an operator of these elements."""
        of_floats, of_integers = _NAMES[name]
        if element.is_ptr():
            return self._builder.create_addptr
        return getattr(self._builder, of_floats if element.is_floating() else of_integers, None)

    def _indexed(self, triton: Operation) -> Operation:
        known: dict[tuple[str, bool], Any] = {}

        def indexed(tile: Any, index: Any) -> Any:
            """``b_x[:, None]`` and ``b_x[None, :]`` of a row of numbers."""
            if len(tile.shape) != 1 or index not in (_COLUMN, _ROW):
                return triton(tile, index)
            key = tile.type.name, index == _COLUMN
            if key not in known:
                known[key] = tl.core.block_type(tile.dtype, [*tile.type.shape, 1] if key[1] else [1, *tile.type.shape])
            type_ = known[key]
            return tl.core.tensor(self._handle(tile.handle.data.reshape(type_.shape), tile.handle.dtype.scalar), type_)

        return indexed

    def _where(self, triton: Operation) -> Operation:
        known: dict[tuple[str, str, str], Any] = {}

        def where(condition: Any, x: Any, y: Any) -> Any:
            """Of two tiles, or of a tile and a number."""
            tile = x if isinstance(x, tl.core.tensor) else y
            if not (isinstance(condition, tl.core.tensor) and isinstance(tile, tl.core.tensor)):
                return triton(condition, x, y)
            a, b = (v if isinstance(v, tl.core.tensor) else self._constant(v, tile.dtype, False) for v in (x, y))
            if a is None or b is None:
                return triton(condition, x, y)
            key = condition.type.name, a.type.name, b.type.name
            if key not in known:
                known[key] = selected_type(condition.type, a.type, b.type)
            type_ = known[key]
            if type_ is None or not self._whole(condition, a, b):
                return triton(condition, x, y)
            return tl.core.tensor(self._builder.create_select(condition.handle, a.handle, b.handle), type_)

        return where

    def _load(self, triton: Operation) -> Operation:
        known: dict[str, Any] = {}
        numbers = masked_load(self._builder)

        def load(pointer: Any, mask: Any = None, other: Any = None, **options: Any) -> Any:
            """A tile, 0 where the mask is false."""
            zero = type(other) in (int, float) and other == 0 and not options
            if not zero or not isinstance(mask, tl.core.tensor) or not _tile_of_numbers(pointer, mask):
                return triton(pointer, mask, other, **options)
            name = pointer.type.name
            if name not in known:
                known[name] = tl.core.block_type(pointer.dtype.element_ty, list(pointer.type.shape))
            return tl.core.tensor(numbers(pointer.handle, mask.handle), known[name])

        return load

    def _constant(self, value: Any, dtype: Any, own_type: bool) -> Any:
        """A number as Triton makes it: of its own type, or of that of the other operand where it has no say in it."""
        key = type(value), value, None if own_type else dtype.name
        if type(value) not in (int, float):
            return None
        if key not in self._constants:
            self._constants[key] = self._new_constant(value, dtype, own_type)
        return self._constants[key]

    def _new_constant(self, value: int | float, dtype: Any, own_type: bool) -> Any:
        if own_type:
            return self._semantic.to_tensor(value)
        if not (dtype.is_standard_floating() or _holds(dtype, value)):
            return None
        return self._semantic.scalar_constant(value, dtype=dtype)

    @staticmethod
    def _whole(*operands: Any) -> bool:
        """Whether NumPy may repeat a number beside tiles. Where these are not contiguous Triton must copy it into their
        shape: how a tile lies in memory decides how the result does, and so in which order it is summed."""
        tiles = [x.handle.data for x in operands if x.type.is_block()]
        return len(tiles) in (0, len(operands)) or all(tile.flags.c_contiguous for tile in tiles)


def result_type(name: str, left: Any, right: Any) -> Any:
    """The type of ``left name right`` in Triton, or None where an operand is cast, no such operation is, or the tiles
    differ in rank."""
    if not _taken(name, left.scalar, right.scalar):
        return None
    shape = common_shape(left, right)
    return None if shape is None else _type_of(tl.int1 if name in _FLAGS else left.scalar, shape)


def _taken(name: str, left: Any, right: Any) -> bool:
    """Whether two elements are taken as they are."""
    if left.is_ptr():
        return name == "add" and not right.is_ptr() and bool(right.is_int_signed())
    if name in _BITS:
        return bool(left.is_int() and left == right)
    return bool(left == right or (left == tl.int64 and right == tl.int32))  # which NumPy casts as Triton does


def selected_type(condition: Any, x: Any, y: Any) -> Any:
    """The type of ``tl.where(condition, x, y)``, or None where an operand is cast or the tiles differ in rank."""
    shape = common_shape(condition, x, y)
    if shape is None or not condition.is_block() or condition.scalar != tl.int1 or x.scalar != y.scalar:
        return None
    return _type_of(x.scalar, shape)


def common_shape(*types: Any) -> list[int] | None:
    """The shape of an operation on tiles and numbers; of numbers alone []. None where tiles differ in rank, or do not
    fit."""
    shapes = [x.shape for x in types if x.is_block()]
    if len({len(shape) for shape in shapes}) > 1:
        return None
    sizes = [set(each) - {1} for each in zip(*shapes, strict=True)]
    return None if any(len(size) > 1 for size in sizes) else [max(size, default=1) for size in sizes]


def _tile_of_numbers(pointer: Any, mask: Any) -> bool:
    """Whether these are pointers to numbers, flags being none, and a mask of their shape."""
    if not pointer.type.is_block() or not mask.type.is_block() or not pointer.dtype.is_ptr():
        return False
    return bool(pointer.type.shape == mask.type.shape and pointer.dtype.element_ty != tl.int1)


def _type_of(element: Any, shape: list[int]) -> Any:
    return tl.core.block_type(element, shape) if shape else element


def _holds(dtype: Any, value: int | float) -> bool:
    """Whether a type of integers holds the number; flags are no integers here."""
    if not dtype.is_int() or dtype.is_bool() or not isinstance(value, int):
        return False
    return bool(dtype.get_int_min_value() <= value <= dtype.get_int_max_value())
