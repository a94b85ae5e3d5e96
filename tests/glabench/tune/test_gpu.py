"""The measuring process as the tuner sees it: an answer to everything, and a new process after what killed the last."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gla_kernels import Plan, Schedule, Tile, Workload, default_config
from glabench.tune import gpu as module
from glabench.tune.candidate import Candidate, Variant
from glabench.tune.gpu import Gpu

WORK = Workload("fwd", 4, 300, 4, 64, 64)
PLAN = Plan(Schedule(), default_config(64, 64, 2, Schedule()))

# What it does is chosen by the candidate's number of stages; every request adds a line to the file named by CALLS.
BENCH = """
import json, os, time

def handle(request):
    with open(os.environ["CALLS"], "a") as file:
        json.dump([request, os.getpid(), os.environ.get("FLAG")], file)
        print(file=file)
    if request["do"] == "ready" and "workload" in request:
        time.sleep(SLOW_START if request["workload"]["T"] == 301 else 0)
        if request["workload"]["K"] == 512:
            return {"status": "oom", "reason": "out of memory: inputs"}
    stages = request.get("candidate", {"tile": [0] * 4})["tile"][3]
    if stages == 2:
        os._exit(3)
    if stages == 3:
        time.sleep(600)
    if stages == 4:
        return {"status": "crashed", "reason": "an illegal memory access"}
    if stages == 5:
        return {"status": "wrong", "reason": "o is off"}
    return {"status": "ok", "reason": None, "samples_ms": [1.0], "environment": {"device": "made up"}}
"""
SLOW_START = 2.5
LIMIT_S = 2.0
SLOW = replace(WORK, T=301)


def candidate(stages: int) -> Candidate:
    return Candidate(Variant(Schedule(), 16), "output", Tile(64, 64, 4, stages))


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "made_up_bench.py").write_text(BENCH.replace("SLOW_START", str(SLOW_START)))
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("CALLS", str(path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return path


@pytest.fixture
def bench(calls: Path) -> Iterator[Gpu]:
    made = Gpu(module="made_up_bench", trial_limit_s=LIMIT_S, env={"FLAG": "set"})
    yield made
    made.close()


def called(calls: Path) -> list[list[Any]]:
    return [json.loads(line) for line in calls.read_text().splitlines()]


def test_each_kind_of_failure_is_an_answer_and_the_next_candidate_gets_its_own(bench: Gpu, calls: Path) -> None:
    answers = [bench.trial(WORK, candidate(stages), 5, None) for stages in (1, 2, 1, 3, 4, 5, 1)]
    assert [(one["status"], one["reason"]) for one in answers] == [
        ("ok", None),
        ("crashed", "the process ended by itself with exit code 3"),
        ("ok", None),
        ("timeout", "no result after 2 s; the process was killed"),
        ("crashed", "an illegal memory access"),
        ("wrong", "o is off"),
        ("ok", None),
    ]
    assert bench.restarts == 3
    processes: dict[int, list[str]] = {}
    for request, pid, flag in called(calls):
        processes.setdefault(pid, []).append(request["do"])
        assert flag == "set"
    # a poisoned process answers nothing more; the inputs are made once in each
    assert list(processes.values()) == [
        ["ready", "trial", "trial"], ["ready", "trial", "trial"], ["ready", "trial"], ["ready", "trial", "trial"]
    ]  # fmt: skip


def test_inputs_that_take_longer_than_a_candidate_may_are_no_candidates_fault(bench: Gpu, calls: Path) -> None:
    assert SLOW_START > LIMIT_S
    for work in (SLOW, WORK, SLOW):  # made for the last one, or not: the process knows
        assert bench.trial(work, candidate(1), 5, None)["status"] == "ok"
    assert [request["do"] for request, _, _ in called(calls)] == ["ready", "trial", "ready", "trial", "trial"]
    assert bench.restarts == 0


def test_inputs_that_cannot_be_made_are_the_answer(bench: Gpu, calls: Path) -> None:
    large = replace(WORK, K=512)
    assert bench.trial(large, candidate(1), 5, None) == {"status": "oom", "reason": "out of memory: inputs"}
    assert bench.final(large, [PLAN], 5)["status"] == "oom"
    assert [request["do"] for request, _, _ in called(calls)] == ["ready", "ready"]


def test_requests_say_all_that_is_needed(bench: Gpu, calls: Path) -> None:
    bench.trial(WORK, candidate(1), 5, 2.5)
    bench.final(WORK, [PLAN, PLAN], 25)
    bench.final(WORK, [PLAN], 25, PLAN)
    bench.gate(WORK, {"fwd": PLAN})
    assert bench.environment() == {"device": "made up"}
    work, plan = WORK.to_dict(), PLAN.to_dict()
    requests = [request for request, _, _ in called(calls) if request["do"] != "ready"]
    assert requests == [
        {"do": "trial", "candidate": candidate(1).to_dict(), "samples": 5, "enough_ms": 2.5, "workload": work},
        {"do": "final", "plans": [plan, plan], "samples": 25, "forward": None, "workload": work},
        {"do": "final", "plans": [plan], "samples": 25, "forward": plan, "workload": work},
        {"do": "gate", "plans": {"fwd": plan}, "workload": work},
        {"do": "environment"},
    ]


def test_a_process_that_never_starts_is_given_up(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_LIMIT_S", 0.2)
    bench = Gpu(module="made_up_bench", trial_limit_s=LIMIT_S)
    absent = Gpu(module="no_such_module")
    answer = bench.trial(SLOW, candidate(1), 5, None)
    assert (answer["status"], answer["reason"]) == ("timeout", "no result after 0.2 s; the process was killed")
    assert absent.environment() == {}
    bench.close()
    absent.close()
