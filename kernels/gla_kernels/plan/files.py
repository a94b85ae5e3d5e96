"""Where tables of tuned plans are, and how they are read and written.

Two kinds. Each GPU's own table is in the user's cache; its name and its header are a frozen key: another GPU, Triton,
kernel source or search space reads another file. The shipped ones, in ``tuned/``, hold for a GPU's name as long as the
search space is the same. A file, or an entry of one, that is not what it should be is refused with a warning.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from .table import Entry, Header, Machine, Table, TableError, header_of, read, space_hash

SHIPPED = Path(__file__).parent / "tuned"


def slug(device: str) -> str:
    """A GPU's name in a file's name: "NVIDIA H200" is nvidia_h200."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")


def user_path(header: Header) -> Path:
    """The file of the table with this header: under $GLABENCH_CACHE, $XDG_CACHE_HOME/glabench/tuned or
    ~/.cache/glabench/tuned. Raises TableError when there is no home."""
    key = hashlib.sha256(json.dumps(asdict(header), sort_keys=True).encode()).hexdigest()[:8]
    folder = os.environ.get("GLABENCH_CACHE")
    if not folder:
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "glabench", "tuned")
    try:
        return Path(folder).expanduser() / f"{slug(header.device)}-{key}.json"
    except RuntimeError:
        raise TableError("no home directory for the tuned plans; set GLABENCH_CACHE") from None


def own_table(machine: Machine) -> Table | None:
    """The table of this GPU in the user's cache, None without one. What cannot be trusted is warned of and left out."""
    header = header_of(machine)
    try:
        path = user_path(header)
    except TableError:
        return None
    return _trusted(path, lambda found: found == header, "`glabench tune` writes it anew")


def shipped_tables() -> tuple[Table, ...]:
    """The tables of this package, with the same search space. What cannot be trusted is warned of and left out."""
    paths = sorted(SHIPPED.glob("*.json"))
    tables = (_trusted(path, lambda found: found.space == space_hash(), "it came with the package") for path in paths)
    return tuple(table for table in tables if table is not None)


def _trusted(path: Path, ours: Callable[[Header], bool], remedy: str) -> Table | None:
    """The table of a file whose header is ``ours``; one warning for whatever is refused of it."""
    try:
        table = read(path)
        if table is not None and not ours(table.header):
            raise TableError(f"written for another GPU, Triton, kernel source or search space ({table.header.device})")
    except TableError as error:
        warnings.warn(f"{path}: {error}; ignored, {remedy}", stacklevel=2)
        return None
    if table is not None and table.refused:
        many = f"{len(table.refused)} of {len(table.entries) + len(table.refused)} entries refused"
        warnings.warn(f"{path}: {many}, such as {table.refused[0]}; ignored, {remedy}", stacklevel=2)
    return table


def add(entries: Iterable[Entry], machine: Machine) -> Path:
    """Put entries into the machine's own table, each in the place of one with the same key; the file's path.

    Safe beside other writers and readers. A file that is no table of this machine is moved aside to ``<file>.bad``.
    Raises TableError when the file cannot be written, or an entry would be refused when it is read.
    """
    header, entries = header_of(machine), _checked(entries, machine.capability)
    path = user_path(header)
    with _writing(path):
        try:
            table = read(path)
            trusted = table is None or table.header == header
        except TableError:
            table, trusted = None, False
        if not trusted:
            os.replace(path, path.with_name(path.name + ".bad"))
        known = table.entries if trusted and table is not None else ()
        _replace(path, Table(header, (*known, *entries)))
    return path


def ship(entries: Iterable[Entry], header: Header, folder: Path | None = None) -> Path:
    """Write the shipped table of the header's GPU, in place of the one there is; the file's path.

    folder: where shipped tables are, by default those of this package. Raises TableError as `add` does.
    """
    path = (SHIPPED if folder is None else folder) / f"{slug(header.device)}.json"
    with _errors(path):
        _replace(path, Table(header, _checked(entries, header.capability)))
    return path


def _checked(entries: Iterable[Entry], capability: int) -> tuple[Entry, ...]:
    """The entries as they would be read. Raises TableError for one that would be refused."""
    checked = []
    for entry in entries:
        try:
            checked.append(Entry.from_dict(entry.to_dict(), capability))
        except (ValueError, TypeError) as error:
            work = entry.work
            gates = f", gates in {work.gate_dtype}" if work.gate_dtype else ""
            shape = f"{work.direction} B={work.B} T={work.T} H={work.H} K={work.K} V={work.V} {work.dtype}{gates}"
            raise TableError(f"no plan to keep for {shape}: {error}") from None
    return tuple(checked)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Hold the file's lock, which the system releases when the process dies."""
    with _errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_name(path.name + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """OSError becomes TableError."""
    try:
        yield
    except OSError as error:
        raise TableError(f"{path}: cannot be written: {error.strerror}") from None


def _replace(path: Path, table: Table) -> None:
    """Write the file whole or not at all. Only the lock's holder writes, so that the temporary file has a fixed name
    and one that a killed writer left is overwritten."""
    latest = {entry.key: entry for entry in table.entries}
    entries = sorted(latest.values(), key=lambda entry: json.dumps(entry.to_dict(), sort_keys=True))
    lines = ",\n".join(json.dumps(entry.to_dict(), allow_nan=False) for entry in entries)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w") as file:
        file.write(f'{{"header": {json.dumps(asdict(table.header))},\n"entries": [\n{lines}\n]}}\n')
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
