"""Rows: what one case came to, one JSON object a line, appended as they come.

Every line is strict JSON: a number that JSON cannot hold is written as the string "NaN", "Infinity" or "-Infinity" and
comes back as a float on reading (inside the nested parts of a row only; a text field is never touched). What the nested
parts may hold is in ``glabench.nested``.

The last key of a line is ``checksum``: the first 16 hex digits of the SHA-256 of the line as it is without that key. It
is of the bytes, so that any change of a line shows. Rows of schemas 1 and 2 have none and are read as they are.

Schema history
  1  first version
  2  profile
  3  checksum, deaths
  4  spent
  5  time.eager, in the place of time.host_ms, the least of four calls; memory.kept_bytes
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

from glabench.errors import UserError, dangling, in_one_line
from glabench.lines import MAX_LINE_BYTES, ROW_START, Lines, bounded, open_locked, warn_on_stderr
from glabench.spec.lengths import sequences, text_of

SCHEMA = 5
FIRST_WITH_CHECKSUM = 3
TOO_LONG = f"longer than any row, over {MAX_LINE_BYTES >> 20} MiB"

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
    #  "timed_calls": whether what was timed was judged again, see run/audit.py,
    #  "outputs": {"o": {"error": f, "baseline": f, "tolerance": f}, "dq": ...}}; errors are ||x-ref||/||ref||
    accuracy: dict[str, Any] | None = None
    # {"clock": "cuda_events_cold_l2|cpu_wall", "samples_ms": [...], "dropped": int, "late": int, "stopped": str,
    #  "warmup": int, "launch_bound": bool,
    #  "eager": {"host_ms": [...], "wall_ms": [...]} on a GPU: see run/eager.py; "host_ms": f before schema 5,
    #  "parts": {"intra_ms": [...], "inter_ms": [...]} or {"refused": str}, where run/forward_parts.py was asked,
    #  "tuned": {kernel: config}: what kernels that tune themselves chose at this shape, where there are any}
    # of mode "train" {"clock": "steps_wall", "samples_ms": [of a step], "steps": int, of a sample, "stopped": str,
    #  "training": {"parameters": int, "loss_first": f, "loss_last": f, "kernel_ms": {group: f}}}: see run/training.py
    time: dict[str, Any] | None = None
    # {"peak_bytes": int, "inputs_bytes": int, "beyond_inputs_bytes": int}, or {"refused": str}: why there is none;
    #  "kept_bytes": int or None besides, where there is a backward pass: see run/memory.py
    memory: dict[str, Any] | None = None
    # [{"kernel": str, "arch": "sm_90", "registers": int, "spill_bytes": int, "shared_bytes": int, "num_warps": int,
    #   "num_stages": int, "tensor_core": "wgmma|mma|none", "error": str|None}]
    compiled: list[dict[str, Any]] | None = None
    # {"flops": int, "hbm_bytes": int}: the case's compulsory work, from spec/work.py
    work: dict[str, Any] | None = None
    # {"sm_mhz": f, "sm_mhz_max": f, "power_w": f, "temperature_c": f, "throttle": [str]}: read while timing, and
    #  "sm_mhz_counted": f: by the GPU itself, during the samples alone, see run/sm_clock.py
    clocks: dict[str, Any] | None = None
    # what `glabench profile` found out, kernel by kernel; see glabench/profile/pipeline.py. Such a row has no time
    profile: dict[str, Any] | None = None
    # where and how it was made: see hardware/environment.py and, for settings, settings_given, limit_s and
    # omp_num_threads, which rows of schema 4 may lack, run/attempts.py: device, driver, versions, commit, dirty,
    # fingerprint, copy_bytes_per_s ...; and lacks, why the system runs no case there, see counting.py
    environment: dict[str, Any] = field(default_factory=dict)
    started: str = ""  # ISO 8601, UTC
    wall_s: float = 0.0
    # how each process died that this case was tried in: "the process was killed by SIGSEGV"; see run/attempts.py
    deaths: list[str] | None = None
    # [{"part": "compile|gate|all", "began": f, "seconds": {phase: f}}]: one for each process; see phases.py
    spent: list[dict[str, Any]] | None = None
    schema: int = SCHEMA


ROW_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Row))
NEEDED = ("case_id", "sweep", "case", "status", "schema")
_NESTED = ("case", "accuracy", "time", "memory", "compiled", "work", "clocks", "profile", "environment")
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_CHECKSUM = re.compile(r', "checksum": "([0-9a-f]{16})"}$')
# The JSON type that a field has, by its annotation in Row.
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "float": (int, float),
    "int": (int,),
    "dict[str, Any]": (dict,),
    "dict[str, Any] | None": (dict, type(None)),
    "list[dict[str, Any]] | None": (list, type(None)),
    "list[str] | None": (list, type(None)),
}
_FIELD_TYPES = {f.name: _TYPES[str(f.type)] for f in fields(Row)}


def to_json(row: Row) -> str:
    """One line of strict JSON with its checksum, without the line's end."""
    text = json.dumps(_encode(asdict(row)), allow_nan=False, ensure_ascii=False)
    text = text.encode(errors="backslashreplace").decode()  # half of a surrogate pair: as JSON escapes it
    return f'{text[:-1]}, "checksum": "{_checksum(text)}"}}'


