"""A statement as text that is the same in every version of Python, with places where it names what lies elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Protocol

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef)
NAMING = (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
UNSAID = frozenset(("ctx", "kind", "type_comment", "annotation", "returns"))  # fields that say nothing of meaning
FIELD_KINDS = ("ClassVar", "InitVar", "KW_ONLY")  # annotations that a dataclass reads


@dataclass(frozen=True)
class Place:
    """A name in a module, or without a name the module; ``outside``: not of the package, so that it is only named."""

    module: str
    name: str
    outside: bool = False

    def __str__(self) -> str:
        return self.name or "a module"

    @property
    def path(self) -> str:
        """The dotted name."""
        return f"{self.module}.{self.name}" if self.name else self.module


class Names(Protocol):
    """What names at the top of a module stand for."""

    def look_up(self, name: str) -> Place | None:
        """Where it is defined; None for a builtin."""

    def resolve(self, place: Place) -> Place:
        """The same of a name in a module that is known."""

    def imported(self, node: ast.Import | ast.ImportFrom) -> Iterable[tuple[str, Place]]:
        """The names that an import binds, and where what they stand for is defined."""


class Dump(list["str | Place"]):
    """A node as text, in parts, with places between."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names
        self._imports: dict[str, Place] = {}  # by functions themselves
        self._local: frozenset[str] = frozenset()  # names of functions around, and of the class body or comprehension
        self._outer: frozenset[str] = frozenset()  # of these, what functions see
        self._kernel = False

    @classmethod
    def of(cls, node: ast.AST, names: Names) -> Dump:
        """The dump of a statement or expression at the top of a module."""
        dump = cls(names)
        dump._node(node)
        return dump

    def _node(self, node: ast.AST) -> None:
        kind: Any = type(node)
        special = _special(kind)
        if special is not None:
            special(self, node)
            return
        self.append(f"{kind.__name__}(")
        for field in _fields(kind):
            value = getattr(node, field)
            if value is not None and value != []:
                self.append(field)
                self._value(value)
        self.append(")")

    def _value(self, value: object) -> None:
        if isinstance(value, ast.AST):
            self._node(value)
        elif isinstance(value, list):
            self.append("[")
            for one in value:
                self._value(one)
            self.append("]")
        else:
            self.append(ascii(value))

    def _Constant(self, node: ast.Constant) -> None:
        self.append(ascii(node.value))

    def _JoinedStr(self, node: ast.JoinedStr) -> None:
        """An f-string. Versions of Python cut what lies between its values into different pieces."""
        self.append("JoinedStr[")
        for literal, some in groupby(node.values, lambda one: isinstance(one, ast.Constant)):
            pieces = list(some)
            text = "".join(str(one.value) for one in pieces if isinstance(one, ast.Constant))
            if not literal or text:
                self._value(text if literal else pieces)
        self.append("]")

    def _Name(self, node: ast.Name) -> None:
        place = self._place_of(node)
        if place is None:
            self.append(f"{'local' if node.id in self._local else 'name'} {node.id}")
        else:
            self.append(place.path if place.outside else place)

    def _Attribute(self, node: ast.Attribute) -> None:
        """What a module binds stands for itself, however it is come by."""
        found = self._place_of(node)
        if found is not None:
            self.append(found.path if found.outside else found)
            return
        self._node(node.value)
        self.append(f".{node.attr}")

    def _place_of(self, node: ast.expr) -> Place | None:
        """What an attribute of a module is, or an attribute of one outside."""
        if isinstance(node, ast.Name):
            return None if node.id in self._local else self._imports.get(node.id) or self._names.look_up(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        base = self._place_of(node.value)
        if base is None or (base.name and not base.outside):
            return None
        inner = Place(base.path, node.attr, base.outside)
        return inner if base.outside else self._names.resolve(inner)

    def _Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.append("do")
            self._node(node.value)

    def _Raise(self, node: ast.Raise) -> None:
        """That there is an error; what it says changes nothing."""
        self.append("raise")

    def _Import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Nothing: what it binds stands where it is used."""
        self._imports.update(self._names.imported(node))

    _ImportFrom = _Import

    def _arg(self, node: ast.arg) -> None:
        self.append(node.arg)
        self._annotation(node.annotation)

    def _annotation(self, node: ast.expr | None) -> None:
        if node is not None and self._kernel:
            self.append(":")
            self._node(node)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        """As without the annotation."""
        self += ["Assign(", "targets", "["]
        self._node(node.target)
        self._annotation(node.annotation)
        self.append("]")
        if node.value is not None:
            self.append("value")
            self._node(node.value)
        self.append(")")

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._value(node.decorator_list)
        self._value([*node.args.defaults, *node.args.kw_defaults])
        around, self._kernel = self._kernel, self._kernel or any(map(_is_jit, node.decorator_list))
        self.append(f"{type(node).__name__} {node.name}")
        self._scope(node.args, node.body)
        self._kernel = around

    _AsyncFunctionDef = _FunctionDef

    def _Lambda(self, node: ast.Lambda) -> None:
        self._value([*node.args.defaults, *node.args.kw_defaults])
        self.append("Lambda")
        self._scope(node.args, [node.body])

    def _scope(self, args: ast.arguments, body: list[ast.stmt] | list[ast.expr]) -> None:
        """Parameters and what is done with them, in a scope of their own."""
        before = self._local, self._outer
        lists = (args.posonlyargs, args.args, [args.vararg], args.kwonlyargs, [args.kwarg])
        parameters = {one.arg for some in lists for one in some if one is not None}
        self._local = self._outer = self._outer | parameters | _bound_in(body)
        for some in lists:
            self._value([one for one in some if one is not None])
        self._value(body)
        self._local, self._outer = before

    def _ClassDef(self, node: ast.ClassDef) -> None:
        """Fields in order, then methods by name."""
        self._value(node.decorator_list)
        self.append(f"ClassDef {node.name}")
        self._value([*node.bases, *node.keywords])
        before, self._local = self._local, self._outer | _bound_in(node.body)
        for one in (x for x in node.body if not isinstance(x, FUNCTIONS)):
            self.append("field" if isinstance(one, ast.AnnAssign) else "statement")
            if isinstance(one, ast.AnnAssign):
                self += [kind for kind in FIELD_KINDS if kind in ast.dump(one.annotation)]
            self._node(one)
        for method in sorted((x for x in node.body if isinstance(x, FUNCTIONS)), key=lambda x: x.name):
            self._node(method)
        self._local = before

    def _comprehension_in_scope(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        before = self._local, self._outer
        names = {x.id for one in node.generators for x in ast.walk(one.target) if isinstance(x, ast.Name)}
        self._local, self._outer = self._local | names, self._outer | names
        self.append(f"{type(node).__name__}(")
        for field in node._fields:
            self._value(getattr(node, field))
        self.append(")")
        self._local, self._outer = before

    _ListComp = _SetComp = _DictComp = _GeneratorExp = _comprehension_in_scope


@cache
def _special(kind: Any) -> Callable[[Dump, ast.AST], None] | None:
    """The method for nodes of a kind, None where their fields say all."""
    return getattr(Dump, f"_{kind.__name__}", None)


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(sorted(field for field in kind._fields if field not in UNSAID))


def _is_jit(decorator: ast.expr) -> bool:
    """Whether Triton compiles what is decorated so."""
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) == "jit"


def is_type_checking(test: ast.expr) -> bool:
    """Whether what it guards is for the type checker alone."""
    return (test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")) == "TYPE_CHECKING"


def names_bound(node: ast.stmt) -> Iterator[str]:
    """Names that a statement at the top of a module binds, or changes: an attribute of theirs, an item, by a method."""
    found = dict.fromkeys(sorted(_bound_in([node])))
    targets: list[Any] = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        targets = [node.value.func]
    for target in targets:
        while isinstance(target, ast.Attribute | ast.Subscript):
            target = target.value
            if isinstance(target, ast.Name):
                found[target.id] = None
    if isinstance(node, ast.AnnAssign) and node.value is None:
        found.clear()
    yield from found


def _bound_in(body: Sequence[ast.AST]) -> frozenset[str]:
    """Names that statements bind in their own scope: not in functions, classes and comprehensions, which have scopes of
    their own, and not by imports, which are followed."""
    found: set[str] = set()
    elsewhere: set[str] = set()
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                found.add(node.id)
        elif isinstance(node, SCOPES):
            found.add(node.name)
        elif isinstance(node, ast.Global):
            elsewhere.update(node.names)
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, NAMING) and node.name is not None:
                found.add(node.name)
            waiting += _children(node)
    return frozenset(found - elsewhere)


def _children(node: ast.AST) -> list[ast.AST]:
    """Nodes right below one, but for the targets of a comprehension and for annotations."""
    found: list[ast.AST] = []
    kind: Any = type(node)
    for field in _fields(kind):
        value = getattr(node, field)
        if isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
        elif isinstance(value, ast.AST) and not (field == "target" and isinstance(node, ast.comprehension)):
            found.append(value)
    return found
