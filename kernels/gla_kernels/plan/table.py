"""Tables of tuned plans: what is in the JSON files that a tuner writes and gla() reads, and what is believed of it.

{"header": {"format": 1, "device": "NVIDIA H200", "memory_bytes": ..., "capability": 90, "triton": "3.6.0",
            "kernels": hash, "space": hash},
 "entries": [{"workload": {...}, "class": {...}, "plan": {...}, "ms": median when it was tuned}, ...]}
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import triton

from ..schedule import BLOCK_TS, CHUNKS, FEW_WALKS, PASSES, Plan, Workload, padded
from .apply import all_launches
from .limits import why_not
from .meaning import meaning_of
from .space import SEGMENTS, SPACE, WALK

FORMAT = 1
# What tables call the sources that plans were tuned with, by what the sources mean (`kernels_hash`): plans tuned under
# a name are not outdated wherever the meaning has that name. A meaning that is not here is its own name. One comes here
# where sources are others and plans hold: CONTRIBUTING.md, "Move or rename kernels".
LINEAGE = {
    "06a6e7741b1d9583": "28b8cfb22576a567",  # a hash of bytes
    "7b0623f34eaf5fb6": "28b8cfb22576a567",  # moved and renamed: every launch as before, but for copies between slices
    "43fec845499bce85": "28b8cfb22576a567",  # few states kept: the kernel for it has no tiles to choose
    "73c116c0d16f9670": "28b8cfb22576a567",  # another kernel for few states where V is wide; names for all Tritons
    "f59415fa4449b694": "28b8cfb22576a567",  # packed sequences, gates in float32 and -inf: the rest is as before
    "1973f65e48d0124b": "28b8cfb22576a567",  # float32 gates and packed sequences by other ways: the rest is as before
    "8a8c9adb33394f9d": "28b8cfb22576a567",  # walks of K = 256, which no plan before had: the rest is as before
    "81db4be99d59b1f3": "28b8cfb22576a567",  # barriers and registers under one name; what is prepared needs descriptors
    "6602073114801c27": "28b8cfb22576a567",  # K = 256 walks packed, in turns, first over segments; wide V as before
    "e187ccbe63d9a569": "28b8cfb22576a567",  # another name for what Triton 3.9 calls differently
    "193cc48fe204df99": "28b8cfb22576a567",  # ranks; strong gates by halving; few chunks; frames: else as before
    "209a143dd0750485": "28b8cfb22576a567",  # passes over states begin again where gates are -inf: else as before
}
MAX_BYTES = 16 * 2**20  # of a file
MAX_ENTRIES = 50_000  # about as many fit in
MOST_MS = 1e12  # of a median; a year is 3e10 ms


class TableError(Exception):
    """A table that cannot be read or written; one line."""


@dataclass(frozen=True)
class ShapeClass:
    """Workloads of one class share a plan that was tuned on the same GPU.

    T is rounded to the nearest power of two, at least 16; heads, which is B*H, to the nearest of 1, 2, 3, 4, 6, 8, 12,
    16, 24 ...: how many programs there are decides which tiles fill the GPU, while longer sequences only repeat them. K
    and V are padded as in the kernels.
    """

    T: int
    heads: int
    K: int
    V: int


def shape_class(work: Workload) -> ShapeClass:
    """The class of a workload: T=6000 is in that of 8192, T=5000 in that of 4096."""
    heads = work.B * work.H
    powers = {2**n for n in range(heads.bit_length() + 1)}
    steps = powers | {3 * power for power in powers}
    nearest = min(sorted(steps), key=lambda step: abs(math.log2(step / heads))) if heads else 1
    return ShapeClass(max(16, _rounded(work.T)), nearest, padded(work.K), padded(work.V))


def key_of(work: Workload) -> tuple[object, ...]:
    """A key of all workloads of which one is tuned, where tuning is asked for in a call."""
    return work.direction, work.dtype, work.gate_dtype, work.gated, work.schedule, shape_class(work)


def _rounded(n: int) -> int:
    """The power of two nearest to n by ratio; 1 for anything below."""
    return int(2 ** round(math.log2(max(1, n))))


@dataclass(frozen=True)
class Machine:
    """The GPU that a plan is for: compute capability as a number (90 for 9.0), name and memory.

    Without a name it stands for any GPU of that capability: for cross-compilation, and for Triton's interpreter.
    """

    capability: int
    device: str | None = None
    memory_bytes: int = 0


@dataclass(frozen=True)
class Header:
    """The GPU, versions and hashes that a table's entries were found with."""

    device: str
    memory_bytes: int
    capability: int
    triton: str
    kernels: str  # what the sources that launch the kernels mean: `kernels_hash`
    space: str  # hash of the search space
    format: int = FORMAT

    @property
    def outdated(self) -> str | None:
        """Which of what the kernels' sources mean and Triton is another now, in a few words; None for neither."""
        others = ["other kernels"] if self.kernels != kernels_hash() else []
        if self.triton != triton.__version__:
            others.append(f"Triton {self.triton}, and this is {triton.__version__}")
        return " and ".join(others) or None


