"""Triton's interpreter without work that changes nothing.

A kernel that starts has the interpreter look through Triton's language for what to replace by functions of NumPy, and
every call of an inner function has it look again, and find all of it replaced. And of every sum, difference and product
of integers it works out in 64 bits whether it overflows, then drops the answer, unless it was asked to debug. At small
shapes most of what is left is to describe values, not to compute them: each operation spells out anew the type, the
shape and NumPy's dtype of its operands, of which a kernel has few different ones. `lean` remembers what is replaced and
what was described (more in interpreter_operators.py, _functions.py, _memory.py, _tiles.py and _launches.py), and leaves
the rest out. And bfloat16, which NumPy has not, is cut out of float32 by one shift (_casts.py), where Triton takes
exponents apart. Not a bit of any result changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import triton.language as tl
from triton._C.libtriton import ir
from triton.language.semantic import TritonSemantic
from triton.runtime.errors import InterpreterError

from .interpreter_casts import narrowed, widened
from .interpreter_functions import Functions
from .interpreter_launches import Change, Replaced, Signatures, types_named
from .interpreter_memory import Memory
from .interpreter_operators import Operators
from .interpreter_tiles import Tiles
from .tritons import index_of

_MEMBERS = (
    "_patch_lang", "_patch_attr", "_LangPatchScope", "_get_np_dtype", "_convert_float", "TensorHandle",
    "InterpretedFunction", "interpreter_builder", "interpreter_semantic", "inspect", "_MISSING",
)  # fmt: skip


SIGNATURES = Signatures()


@contextmanager
def lean() -> Iterator[None]:
    """While this is entered, kernels that Triton interprets run without that work."""
    from triton.runtime import interpreter  # here: a GPU has no use for it

    described = hasattr(tl.core, "block_type") and hasattr(tl, "str_to_ty")
    described = described and hasattr(TritonSemantic, "broadcast_impl_value")
    if not described or not all(hasattr(interpreter, name) for name in _MEMBERS):
        yield  # names inside Triton may move; without them the interpreter runs as it is
        return
    if interpreter.inspect is SIGNATURES:
        yield  # entered already: a kernel that launches another, as some of tests do
        return
    builder, function = interpreter.interpreter_builder, interpreter.InterpretedFunction
    options = replace(builder.options, sanitize_overflow=builder.options.sanitize_overflow and builder.options.debug)
    patch_lang = _patching_once(interpreter, interpreter._patch_lang, options.sanitize_overflow)
    changes = [
        (owner, name, value, getattr(owner, name))
        for owner, name, value in (
            (interpreter, "_patch_lang", patch_lang),
            (interpreter, "_patch_attr", _patching_attribute(interpreter)),
            (interpreter, "inspect", SIGNATURES),
            (tl, "str_to_ty", types_named(tl.str_to_ty)),
            (interpreter, "_get_np_dtype", _np_dtypes(interpreter._get_np_dtype)),
            (interpreter, "_convert_float", _conversions(interpreter._convert_float)),
            (interpreter.TensorHandle, "__init__", _handles(interpreter.TensorHandle.__init__)),
            (function, "__call__", _calls(function.__call__)),
            (builder, "options", options),
            (tl.core.block_type, "__init__", _block_types(tl.core.block_type.__init__)),
            (tl.core.dtype, "__eq__", _equality(tl.core.dtype.__eq__)),
            (tl.core.tensor, "__init__", _tensors(tl.core.tensor.__init__)),
            (TritonSemantic, "broadcast_impl_value", _broadcasts(TritonSemantic.broadcast_impl_value)),
        )
    ]
    try:
        for owner, name, value, _ in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, _, original in changes:
            setattr(owner, name, original)


# What follows remembers as long as the process runs, for each function of Triton's that it stands in for.


@cache
def _patching_once(interpreter: Any, patch_lang: Callable[[Any], Any], checked: bool) -> Callable[[Any], Any]:
    """checked: whether integers are checked for overflow, which Triton's own operators do."""
    replaced: dict[tuple[Any, ...], Replaced] = {}
    builder = interpreter.interpreter_builder

    def patch_once(fn: Any) -> Any:
        """What the interpreter calls before a kernel or an inner function runs. Answers what undoes it."""
        languages = _languages(fn)
        if not _is_original(languages):
            return interpreter._LangPatchScope()  # of no changes
        watching = (*(value for name, value in vars(builder).items() if name.startswith("create_")),)  # a test's, say
        known = replaced.get((languages, watching))
        if known and known.fits():
            return known.put()
        scope = patch_lang(fn)
        scope.set_attr(tl.core.tensor, "__index__", index_of)
        if not checked:
            operators = Operators(interpreter)
            operators.replace(scope.set_attr)
            Tiles(operators).replace(scope.set_attr)
            Functions(operators, builder).replace(scope.set_attr)
            Memory(interpreter, operators).replace(scope.set_attr)
        replaced[languages, watching] = Replaced(_changed(scope), interpreter._MISSING)
        return scope

    return patch_once


