"""YAML with line numbers: every value of a sweep file remembers where it stands, so that an error can say so."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from glabench.errors import UserError, did_you_mean

MAX_BYTES = 2**20
MAX_VALUES = 20_000  # aliases make many of few; see _build
MAX_BITS = 63  # of an integer

Loc = tuple[str | int, ...]  # the way to a value: ("axes", "chunk", 2)


_OWN = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float"))


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e4 as a number, as YAML 1.2 does, and leaves yes, no, on and off as texts. So are 0100 and
    1:04, which YAML 1.1 takes for 64 in octal and in base 60."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (a table that PyYAML declares as a class attribute)
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OWN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_PATTERNS = (
    (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", "-+0123456789"),
    (
        r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))"
        r"|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
)
for _tag, (_pattern, _first) in zip(_OWN, _PATTERNS, strict=True):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


@dataclass(frozen=True)
class Source:
    """A file's values and the line of each."""

    path: Path
    data: Any
    lines: dict[Loc, int] = field(repr=False)

    def error(self, loc: Loc, message: str) -> UserError:
        """A UserError that names the file and the line of the value at ``loc``, or of the nearest one around it."""
        line = next((self.lines[loc[:n]] for n in range(len(loc), -1, -1) if loc[:n] in self.lines), 1)
        return UserError(f"{self.path}:{line}: {message}")

    def unknown_key(self, loc: Loc, names: tuple[str, ...]) -> UserError:
        return self.error(loc, f"unknown key {loc[-1]!r}{did_you_mean(loc[-1], names)}")


def read_yaml(path: Path) -> Source:
    """Parse one YAML document. UserError with file and line when it is not YAML, is empty, has a key twice, or is
    larger than any sweep: in bytes, or once its aliases are written out."""
    try:
        with path.open("rb") as file:
            read = file.read(MAX_BYTES + 1)
        text = read.decode()
        if len(read) > MAX_BYTES:
            raise UserError(f"{path}: larger than {MAX_BYTES >> 20} MiB, which no sweep is")
    except UnicodeDecodeError:
        raise UserError(f"{path}:1: not a text file in UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    lines: dict[Loc, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = None if node is None else _build(path, loader, node, (), lines, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UserError(f"{path}:{mark.line + 1 if mark else 1}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}:1: not valid YAML: {error}") from None
    except RecursionError:
        raise UserError(f"{path}:1: not valid YAML: nested too deeply") from None
    if data is None:
        raise UserError(f"{path}:1: the file is empty, expected a sweep (title, axes or cases)")
    return Source(path, data, lines)


def _build(
    path: Path, loader: _Loader, node: yaml.Node, loc: Loc, lines: dict[Loc, int], around: tuple[yaml.Node, ...]
) -> Any:
    """The plain value of a node; ``around`` are the nodes that hold it, to refuse an alias to one of them."""
    if any(node is outer for outer in around):
        raise UserError(f"{path}:{node.start_mark.line + 1}: an alias that contains itself")
    lines.setdefault(loc, node.start_mark.line + 1)
    if len(lines) > MAX_VALUES:
        raise UserError(f"{path}:{node.start_mark.line + 1}: more than {MAX_VALUES} values, aliases written out")
    inner = (*around, node)
    if isinstance(node, yaml.SequenceNode):
        return [_build(path, loader, item, (*loc, i), lines, inner) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(path, loader, node)
    if _merged_size(node, {}) > MAX_VALUES:
        raise UserError(f"{path}:{node.start_mark.line + 1}: more than {MAX_VALUES} keys, merges written out")
    seen: dict[str, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key, line = _key(path, loader, key_node), key_node.start_mark.line + 1
        if key in seen:
            raise UserError(f"{path}:{line}: key {key!r} is given twice, first on line {seen[key]}")
        seen[key] = line
    loader.flatten_mapping(node)  # resolves "<<", putting what is merged in first
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _key(path, loader, key_node)
        lines[(*loc, key)] = key_node.start_mark.line + 1
        result[key] = _build(path, loader, value_node, (*loc, key), lines, inner)
    return result


def _scalar(path: Path, loader: _Loader, node: yaml.Node) -> Any:
    """The value of a scalar. UserError for one that has a tag's form and no value: 2026-13-45, !!int x."""
    try:
        value = loader.construct_object(node, deep=True)
    except (ValueError, LookupError, AttributeError, OverflowError) as error:
        raise UserError(f"{path}:{node.start_mark.line + 1}: not valid YAML: {error}") from None
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UserError(f"{path}:{node.start_mark.line + 1}: not valid YAML: half of a surrogate pair") from None
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise UserError(
            f"{path}:{node.start_mark.line + 1}: an integer of {value.bit_length()} bits, at most {MAX_BITS}"
        )
    return value


def _merged_size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """How many keys a mapping has once "<<" is resolved; of a list, all of its mappings together. A mapping that is
    merged into itself has more than there may be."""
    if id(node) in sizes:
        return sizes[id(node)]
    sizes[id(node)] = MAX_VALUES + 1  # while it is being counted
    if isinstance(node, yaml.SequenceNode):
        size = sum(_merged_size(item, sizes) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        size = sum(_merged_size(v, sizes) if k.tag == "tag:yaml.org,2002:merge" else 1 for k, v in node.value)
    else:
        size = 1
    sizes[id(node)] = size
    return size


def _key(path: Path, loader: _Loader, node: yaml.Node) -> str:
    key = _scalar(path, loader, node) if isinstance(node, yaml.ScalarNode) else None
    if not isinstance(key, str):
        shown = node.value if isinstance(node, yaml.ScalarNode) else "a list or mapping"
        raise UserError(f"{path}:{node.start_mark.line + 1}: a key must be a name, got {shown}")
    return key
