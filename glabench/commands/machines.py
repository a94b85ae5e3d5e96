"""``--format json``: what a command's table says, for other programs: an object a line on stdout. What a command says
while it works goes to stderr then."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer

FORMATS = ("text", "json")

Format = Annotated[str, typer.Option("--format", help="text, or json: an object a line.")]


def is_json(format: str) -> bool:
    """Whether JSON is asked for. UserError for a format that is none."""
    from glabench.errors import UserError, did_you_mean

    if format not in FORMATS:
        raise UserError(f"--format {format}: expected text or json{did_you_mean(format, FORMATS)}")
    return format == "json"


def say(**values: Any) -> None:
    """Print an object."""
    typer.echo(line(values))


def line(values: Mapping[str, Any]) -> str:
    """An object as a line of strict JSON. A number that there is none of is null."""
    return json.dumps(_plain(values), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """What JSON can hold: numpy's numbers as Python's, NaN as None, a set in order."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
