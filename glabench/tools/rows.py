"""Rows of maintainers' programs: JSON Lines with raw samples, written and read again to be shown."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from glabench.errors import UserError
from glabench.store import open_to_read

Row = dict[str, Any]

WIDTH = 120  # of a table in a file or pipe, columns


def append(rows: Sequence[Row], out: Path | None) -> None:
    """Append the rows to the file, if there is one. They are on the disk when this returns."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())


def rows_of(path: Path, kind: str, option: str = "--read") -> list[Row]:
    """The rows of a file, packed or not. BadParameter where it holds anything but rows of that kind, or none."""
    try:
        with open_to_read(path) as file:
            rows = [json.loads(line) for line in file]
    except UserError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    except ValueError as error:
        raise typer.BadParameter(f"{path} is no JSON Lines: {error}", param_hint=option) from None
    if not rows or any(not isinstance(row, dict) or row.get("kind") != kind for row in rows):
        raise typer.BadParameter(f"expected rows of the kind {kind!r} in {path}", param_hint=option)
    return rows


def wide_enough() -> Console:
    """A terminal as it is, or a file or pipe with room for a table."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)
