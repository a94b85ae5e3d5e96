"""Writes the table of a case's axes in docs/sweeps.md anew, from what is said of them in `glabench.spec.axes`.

python -m glabench.tools.axes
"""

from __future__ import annotations

from pathlib import Path

from glabench.errors import UserError
from glabench.spec.axes import reference

DOCS = Path(__file__).parents[2] / "docs" / "sweeps.md"


def written(text: str) -> str:
    """The document with the table as it should be, in the place of the one that has the same head. UserError where
    there is none."""
    head, *rows = reference()
    before, found, after = text.partition(f"{head}\n")
    if not found:
        raise UserError(f"{DOCS.name}: has no table {head}")
    lines = after.split("\n")
    rest = next(i for i, line in enumerate(lines) if not line.startswith("|"))
    return "\n".join([f"{before}{head}", *rows, *lines[rest:]])


if __name__ == "__main__":
    DOCS.write_text(written(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
