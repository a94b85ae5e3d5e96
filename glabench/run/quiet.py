"""Nothing else runs while samples are taken: a process that times asks its parent to stop those that compile.

The parent stops them by a signal, which takes effect at once, and not between two kernels that each take seconds to
compile; it lets them go on afterwards, whatever became of the process that asked.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from glabench.run import parent

NOTE = "quiet"


@contextmanager
def quiet() -> Iterator[None]:
    """Meanwhile no process compiles that the parent started. Where there is no parent to ask there is none."""
    parent.tell({NOTE: True})
    try:
        yield
    finally:
        parent.tell({NOTE: False})


class Process(Protocol):
    """What leads a process group, while it runs."""

    @property
    def pid(self) -> int | None: ...


class Calm:
    """The parent's side: the processes that are to be still while another one takes samples. Used by many threads."""

    def __init__(self) -> None:
        self._processes: list[Process] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._over.set()

    def add(self, process: Process) -> None:
        self._processes.append(process)

    def wait(self) -> None:
        """Until no samples are taken, where a process is about to be started."""
        self._over.wait()

    def told(self, note: dict[str, Any]) -> None:
        """What a process that times has asked for."""
        self.still(bool(note.get(NOTE)))

    def still(self, wanted: bool) -> None:
        """Stop the processes, or let them go on."""
        with self._lock:
            if wanted:
                self._over.clear()
            for pid in [process.pid for process in list(self._processes)]:
                if pid is not None:
                    with suppress(ProcessLookupError):  # it ended meanwhile
                        os.killpg(pid, signal.SIGSTOP if wanted else signal.SIGCONT)
            if not wanted:
                self._over.set()
