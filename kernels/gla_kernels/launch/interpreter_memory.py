"""Loads and stores of Triton's interpreter, without asking twice what they are: see interpreter_operators.py.

Most of the time that Triton takes for a row of 16 numbers goes into bringing the mask, and what is read where it is
false, into the shape and the type of the row. NumPy repeats the mask, and zeros need no type. What reads and writes is
the interpreter's builder as ever. Where there is more to do, or something to refuse, Triton is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from .interpreter_operators import Operators
from .tritons import masked_load, masked_store


class Memory:
    """What a kernel calls in the place of Triton's own. interpreter: the module ``triton.runtime.interpreter``."""

    def __init__(self, interpreter: Any, operators: Operators) -> None:
        self._builder, self._handle = interpreter.interpreter_builder, interpreter.TensorHandle
        self._np_dtype, self._operators = interpreter._get_np_dtype, operators
        self._same: dict[tuple[bool, str], Any] = {}

    def replace(self, put: Callable[[Any, str, Callable[..., Any]], None]) -> None:
        """Put them where Triton's are: ``put(owner, name, operation)``."""
        put(tl, "load", self._load(tl.load))
        put(tl, "store", self._store(tl.store))

    def _load(self, triton: Callable[..., Any]) -> Callable[..., Any]:
        known: dict[tuple[str, str], tuple[Any, Any]] = {}
        numbers, tensor = masked_load(self._builder), tl.core.tensor

        def load(pointer: Any, mask: Any = None, other: Any = None, **options: Any) -> Any:
            """A tile, 0 where the mask is false, or without a mask."""
            if mask is None:
                taken = other is None
            else:
                taken = isinstance(mask, tensor) and type(other) in (int, float) and other == 0
            if options or not taken:
                return triton(pointer, mask, other, **options)
            key = pointer.type.name, "" if mask is None else mask.type.name
            if key not in known:
                type_ = tile_behind(pointer.type, None if mask is None else mask.type)
                known[key] = (None, None) if type_ is None else (self._operators.holder(type_), self._zeros(type_))
            hold, zeros = known[key]
            if hold is None:
                return triton(pointer, mask, other)
            return hold(numbers(pointer.handle, self._flags(pointer, mask), zeros))

        return load

    def _store(self, triton: Callable[..., Any]) -> Callable[..., Any]:
        known: dict[tuple[str, str, str], bool] = {}
        write, tensor = masked_store(self._builder), tl.core.tensor

        def store(pointer: Any, value: Any, mask: Any = None, **options: Any) -> Any:
            """A tile of the elements that are there, where the mask is true, or without one."""
            if options or not isinstance(value, tensor) or not (mask is None or isinstance(mask, tensor)):
                return triton(pointer, value, mask, **options)
            key = pointer.type.name, value.type.name, "" if mask is None else mask.type.name
            if key not in known:
                known[key] = value.type == tile_behind(pointer.type, None if mask is None else mask.type)
            if not known[key]:
                return triton(pointer, value, mask)
            return write(pointer.handle, value.handle, self._flags(pointer, mask))

        return store

    def _flags(self, pointer: Any, mask: Any) -> Any:
        """One for each pointer."""
        if mask is not None and mask.type.is_block():
            if mask.type.shape == pointer.type.shape:
                return mask.handle
            return self._handle(np.broadcast_to(mask.handle.data, pointer.type.shape), tl.int1)
        key = mask is None or bool(mask.handle.data.item()), pointer.type.name
        if key not in self._same:
            self._same[key] = self._handle(_fixed(np.full(pointer.type.shape, key[0])), tl.int1)
        return self._same[key]

    def _zeros(self, tile: Any) -> Any:
        return self._handle(_fixed(np.zeros(tile.shape, dtype=self._np_dtype(tile))), tile.scalar)


def _fixed(x: Any) -> Any:
    """That nobody writes into."""
    x.flags.writeable = False
    return x


def tile_behind(pointer: Any, mask: Any) -> Any:
    """The type of the tile behind a tile of pointers, of types. None where they point to flags, which Triton keeps in
    bytes, or where the mask, if there is one, is not of flags or has more elements than there are pointers."""
    if not pointer.is_block() or not pointer.scalar.is_ptr() or pointer.scalar.element_ty == tl.int1:
        return None
    if mask is not None and mask.scalar != tl.int1:
        return None
    if mask is not None and mask.is_block():
        if len(mask.shape) != len(pointer.shape):
            return None
        if any(of_mask not in (1, size) for of_mask, size in zip(mask.shape, pointer.shape, strict=True)):
            return None
    return tl.core.block_type(pointer.scalar.element_ty, list(pointer.shape))