def from_json(text: str) -> Row:
    """The inverse of ``to_json``. ValueError when the text is not a row, or not what was written; UserError when a
    newer glabench wrote it."""
    text = text.strip()
    found = _CHECKSUM.search(text)
    plain = text if found is None else text[: found.start()] + "}"
    try:
        values = json.loads(plain)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if "\\ud" in plain.lower():  # half of a surrogate pair is no text that can be shown
        values = json.loads(json.dumps(values, ensure_ascii=False).encode(errors="replace"))
    if not isinstance(values, dict):
        raise ValueError(f"a row is a JSON object, got {type(values).__name__}")
    schema = values.get("schema")
    sound = found is not None and found[1] == _checksum(plain)
    if isinstance(schema, int) and schema > SCHEMA and (sound or found is None):
        raise UserError(f"row of schema {schema}, this glabench reads up to {SCHEMA}: upgrade glabench to read it")
    if found is not None and not sound:
        raise ValueError("its checksum says that it is not what was written")
    _check_fields(values)
    if found is None and values["schema"] >= FIRST_WITH_CHECKSUM:
        raise ValueError("its checksum is missing")
    from glabench import nested  # here: a process that only writes rows starts in half the time without pydantic

    decoded = {key: _decode(value) if key in _NESTED else value for key, value in values.items()}
    odd = nested.fault(decoded) or _misfit(decoded["case"])
    if odd is not None:
        raise ValueError(odd)
    return Row(**decoded)


def _misfit(case: dict[str, Any]) -> str | None:
    """Why its packed sequences are not what they are said to be, or None."""
    try:
        text = text_of(case.get("lengths"))
        if text is not None:
            sequences(text, case["T"], case.get("seed") or 0)
    except ValueError as error:
        return f"case: {error}"
    return None


def has_checksum(line: bytes) -> bool:
    """Whether a line of rows, one that can be read, has a checksum."""
    return _CHECKSUM.search(line.decode().strip()) is not None


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_fields(values: dict[str, Any]) -> None:
    """ValueError unless the keys are those of a row, with values of their types."""
    missing = [name for name in NEEDED if name not in values]
    if missing:
        raise ValueError(f"a row needs {', '.join(missing)}")
    unknown = sorted(set(values) - set(ROW_FIELDS))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}")
    for name, value in values.items():
        if not isinstance(value, _FIELD_TYPES[name]) or isinstance(value, bool):
            raise ValueError(f"{name}: {type(value).__name__} is not what a row has there")
    if values["status"] not in STATUSES:
        raise ValueError(f"unknown status {values['status']!r}")


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


def read(path: Path | str, warn: Callable[[str], None] = warn_on_stderr) -> Iterator[Row]:
    """The rows of a file, in order. A line that is not a row is skipped and reported to ``warn`` with file and line.

    UserError when the file cannot be opened or holds rows of a newer schema. A last line without an end is a row still
    being written, or torn by a crash: it is skipped like any other broken line if it does not parse.
    """
    for number, _, found in parsed(path):
        if isinstance(found, Row):
            yield found
        else:
            warn(f"{path}:{number}: not a row, skipped: {found}")


def parsed(path: Path | str) -> Iterator[tuple[int, bytes, Row | str]]:
    """Every line of a file of rows that is not blank: its number, its text and its row, or why it is none.

    The text of a line that is too long to be read is empty. Raises UserError as ``read`` does.
    """
    path = Path(path)
    with open_to_read(path) as file:
        for number, line in bounded(file):
            if line is None:
                yield number, b"", TOO_LONG
            elif line.strip():
                yield number, line, _row_of(line, f"{path}:{number}")


def _row_of(line: bytes, place: str) -> Row | str:
    try:
        return from_json(line.decode())
    except UserError as error:
        raise UserError(f"{place}: {error}") from error
    except (ValueError, TypeError) as error:  # includes broken JSON and broken UTF-8
        return in_one_line(str(error))


