"""Files of lines that one process appends to and many may read: nothing torn, nothing lost, nothing read without bound.

What is in a line is its owner's business: rows (``glabench.store``), tunings (``glabench.tuning_store``), compilations.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from glabench.errors import UserError

# How every line begins that glabench ever appended to a file of results: rows, tunings, compilations, a rival's times,
# trends.
ROW_START, TUNING_START, COMPILED_START, RIVAL_START, TREND_START = STARTS = (
    b'{"case_id": "', b'{"workload": {', b'{"sweep": "', b'{"kind": "rival"', b'{"when": "',
)  # fmt: skip
MAX_LINE_BYTES = 64 * 2**20  # some forty times the longest record there is; a longer line is not read into memory
BLOCK_BYTES = 2**20


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file to write, whose content takes the place of ``path`` at the end: that is the old file or the whole new one.

    Raises OSError, which names ``path``; whatever is raised, nothing is left behind.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(part, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):  # it is there when writing was stopped
            part.unlink()


def keep_results(path: Path, but: bytes | None = None) -> None:
    """UserError for a file of results, where something else is to take its place or to be written into it. ``but``: how
    lines begin of those that may be."""
    if path.is_file():  # a pipe would be waited for
        with contextlib.suppress(OSError), path.open("rb") as file:
            if file.readline(BLOCK_BYTES).startswith(tuple(start for start in STARTS if start != but)):
                raise UserError(f"{path}: holds results, which would be lost; expected another file to write")


def warn_on_stderr(message: str) -> None:
    """The default for the ``warn`` arguments of all that reads lines."""
    print(f"glabench: warning: {message}", file=sys.stderr)


def bounded(file: BinaryIO, most: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes | None]]:
    """The lines of a file with their numbers from 1 on, ends included; None for a line of more than ``most`` bytes."""
    number = 0
    while line := file.readline(most + 1):
        number += 1
        if len(line) <= most or line.endswith(b"\n"):
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(BLOCK_BYTES)
        yield number, None


class Lines:
    """A file of JSON lines that this process alone may append to, each on the disk before ``write`` returns.

    A last line torn by a crash is moved to ``<file>.torn`` on opening, so that the file stays readable. With ``fresh``
    an existing file is first moved aside to ``<file>.1`` (the first free number), never deleted. ``starts``: how lines
    begin, where a file without such a line is not to be touched.
    Raises UserError for such a file, when another process has it open for appending, or when it cannot be written.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        fresh: bool = False,
        warn: Callable[[str], None] = warn_on_stderr,
        starts: bytes = b"",
    ) -> None:
        self.path = Path(path)
        self.moved_to: Path | None = None
        if not fresh:
            _refuse_without(self.path, starts)
        self._file = open_locked(self.path)
        try:
            if fresh and os.fstat(self._file.fileno()).st_size:
                self.moved_to = _first_free(self.path)
                old = self._file  # its lock is held until the new file has one of its own
                self.path.rename(self.moved_to)
                self._file = open_locked(self.path)
                old.close()
            self._cut_torn_line(warn)
        except OSError as error:
            self._file.close()
            raise _unwritable(self.path, error) from None

    def write(self, line: str) -> None:
        """Append the line and sync it: what was appended survives a SIGKILL and a power cut.

        Raises UserError when it cannot be written, as on a full disk. The file is then as it was before.
        """
        rest = memoryview(line.encode() + b"\n")
        before = os.fstat(self._file.fileno()).st_size
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):  # then the next to open the file cuts what is torn
                self._file.truncate(before)
            raise UserError(
                f"{self.path}: cannot be written: {error.strerror}; all lines before are whole, and the same command "
                "goes on from them"
            ) from None

    def close(self) -> None:
        self._file.close()  # which releases the lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _cut_torn_line(self, warn: Callable[[str], None]) -> None:
        """Move what follows the last line's end out of the way: it was being written when its process died."""
        size = os.fstat(self._file.fileno()).st_size
        whole = _end_of_last_line(self._file, size)
        if whole == size:
            return
        self._file.seek(whole)
        if size - whole <= MAX_LINE_BYTES:
            with contextlib.suppress(ValueError, RecursionError):
                json.loads(self._file.readall() or b"")
                self._file.write(b"\n")  # a whole line that lacks only its end
                return
            self._file.seek(whole)
        aside = self.path.with_name(self.path.name + ".torn")
        with aside.open("ab") as file:
            while block := self._file.read(BLOCK_BYTES):
                file.write(block)
            file.write(b"\n")
        self._file.truncate(whole)
        warn(f"{self.path}: the last line was torn by a crash and moved to {aside}")


def _refuse_without(path: Path, starts: bytes) -> None:
    """UserError unless some line begins so, as far as it goes, or the file is empty or not there. Most files are known
    by their first line, and one that is damaged there by another."""
    if not starts or not path.is_file():
        return
    empty = True
    try:
        with path.open("rb") as file:
            for _, line in bounded(file):
                if line is not None and (line.startswith(starts) or starts.startswith(line)):
                    return
                empty = empty and line is not None and not line.strip()
    except OSError as error:
        raise _unwritable(path, error) from None
    if not empty:
        raise UserError(f"{path}: holds something else; expected a file that this command wrote, or a new one")


def open_locked(path: Path) -> FileIO:
    """The file, open for reading and appending without a buffer, locked against every other writer.

    Raises UserError when it cannot be written, is a pipe or a device, or another process has it open so.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: is a pipe or a device, expected a file")
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = FileIO(path, "a+")
        except OSError as error:
            raise _unwritable(path, error) from None
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(f"{path}: another glabench is writing it; wait, or use another --out") from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # another process moved it aside after we had opened it


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be written: {error.strerror}")


def _end_of_last_line(file: FileIO, size: int) -> int:
    """The offset behind the last line's end, 0 when no line ends."""
    end = size
    while end > 0:
        start = max(0, end - BLOCK_BYTES)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _first_free(path: Path) -> Path:
    number = 1
    while (candidate := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return candidate
