"""A hash of what functions and classes of a package mean: of their syntax trees and of all that these reach.

Docstrings, comments, annotations, what errors say and the order of definitions do not count, nor does where one lies:
names stand for what they are bound to, through any number of imports. A statement, a constant, a default, a decorator,
a name of a function, parameter or local variable counts, and so do annotations of kernels, for Triton reads them.

Sources are parsed, nothing of them is run. What is not reached by name is missed: methods are reached with their class,
a class only where it is named (other than in an annotation), and a call at the top of a module by nobody.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from .syntax import Dump, Place, is_type_checking, names_bound

DIGITS = 16


def meaning_of(*roots: type | object) -> str:
    """Sixteen hex digits of what these functions and classes of a package mean; they are found by name and module."""
    places = [Place(str(root.__module__), str(getattr(root, "__name__", ""))) for root in roots]
    package = places[0].module.partition(".")[0]
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Package(package, Path(spec.submodule_search_locations[0])).meaning(places)


@dataclass(frozen=True)
class Binding:
    """One statement that binds a name at the top of a module, or what an import binds it to.

    guards: the tests and exceptions that it stands under.
    """

    guards: tuple[ast.expr, ...]
    bound: ast.stmt | Place


class Package:
    """The sources of a package. Modules are parsed when they are reached."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.bindings = cache(self._parsed)
        self.resolve = cache(self._resolve)

    def meaning(self, roots: Iterable[Place]) -> str:
        """`meaning_of` definitions of the package. Raises LookupError for a root that is none."""
        dumps = self.reached(roots)
        marks = {place: _hash([place.name, *map(str, dump)]) for place, dump in dumps.items()}
        kinds = 0
        # definitions of one name and one text may still reach others: each takes on what it refers to, until no two
        # that looked alike are told apart any more
        while len(set(marks.values())) > kinds:
            kinds = len(set(marks.values()))
            marks = {
                place: _hash([marks[place], *(marks[part] for part in dump if isinstance(part, Place))])
                for place, dump in dumps.items()
            }
        return _hash(sorted(marks.values()))[:DIGITS]

    def reached(self, roots: Iterable[Place]) -> dict[Place, list[str | Place]]:
        """All definitions that the roots reach, themselves among them, each as text and places. Raises LookupError."""
        found: dict[Place, list[str | Place]] = {}
        waiting = [self.resolve(root) for root in roots]
        for root in waiting:
            if root.outside or not root.name:
                raise LookupError(f"no definition of {self.name}: {root.module}.{root.name}")
        while waiting:
            place = waiting.pop()
            if place not in found:
                found[place] = list(self._dumped(place))
                waiting += [part for part in found[place] if isinstance(part, Place)]
        return found

    def _dumped(self, place: Place) -> Iterator[str | Place]:
        """A definition: what binds its name, in order. A module that is used as a whole: all of its names."""
        module = self.bindings(place.module) or {}
        if not place.name:
            yield from (self.resolve(Place(place.module, name)) for name in sorted(module))
            return
        for binding in module[place.name]:
            for guard in binding.guards:
                yield from self._dump(guard, place.module)
            if isinstance(binding.bound, Place):
                found = self.resolve(binding.bound)
                yield found.path if found.outside else found
            else:
                yield from self._dump(binding.bound, place.module)

    def _dump(self, node: ast.stmt | ast.expr, module: str) -> Dump:
        return Dump.of(node, _Names(self, module))

    def _resolve(self, place: Place) -> Place:
        """Where what a place names is defined: in another module where it is imported, and nothing else binds it."""
        if place.outside:
            return place
        if not place.name:
            return place if self.bindings(place.module) is not None else Place(place.module, "", outside=True)
        bindings = (self.bindings(place.module) or {}).get(place.name)
        if bindings is None:
            inner = f"{place.module}.{place.name}"
            if self.bindings(inner) is None:
                raise LookupError(f"{self.name}: nothing binds {inner}")
            return Place(inner, "")
        only = bindings[0].bound
        return self.resolve(only) if len(bindings) == 1 and isinstance(only, Place) else place

    def _parsed(self, name: str) -> dict[str, list[Binding]] | None:
        """What binds each name of a module, in order; None for a module that is none of the package's."""
        path = self._path(name)
        if path is None:
            return None
        found: dict[str, list[Binding]] = {}
        for guards, statement in _statements(ast.parse(path.read_bytes()).body, ()):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for bound, place in self.imported(statement, name):
                    found.setdefault(bound, []).append(Binding(guards, place))
            else:
                for bound in names_bound(statement):
                    found.setdefault(bound, []).append(Binding(guards, statement))
        return found

    def _path(self, module: str) -> Path | None:
        if module.partition(".")[0] != self.name:
            return None
        path = self.folder.joinpath(*module.split(".")[1:])
        return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)

    def imported(self, node: ast.Import | ast.ImportFrom, module: str) -> Iterator[tuple[str, Place]]:
        """Each name that an import in a module binds, and what to."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, Place(whole, "", self._path(whole) is None)
            return
        path = self._path(module)
        above = node.level - (path is not None and path.name == "__init__.py")
        parents = module.split(".")[: -above or None] if node.level else []
        source = ".".join([*parents, *([node.module] if node.module else [])])
        for alias in node.names:
            yield alias.asname or alias.name, Place(source, alias.name, self._path(source) is None)


@dataclass(frozen=True)
class _Names:
    """What names at the top of a module stand for: `syntax.Names`."""

    package: Package
    module: str

    def look_up(self, name: str) -> Place | None:
        known = self.package.bindings(self.module) or {}
        return self.package.resolve(Place(self.module, name)) if name in known else None

    def resolve(self, place: Place) -> Place:
        return self.package.resolve(place)

    def imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Place]]:
        return ((name, self.package.resolve(place)) for name, place in self.package.imported(node, self.module))


def _statements(
    body: Iterable[ast.stmt], guards: tuple[ast.expr, ...]
) -> Iterator[tuple[tuple[ast.expr, ...], ast.stmt]]:
    """The statements at the top of a module, those in an ``if`` or ``try`` each by itself, with what guards them."""
    for node in body:
        if isinstance(node, ast.If):
            if not is_type_checking(node.test):
                yield from _statements(node.body, (*guards, node.test))
            otherwise = () if is_type_checking(node.test) else (ast.UnaryOp(ast.Not(), node.test),)
            yield from _statements(node.orelse, (*guards, *otherwise))
        elif isinstance(node, ast.Try):
            yield from _statements([*node.body, *node.orelse, *node.finalbody], guards)
            for handler in node.handlers:
                yield from _statements(handler.body, (*guards, handler.type or ast.Constant(...)))
        else:
            yield guards, node


def _hash(texts: Iterable[str]) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()
