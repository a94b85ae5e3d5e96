"""A child process that answers, dies, hangs and prints: what its parent gets to know, and that the next one answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from glabench.run.child import Child, ChildDied, ChildTimeout

ANSWERING = """
import os, sys, time
print("imported", flush=True)

def handle(request):
    if "sleep" in request:
        time.sleep(request["sleep"])
    if "raise" in request:
        raise ValueError(request["raise"])
    if "exit" in request:
        print("last words", file=sys.stderr, flush=True)
        os._exit(request["exit"])
    return {"pid": os.getpid(), "echo": request, "flag": os.environ.get("FLAG")}
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    (tmp_path / "answering.py").write_text(ANSWERING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FLAG", "parent's")
    made = Child("answering", {"FLAG": "child's"})
    yield made
    made.close()


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


def test_a_closed_child_stays_closed(child: Child) -> None:
    child.start()
    child.close()
    child.start()
    assert child.pid is None
    with pytest.raises(ChildDied, match="stopped before it began"):
        child.ask({}, 30)
