"""A process that may die, from both sides: what crashes, hangs or corrupts its process costs one answer, no more.

The child, ``python -m glabench.run.child --fd N --module M``, reads one JSON object a line from stdin, calls
``M.handle`` with it and writes the object that comes back as a line on file descriptor N, which nothing else writes to:
libraries may print what they like. It leads a process group of its own and takes it down when stdin ends, so that
nothing outlives a killed parent.

Meanwhile it may ask for something (``glabench.run.parent``): a line {"note": ..} on the same descriptor, and a line
that comes back once it is heard.

``Child`` is the parent's side: it starts the process when it is needed and keeps it for the next request.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from glabench.run import parent

if TYPE_CHECKING:
    from glabench.run.forks import Forked, Forks

TAIL = 2000  # bytes of a dead child's output that are kept
MAX_ANSWER_BYTES = 64 * 2**20  # as long as a line of results may be
MAX_OUTPUT_BYTES = 64 * 2**20  # of what a child prints, begun again when it is more; looked at once a second
LOOK_S = 1.0


class ChildTimeout(Exception):
    """No answer within the limit; the process was killed."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"no result after {limit_s:g} s; the process was killed")


class ChildDied(Exception):
    """The process died before it answered. ``reason``: one line; ``detail``: the last that it printed; ``unborn``: it
    was never there, for the machine could not start it."""

    def __init__(self, reason: str, detail: str | None = None, unborn: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.detail, self.unborn = reason, detail, unborn


@dataclass
class Child:
    """A process that answers requests one after another. Used by one thread at a time, but for ``close``.

    module: offers ``handle(request: dict) -> dict``; an exception in it ends the process.
    env: changes to this process's environment, such as TRITON_INTERPRET=1 or the number of threads; None removes.
    imports: modules that the process imports as it starts, before there is a request.
    told: is given what the process tells while it works on a request.
    forks: what the process is forked from, where that is there.
    """

    module: str
    env: dict[str, str | None] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    told: Callable[[dict[str, Any]], None] | None = None
    forks: Forks | None = None
    _process: subprocess.Popen[bytes] | Forked | None = field(default=None, init=False, repr=False)
    _answers: int = field(default=-1, init=False, repr=False)
    _output: BinaryIO | None = field(default=None, init=False, repr=False)
    _closed: bool = field(default=False, init=False, repr=False)
    _busy: bool = field(default=False, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def pid(self) -> int | None:
        """The running process's id."""
        process = self._process  # another thread may close it
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the process, unless it runs already, so that its imports are done when the first request comes."""
        with self._lock:
            if not self._closed and self.pid is None:
                self._release()
                self._start()

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The process's answer. Raises ChildTimeout after ``limit_s`` seconds, the start of a new process included,
        and ChildDied; either way the next request gets a new process."""
        with self._lock:
            if self._closed:
                raise ChildDied("stopped before it began")
            self._busy = True
        try:
            self._start_or_die()
            self._send(request)
            deadline = time.monotonic() + limit_s
            while (note := (answer := _answer(self._receive(deadline))).get("note")) is not None:
                if self.told is not None:
                    self.told(note)
                self._send({"heard": True})
            return answer
        except TimeoutError:
            self.stop()
            raise ChildTimeout(limit_s) from None
        except ValueError as error:
            self.stop()
            raise ChildDied(f"the process answered what is no answer: {error}", self._last_words()) from None
        except (EOFError, BrokenPipeError):
            raise self._bury() from None
        except BaseException:  # Ctrl-C: an answer that comes late would be taken for the next request's
            self.stop()
            raise
        finally:
            with self._lock:
                self._busy = False
                if self._closed:
                    self._release()

    def stop(self) -> None:
        """Kill the process, if there is one, and everything that it started; the next request gets a new one."""
        process = self._process
        if process is not None:
            _kill_group(process.pid)
            process.wait()

    def close(self) -> None:
        """Kill the process for good. Safe to call from another thread: an ``ask`` under way there ends in ChildDied."""
        with self._lock:
            self._closed = True
            self.stop()
            if not self._busy:  # else ``ask`` does it, whose thread still reads the pipe
                self._release()

    def _start_or_die(self) -> None:
        """Start the process; ChildDied when the machine cannot: no memory, no file, no process left."""
        try:
            self.start()
        except OSError as error:
            raise ChildDied(f"the process could not be started: {error.strerror}", unborn=True) from None

    def _start(self) -> None:
        env = {**os.environ, **self.env}
        self._answers, theirs = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        # What is written goes to the end, wherever that is: the file can be cut while a process writes to it.
        fcntl.fcntl(self._output, fcntl.F_SETFL, fcntl.fcntl(self._output, fcntl.F_GETFL) | os.O_APPEND)
        given = {name: value for name, value in env.items() if value is not None}
        try:
            if self.forks is not None:
                self._process = self.forks.start(given, self.module, self.imports, self._output.fileno(), theirs)
            self._process = self._process or subprocess.Popen(
                command(theirs, self.module, self.imports),
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(theirs,),
                env=given,
                start_new_session=True,  # its own group, and Ctrl-C reaches the parent alone
            )
        finally:
            os.close(theirs)

    def _send(self, request: dict[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None:  # closed meanwhile
            raise EOFError
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()

    def _receive(self, deadline: float) -> str:
        """The next line of the process. TimeoutError when it is later than that, EOFError when the process is gone,
        ValueError when the line is too long or not in UTF-8."""
        buffer = bytearray()
        while not buffer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._bound_output()
            if not select.select([self._answers], [], [], min(left, LOOK_S))[0]:
                if self.pid is None:  # it died, and something that it had started holds the pipe open
                    raise EOFError
                continue
            if len(buffer) > MAX_ANSWER_BYTES:
                raise ValueError(f"more than {MAX_ANSWER_BYTES >> 20} MiB")
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                raise EOFError
            buffer += piece
        return buffer.decode()

    def _bury(self) -> ChildDied:
        """Why the process died, and the last that it printed."""
        process = self._process
        if process is None:
            return ChildDied("stopped before it began")
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # it closed its pipe and lives on
            self.stop()
            code = process.wait()
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
            reason = f"the process was killed by {name}"
            if name == "SIGKILL":
                reason += " (by hand, or for want of memory)"
        else:
            reason = f"the process ended by itself with exit code {code}"
        _kill_group(process.pid)  # whatever it had started
        return ChildDied(reason, self._last_words())

    def _bound_output(self) -> None:
        """Forget what the process printed when it is more than anyone reads: it must not fill the disk."""
        if self._output is not None and os.fstat(self._output.fileno()).st_size > MAX_OUTPUT_BYTES:
            os.ftruncate(self._output.fileno(), 0)

    def _last_words(self) -> str | None:
        """The end of what the process printed."""
        if self._output is None:
            return None
        size = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), TAIL, max(0, size - TAIL))
        return tail.decode(errors="replace").strip() or None

    def _release(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # a request that a dead process never read
                self._process.stdin.close()
        if self._answers >= 0:
            os.close(self._answers)
        if self._output is not None:
            self._output.close()
        self._process, self._answers, self._output = None, -1, None


def command(fd: int, module: str, imports: Sequence[str]) -> list[str]:
    """The command line of a child that answers on this descriptor."""
    parts = [sys.executable, "-m", "glabench.run.child", "--fd", str(fd), "--module", module]
    return [*parts, "--imports", *imports]


def _answer(line: str) -> dict[str, Any]:
    """The object that a line holds. ValueError when it holds none: something else wrote to the pipe."""
    try:
        answer = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(answer, dict):
        raise ValueError(f"{type(answer).__name__}, not an object")
    return answer


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all gone already
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    """The child's side."""
    parser = argparse.ArgumentParser(prog="glabench.run.child", description="Answers requests of a parent process.")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor that answers are written to")
    parser.add_argument("--module", required=True, help="module that offers handle(request)")
    parser.add_argument("--imports", nargs="*", default=[], help="other modules, imported beforehand")
    options = parser.parse_args()
    serve(options.fd, options.module, options.imports)


def serve(fd: int, module: str, imports: Sequence[str]) -> None:
    """Answer requests until stdin ends, and the process with it."""
    os.set_inheritable(fd, False)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    with os.fdopen(fd, "w", encoding="utf-8") as answers:
        parent.connect(answers, requests)
        handle = importlib.import_module(module).handle
        for name in imports:
            importlib.import_module(name)
        while True:
            answer: dict[str, Any] = handle(json.loads(requests.get()))
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _listen(requests: queue.Queue[str]) -> None:
    """Pass requests on; when stdin ends, the parent is gone or done with us: end at once, mid-request or not."""
    for line in sys.stdin:
        requests.put(line)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
