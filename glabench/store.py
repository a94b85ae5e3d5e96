"""Rows: what one case came to, one JSON object a line, appended as they come.

Every line is strict JSON: a number that JSON cannot hold is written as the string "NaN", "Infinity" or "-Infinity" and
comes back as a float on reading (inside the nested parts of a row only; a text field is never touched).

Schema history
  1  first version
  2  profile
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from glabench.errors import UserError

SCHEMA = 2

STATUSES = ("ok", "wrong", "compile_error", "oom", "timeout", "crashed", "unsupported")


@dataclass(frozen=True)
class Row:
    """What one case came to. The parts that a case did not reach are None; keys carry their units."""

    case_id: str
    sweep: str
    case: dict[str, Any]
    status: str  # one of STATUSES
    reason: str | None = None  # one line, when status is not ok
    detail: str | None = None  # the traceback's tail, when there is one
    implementation: str | None = None  # what really ran: "torch SDPA flash (FlashAttention-2)", "fla-core 0.6.0"
    # {"passed": bool, "where": "cuda|interpreter|cpu", "shape": {B,T,H,K,V}, "reference": str, "pairs": int,
    #  "outputs": {"o": {"error": f, "baseline": f, "tolerance": f}, "dq": ...}}; errors are ||x-ref||/||ref||
    accuracy: dict[str, Any] | None = None
    # {"clock": "cuda_events_cold_l2|cpu_wall", "samples_ms": [...], "dropped": int, "stopped": str, "warmup": int}
    time: dict[str, Any] | None = None
    # {"peak_bytes": int, "inputs_bytes": int, "beyond_inputs_bytes": int}
    memory: dict[str, Any] | None = None
    # [{"kernel": str, "arch": "sm_90", "registers": int, "spill_bytes": int, "shared_bytes": int, "num_warps": int,
    #   "num_stages": int, "tensor_core": "wgmma|mma|none", "error": str|None}]
    compiled: list[dict[str, Any]] | None = None
    # {"flops": int, "hbm_bytes": int}: the case's compulsory work, from analysis/work.py
    work: dict[str, Any] | None = None
    # {"sm_mhz": f, "sm_mhz_max": f, "power_w": f, "temperature_c": f, "throttle": [str]}: read while timing
    clocks: dict[str, Any] | None = None
    # what `glabench profile` found out, kernel by kernel; see glabench/profile/pipeline.py. Such a row has no time
    profile: dict[str, Any] | None = None
    # see hardware/environment.py: device, driver, versions, commit, dirty, fingerprint, copy_bytes_per_s ...
    environment: dict[str, Any] = field(default_factory=dict)
    started: str = ""  # ISO 8601, UTC
    wall_s: float = 0.0
    schema: int = SCHEMA


ROW_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Row))
_NESTED = ("case", "accuracy", "time", "memory", "compiled", "work", "clocks", "profile", "environment")
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(row: Row) -> str:
    """One line of strict JSON, without the line's end."""
    return json.dumps(_encode(asdict(row)), allow_nan=False, ensure_ascii=False)


def from_json(text: str) -> Row:
    """The inverse of ``to_json``. ValueError when the text is not a row; UserError when a newer glabench wrote it."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"a row is a JSON object, got {type(values).__name__}")
    schema = values.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise UserError(f"row of schema {schema}, this glabench reads up to {SCHEMA}: upgrade glabench to read it")
    missing = [name for name in ("case_id", "sweep", "case", "status", "schema") if name not in values]
    if missing:
        raise ValueError(f"a row needs {', '.join(missing)}")
    unknown = sorted(set(values) - set(ROW_FIELDS))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}")
    if values["status"] not in STATUSES:
        raise ValueError(f"unknown status {values['status']!r}")
    return Row(**{key: _decode(value) if key in _NESTED else value for key, value in values.items()})


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return value


def warn_on_stderr(message: str) -> None:
    """The default for the ``warn`` arguments below."""
    print(f"glabench: warning: {message}", file=sys.stderr)


def read(path: Path | str, warn: Callable[[str], None] = warn_on_stderr) -> Iterator[Row]:
    """The rows of a file, in order. A line that is not a row is skipped and reported to ``warn`` with file and line.

    UserError when the file cannot be opened or holds rows of a newer schema. A last line without an end is a row still
    being written, or torn by a crash: it is skipped like any other broken line if it does not parse.
    """
    path = Path(path)
    with _open_to_read(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield from_json(line.decode())
            except UserError as error:
                raise UserError(f"{path}:{number}: {error}") from error
            except (ValueError, TypeError) as error:  # includes broken JSON and broken UTF-8
                warn(f"{path}:{number}: not a row, skipped: {error}")


def _open_to_read(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file of rows; `glabench sweep NAME` writes one") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, expected a file of rows (.jsonl)") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


class Lines:
    """A file of JSON lines that this process alone may append to, each on the disk before ``write`` returns.

    A last line torn by a crash is moved to ``<file>.torn`` on opening, so that the file stays readable. With ``fresh``
    an existing file is first moved aside to ``<file>.1`` (the first free number), never deleted.
    Raises UserError when another process has the file open for appending, or when it cannot be written.
    """

    def __init__(self, path: Path | str, *, fresh: bool = False, warn: Callable[[str], None] = warn_on_stderr) -> None:
        self.path = Path(path)
        self.moved_to: Path | None = None
        self._file = self._open_locked()
        if fresh and os.fstat(self._file.fileno()).st_size:
            old = self._file  # its lock is held until the new file has one of its own
            self.moved_to = _first_free(self.path)
            self.path.rename(self.moved_to)
            self._file = self._open_locked()
            old.close()
        self._cut_torn_line(warn)

    def write(self, line: str) -> None:
        """Append the line, flushed and synced: what was appended survives a SIGKILL and a power cut."""
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()  # which releases the lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _open_locked(self) -> BinaryIO:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("a+b")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(f"{self.path}: another glabench is writing it; wait, or use another --out") from None
        return file

    def _cut_torn_line(self, warn: Callable[[str], None]) -> None:
        """Move what follows the last line's end out of the way: it was being written when its process died."""
        self._file.seek(0)
        text = self._file.read()
        whole = text.rfind(b"\n") + 1
        if whole == len(text):
            return
        torn = text[whole:]
        with contextlib.suppress(ValueError):
            json.loads(torn)
            self._file.write(b"\n")  # a whole line that lacks only its end
            self._file.flush()
            return
        aside = self.path.with_name(self.path.name + ".torn")
        with aside.open("ab") as file:
            file.write(torn + b"\n")
        self._file.truncate(whole)
        warn(f"{self.path}: the last line was torn by a crash and moved to {aside}")


class Appender(Lines):
    """Lines that are rows."""

    def append(self, row: Row) -> None:
        """Write the row."""
        self.write(to_json(row))


def _first_free(path: Path) -> Path:
    number = 1
    while (candidate := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return candidate
