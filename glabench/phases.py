"""Where the time of a case goes: seconds by phase, of each process that worked on it. No torch here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from glabench.spec.settings import Part
from glabench.store import Row

# What a phase holds. Work that a GPU was given in one phase and does in the next counts for the next.
PHASES = {
    "start": "starting the process, importing torch, handing over the case and its row",
    "machine": "versions and commit, the CUDA context, the copy bandwidth; once a process",
    "system": "loading the system, whether it runs the case, which plan it takes",
    "inputs": "drawing inputs",
    "reference": "the right answer in float64, and the plain form's; once a process and question",
    "compile": "compiling ahead, and the first call: what it imports, compiles and tunes by itself",
    "gate": "the second call, and comparing both",
    "samples": "warming up and sampling, or all that a profile measures",
    "memory": "two calls for the peak of memory",
    "facts": "registers and spills of what was compiled",
    "release": "collecting garbage, giving memory back",
    "died": "in a process that died, was killed or answered no row",
    "rest": "all else",
}
# What a case cannot do without; the rest is what the harness adds.
NEEDED = ("reference", "compile", "gate", "samples")


@dataclass(frozen=True)
class Spent:
    """Where one process's time for one part of a case went.

    began: in seconds since 1970, as ``time.time``. seconds: by phase, a key of PHASES; together they are all of the
    time from ``began`` to the end. What is not there took none.
    """

    part: Part
    began: float
    seconds: dict[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def needed_s(self) -> float:
        """Seconds of the phases that a case cannot do without."""
        return sum(self.seconds.get(name, 0.0) for name in NEEDED)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def starting(self, seconds: float) -> Spent:
        """The same, with as many seconds of the phase "start" before it."""
        return Spent(self.part, round(self.began - seconds, 3), {"start": round(seconds, 3), **self.seconds})


class Phases:
    """A clock that says of each moment which phase it belongs to; that of a phase within another is not the other's.

    >>> phases = Phases()
    >>> with phases("inputs"):
    ...     x = make_inputs()
    """

    def __init__(self) -> None:
        self.began = time.time()
        self._seconds: dict[str, float] = {}
        self._open = ["rest"]
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """The block is of the phase ``name``, however it ends. KeyError for a name that is none of PHASES."""
        if name not in PHASES:
            raise KeyError(name)
        self._book()
        self._open.append(name)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def _book(self) -> None:
        now, name = time.perf_counter(), self._open[-1]
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now

    def spent(self, part: Part) -> Spent:
        """What there is so far, to the millisecond."""
        self._book()
        found = {name: round(self._seconds[name], 3) for name in PHASES if name in self._seconds}
        return Spent(part, round(self.began, 3), found)


def spent_of(row: Row) -> tuple[Spent, ...]:
    """What a row says of its time; nothing for a row older than that. ValueError where it says what cannot be."""
    return tuple(_spent(one) for one in row.spent or ())


def _spent(values: Any) -> Spent:
    try:
        seconds = {str(name): float(value) for name, value in values["seconds"].items()}
        found = Spent(values["part"], float(values["began"]), seconds)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"what a process spent is not said: {type(error).__name__}: {error}") from None
    unknown = sorted(set(seconds) - set(PHASES))
    if unknown:
        raise ValueError(f"{unknown[0][:40]!r} is no phase of a case")
    if not all(0 <= value < float("inf") for value in (found.began, *seconds.values())):
        raise ValueError("a process spent a time that is none")
    return found
