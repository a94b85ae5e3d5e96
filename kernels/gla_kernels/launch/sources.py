"""Where each kernel's source ends, without cutting it into tokens.

Triton asks for the source of every kernel and inner function as it is defined, and Python's `inspect` finds where one
ends by its tokens, in Python: half of what importing this package took beside PyTorch and Triton. Here each file is
parsed once. The lines are those that `inspect` finds, for keys in Triton's cache are made of them.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@contextmanager
def parsed_once() -> Iterator[None]:
    """While this is entered, Triton asks here for sources."""
    from triton.runtime import jit

    before = getattr(jit, "inspect", None)
    if before is not inspect:  # entered already, or names inside Triton have moved
        yield
        return
    jit.inspect = _Sources()
    try:
        yield
    finally:
        jit.inspect = before


class _Sources:
    """In the place of the module `inspect`."""

    getsourcelines = staticmethod(lambda function: lines_of(function) or inspect.getsourcelines(function))

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)


def lines_of(function: Callable[..., Any]) -> tuple[list[str], int] | None:
    """A function's lines, decorators first, and the number of the first one, as `inspect.getsourcelines` has them, but
    for comments behind the last statement; None for what no statement of its file defines."""
    code = function.__code__
    first = code.co_firstlineno
    last = _ends(code.co_filename).get(first)
    return None if last is None else (linecache.getlines(code.co_filename)[first - 1 : last], first)


@cache
def _ends(file: str) -> dict[int, int]:
    """The last line of each function of a file, by its first one."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # of what was edited meanwhile, say
        return {}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    firsts = [min([node.lineno, *(one.lineno for one in node.decorator_list)]) for node in functions]
    return {first: node.end_lineno or node.lineno for first, node in zip(firsts, functions, strict=True)}
