"""Which files of this package can change a result, worked out from what they import.

A case is run, or profiled, by a pipeline on a system that is loaded by its name. What these import, and what that
imports, is what rows depend on, in the rooms that compute. The other rooms they meet, such as the one that writes rows,
move results and make none; reports, commands and the driver are never met.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

BEGINNINGS = ("run/pipeline.py", "profile/pipeline.py", "systems/**/*.py")
ROOMS = ("failures.py", "spec", "systems", "hardware", "run", "profile")

# Read as text: a process would take a third of a second to parse the files, and each that runs cases asks.
TYPES_ONLY = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)
IMPORT = re.compile(r"^[ \t]*(?:from (glabench[\w.]*) import (\([^)]*\)|[^\n]*)|import (glabench[\w.]*))", re.MULTILINE)


def result_sources(package: Path) -> tuple[Path, ...]:
    """The files, sorted. ``package``: the folder of glabench."""
    found = set[Path]()
    left = [path for pattern in BEGINNINGS for path in package.glob(pattern)]
    while left:
        path = left.pop()
        if path not in found and path.relative_to(package).parts[0] in ROOMS:
            found.add(path)
            left += _imported(path.read_text(encoding="utf-8"), package)
    return tuple(sorted(found))


def _imported(text: str, package: Path) -> Iterator[Path]:
    """The files of the package that a source imports, in functions too, but for the type checker alone."""
    for base, names, module in IMPORT.findall(TYPES_ONLY.sub("", text)):
        inner = [f"{base}.{name}" for name in re.findall(r"\w+", names)]  # modules, or what is in one
        for name in (module or base, *inner):
            file = package.joinpath(*name.split(".")[1:])
            yield from (one for one in (file.with_suffix(".py"), file / "__init__.py") if one.is_file())
