"""Tiles of constants and products of tiles in Triton's interpreter, without asking twice what they are: see
interpreter_operators.py.

What Triton refuses it refuses at the first call of a kind; what it answered then says what the next ones are of. A row
of numbers, or a tile of one, is the same at every call, and nobody writes into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from .interpreter_operators import Operators

Operation = Callable[..., Any]


class Tiles:
    """What a kernel calls in the place of Triton's own; operators: of whose interpreter."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    def replace(self, put: Callable[[Any, str, Operation], None]) -> None:
        """Put them where Triton's are: ``put(owner, name, operation)``."""
        if self._operators.watched:
            return  # somebody counts what is made
        for name in ("arange", "full", "zeros"):
            put(tl, name, self._made_once(getattr(tl, name)))
        put(tl, "dot", self._dot(tl.dot))

    def _made_once(self, triton: Operation) -> Operation:
        known: dict[Any, tuple[Any, Any, Any]] = {}

        def made(*args: Any, **named: Any) -> Any:
            """A tile of constants. Of what is not constant, a tensor, there is no key."""
            key = None if named else _of_integers(args)
            if key is None:
                key = _plain((args, *sorted(named.items())))
            if key is None:
                return triton(*args, **named)
            if key not in known:
                tile = triton(*args, **named)
                tile.handle.data.flags.writeable = False
                known[key] = self._operators.maker(tile.type), tile.handle.data, tile.handle.dtype
            make, data, element = known[key]
            return make(data, element)

        return made

    def _dot(self, triton: Operation) -> Operation:
        known: dict[tuple[Any, ...], Any] = {}
        tensor = tl.core.tensor

        def dot(x: Any, y: Any, acc: Any = None, input_precision: Any = None, **named: Any) -> Any:
            """x @ y, or acc + x @ y, of float32: what they are cut to is nothing to the interpreter."""
            tiles = (x, y) if acc is None else (x, y, acc)
            if named or not all(isinstance(tile, tensor) for tile in tiles):
                return triton(x, y, acc, input_precision, **named)
            key = (*(tile.type.name for tile in tiles), _plain(input_precision))
            if key not in known:
                found = triton(x, y, acc, input_precision)
                wide = all(tile.dtype == tl.float32 for tile in (*tiles, found))
                known[key] = self._operators.maker(found.type) if wide else None
                return found
            if known[key] is None:
                return triton(x, y, acc, input_precision)
            added = np.float32(0) if acc is None else acc.handle.data
            return known[key](np.matmul(x.handle.data, y.handle.data, dtype=np.float32) + added, tl.float32)

        return dot


def _of_integers(args: Any) -> Any:
    """Sizes, as most tiles are made of, and types of elements, as a key; None where there is anything else."""
    key: list[Any] = []
    for one in args:
        kind = one.__class__
        if kind is list or kind is tuple:
            for size in one:
                if size.__class__ is not int:
                    return None
            key.append(tuple(one))
        elif kind is int:
            key.append(one)
        elif kind is tl.dtype:
            key.append(one.name)
        else:
            return None
    return tuple(key)


def _plain(value: Any) -> Any:
    """Constants as a key, with their types: 1 is True and 1.0, but they make other tiles. None where one is none."""
    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, (tuple, list)):
        parts = tuple(_plain(part) for part in value)
        return None if None in parts else parts
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value).__name__, repr(value)  # -0.0 is not 0.0, and NaN is itself
    return ("dtype", value.name) if isinstance(value, tl.dtype) else None
