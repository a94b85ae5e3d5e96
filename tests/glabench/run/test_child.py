"""A child process that answers, dies, hangs and prints: what its parent gets to know, and that the next one answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glabench.run import child as child_module
from glabench.run.child import Child, ChildDied, ChildTimeout
from glabench.run.forks import Forks

ANSWERING = """
import os, signal, sys, time
print("imported", flush=True)

def handle(request):
    if "write" in request:
        fd = next(int(word) for before, word in zip(sys.argv, sys.argv[1:]) if before == "--fd")
        os.write(fd, request["write"].encode())
    if "print" in request:
        for _ in range(request["print"]):
            os.write(1, b"x" * 1000)
            time.sleep(0.01)
    if "sleep" in request:
        time.sleep(request["sleep"])
    if "raise" in request:
        raise ValueError(request["raise"])
    if "fork" in request and os.fork() == 0:
        time.sleep(60)
    if "fork" in request:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "exit" in request:
        print("last words", file=sys.stderr, flush=True)
        os._exit(request["exit"])
    return {"pid": os.getpid(), "echo": request, "flag": os.environ.get("FLAG")}
"""


@pytest.fixture(params=["started", "forked"])
def child(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    (tmp_path / "answering.py").write_text(ANSWERING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FLAG", "parent's")
    forks = Forks({}, ("json",)) if request.param == "forked" else None
    made = Child("answering", {"FLAG": "child's"}, forks=forks)
    yield made
    made.close()
    if forks is not None:
        forks.close()


def test_requests_are_answered_by_one_process_in_its_own_environment(child: Child) -> None:
    assert child.pid is None
    first, second = child.ask({"text": "å\n"}, 30), child.ask({}, 30)
    assert first == {"pid": child.pid, "echo": {"text": "å\n"}, "flag": "child's"}
    assert second["pid"] == first["pid"]


def test_a_process_started_beforehand_is_the_one_that_answers(child: Child) -> None:
    child.start()
    started = child.pid
    child.start()
    assert child.ask({}, 30)["pid"] == started


def test_an_exception_and_an_exit_say_why_and_the_next_request_is_answered(child: Child) -> None:
    with pytest.raises(ChildDied, match="exit code 1") as raised:
        child.ask({"raise": "no such thing"}, 30)
    assert (raised.value.detail or "").endswith("ValueError: no such thing")
    with pytest.raises(ChildDied, match="exit code 3") as raised:
        child.ask({"exit": 3}, 30)
    assert raised.value.detail == "imported\nlast words"
    assert child.ask({}, 30)["flag"] == "child's"


@pytest.mark.parametrize("written", ["noise", "[1]\n", "[" * 100_000 + "\n"])
def test_what_is_no_answer_is_a_death_and_the_next_request_is_answered(child: Child, written: str) -> None:
    with pytest.raises(ChildDied, match="no answer"):
        child.ask({"write": written}, 30)
    assert child.ask({"number": 2}, 30)["echo"] == {"number": 2}


def test_what_is_printed_without_end_does_not_fill_the_disk(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "MAX_OUTPUT_BYTES", 50_000)
    monkeypatch.setattr(child_module, "LOOK_S", 0.05)
    with pytest.raises(ChildDied) as raised:
        child.ask({"print": 100, "exit": 3}, 30)
    assert child._output is not None
    assert 0 < os.fstat(child._output.fileno()).st_size < 80_000
    assert (raised.value.detail or "").endswith("xlast words")


@pytest.mark.parametrize("child", ["started"], indirect=True)
def test_a_process_that_cannot_be_started_is_a_death(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(ChildDied, match="could not be started: No such file"):
            child.ask({}, 30)
    assert child.ask({"number": 2}, 30)["echo"] == {"number": 2}


def test_a_late_answer_is_never_taken_for_the_next_one(child: Child) -> None:
    before = child.ask({}, 30)["pid"]
    with pytest.raises(ChildTimeout, match=r"no result after 0\.2 s"):
        child.ask({"sleep": 1}, 0.2)
    after = child.ask({"number": 2}, 30)
    assert after["echo"] == {"number": 2}
    assert after["pid"] != before


def test_an_interrupted_request_leaves_no_answer_behind(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(limit_s: float) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(child, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            child.ask({"number": 1}, 30)
    assert child.ask({"number": 2}, 30)["echo"] == {"number": 2}


def test_a_death_is_seen_although_something_that_it_started_lives_on(child: Child) -> None:
    with pytest.raises(ChildDied, match="killed by SIGSEGV"):
        child.ask({"fork": True}, 30)
    assert child.ask({}, 30)["pid"] == child.pid


def test_a_closed_child_stays_closed(child: Child) -> None:
    child.start()
    child.close()
    child.start()
    assert child.pid is None
    with pytest.raises(ChildDied, match="stopped before it began"):
        child.ask({}, 30)
