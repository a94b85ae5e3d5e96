"""`accelerate`: these functions in the place of flash-linear-attention's own, wherever a module holds them."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from types import FunctionType, TracebackType
from typing import Any

from . import functions
from .which import INSTALL, THEIRS, WHERE, FallbackWarning, Function, load


def accelerate() -> Acceleration:
    """From here on flash-linear-attention's layers, models and functions run these kernels: every module that holds one
    of FLA's functions, under whatever name, holds ours, and what is imported from FLA later is ours too.

    Use it as a statement, or as a context manager, which ends with its block; `Acceleration.undo` ends it as well.
    Where several are under way FLA's own functions come back as the last one ends. What a call asks for that these
    kernels do not have runs FLA's own, with a `FallbackWarning`; a function whose parameters are others in the FLA that
    is installed stays as it is, with such a warning, too. References that no module holds, as in a partial or a class,
    are not found.

    Imports fla.ops, if nobody has. Raises ImportError where FLA is not installed.
    """
    try:
        for name in WHERE:
            load(name)
    except ImportError as error:
        text = f"accelerate: expected flash-linear-attention, which cannot be imported ({error}): {INSTALL}"
        raise ImportError(text, name=error.name) from error
    return Acceleration()


class Acceleration:
    """One `accelerate` that is under way."""

    _lock = threading.RLock()
    _under_way = 0

    def __init__(self) -> None:
        self._ended = False
        with Acceleration._lock:
            by = {}
            for name, ours in OURS.items():
                if _serves(name):
                    by[THEIRS[name]] = ours
            _replace(by)
            Acceleration._under_way += 1

    def undo(self) -> None:
        """End it. A second time does nothing."""
        with Acceleration._lock:
            if self._ended:
                return
            self._ended = True
            Acceleration._under_way -= 1
            if not Acceleration._under_way:
                _replace({ours: THEIRS[name] for name, ours in OURS.items()})

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def _again(function: Any) -> Function:
    """A function of its own that does the same: what is put into modules is known from what they imported from here."""
    code, names = function.__code__, function.__globals__
    again = FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    again.__kwdefaults__, again.__doc__ = function.__kwdefaults__, function.__doc__
    again.__annotations__ = function.__annotations__
    return again


OURS = {name: _again(getattr(functions, name)) for name in WHERE}


def _serves(name: str) -> bool:
    """Whether FLA's function has the parameters of ours; warns of it if not."""
    theirs, ours = parameters(THEIRS[name]), parameters(OURS[name])
    if theirs == ours:
        return True
    text = f"{name} stays flash-linear-attention's own: its parameters are {theirs}, those of gla_kernels {ours}"
    warnings.warn(text, FallbackWarning, stacklevel=4)  # who called `accelerate`
    return False


def parameters(function: Function) -> list[tuple[str, str, Any]]:
    """Name, kind and default of each parameter."""
    found = inspect.signature(function).parameters.values()
    return [(x.name, x.kind.name, "required" if x.default is x.empty else x.default) for x in found]


def _replace(by: dict[Function, Function]) -> None:
    """In every module that is imported, each of the functions by what it is to be."""
    ids = {id(old): new for old, new in by.items()}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or ids.keys().isdisjoint(map(id, list(names.values()))):
            continue  # as nearly all: there are thousands of modules, of hundreds of names
        for name, value in list(names.items()):
            if id(value) in ids:
                names[name] = ids[id(value)]