def _changed(scope: Any) -> list[Change]:
    """Whose members a scope of patches has replaced, their names, what they were and what they are now, each once."""
    first = dict[tuple[int, str], tuple[Any, str, Any]]()
    for owner, name, original in scope._changes:
        first.setdefault((id(owner), name), (owner, name, original))
    return [(owner, name, original, getattr(owner, name)) for owner, name, original in first.values()]


@cache
def _languages(fn: Any) -> tuple[Any, ...]:
    """Triton's languages that a function sees: what is to be replaced."""
    return tuple(value for value in fn.__globals__.values() if value is tl or value is tl.core)


_LOAD = tl.core.load


def _is_original(languages: tuple[Any, ...]) -> bool:
    for language in languages:  # noqa: SIM110 - at each call of an inner function: any() takes three times as long
        if language.load is _LOAD:
            return True
    return False


@cache
def _calls(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of an inner function, whose languages are those of its kernel."""

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        fn = self.rewritten_fn.get(self.fn)
        if fn is None or _is_original(_languages(self.fn)):
            return call(self, *args, **kwargs)
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            raise InterpreterError(repr(error)) from error

    return called


_BUILTIN = tl.core.builtin(lambda: None).__code__


@cache
def _patching_attribute(interpreter: Any) -> Callable[..., None]:
    semantic = interpreter.interpreter_semantic

    def patch_attribute(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        """Put a function of the language's that is told for whom in the place of one that asks for it."""
        function = member.__wrapped__ if getattr(member, "__code__", None) is _BUILTIN else member

        def told(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return function(*args, **kwargs)

        scope.set_attr(owner, name, told)

    return patch_attribute


@cache
def _np_dtypes(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """NumPy's dtype of a type, which is that of its elements."""
    known: dict[str, Any] = {}

    def np_dtype(type_: Any) -> Any:
        name = type_.scalar.name
        if name not in known:
            known[name] = of(type_)
        return known[name]

    return np_dtype


@cache
def _conversions(convert: Callable[..., Any]) -> Callable[..., Any]:
    """From bfloat16 to float32 and back: see interpreter_casts.py."""

    def converted(x: Any, of: Any, to: Any, rounding: Any) -> Any:
        found = None
        if of == tl.bfloat16 and to == tl.float32:
            found = widened(x)
        elif of == tl.float32 and to == tl.bfloat16:
            found = narrowed(x, rounding == ir.ROUNDING_MODE.RTNE)
        return convert(x, of, to, rounding) if found is None else found

    return converted


@cache
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


@cache
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


@cache
def _equality(equal: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Whether two types of elements are the same, which mostly one asks of a type and itself."""

    def eq(self: Any, other: Any) -> bool:
        return self is other or equal(self, other)

    return eq


@cache
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


@cache
def _broadcasts(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """Two operands in one shape, which they mostly have."""

    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.type.is_block() and rhs.type.is_block() and list(lhs.type.shape) == list(rhs.type.shape):
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    return broadcast_impl_value
