"""``glabench schema``: what a row or a sweep file may hold, for other programs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

KINDS = ("row", "sweep")


def schema(
    of: Annotated[str, typer.Argument(metavar="row|sweep", help="A line of a file of rows, or a sweep file.")],
) -> None:
    """Print the JSON Schema of a row or of a sweep file, by which editors and other programs can check them."""
    from glabench.errors import UserError, did_you_mean

    if of not in KINDS:
        raise UserError(f"{of}: no schema of that, expected row or sweep{did_you_mean(of, KINDS)}")
    from glabench.schema import SCHEMAS

    typer.echo(json.dumps(SCHEMAS[of](), indent=2))
