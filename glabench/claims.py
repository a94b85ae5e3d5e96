"""What several processes compile together: each thing is claimed by a file before it is begun, so that none is done
twice and none waits for another while there is anything left. No torch.

A claim is a file named after the thing, with the process in it; a second file says that it is done. Both lie in a
folder of one run, which its environment names; where it names none every process does everything.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

FOLDER, HELPS = "GLABENCH_CLAIMS", "GLABENCH_HELPS"  # of the environment
LOOK_S = 0.05

Thing = TypeVar("Thing")
Made = TypeVar("Made")


@dataclass
class Claims:
    """What this process does of all there is. ``helps``: it does what it can, and the rest is others' concern."""

    folder: Path | None = None
    helps: bool = False
    _refused: set[str] = field(default_factory=set, init=False)

    @classmethod
    def of_environment(cls) -> Claims:
        folder = os.environ.get(FOLDER)
        return cls(Path(folder) if folder else None, bool(os.environ.get(HELPS)))

    @contextmanager
    def take(self, thing: str) -> Iterator[bool]:
        """Whether the thing is this process's to do, within; it counts as done at the end, however it ends."""
        if self.folder is None:
            yield True
            return
        name = hashlib.sha256(thing.encode()).hexdigest()[:32]
        if not self._claimed(self.folder / name):
            self._refused.add(name)
            yield False
            return
        try:
            yield True
        finally:
            (self.folder / f"{name}.done").touch()

    def _claimed(self, path: Path) -> bool:
        """Whether the claim is ours now: nobody has it, or who had it is gone without having done it."""
        own = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        own.write_text(str(os.getpid()))  # linked once it is written, for others read it
        try:
            os.link(own, path)
        except FileExistsError:
            if self._done(path.name) or _holder(path) is not None:
                return False
            own.replace(path)
            return True
        finally:
            own.unlink(missing_ok=True)
        return True

    def _done(self, name: str) -> bool:
        assert self.folder is not None  # there are no claims without it
        return (self.folder / f"{name}.done").exists()

    def wait(self) -> None:
        """Until all that others had claimed is done, or they are gone; not where this process helps."""
        while not self.helps and self.folder is not None:
            held = {name for name in self._refused if not self._done(name) and _holder(self.folder / name) is not None}
            if not held:
                return
            self._refused = held
            time.sleep(LOOK_S)

    def made(self, things: Mapping[str, Thing], make: Callable[[Thing], Made]) -> dict[str, Made]:
        """What ``make`` makes of each thing, by its key and in their order: first of those that nobody has claimed,
        then of what others have done meanwhile, which is to be had for little; where this process helps, of the first
        alone."""
        found: dict[str, Made] = {}
        for key, thing in things.items():
            with self.take(key) as ours:
                if ours:
                    found[key] = make(thing)
        self.wait()
        rest = {} if self.helps else {key: make(thing) for key, thing in things.items() if key not in found}
        return {key: (found | rest)[key] for key in things if key in found or key in rest}


def _holder(path: Path) -> int | None:
    """The process that has a claim, where it is there."""
    with suppress(OSError, ValueError):
        pid = int(path.read_text())
        os.kill(pid, 0)
        return pid
    return None
