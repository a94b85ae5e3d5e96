"""Which jobs are given out, and with which of those that run idle threads help."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from glabench.run.untimed import ALONE_S, Job, Untimed
from glabench.run.worker import Worker
from glabench.spec.case import Case
from glabench.spec.settings import Part


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What time.monotonic says, to be changed."""
    now = [100.0]
    monkeypatch.setattr("glabench.run.untimed.time.monotonic", lambda: now[0])
    return now


class Helper(Worker):
    """Says whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def job(system: str, part: Part = "compile", seed: int = 0) -> Job:
    return Job(Case(system=system, B=1, T=8, H=1, K=8, V=8, seed=seed), part)


def begun(*jobs: Job) -> Untimed:
    """These jobs, all of them begun."""
    left = Untimed(jobs)
    for one in jobs:
        assert left.take(one.part) == one
    return left


def test_jobs_of_a_kind_are_given_out_once_and_in_order() -> None:
    gate, first, second = job("gla", "gate"), job("fla"), job("gla")
    left = Untimed([gate, first, second])
    assert [left.take("compile") for _ in range(3)] == [first, second, None]
    assert [left.take("gate") for _ in range(2)] == [gate, None]


def test_only_what_compiles_is_helped_with(clock: list[float]) -> None:
    compiles = job("gla")
    left = begun(job("gla", "gate"), compiles)
    clock[0] += 10 * ALONE_S
    assert left.to_help(Helper(), ()) == compiles
    assert left.to_help(Helper(), [compiles]) is None


def test_a_helper_that_is_done_helps_on_unless_its_job_was_done_before(clock: list[float]) -> None:
    first, second = job("fla"), job("fla", seed=1)
    left = begun(first, second)
    clock[0] += ALONE_S
    helper, late = Helper(), Helper()
    assert [left.to_help(one, ()) for one in (helper, late)] == [first, second]
    assert left.helped(first, helper)
    left.finished(first)
    assert not helper.closed
    left.finished(second)
    assert late.closed
    assert not left.helped(second, late)


def test_the_first_case_without_a_job_is_ready() -> None:
    first, second, rival = job("fla"), job("gla"), job("fa2")
    left = Untimed([first, second])
    cases = [first.case, second.case, rival.case]
    assert left.ready(cases) == rival.case
    left.take("compile"), left.take("compile")
    left.finished(second)
    assert left.ready(cases) == second.case
    left.finished(first)
    assert left.ready(cases) == first.case


@pytest.mark.parametrize("end", ["finished", "stop"])
def test_who_waits_for_a_case_is_told_when_its_job_is_done_or_never_will_be(end: str) -> None:
    slow, found = job("fla"), list[Case]()
    left = begun(slow, job("gla"))
    waiting = threading.Thread(target=lambda: found.append(left.ready([slow.case])))
    waiting.start()
    left.finished(job("gla"))
    assert found == []
    if end == "stop":
        left.stop()
    else:
        left.finished(slow)
    waiting.join(10)
    assert found == [slow.case]


def test_help_goes_where_there_is_least_and_then_to_what_takes_longest(clock: list[float]) -> None:
    jobs = [job("fla", seed=seed) for seed in range(3)]
    left = Untimed(jobs)
    for _ in jobs:
        left.take("compile")
        clock[0] += 1
    clock[0] += ALONE_S
    assert [left.to_help(Helper(), ()) for _ in range(5)] == [*jobs, *jobs[:2]]
    assert left.to_help(Helper(), jobs[:2]) == jobs[2]
    assert left.to_help(Helper(), jobs) is None


def test_helpers_are_stopped_with_the_job(clock: list[float]) -> None:
    first, second = job("fla"), job("fla", seed=1)
    left = begun(first, second)
    clock[0] += ALONE_S
    helpers = [Helper() for _ in range(3)]
    assert [left.to_help(helper, ()) for helper in helpers] == [first, second, first]
    left.finished(first)
    assert [helper.closed for helper in helpers] == [True, False, True]
    left.finished(second)
    assert left.to_help(Helper(), ()) is None


@pytest.mark.parametrize("end", ["finished", "stop"])
def test_who_waits_for_a_job_to_take_long_is_told_when_it_does_not(end: str) -> None:
    left, found = begun(job("fla")), list[Any]()
    waiting = threading.Thread(target=lambda: found.append(left.to_help(Helper(), ())))
    waiting.start()
    assert found == []
    if end == "stop":
        left.stop()
    else:
        left.finished(job("fla"))
    waiting.join(10)
    assert found == [None]


def test_nothing_is_given_out_after_the_end() -> None:
    left = Untimed([job("fla"), job("fla", seed=1)])
    left.take("compile")
    left.stop()
    assert left.take("compile") is None
    assert left.to_help(Helper(), ()) is None
