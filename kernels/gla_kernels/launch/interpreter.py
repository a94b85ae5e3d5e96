"""Triton's interpreter without work that changes nothing.

A kernel that starts has the interpreter replace Triton's language by one for NumPy. Every call of an inner function has
it look through the whole language again, and find all of it replaced. And of every sum, difference and product of
integers it works out in 64 bits whether it overflows, then drops the answer, unless it was asked to debug. At small
shapes most of what is left is to describe values, not to compute them: each operation spells out anew the type, the
shape and NumPy's dtype of its operands, of which a kernel has few different ones. `lean` leaves the first two out and
remembers the third (the operators' part of it: see interpreter_operators.py). And bfloat16, which NumPy has not, is cut
out of float32 by one shift, where Triton takes exponents apart. Not a bit of any result changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.language.semantic import TritonSemantic

from .interpreter_operators import Operators
from .tritons import index_of

_MEMBERS = (
    "_patch_lang", "_patch_attr", "_LangPatchScope", "_get_np_dtype", "_convert_float", "TensorHandle",
    "interpreter_builder", "interpreter_semantic",
)  # fmt: skip


@contextmanager
def lean() -> Iterator[None]:
    """While this is entered, kernels that Triton interprets run without that work."""
    from unittest.mock import patch  # both here: a GPU has no use for them

    from triton.runtime import interpreter

    described = hasattr(tl.core, "block_type") and hasattr(TritonSemantic, "broadcast_impl_value")
    if not described or not all(hasattr(interpreter, name) for name in _MEMBERS):
        yield  # names inside Triton may move; without them the interpreter runs as it is
        return
    builder = interpreter.interpreter_builder
    options = replace(builder.options, sanitize_overflow=builder.options.sanitize_overflow and builder.options.debug)
    with ExitStack() as changes:
        for owner, name, value in (
            (interpreter, "_patch_lang", _patching_once(interpreter, options.sanitize_overflow)),
            (interpreter, "_patch_attr", _patching_attribute(interpreter)),
            (interpreter, "_get_np_dtype", _np_dtypes(interpreter._get_np_dtype)),
            (interpreter, "_convert_float", _conversions(interpreter._convert_float)),
            (interpreter.TensorHandle, "__init__", _handles(interpreter.TensorHandle.__init__)),
            (builder, "options", options),
            (tl.core.block_type, "__init__", _block_types(tl.core.block_type.__init__)),
            (tl.core.tensor, "__init__", _tensors(tl.core.tensor.__init__)),
            (TritonSemantic, "broadcast_impl_value", _broadcasts(TritonSemantic.broadcast_impl_value)),
        ):
            changes.enter_context(patch.object(owner, name, value))
        yield


def _patching_once(interpreter: Any, checked: bool) -> Callable[[Any], Any]:
    """checked: whether integers are checked for overflow, which Triton's own operators do."""
    patch_lang = interpreter._patch_lang

    def patch_once(fn: Any) -> Any:
        """What the interpreter calls before a kernel or an inner function runs. Answers what undoes it."""
        if not any(tl.core.is_builtin(language.load) for language in _languages(fn)):
            return interpreter._LangPatchScope()  # of no changes
        scope = patch_lang(fn)
        scope.set_attr(tl.core.tensor, "__index__", index_of)
        if not checked:
            Operators(interpreter).replace(scope.set_attr)
        return scope

    return patch_once


@cache
def _languages(fn: Any) -> tuple[Any, ...]:
    """Triton's languages that a function sees: what is to be replaced."""
    return tuple(value for value in fn.__globals__.values() if value is tl or value is tl.core)


def _patching_attribute(interpreter: Any) -> Callable[..., None]:
    semantic = interpreter.interpreter_semantic

    def patch_attribute(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        """Put a function of the language's that is told for whom in the place of one that asks for it."""

        def told(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return member(*args, **kwargs)

        scope.set_attr(owner, name, told)

    return patch_attribute


def _np_dtypes(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """NumPy's dtype of a type, which is that of its elements."""
    known: dict[str, Any] = {}

    def np_dtype(type_: Any) -> Any:
        name = type_.scalar.name
        if name not in known:
            known[name] = of(type_)
        return known[name]

    return np_dtype


def _conversions(convert: Callable[..., Any]) -> Callable[..., Any]:
    """From bfloat16 to float32 and back, of bits, as Triton's interpreter does it: cut off, or rounded up at a half
    without the carry into the exponent. What has an exponent of 0 and is not 0 is left to Triton."""

    def converted(x: Any, of: Any, to: Any, rounding: Any) -> Any:
        widens = of == tl.bfloat16 and to == tl.float32
        if not widens and not (of == tl.float32 and to == tl.bfloat16):
            return convert(x, of, to, rounding)
        bits: Any = np.ascontiguousarray(x).view(np.uint16 if widens else np.uint32)
        size = bits & (0x7FFF if widens else 0x7FFFFFFF)
        if ((size < (0x80 if widens else 0x800000)) & (size != 0)).any():
            return convert(x, of, to, rounding)
        if widens:
            return bits.astype(np.uint32) << 16
        kept = bits >> 16
        if rounding == ir.ROUNDING_MODE.RTNE:
            kept = (kept & 0xFF80) | ((kept & 0x7F) + (bits >> 15 & 1))
        return kept.astype(np.uint16)

    return converted


def _handles(init: Callable[..., None]) -> Callable[..., None]:
    """An array with the type of its elements, which says how large these may be."""
    sizes: dict[str, int] = {}

    def handle(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        if attr is not None or data.itemsize > sizes.get(dtype.name, 0):
            init(self, data, dtype, {} if attr is None else attr)
            sizes[dtype.name] = data.itemsize  # of what is not refused
        else:
            self.data, self.dtype, self.attr = data, dtype, {}

    return handle


def _block_types(init: Callable[..., None]) -> Callable[..., None]:
    """The type of a tile, which follows from that of its elements and its sizes."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = [size.value if isinstance(size, tl.constexpr) else size for size in shape]
        key = (element_ty.name, *sizes)
        if key not in known:
            init(self, element_ty, shape)
            known[key] = vars(self).copy()
        else:
            vars(self).update(known[key], element_ty=element_ty)

    return block_type


def _tensors(init: Callable[..., None]) -> Callable[..., None]:
    """A tile or a number: its shape follows from its type."""
    known: dict[str, dict[str, Any]] = {}

    def tensor(self: Any, handle: Any, type: Any) -> None:
        if type.name not in known:
            init(self, handle, type)
            known[type.name] = vars(self).copy()
        else:
            values = known[type.name].copy()
            values["handle"], values["type"], values["dtype"] = handle, type, type.scalar
            self.__dict__ = values

    return tensor


def _broadcasts(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """Two operands in one shape, which they mostly have."""

    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.type.is_block() and rhs.type.is_block() and list(lhs.type.shape) == list(rhs.type.shape):
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    return broadcast_impl_value
