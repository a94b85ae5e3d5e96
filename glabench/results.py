"""What `glabench results` does with files of rows: says whether they are whole, and puts several into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from glabench.errors import UserError
from glabench.lines import warn_on_stderr, whole
from glabench.store import Row, has_checksum, parsed


@dataclass(frozen=True)
class Verified:
    """A file of rows, read once: how many there are, how many are older than checksums, and every line that is none."""

    path: Path
    rows: int
    without_checksum: int
    bad: tuple[str, ...]  # "FILE:LINE: why", one for each

    def __str__(self) -> str:
        older = f", {self.without_checksum} of them older than checksums" if self.without_checksum else ""
        bad = f", {len(self.bad)} bad" if self.bad else ""
        return f"{self.path}: {self.rows} rows{older}{bad}"


def verify(path: Path) -> Verified:
    """Read every line of the file. Raises UserError when it cannot be read, or has rows of a newer schema."""
    rows, without, bad = 0, 0, []
    for number, line, found in parsed(path):
        if isinstance(found, Row):
            rows += 1
            without += not has_checksum(line)
        else:
            bad.append(f"{path}:{number}: {found}")
    return Verified(path, rows, without, tuple(bad))


def merge(paths: Sequence[Path], out: Path, warn: Callable[[str], None] = warn_on_stderr) -> tuple[int, int]:
    """Write the rows of ``paths`` to ``out``, a new file, in their order and as they are, each different one once.

    Answers how many rows it wrote, and how many lines were bad: those are reported to ``warn`` and left out.
    Raises UserError when ``out`` is there already, or a file cannot be read or written; nothing is written then.
    """
    if out.exists():
        raise UserError(f"--out {out}: is there already; name a new file")
    rows: dict[bytes, None] = {}  # in their order
    bad = 0
    for path in paths:
        for number, line, found in parsed(path):
            if isinstance(found, str):
                bad += 1
                warn(f"{path}:{number}: not a row, left out: {found}")
            else:
                rows[line.strip()] = None
    try:
        with whole(out) as part:
            part.write_bytes(b"".join(line + b"\n" for line in rows))
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}") from None
    return len(rows), bad
