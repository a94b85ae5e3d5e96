"""Text that every machine has: the source of Python's standard library, byte by byte, some of its files held out."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}  # folders
ONE_IN = 10  # files is held out
END = b"\0"  # after each file; no source has it


@dataclass(frozen=True)
class Corpus:
    """training, held_out: file after file, by name. digest: of both, for they differ between versions of Python."""

    training: bytes
    held_out: bytes
    digest: str

    def to_dict(self) -> dict[str, object]:
        """What a row says of it."""
        return {
            "text": "the standard library's source", "training_bytes": len(self.training),
            "held_out_bytes": len(self.held_out), "sha256": self.digest,
        }  # fmt: skip


def read(root: Path | None = None) -> Corpus:
    """The sources under a folder, by default the standard library's, without packages that were installed and without
    tests."""
    folder = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    parts = {True: bytearray(), False: bytearray()}
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    for name, path in sorted(names.items()):
        if LEFT_OUT.isdisjoint(name.split("/")):
            parts[is_held_out(name)] += path.read_bytes() + END
    digest = hashlib.sha256(parts[False] + parts[True]).hexdigest()
    return Corpus(bytes(parts[False]), bytes(parts[True]), digest)


def is_held_out(name: str) -> bool:
    """Whether a file, by its path under the root, is for validation: by its name alone, the same on every machine."""
    return hashlib.sha256(name.encode()).digest()[0] % ONE_IN == 0


__all__ = ["Corpus", "is_held_out", "read"]