PACKED = {".gz": "gzip", ".xz": "xz"}


def is_file_of_lines(path: Path) -> bool:
    """Whether a file is called as files of rows and of tunings are, packed ones too."""
    return unpacked_name(path).endswith(".jsonl")


def unpacked_name(path: Path) -> str:
    """The name of a file before it was packed, if it was."""
    return path.name.removesuffix(path.suffix) if path.suffix in PACKED else path.name


def open_to_read(path: Path) -> BinaryIO:
    """The file, opened, or what was packed in it by gzip or xz. UserError when it is not there, is a folder, or cannot
    be read."""
    try:
        if path.suffix in PACKED:
            return io.BytesIO(_unpacked(path))
        return path.open("rb")
    except FileNotFoundError:
        why = dangling(path) or "no such file of rows; `glabench sweep NAME` writes one"
        raise UserError(f"{path}: {why}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, expected a file of rows (.jsonl)") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _unpacked(path: Path) -> bytes:
    """What is in a packed file. UserError when it was packed otherwise, is torn, or this Python cannot unpack it."""
    packed = path.read_bytes()
    try:
        if path.suffix == ".gz":
            return gzip.decompress(packed)
        import lzma  # some builds of Python come without

        try:
            return lzma.decompress(packed)
        except lzma.LZMAError as error:
            raise EOFError(error) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        how = PACKED[path.suffix]
        raise UserError(f"{path}: is not packed by {how}, or not all of it is there: {error}") from None
    except ImportError:
        raise UserError(f"{path}: this Python was built without lzma; unpack it first: unxz --keep {path}") from None


class Appender(Lines):
    """Lines that are rows. What is not a row, or not what was written, is moved to ``<file>.bad`` on opening.

    UserError for a file that has lines and no row, which stays as it is: it is not a file of rows at all.
    """

    def __init__(self, path: Path | str, *, fresh: bool = False, warn: Callable[[str], None] = warn_on_stderr) -> None:
        if Path(path).suffix in PACKED:
            raise UserError(f"{path}: nothing is appended to a packed file; name one that ends in .jsonl")
        if not fresh:
            _refuse_other_files(Path(path))
        super().__init__(path, fresh=fresh, warn=warn)
        try:
            self._set_bad_aside(warn)
        except OSError as error:
            self.close()
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from None
        except UserError:  # rows of a newer schema
            self.close()
            raise

    def append(self, row: Row) -> None:
        """Write the row. Raises UserError as ``write`` does."""
        self.write(to_json(row))

    def _set_bad_aside(self, warn: Callable[[str], None]) -> None:
        bad = {number: why for number, _, why in parsed(self.path) if isinstance(why, str)}
        if not bad:
            return
        for number, why in bad.items():
            if why == TOO_LONG:
                raise UserError(f"{self.path}:{number}: {why}; move this file away, or use another --out")
        aside = self.path.with_name(self.path.name + ".bad")
        whole = self.path.resolve()  # where the file is a link, what it leads to is replaced, not the link
        part = whole.with_name(f".{whole.name}.part")
        part.unlink(missing_ok=True)
        kept = open_locked(part)
        try:
            _split(self.path, set(bad), kept.fileno(), aside)
            os.replace(part, whole)
        except OSError:
            kept.close()
            part.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = kept
        for number, why in bad.items():
            warn(f"{self.path}:{number}: not a row, moved to {aside}: {why}")


def _refuse_other_files(path: Path) -> None:
    """UserError unless the file has a row, is empty or is not there. A broken or torn row counts where it begins as
    rows do. Most files are known by their first line."""
    if not path.is_file():
        return
    why = None
    for number, line, found in parsed(path):
        if isinstance(found, Row) or line.startswith(ROW_START) or ROW_START.startswith(line):
            return
        why = why or f"line {number}: {found}"
    if why is not None:
        raise UserError(f"{path}: no line of it is a row, expected a file of rows or a new one ({why})")


def _split(path: Path, bad: set[int], kept: int, aside: Path) -> None:
    """Append the lines with the ``bad`` numbers to ``aside``, and write all others, none of which is too long, to the
    file descriptor ``kept``; both are on the disk afterwards. Raises OSError."""
    with path.open("rb") as source, os.fdopen(os.dup(kept), "wb") as good, aside.open("ab") as other:
        for number, line in bounded(source):
            target = other if number in bad else good
            target.write(line or b"")
        for file in (good, other):
            file.flush()
            os.fsync(file.fileno())
