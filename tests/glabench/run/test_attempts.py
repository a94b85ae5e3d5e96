"""A system that is not here, or cannot be imported, is found out once for each kind of case, not at every case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from glabench.phases import spent_of
from glabench.run.attempts import Attempts
from glabench.run.worker import Worker
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.spec.work import work
from glabench.store import Row

SETTINGS = Settings.for_device("cuda")
# Seeds of the pipeline that misbehaves: its package is not installed, or cannot be imported; it crashes; it runs.
MISSING, BROKEN, CRASHES, RUNS = 17, 18, 6, 0
CASE = Case("fa3", 1, 8, 1, 8, 8, mode="fwd", gate_strength=None, seed=BROKEN)


@pytest.fixture
def worker(calls: Path) -> Iterator[Worker]:
    made = Worker(pipeline="misbehaving")
    yield made
    made.close()


def tried(calls: Path) -> list[str]:
    """The ids of the cases that a process began, in order."""
    return [line.split()[0] for line in calls.read_text().splitlines()]


def run(worker: Worker, cases: list[Case], settings: Settings = SETTINGS) -> list[Row]:
    attempts = Attempts()
    return [attempts.run(worker, case, "tiny", settings, 30) for case in cases]


@pytest.mark.parametrize(("seed", "status"), [(MISSING, "unsupported"), (BROKEN, "crashed")])
def test_a_case_of_other_sizes_has_the_same_row_without_being_tried(
    worker: Worker, calls: Path, seed: int, status: str
) -> None:
    case = replace(CASE, seed=seed)
    longer = replace(case, T=16, H=2)
    first, second = run(worker, [case, longer])
    assert tried(calls) == [case.id]
    assert (second.case_id, second.case, second.work) == (longer.id, longer.to_dict(), work(longer.to_dict()))
    assert (second.status, second.reason) == (status, first.reason)
    assert second.reason is not None
    assert (second.implementation, second.environment) == (first.implementation, first.environment)
    assert datetime.fromisoformat(second.started)
    assert [(one.part, one.total_s) for one in spent_of(second)] == [("all", 0)]


@pytest.mark.parametrize(
    "other",
    [
        replace(CASE, mode="fwdbwd"),
        replace(CASE, dtype="fp16"),
        replace(CASE, system="fa2"),
        replace(CASE, lengths="uniform:2"),
        replace(CASE, initial_state=True),
    ],
    ids=["mode", "dtype", "system", "packed", "state"],
)
def test_a_case_by_which_a_system_may_import_something_else_is_tried(worker: Worker, calls: Path, other: Case) -> None:
    run(worker, [CASE, other])
    assert tried(calls) == [CASE.id, other.id]


def test_another_part_of_the_case_is_tried(worker: Worker, calls: Path) -> None:
    attempts = Attempts()
    for part in ("compile", "all"):
        attempts.run(worker, CASE, "tiny", SETTINGS.with_part(part), 30)
    assert tried(calls) == [CASE.id] * 2


@pytest.mark.parametrize("seed", [CRASHES, RUNS])
def test_what_else_a_case_comes_to_is_of_that_case_alone(worker: Worker, calls: Path, seed: int) -> None:
    cases = [replace(CASE, seed=seed, T=tokens) for tokens in (8, 16)]
    run(worker, cases)
    assert tried(calls) == [case.id for case in cases]


def test_a_case_that_was_judged_before_its_import_failed_says_nothing_of_others(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another the judgement may be that it is wrong."""
    tried = list[Case]()

    def judged(case: Case, sweep: str, settings: Settings, limit_s: float) -> Row:
        tried.append(case)
        facts = {"lacks": "No module named 'absent'"}
        return Row(case.id, sweep, case.to_dict(), "crashed", accuracy={"passed": True}, environment=facts)

    monkeypatch.setattr(worker, "run", judged)
    cases = [CASE, replace(CASE, T=16)]
    run(worker, cases)
    assert tried == cases
