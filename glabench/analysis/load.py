"""From what the user named, files and folders of results, to the rows or the tunings that count."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from glabench import tuning_store
from glabench.counting import outweighs
from glabench.errors import UserError, dangling
from glabench.lines import bounded, warn_on_stderr
from glabench.store import Row, is_file_of_lines, open_to_read, read, unpacked_name
from glabench.tuning_store import Tuning

KINDS = ("rows", "profiles", "tunings", "trends")  # of results, each with a page of its own
UNSHOWN = ("compiled", "rival")  # what the lines of files say that they are for which there is no page


def files(paths: Sequence[Path], warn: Callable[[str], None] = warn_on_stderr) -> list[Path]:
    """The result files behind ``paths``: a folder stands for every *.jsonl in it, packed or not, at any depth. Files of
    results that have no page are left out, and reported to ``warn`` in one line.

    Raises:
        UserError: a path does not exist, a folder holds no result file or cannot be read, or no file is left.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = _inside(path)
            if not inside:
                raise UserError(f"{path}: no *.jsonl file in this folder; `glabench sweep` writes them")
            found += inside
        elif path.is_file():
            found.append(path)
        elif path.exists():
            raise UserError(f"{path}: is a pipe or a device, expected a file or a folder: results are read twice")
        else:
            raise UserError(f"{path}: {dangling(path) or f'no such file or folder{_nearest(path)}'}")
    found = list(dict.fromkeys(found))
    unshown = [path for path in found if _kind(path) in UNSHOWN]
    if unshown:
        more = f" and {len(unshown) - 1} more" if len(unshown) > 1 else ""
        message = f"{unshown[0]}{more}: neither rows nor tunings, which are what a report shows"
        if len(unshown) == len(found):
            raise UserError(message)
        warn(f"{message}; left out")
    return [path for path in found if path not in unshown]


def _inside(folder: Path) -> list[Path]:
    """Every *.jsonl in the folder, packed or not, at any depth. Raises UserError where a folder cannot be read: nothing
    of it would be shown, and nobody told."""

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}")

    found = (Path(at, name) for at, _, names in os.walk(folder, onerror=refuse) for name in names)
    return sorted(path for path in found if is_file_of_lines(path))


def tuning_files(paths: Sequence[Path]) -> list[Path]:
    """The files behind ``paths`` when they hold tunings, by their first line; none when they hold rows.

    Raises:
        UserError: a path does not exist, or some files hold tunings and others rows.
    """
    found = files(paths)
    tunings = [path for path in found if _kind(path) == "tuning"]
    others = [path for path in found if path not in tunings]
    if tunings and others:
        raise UserError(
            f"{tunings[0]} holds tunings and {others[0]} does not; render them apart: "
            f"`glabench report {tunings[0]}`, `glabench report {others[0]}`"
        )
    return tunings


def shown_together(
    paths: Sequence[Path], beside: str | None, warn: Callable[[str], None] = warn_on_stderr
) -> list[Path]:
    """The files behind ``paths`` that one page can show. Folders hold results of several kinds: of theirs those are
    left out that are not of the kind of files that are named, or where none is, of the first of KINDS that there is;
    ``warn`` is told of them. ``beside``: a kind that a page takes besides rows, and so is not left out.

    Raises:
        UserError: as ``files``.
    """
    found = files(paths, warn)
    kinds = {path: _kind_of_results(path) for path in found}
    named = [kinds[path] for path in found if path in paths]
    main = next((kind for kind in KINDS if kind in (named or kinds.values())), KINDS[0])
    wanted = {main, *named, *((beside,) if beside is not None and main == "rows" else ())}
    for kind in KINDS:
        others = [path for path in found if kinds[path] == kind]
        if others and kind not in wanted:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            warn(f"{others[0]}{more}: {kind}, left out of a report of {main}; `glabench report {others[0]}` shows them")
    return [path for path in found if kinds[path] in wanted]


def _kind_of_results(path: Path) -> str:
    """Of KINDS, by the first line that tells; a file without such a line counts as rows, and reading it says what is
    wrong."""
    if (kind := _kind(path)) in ("tuning", "trend"):
        return f"{kind}s"
    try:
        first = next((row for row in read(path, lambda note: None) if row.profile or row.status == "ok"), None)
    except UserError:
        return "rows"
    return "profiles" if first is not None and first.profile else "rows"


def only_tunings(paths: Sequence[Path]) -> list[Path]:
    """The files behind ``paths`` that hold tunings, whatever else there is. UserError when a path does not exist, or
    there are none."""
    found = [path for path in files(paths, lambda note: None) if _kind(path) == "tuning"]
    if not found:
        raise UserError(f"{paths[0]}: no record of a tuning there; `glabench tune` writes them")
    return found


def only_rows(paths: Sequence[Path], warn: Callable[[str], None] = warn_on_stderr) -> list[Path]:
    """The files behind ``paths`` but those of tunings or trends, of which ``warn`` is told. UserError when a path does
    not exist, or none is left."""
    found = files(paths, warn)
    for kind in ("tuning", "trend"):
        others = [path for path in found if _kind(path) == kind]
        if others and len(others) == len(found):
            raise UserError(f"{others[0]}: holds {kind}s, expected rows of `glabench sweep` or `glabench profile`")
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            warn(f"{others[0]}{more}: {kind}s, not rows; left out")
        found = [path for path in found if path not in others]
    return found


