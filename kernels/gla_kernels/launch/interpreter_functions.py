"""Functions of tiles in Triton's interpreter, sums along an axis and scans, without asking twice what they are: see
interpreter_operators.py.

What they are of is what Triton answers at the first call of a kind. A scan by a function of the kernel's own, which
Triton runs number by number, goes row by row here: the same operations on the same numbers, as long as the function
takes each number by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from .interpreter_casts import type_of
from .interpreter_operators import Operators, result_type

Operation = Callable[..., Any]

_EXPONENTIALS = ("exp", "exp2")
_EXTREMES = {"minimum": ("create_minnumf", "create_minsi"), "maximum": ("create_maxnumf", "create_maxsi")}
# What NumPy calls sums, and extremes that pass over NaN, along an axis; of which elements they are of the same.
_SUMMED = frozenset({"fp16", "fp32", "fp64"})  # integers NumPy sums in 64 bits
_COMPARED = frozenset({"fp32", "fp64", "int32", "int64"})
_ALONG: dict[str, tuple[Any, frozenset[str]]] = {
    "sum": (np.add, _SUMMED),
    "max": (np.fmax, _COMPARED),
    "min": (np.fmin, _COMPARED),
}


class Functions:
    """What a kernel calls in the place of Triton's own; operators: of whose interpreter."""

    def __init__(self, operators: Operators, builder: Any) -> None:
        self._operators, self._builder = operators, builder

    def replace(self, put: Callable[[Any, str, Operation], None]) -> None:
        """Put them where Triton's are: ``put(owner, name, operation)``."""
        for name in _EXPONENTIALS:
            put(tl, name, self._of_one(getattr(tl, name), getattr(self._builder, f"create_{name}")))
        for name in _EXTREMES:
            put(tl, name, self._of_two(name, getattr(tl, name)))
        put(tl, "trans", self._trans(tl.trans))
        for name in _ALONG:
            put(tl, name, self._along(name, getattr(tl, name)))
        put(tl, "cumsum", self._cumsum(tl.cumsum))
        put(tl, "associative_scan", self._scan(tl.associative_scan))

    def _of_one(self, triton: Operation, compute: Operation) -> Operation:
        known: dict[str, Any] = {}
        tensor = tl.core.tensor

        def function(x: Any) -> Any:
            hold = known.get(x.type.name) if isinstance(x, tensor) else None
            if hold is not None:
                return hold(compute(x.handle))
            found = triton(x)
            if isinstance(x, tensor) and found.type == x.type:
                known[x.type.name] = self._operators.holder(x.type)
            return found

        return function

    def _of_two(self, name: str, triton: Operation) -> Operation:
        known: dict[tuple[str, str], tuple[Any, Any, Any]] = {}
        operators, tensor = self._operators, tl.core.tensor

        def function(x: Any, y: Any, *more: Any, **options: Any) -> Any:
            """Of tiles and numbers, as operators are."""
            if more or options or not isinstance(x, tensor):
                return triton(x, y, *more, **options)
            other = y if isinstance(y, tensor) else operators.constant(y, x.dtype, True)
            if other is None:
                return triton(x, y)
            key = x.type.name, other.type.name
            if key not in known:
                known[key] = self._extreme(name, x.type, other.type)
            compute, hold, tile = known[key]
            if compute is None or not (tile is None or (other if tile else x).handle.data.flags.c_contiguous):
                return triton(x, y)
            return hold(compute(x.handle, other.handle))

        return function

    def _extreme(self, name: str, x: Any, y: Any) -> tuple[Any, Any, Any]:
        """What takes it of two handles, what holds the answer, and which of both is a tile beside a number: see
        `Operators._computation`."""
        type_ = None if x.scalar == tl.bfloat16 else result_type(name, x, y)
        if type_ is None or not (x.scalar.is_floating() or x.scalar.is_int_signed()):
            return None, None, None
        of_floats, of_integers = _EXTREMES[name]
        compute = getattr(self._builder, of_floats if x.scalar.is_floating() else of_integers)
        return compute, self._operators.holder(type_), None if x.is_block() == y.is_block() else int(y.is_block())

    def _trans(self, triton: Operation) -> Operation:
        known: dict[str, Any] = {}
        compute = self._builder.create_trans

        def trans(x: Any, *dims: Any) -> Any:
            """The columns of a tile as rows."""
            if dims or len(x.type.shape) != 2:
                return triton(x, *dims)
            name = x.type.name
            if name not in known:
                known[name] = self._operators.holder(type_of(x.dtype, list(x.type.shape)[::-1]))
            return known[name](compute(x.handle, (1, 0)))

        return trans

    def _along(self, name: str, triton: Operation) -> Operation:
        known: dict[tuple[Any, ...], Any] = {}
        (function, elements), tensor = _ALONG[name], tl.core.tensor
        reduced = function.reduce

        def along(x: Any, axis: Any = None, *more: Any, **options: Any) -> Any:
            """Of a tile, along an axis, which may stay as one of size 1."""
            keep_dims = options.get("keep_dims", False)
            plain = not more and len(options) == ("keep_dims" in options) and keep_dims.__class__ is bool
            if not plain or axis.__class__ is not int or not isinstance(x, tensor):
                return triton(x, axis, *more, **options)
            key = x.type.name, axis, keep_dims
            if key not in known:
                found = triton(x, axis, **options)
                same = x.dtype.name in elements and found.dtype == x.dtype and not self._operators.watched
                known[key] = self._operators.maker(found.type) if same else None
                return found
            make = known[key]
            if make is None:
                return triton(x, axis, **options)
            data = x.handle.data
            found = reduced(data, axis=axis, keepdims=keep_dims)
            return make(found if found.shape else np.array([found], dtype=data.dtype), x.handle.dtype)

        return along

    def _cumsum(self, triton: Operation) -> Operation:
        known: dict[tuple[Any, ...], tuple[Any, bool] | None] = {}
        tensor = tl.core.tensor

        def cumsum(x: Any, axis: Any = 0, reverse: Any = False, *more: Any, **options: Any) -> Any:
            """Running sums of a tile, from the end on if reversed: how these lie in memory depends on the Triton."""
            plain = axis.__class__ is int and reverse.__class__ is bool and isinstance(x, tensor)
            if more or options or not plain:
                return triton(x, axis, reverse, *more, **options)
            key = x.type.name, axis, reverse
            if key not in known:
                found = triton(x, axis, reverse)
                same = x.dtype.name in _SUMMED and found.dtype == x.dtype and not self._operators.watched
                forward = min(found.handle.data.strides) >= 0
                known[key] = (self._operators.maker(found.type), forward) if same else None
                return found
            kind = known[key]
            if kind is None:
                return triton(x, axis, reverse)
            make, forward = kind
            data = x.handle.data
            if reverse:
                data = np.flip(np.flip(data, axis).copy("K").cumsum(axis=axis), axis)
                return make(np.ascontiguousarray(data) if forward else data, x.handle.dtype)
            return make(data.cumsum(axis=axis), x.handle.dtype)

        return cumsum

    def _scan(self, triton: Operation) -> Operation:
        own = tl.standard._sum_combine, tl.standard._prod_combine  # which NumPy has
        tensor = tl.core.tensor

        def scan(x: Any, axis: Any, combine: Any, reverse: Any = False, **options: Any) -> Any:
            """Of a tile or several of one shape, by a function of two numbers of each."""
            tiles = x if isinstance(x, tuple) else (x,)
            plain = axis.__class__ is int and axis >= 0 and all(isinstance(tile, tensor) for tile in tiles)
            if options or combine in own or not plain or self._operators.watched:
                return triton(x, axis, combine, reverse, **options)
            try:
                found = self._row_by_row(tiles, axis, combine.fn, reverse)
            except _NotByItself:
                return triton(x, axis, combine, reverse)
            return found if isinstance(x, tuple) else found[0]

        return scan

    def _row_by_row(self, tiles: Any, axis: int, combine: Operation, reverse: Any) -> tuple[Any, ...]:
        """A scan of tiles of one shape. Raises `_NotByItself` where the function asks whether a tile is true."""
        made = [np.zeros(tile.handle.data.shape, dtype=tile.handle.data.dtype) for tile in tiles]
        order = slice(None, None, -1 if reverse else None)
        of, into = ([np.moveaxis(x, axis, 0)[order] for x in one] for one in ([x.handle.data for x in tiles], made))
        size, *shape = of[0].shape
        if not shape:  # numbers, which are arrays of one
            of, into = ([x[:, None] for x in one] for one in (of, into))
        makers = [self._operators.maker(type_of(tile.dtype, shape)) for tile in tiles]

        def at(rows: list[Any], row: int) -> list[Any]:
            return [make(x[row], tile.dtype) for make, x, tile in zip(makers, rows, tiles, strict=True)]

        is_true = tl.core.tensor.__bool__
        tl.core.tensor.__bool__ = _refuse
        try:
            for row in range(size):
                found = at(of, row) if row == 0 else combine(*at(into, row - 1), *at(of, row))
                for x, one in zip(into, found if isinstance(found, (tuple, list)) else (found,), strict=True):
                    x[row] = one.handle.data if isinstance(one, tl.core.tensor) else one
        finally:
            tl.core.tensor.__bool__ = is_true
        return tuple(self._operators.maker(tile.type)(x, tile.dtype) for x, tile in zip(made, tiles, strict=True))


class _NotByItself(Exception):
    """A function of a scan does not take each number by itself."""


def _refuse(_: Any) -> bool:
    raise _NotByItself
