"""Processes that begin with what another one has imported: forks of it, in place of as many that import the same.

``Forks`` is the parent's side. Its process, ``python -m glabench.run.forks --fd N --imports ..``, imports, and then
forks for each request on a socket: {"env", "module", "imports"}, with the descriptors of the new process's stdin,
of its output, of its answers, and one that its exit code is written to once it has ended. The reply is its process id.
Forked it goes on as `glabench.run.child` does. The process to fork from starts no thread and asks for no GPU; where an
import does, the new process begins as any other one.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from glabench.run import child

MAX_BYTES = 1 << 20  # of a request
LIMIT_S = 120.0  # for a reply: what imports for longer is done without
LOOK_S = 0.05


@dataclass
class Forked:
    """A process that was forked, as `subprocess.Popen` has it. Used by many threads."""

    pid: int
    stdin: BinaryIO
    _status: BinaryIO
    _code: int | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def poll(self) -> int | None:
        """Its exit code, or less than 0 for a signal; None while it runs. With the process that it was forked from it
        ends, too."""
        with self._lock:
            if self._code is None and select.select([self._status], [], [], 0)[0]:
                said = self._status.read()
                if not said:
                    with suppress(ProcessLookupError):
                        os.killpg(self.pid, signal.SIGKILL)
                self._code = int(said or -signal.SIGKILL)
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """`poll` once it has ended. subprocess.TimeoutExpired where that takes longer than ``timeout`` seconds."""
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired("a fork", timeout)
            select.select([self._status], [], [], LOOK_S)
        return code


class Forks:
    """A process to fork from. Used by many threads.

    env: changes to this process's environment for what is imported; None removes. imports: the modules.
    """

    def __init__(self, env: Mapping[str, str | None], imports: Sequence[str]) -> None:
        self._closed = False
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(LIMIT_S)
        given = {**os.environ, **env}
        command = [sys.executable, "-m", "glabench.run.forks", "--fd", str(theirs.fileno()), "--imports", *imports]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={name: value for name, value in given.items() if value is not None},
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        return self._process.pid if self._process.poll() is None else None

    def start(
        self, env: Mapping[str, str], module: str, imports: Sequence[str], output: int, answers: int
    ) -> Forked | None:
        """A process with this whole environment that serves ``module``, as `child.serve` does; output, answers: its
        descriptors. Waits until all is imported; None where there is nothing to fork from. OSError once closed."""
        asked = json.dumps({"env": dict(env), "module": module, "imports": list(imports)}).encode()
        stdin, ours = os.pipe()
        status, theirs = os.pipe()
        with os.fdopen(stdin, "rb"), os.fdopen(theirs, "wb"), self._lock:
            forked = (os.fdopen(ours, "wb"), os.fdopen(status, "rb"))
            try:
                socket.send_fds(self._socket, [asked], [stdin, output, answers, theirs])
                pid = int(self._socket.recv(64))
            except (OSError, ValueError):  # it has ended, or takes too long
                if self._closed:
                    raise OSError(0, "stopped before it began") from None
                self._kill()
                return None
        return Forked(pid, *forked)

    def stop(self) -> None:
        """Fork no more, and let who waits for a process go. What was forked lives on."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and with it what was forked."""
        self.stop()
        self._kill()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    """The side of the process that is forked from."""
    parser = argparse.ArgumentParser(prog="glabench.run.forks", description="Forks when it is asked to.")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the socket that requests come by")
    parser.add_argument("--imports", nargs="*", default=[], help="modules that are imported beforehand")
    options = parser.parse_args()
    asking = socket.socket(fileno=options.fd)
    asking.set_inheritable(False)
    for name in options.imports:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no collection writes to pages that all forks share
    ended, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}  # by process id: where its exit code is written to
    asked = True
    while asked or statuses:
        ready, _, _ = select.select([asking, ended] if asked else [ended], [], [])
        if ended in ready:
            ended.recv(1 << 10)
            _tell_of_ended(statuses)
        if asking in ready:
            request, fds, _, _ = socket.recv_fds(asking, MAX_BYTES, 4)
            if not request:  # the parent is gone, or wants no more
                asked = False
                continue
            *its, status = fds
            if (pid := os.fork()) == 0:
                for one in (asking.fileno(), ended.fileno(), status, *statuses.values()):
                    os.close(one)
                _become(json.loads(request), *its)
            with suppress(OSError):  # of both sides whichever is first
                os.setpgid(pid, pid)
            for fd in its:
                os.close(fd)
            statuses[pid] = status
            asking.send(str(pid).encode())


def _tell_of_ended(statuses: dict[int, int]) -> None:
    """Write the exit codes of those that have ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = statuses.pop(ended[0])
            with suppress(BrokenPipeError), os.fdopen(status, "wb") as file:
                file.write(str(os.waitstatus_to_exitcode(ended[1])).encode())


def _become(request: dict[str, Any], stdin: int, output: int, answers: int) -> None:
    """In the fork: what `glabench.run.child` is, in a process group of its own. Does not come back."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with suppress(OSError):
            os.setpgid(0, 0)
        for fd, place in ((stdin, 0), (output, 1), (output, 2)):
            os.dup2(fd, place)
        os.close(stdin)
        os.close(output)
        os.environ.clear()
        os.environ.update(request["env"])
        command = child.command(answers, request["module"], request["imports"])
        sys.argv[1:] = command[3:]
        if _poisoned():
            os.set_inheritable(answers, True)
            os.execv(sys.executable, command)
        child.serve(answers, request["module"], request["imports"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _poisoned() -> bool:
    """Whether CUDA was asked before the fork: it cannot be used after it."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda._is_in_bad_fork())


if __name__ == "__main__":
    main()