def _kind(path: Path) -> str | None:
    """What the first line of a file says that it is; None for rows and for what is no result."""
    try:
        with open_to_read(path) as file:
            first = json.loads(
                next((line for _, line in bounded(file) if line is None or line.strip()), None) or "null"
            )
    except (UserError, OSError, ValueError, RecursionError):
        return None  # reading it as rows says what is wrong
    if not isinstance(first, dict):
        return None
    return "trend" if {"when", "cases"} <= first.keys() else first.get("kind")


def trend_files(paths: Sequence[Path]) -> list[Path]:
    """Those of the files that hold trends."""
    return [path for path in paths if _kind(path) == "trend"]


def load_tunings(paths: Sequence[Path], warn: Callable[[str], None] = warn_on_stderr) -> list[Tuning]:
    """Every tuning of the files, in the order they were written. A line that is none is reported and left out.

    Raises:
        UserError: a file cannot be read, or has no tuning in it.
    """
    return [one for path in paths for one in records(path, tuning_store.from_json, "tuning", "glabench tune", warn)]


Record = TypeVar("Record")


def records(
    path: Path, parse: Callable[[str], Record], noun: str, writer: str, warn: Callable[[str], None] = warn_on_stderr
) -> list[Record]:
    """What ``parse`` makes of the lines of a file. A line of which it raises ValueError is reported and left out.

    Raises:
        UserError: the file cannot be read, or has nothing else.
    """
    found, broken = [], []
    with open_to_read(path) as file:
        for number, line in bounded(file):
            if line is None or line.strip():
                try:
                    found.append(parse((line or b"").decode()))
                except ValueError as error:
                    broken.append(f"{path}:{number}: not a {noun}, skipped: {error}")
    if not found:
        said = broken[0] if broken else f"{path}: the file is empty"
        raise UserError(f"{said}; expected one {noun} a line, as `{writer}` writes them")
    for message in broken:
        warn(message)
    return found


@dataclass(frozen=True)
class Profiled:
    """A row of `glabench profile` and the folder that its trace is in, if it has one."""

    row: Row
    traces: Path


def located(paths: Sequence[Path], warn: Callable[[str], None] = warn_on_stderr) -> list[tuple[Path, Row]]:
    """Every row of the files, with the file, in the order they were written.

    A line that is not a row, as a crash may leave one at the end, is reported to ``warn`` and left out.

    Raises:
        UserError: a path is missing, or a file has no row in it.
    """
    return [(path, row) for path in files(paths, warn) for row in _rows(path, warn)]


def profiles(found: Sequence[tuple[Path, Row]]) -> list[Profiled]:
    """The rows that count when they are those of `glabench profile`; none when they are measured rows. What failed can
    be either.

    Raises:
        UserError: some rows are profiles and others were measured.
    """
    profiled = [path for path, row in found if row.profile is not None]
    measured = [path for path, row in found if row.profile is None and row.status == "ok"]
    if profiled and measured:
        raise UserError(
            f"{profiled[0]} holds profiles and {measured[0]} measured rows; render them apart: "
            f"`glabench report {profiled[0]}`, `glabench report {measured[0]}`"
        )
    if not profiled:
        return []
    home = {id(row): path for path, row in found}
    kept = latest(row for _, row in found)
    return [Profiled(row, trace_folder(home[id(row)])) for row in kept]


def trace_folder(rows: Path) -> Path:
    """Where the traces of a file of rows are: beside it, in <its name without .jsonl>-traces/."""
    return rows.with_name(f"{unpacked_name(rows).removesuffix('.jsonl')}-traces")


def latest(rows: Iterable[Row]) -> list[Row]:
    """One row for each (case, device): the one that counts, as ``glabench.counting`` has it, and of equals the one
    written last. A profile that is predicted for a GPU that is not there is told from those for others."""
    kept: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        key = (row.case_id, device(row), modelled_for(row))
        old = kept.get(key)
        if old is None or outweighs(row, old):
            kept.pop(key, None)
            kept[key] = row
    return list(kept.values())


def modelled_for(row: Row) -> str:
    """The GPU that a profile is predicted for; empty for what was measured."""
    target = (row.profile or {}).get("target") or {}
    return "" if target.get("here", True) else str(target.get("name"))


def device(row: Row) -> str:
    """The name of the machine part that ran the row, without trademarks: "NVIDIA H200", "Intel Xeon Processor"."""
    return device_name(row.environment)


def device_name(environment: Mapping[str, Any]) -> str:
    """``device`` from what a row or a tuning says of its machine."""
    name = str(environment.get("device") or "unknown device")
    return " ".join(name.replace("(R)", " ").replace("(TM)", " ").split())


def _rows(path: Path, warn: Callable[[str], None]) -> list[Row]:
    broken: list[str] = []
    rows = list(read(path, broken.append))
    if not rows and broken:
        raise UserError(f"{broken[0]}; expected one JSON row a line, as `glabench sweep` writes them")
    if not rows:
        raise UserError(f"{path}: the file is empty; expected one JSON row a line, as `glabench sweep` writes them")
    for message in broken:
        warn(message)
    return rows


def _nearest(path: Path) -> str:
    """A guess at what was meant, from the folder it should have been in."""
    folder = path.parent
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {folder / close[0]}?" if close else ""
