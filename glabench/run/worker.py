"""The process in which cases run, from both sides: a benchmark may crash, hang or corrupt its process.

The child, ``python -m glabench.run.worker --fd N``, reads one JSON request a line from stdin,
    {"case": {...}, "sweep": "quick", "settings": {...}}
and answers one JSON row a line on file descriptor N, which nothing else writes to: libraries may print what they like.
It leads a process group of its own and takes it down when stdin ends, so that nothing outlives a killed parent.

``Worker`` is the parent's side: it starts the child when it is needed, keeps it for the next case, and turns a death
or a missing answer into a row.
"""

from __future__ import annotations

import argparse
import contextlib
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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, BinaryIO

from glabench import store
from glabench.run.settings import Settings
from glabench.spec.case import Case
from glabench.store import Row

PIPELINE = "glabench.run.pipeline"
TAIL = 2000  # characters of a dead worker's stderr that go into the row


@dataclass
class Worker:
    """A child process that runs cases one after another. Used by one thread at a time, but for ``close``.

    env: changes to this process's environment, such as TRITON_INTERPRET=1 or the number of threads; None removes.
    environment: what goes into the rows of a child that died before it could say anything itself.
    pipeline: the module whose ``run_case`` the child calls.
    """

    env: dict[str, str | None] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    pipeline: str = PIPELINE
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _answers: int = field(default=-1, init=False, repr=False)
    _stderr: BinaryIO | None = field(default=None, init=False, repr=False)
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    _closed: bool = field(default=False, init=False, repr=False)
    _busy: bool = field(default=False, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def pid(self) -> int | None:
        """The running child's process id."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    def run(self, case: Case, sweep: str, settings: Settings, limit_s: float) -> Row:
        """One row, whatever happens: the child's own, or status crashed or timeout (after ``limit_s`` seconds)."""
        self._busy = True
        try:
            return self._run(case, sweep, settings, limit_s)
        finally:
            with self._lock:
                self._busy = False
                if self._closed:
                    self._release()

    def _run(self, case: Case, sweep: str, settings: Settings, limit_s: float) -> Row:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        clock = time.monotonic()
        request = json.dumps({"case": case.to_dict(), "sweep": sweep, "settings": settings.to_dict()})
        try:
            self._send(request)
            line = self._receive(limit_s)
        except TimeoutError:
            self.stop()
            status, reason, detail = "timeout", f"no result after {limit_s:g} s; the process was killed", None
        except (EOFError, BrokenPipeError):
            reason, detail = self._bury()
            status = "crashed"
        else:
            row = store.from_json(line)
            self._known = row.environment or self._known
            if row.status == "crashed":
                self.stop()  # an error on the device poisons every later call of its process
            return row
        return Row(
            case_id=case.id,
            sweep=sweep,
            case=case.to_dict(),
            status=status,
            reason=reason,
            detail=detail,
            environment=self._known or self.environment,
            started=started,
            wall_s=time.monotonic() - clock,
        )

    def stop(self) -> None:
        """Kill the child, if there is one, and everything that it started; the next case gets a new one."""
        child = self._child
        if child is not None:
            _kill_group(child.pid)
            child.wait()

    def close(self) -> None:
        """Kill the child for good. Safe to call from another thread: a ``run`` under way there ends as crashed."""
        with self._lock:
            self._closed = True
            self.stop()
            if not self._busy:  # else ``run`` does it, whose thread still reads the pipe
                self._release()

    def _send(self, request: str) -> None:
        if self.pid is None:
            self._release()
            with self._lock:
                if self._closed:
                    raise EOFError
                self._start()
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(request.encode() + b"\n")
        self._child.stdin.flush()

    def _start(self) -> None:
        env = {**os.environ, **self.env}
        self._answers, theirs = os.pipe()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the child)
        command = [sys.executable, "-m", "glabench.run.worker", "--fd", str(theirs), "--pipeline", self.pipeline]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=(theirs,),
                env={name: value for name, value in env.items() if value is not None},
                start_new_session=True,  # its own group, and Ctrl-C reaches the driver alone
            )
        finally:
            os.close(theirs)

    def _receive(self, limit_s: float) -> str:
        """The next line of the child. TimeoutError after ``limit_s`` seconds, EOFError when the child is gone."""
        deadline = time.monotonic() + limit_s
        buffer = bytearray()
        while not buffer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise TimeoutError
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                raise EOFError
            buffer += piece
        return buffer.decode()

    def _bury(self) -> tuple[str, str | None]:
        """Why the child died, and the last that it printed."""
        if self._child is None:
            return "the sweep was stopped before the case began", None
        try:
            code = self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:  # it closed its pipe and lives on
            self.stop()
            code = self._child.wait()
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
            reason = f"the process was killed by {name}"
            if name == "SIGKILL":
                reason += " (by hand, or for want of memory)"
        else:
            reason = f"the process ended by itself with exit code {code}"
        _kill_group(self._child.pid)  # whatever it had started
        tail = None
        if self._stderr is not None:
            self._stderr.seek(0)
            tail = self._stderr.read()[-TAIL:].decode(errors="replace").strip() or None
        return reason, tail

    def _release(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # a request that a dead child never read
                self._child.stdin.close()
        if self._answers >= 0:
            os.close(self._answers)
        if self._stderr is not None:
            self._stderr.close()
        self._child, self._answers, self._stderr = None, -1, None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all gone already
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    """The child's side."""
    parser = argparse.ArgumentParser(prog="glabench.run.worker", description="Runs cases for `glabench sweep`.")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor that rows are written to")
    parser.add_argument("--pipeline", default=PIPELINE, help="module that offers run_case")
    options = parser.parse_args()
    os.set_inheritable(options.fd, False)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    with os.fdopen(options.fd, "w", encoding="utf-8") as answers:
        run_case = importlib.import_module(options.pipeline).run_case
        while True:
            request = json.loads(requests.get())
            settings = Settings.from_dict(request["settings"])
            row: Row = run_case(Case.from_dict(request["case"]), request["sweep"], settings)
            answers.write(store.to_json(row) + "\n")
            answers.flush()


def _listen(requests: queue.Queue[str]) -> None:
    """Pass requests on; when stdin ends, the parent is gone or done with us: end at once, mid-case or not."""
    for line in sys.stdin:
        requests.put(line)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
