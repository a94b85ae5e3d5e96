"""Sources of kernels as Python's own `inspect` finds them, for Triton's keys are made of these."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from triton.runtime import jit
from triton.runtime.jit import JITFunction

import gla_kernels
from gla_kernels.launch import sources


def decorated(function: Any) -> Any:
    return function


@decorated
@decorated
def several_lines(
    x: int,
) -> int:
    """With what ends behind its last name."""

    def inner() -> int:
        return (
            x
        )  # fmt: skip

    return inner()


def test_sources_are_those_that_inspect_finds() -> None:
    functions = {
        id(value): getattr(value, "fn", value)
        for name, module in list(sys.modules.items())
        if name.startswith(f"{gla_kernels.__name__}.")
        for value in vars(module).values()
        if isinstance(value, JITFunction) or (hasattr(value, "fn") and inspect.isfunction(value.fn))
    }
    assert len(functions) > 200
    for function in functions.values():
        assert sources.lines_of(function) == inspect.getsourcelines(function)
    assert sources.lines_of(several_lines) == inspect.getsourcelines(several_lines)


def test_what_no_statement_defines_is_left_to_inspect() -> None:
    made = lambda x: x  # noqa: E731
    assert sources.lines_of(made) is None
    with sources.parsed_once():
        assert jit.inspect.getsourcelines(made) == inspect.getsourcelines(made)
        assert jit.inspect.signature is inspect.signature


def test_triton_is_left_as_it_was() -> None:
    assert jit.inspect is inspect
    with sources.parsed_once(), sources.parsed_once():
        assert jit.inspect is not inspect
    assert jit.inspect is inspect
