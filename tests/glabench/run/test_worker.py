"""Real processes that crash, hang and babble: each becomes one row, and the next case runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from glabench.phases import spent_of
from glabench.run.worker import Worker
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.store import Row

SETTINGS = Settings.for_device("cpu")


def case(seed: int) -> Case:
    return Case(system="gla", B=1, T=8, H=1, K=8, V=8, seed=seed)


@pytest.fixture
def worker(calls: Path) -> Iterator[Worker]:
    made = Worker(environment={"fingerprint": "cheap"}, pipeline="misbehaving")
    yield made
    made.close()


def run(worker: Worker, seed: int, limit_s: float = 30) -> Row:
    row = worker.run(case(seed), "tiny", SETTINGS, limit_s)
    assert (row.case_id, row.sweep, row.case) == (case(seed).id, "tiny", case(seed).to_dict())
    return row


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that nobody reaps has."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_one_process_runs_case_after_case(worker: Worker, calls: Path) -> None:
    assert [run(worker, seed).status for seed in (0, 10, 11)] == ["ok"] * 3
    assert len({line.split()[2] for line in calls.read_text().splitlines()}) == 1


def test_a_process_that_the_machine_cannot_start_leaves_a_case_that_is_tried_again(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        row = run(worker, 0)
    assert (row.status, row.environment) == ("crashed", {})
    assert run(worker, 0).environment["fingerprint"] == "f"


def test_a_crash_is_a_row_with_its_signal_and_last_words(worker: Worker) -> None:
    first = run(worker, 1)
    assert first.status == "crashed"
    assert "SIGSEGV" in (first.reason or "")
    assert "last words" in (first.detail or "")
    assert first.environment == {"fingerprint": "cheap"}
    assert first.wall_s > 0
    (spent,) = spent_of(first)
    assert spent.seconds == {"died": round(first.wall_s, 3)}
    assert run(worker, 0).status == "ok"
    # What the child has said of its machine is kept for when it cannot speak any more.
    assert run(worker, 1).environment["said_by"] == "child"


def test_what_one_system_lacked_is_not_said_of_the_next_case(worker: Worker) -> None:
    assert run(worker, 17).environment["lacks"] == "the package absent is not installed"
    died = run(worker, 1)
    assert died.environment["said_by"] == "child"
    assert "lacks" not in died.environment


def test_an_exit_is_a_row_with_its_code(worker: Worker) -> None:
    row = run(worker, 3)
    assert row.status == "crashed"
    assert "exit code 3" in (row.reason or "")


def test_a_case_over_its_limit_is_killed_with_all_it_started(worker: Worker, calls: Path) -> None:
    row = run(worker, 5, limit_s=3)
    assert row.status == "timeout"
    assert "3 s" in (row.reason or "")
    assert gone(int(calls.with_name("calls.child").read_text()))
    assert run(worker, 0).status == "ok"


def test_what_libraries_print_does_not_reach_the_rows(worker: Worker) -> None:
    assert [run(worker, seed).status for seed in (4, 4, 0)] == ["ok"] * 3


def test_a_process_that_reports_a_crash_is_replaced(worker: Worker, calls: Path) -> None:
    assert [run(worker, seed).status for seed in (6, 0)] == ["crashed", "ok"]
    assert len({line.split()[2] for line in calls.read_text().splitlines()}) == 2


def test_a_process_imports_before_its_first_case_what_it_will_need(calls: Path) -> None:
    mark = calls.with_name("imported")
    calls.with_name("needed.py").write_text(f"open({str(mark)!r}, 'w').close()")
    worker = Worker(pipeline="misbehaving", imports=("needed",))
    worker.start()
    deadline = time.monotonic() + 30
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    worker.close()
    assert mark.exists()
    assert not calls.read_text()


def test_what_a_case_did_not_see_is_its_start(worker: Worker) -> None:
    before = time.time()
    (spent,) = spent_of(run(worker, 12))
    assert list(spent.seconds) == ["start", "gate"]
    assert spent.seconds["start"] > 0  # a process was started
    assert spent.began >= before - 1


def test_environment_variables_are_set_and_removed(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    worker = Worker(env={"TRITON_INTERPRET": None}, pipeline="misbehaving")
    run(worker, 0)
    worker.close()
    assert calls.read_text().split()[3] == "None"


def test_closing_from_another_thread_ends_a_case_under_way(worker: Worker) -> None:
    threading.Timer(1.5, worker.close).start()
    began = time.monotonic()
    assert run(worker, 2, limit_s=60).status == "crashed"
    assert time.monotonic() - began < 30
    assert run(worker, 0).status == "crashed"  # closed for good


def test_a_child_does_not_outlive_its_parent(calls: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from glabench.run.worker import Worker; from glabench.spec.settings import Settings;"
            "from glabench.spec.case import Case;"
            "Worker(pipeline='misbehaving').run(Case('gla', 1, 8, 1, 8, 8, seed=5), 's', Settings(device='cpu'), 600)",
        ]
    )
    child = calls.with_name("calls.child")
    deadline = time.monotonic() + 30
    while not (child.exists() and child.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    worker_pid = int(calls.read_text().split()[2])
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert gone(worker_pid)
    assert gone(int(child.read_text()))
