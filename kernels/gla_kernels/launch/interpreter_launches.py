"""What a launch asks of Triton's interpreter before its kernel runs: the same at each launch, and at small shapes as
long as the kernel. Some 180 members of the language are replaced, and signatures are read out of functions twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import Any

Change = tuple[Any, str, Any, Any]  # whose member, its name, what it was, and what is in its place


class Replaced:
    """Members of Triton's language with others in their place, as a scope of the interpreter's: `restore` undoes it.
    missing: what a member was that was not there."""

    def __init__(self, changes: Iterable[Change], missing: Any) -> None:
        self._missing, self._others = missing, list[Change]()
        of_modules: dict[int, tuple[dict[str, Any], list[Change]]] = {}
        for change in changes:
            owner, _, original, _ = change
            if isinstance(owner, ModuleType) and original is not missing:
                of_modules.setdefault(id(owner), (vars(owner), []))[1].append(change)
            else:
                self._others.append(change)
        self._modules = [
            (names, {name: was for _, name, was, _ in some}, {name: now for _, name, _, now in some})
            for names, some in of_modules.values()
        ]

    def fits(self) -> bool:
        """Whether all is there that it replaces."""
        return all(names[name] is was for names, before, _ in self._modules for name, was in before.items()) and all(
            getattr(owner, name, self._missing) is was for owner, name, was, _ in self._others
        )

    def put(self) -> Replaced:
        for names, _, after in self._modules:
            names.update(after)
        for owner, name, _, now in self._others:
            setattr(owner, name, now)
        return self

    def restore(self) -> None:
        for names, before, _ in self._modules:
            names.update(before)
        for owner, name, was, _ in self._others:
            if was is self._missing:
                delattr(owner, name)
            else:
                setattr(owner, name, was)


class Signatures:
    """In the place of the module `inspect`: what it says of a function it is asked once."""

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    @staticmethod
    @cache
    def getfullargspec(function: Callable[..., Any]) -> inspect.FullArgSpec:
        return inspect.getfullargspec(function)

    @staticmethod
    def getcallargs(function: Callable[..., Any], /, *values: Any, **named: Any) -> dict[str, Any]:
        """The value of each parameter, which launches mostly name one by one."""
        names = Signatures.getfullargspec(function).args
        if values or named.keys() != set(names):
            return inspect.getcallargs(function, *values, **named)
        return {name: named[name] for name in names}


@cache
def types_named(type_of: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """A type by its name, such as that of an argument; ``constants`` are of what is compiled."""
    known = cache(lambda name: type_of(name, None))
    return lambda name, constants: known(name) if constants is None else type_of(name, constants)
