"""Keeps torch.compile out of the public functions: a graph breaks around them, and no table is read inside of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def eager(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """The function, called as it is where torch.compile meets it. `torch.compiler.disable` would do so as well, but
    imports the compiler, for seconds, in programs that never compile anything."""

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        if torch.compiler.is_dynamo_compiling():
            outside: Callable[Given, Returned] = torch.compiler.disable(function)
            return outside(*args, **kwargs)
        return function(*args, **kwargs)

    return call
