"""Processes that are forked from one that has imported: what they share with it, and what becomes of them without it.
How they answer and die is in test_child.py."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from glabench.run.child import Child, ChildDied
from glabench.run.forks import Forks

ANSWERING = """
import os
with open(os.environ["MARK"], "a") as file:
    print(os.getpid(), os.environ.get("WHOSE"), file=file)

def handle(request):
    said = {"pid": os.getpid(), "group": os.getpgrp(), "whose": os.environ.get("WHOSE")}
    return {**said, "fds": len(os.listdir("/proc/self/fd"))}
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the module ``answering`` says that it was imported, by whom, and in which environment."""
    (tmp_path / "answering.py").write_text(ANSWERING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    (tmp_path / "mark").touch()
    return tmp_path / "mark"


@pytest.fixture
def forks(mark: Path) -> Iterator[Forks]:
    made = Forks({"WHOSE": "all"}, ("answering",))
    yield made
    made.close()


def imported(mark: Path) -> list[str]:
    return [line.split()[1] for line in mark.read_text().splitlines()]


def test_what_was_imported_once_is_there_in_each_with_an_environment_of_its_own(forks: Forks, mark: Path) -> None:
    children = [Child("answering", {"WHOSE": whose}, forks=forks) for whose in ("first", "second")]
    first, second = (child.ask({}, 30) for child in children)
    assert [one["whose"] for one in (first, second)] == ["first", "second"]
    assert [one["pid"] for one in (first, second)] == [child.pid for child in children]
    assert [one["group"] for one in (first, second)] == [child.pid for child in children]
    assert imported(mark) == ["all"]
    assert first["fds"] == second["fds"]  # nothing of the first is open in the second
    for child in children:
        child.close()
    assert forks.pid is not None


def test_where_there_is_nothing_to_fork_from_a_process_imports_by_itself(mark: Path) -> None:
    forks = Forks({}, ("no_such_module",))
    child = Child("answering", {"WHOSE": "own"}, forks=forks)
    assert child.ask({}, 30)["whose"] == "own"
    assert imported(mark) == ["own"]
    child.close()
    forks.close()


def test_what_asked_for_a_gpu_as_it_was_imported_is_imported_anew(mark: Path) -> None:
    mark.with_name("torch.py").write_text("""
import os
started = os.getpid()

class cuda:
    _is_in_bad_fork = staticmethod(lambda: os.getpid() != started)
""")
    forks = Forks({"WHOSE": "all"}, ("torch", "answering"))
    child = Child("answering", {"WHOSE": "own"}, forks=forks)
    assert child.ask({}, 30)["pid"] == child.pid
    assert imported(mark) == ["all", "own"]
    child.close()
    forks.close()


def test_who_waits_for_a_process_is_let_go_when_no_more_are_forked(mark: Path) -> None:
    mark.with_name("endless.py").write_text("import time; time.sleep(600)")
    forks, found = Forks({}, ("endless",)), list[ChildDied]()

    def ask() -> None:
        with pytest.raises(ChildDied) as raised:
            Child("answering", forks=forks).ask({}, 30)
        found.append(raised.value)

    waiting = threading.Thread(target=ask)
    waiting.start()
    time.sleep(0.2)
    forks.stop()
    waiting.join(10)
    assert [(one.unborn, "stopped" in one.reason) for one in found] == [(True, True)]
    assert imported(mark) == []
    forks.close()
    assert forks.pid is None


def test_a_process_ends_with_the_one_it_was_forked_from(forks: Forks, mark: Path) -> None:
    child = Child("answering", {"WHOSE": "own"}, forks=forks)
    before = child.ask({}, 30)["pid"]
    assert forks.pid is not None
    os.kill(forks.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while child.pid is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child.pid is None
    after = child.ask({}, 30)  # in a process that imports by itself
    assert after["pid"] not in (None, before)
    assert imported(mark) == ["all", "own"]
    child.close()
