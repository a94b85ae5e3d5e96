"""Triton's interpreter without work that changes nothing.

A kernel that starts has the interpreter replace Triton's language by one for NumPy. Every call of an inner function has
it look through the whole language again, and find all of it replaced. And of every sum, difference and product of
integers it works out in 64 bits whether it overflows, then drops the answer, unless it was asked to debug. `lean`
leaves both out; not a bit of any result changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import triton.language as tl


@contextmanager
def lean() -> Iterator[None]:
    """While this is entered, kernels that Triton interprets run without that work."""
    from triton.runtime import interpreter  # here: a GPU has no use for it

    if not all(hasattr(interpreter, name) for name in ("_patch_lang", "_LangPatchScope", "interpreter_builder")):
        yield  # names inside Triton may move; without them the interpreter runs as it is
        return
    patch_lang, builder = interpreter._patch_lang, interpreter.interpreter_builder
    options = builder.options

    def patch_once(fn: Any) -> Any:
        """What the interpreter calls before a kernel or an inner function runs. Answers what undoes it."""
        languages = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        if any(tl.core.is_builtin(language.load) for language in languages):
            return patch_lang(fn)
        return interpreter._LangPatchScope()  # of no changes

    interpreter._patch_lang = patch_once
    builder.options = replace(options, sanitize_overflow=options.sanitize_overflow and options.debug)
    try:
        yield
    finally:
        interpreter._patch_lang, builder.options = patch_lang, options