def header_of(machine: Machine) -> Header:
    """The header that tables of this machine have now. Raises TableError for a machine without a name."""
    if machine.device is None:
        raise TableError("a table of tuned plans belongs to a GPU, and there is none here")
    return Header(
        machine.device, machine.memory_bytes, machine.capability, triton.__version__, kernels_hash(), space_hash()
    )


@cache
def kernels_hash() -> str:
    """Sixteen hex digits of what the sources mean that make a plan's launches, or those that `LINEAGE` has for it."""
    return first_of_line(meaning_of(all_launches, Plan, Workload))


def first_of_line(meaning: str) -> str:
    """The hash of the first kernels whose plans are those of kernels with this hash: see `LINEAGE`."""
    return LINEAGE.get(meaning, meaning)


@cache
def space_hash() -> str:
    """Sixteen hex digits of the search space's declaration."""
    return _hash(repr((sorted(SPACE.items()), BLOCK_TS, CHUNKS, PASSES, SEGMENTS, WALK, FEW_WALKS)).encode())


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


@dataclass(frozen=True)
class Entry:
    """A plan, the workload that it was tuned for, and its median time then, in ms."""

    work: Workload
    plan: Plan
    ms: float

    @cached_property
    def shape(self) -> ShapeClass:
        return shape_class(self.work)

    @property
    def key(self) -> tuple[object, ...]:
        """A table has one entry of each: its workload, but for how heads and sequences make up as many."""
        work = self.work
        kind = (work.direction, work.dtype, work.gate_dtype, work.gated, work.schedule)
        return (*kind, work.B * work.H, work.T, work.K, work.V)

    def to_dict(self) -> dict[str, Any]:
        work, plan = self.work.to_dict(), self.plan.to_dict()
        return {"workload": work, "class": asdict(self.shape), "plan": plan, "ms": self.ms}

    @classmethod
    def from_dict(cls, values: dict[str, Any], capability: int) -> Entry:
        """The inverse of ``to_dict``. Raises ValueError, TypeError, LookupError or AttributeError for anything that a
        tuner on a GPU of that capability cannot have written."""
        work, plan, ms = Workload.from_dict(values["workload"]), Plan.from_dict(values["plan"]), values["ms"]
        if not work.B * work.T * work.H:
            raise ValueError("workload: expected B, T and H > 0")
        if values["class"] != asdict(shape_class(work)):
            raise ValueError("class: not that of the workload")
        if type(ms) not in (int, float) or not 0 < ms < MOST_MS:
            raise ValueError(f"ms: expected a time > 0, got {ms!r}")
        if work.schedule not in (None, plan.schedule):
            raise ValueError("plan: not of the schedule that was asked for")
        reason = why_not(plan, work, capability)
        if reason is not None:
            raise ValueError(f"plan: {reason}")
        return cls(work, plan, ms)


@dataclass(frozen=True)
class Table:
    """A table's header, its sound entries, and why the others were refused, a line each."""

    header: Header
    entries: tuple[Entry, ...]
    refused: tuple[str, ...] = ()


def read(path: Path) -> Table | None:
    """The table in a file, None where there is no file. Raises TableError for what is no table of this format."""
    try:
        if path.is_fifo():  # which would be waited for
            raise TableError("cannot be read: it is a pipe")
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
        values = json.loads(text)
        if values["header"]["format"] != FORMAT:
            raise ValueError(f"format {values['header']['format']!r}, this version reads {FORMAT}")
        header, listed = Header(**values["header"]), list(values["entries"])
        if len(listed) > MAX_ENTRIES:
            raise ValueError(f"more than {MAX_ENTRIES:,} entries")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise TableError(f"no table of tuned plans: {_line(error)}") from None
    entries: dict[object, Entry] = {}
    refused = []
    for number, item in enumerate(listed, start=1):
        try:
            entry = Entry.from_dict(item, header.capability)
            entries[entry.key] = entry
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            refused.append(f"entry {number}: {_line(error)}")
    return Table(header, tuple(entries.values()), tuple(refused))


def _line(error: Exception) -> str:
    """A short line that says what was wrong."""
    text = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return text.splitlines()[0][:200]
