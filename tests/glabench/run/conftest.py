"""A pipeline that misbehaves on request, for the processes that must survive it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# What run_case does is chosen by the case's seed. Every call adds a line to the file named by CALLS.
MISBEHAVING = """
import contextlib, os, signal, subprocess, sys, time
from glabench.run.quiet import quiet
from glabench.store import Row

def prepare(case, settings):
    with open(os.environ["CALLS"], "a") as file:
        print(case.id, "ahead", os.getpid(), None, None, file=file)
    return [{"part": settings.part, "began": time.time(), "seconds": {"reference": 1.5}}]

def run_case(case, sweep, settings):
    with open(os.environ["CALLS"], "a") as file:
        print(case.id, settings.part, os.getpid(), os.environ.get("TRITON_INTERPRET"),
              os.environ.get("CUDA_VISIBLE_DEVICES"), file=file)
    status, reason = "ok", None
    if case.seed == 1:
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if case.seed == 2:
        time.sleep(600)
    if case.seed == 3:
        sys.exit(3)
    if case.seed == 4:
        print('{"not": "a row"}', flush=True)
        os.write(1, b"noise without an end")
    if case.seed == 5:
        child = subprocess.Popen(["sleep", "600"])
        with open(os.environ["CALLS"] + ".child", "w") as file:
            file.write(str(child.pid))
        time.sleep(600)
    if case.seed == 6:
        status = "crashed"
    if case.seed == 7:
        time.sleep(0.3)
    if case.seed == 8:  # dies at the first try only
        mark = os.environ["CALLS"] + ".tried"
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    if case.seed == 9:  # as Ray's process on a machine that is lost
        mark = os.environ["CALLS"] + ".lost"
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(600)
    if case.seed == 13 and settings.part == "compile":  # what two processes do sooner than one
        mark = os.environ["CALLS"] + ".begun"
        try:
            open(mark, "x").close()  # of two that come at the same time one is the first
        except FileExistsError:
            open(mark + ".helped", "w").close()
            time.sleep(600)
        while not os.path.exists(mark + ".helped"):
            time.sleep(0.01)
    if case.seed == 14 and settings.part == "compile":  # until another case was timed
        with open(os.environ["CALLS"] + ".compiling", "w") as file:
            file.write(str(os.getpid()))
        while not os.path.exists(os.environ["CALLS"] + ".timed"):
            time.sleep(0.01)
    if case.seed in (15, 16) and settings.part == "all":  # takes samples, and says how the process that compiles is
        compiling = os.environ["CALLS"] + ".compiling"
        while not os.path.exists(compiling) or not open(compiling).read():
            time.sleep(0.01)
        for state in (contextlib.nullcontext(), quiet()):
            with state, open(os.environ["CALLS"] + ".states", "a") as file:
                still = not isinstance(state, contextlib.nullcontext)
                stat = open(f"/proc/{open(compiling).read()}/stat")
                while True:  # a process that runs is stopped at its core's next interrupt
                    how = stat.read().split(") ")[1][0]
                    if how == "T" or not still:
                        break
                    time.sleep(0.01)
                    stat.seek(0)
                print(how, file=file, flush=True)
                if still:  # it ends once it goes on
                    open(os.environ["CALLS"] + ".timed", "w").close()
                    if case.seed == 16:
                        os.kill(os.getpid(), signal.SIGKILL)
    facts = {"fingerprint": "f", "device_slug": "d", "said_by": "child"}
    if case.seed == 17:
        status, facts["lacks"] = "unsupported", "the package absent is not installed"
        reason = "the package absent is not installed; pip install absent"
    if case.seed == 18:
        status, facts["lacks"] = "crashed", "No module named 'absent'"
        reason = "ModuleNotFoundError: No module named 'absent'"
    spent = [{"part": settings.part, "began": time.time(), "seconds": {"gate": 0.0}}] if case.seed == 12 else None
    return Row(case.id, sweep, case.to_dict(), status, reason, implementation=settings.part, environment=facts,
               started="2026", spent=spent)
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the module ``misbehaving`` on the path of child processes; the file that it notes its calls in."""
    (tmp_path / "misbehaving.py").write_text(MISBEHAVING)
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("CALLS", str(path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return path
