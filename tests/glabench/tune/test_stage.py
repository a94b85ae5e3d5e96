"""Whole plans as the finals run them, on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gla_kernels import Launch, Plan, Schedule, Workload, default_config
from gla_kernels.launch import execute, interpreting
from glabench.run.inputs import make_inputs
from glabench.tune import stage
from glabench.tune.stage import Stage

WORK = Workload("bwd", 1, 80, 1, 16, 16, "fp32")
Passes = Callable[[Schedule, Schedule], list[str]]


def plan(schedule: Schedule) -> Plan:
    return Plan(schedule, default_config(16, 16, 4, schedule))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(stage, "make_inputs", lambda case, operator, device: make_inputs(case, operator, "cpu"))
    return Stage(WORK, 90)


@pytest.fixture
def passes(here: Stage, monkeypatch: pytest.MonkeyPatch) -> Passes:
    """The passes of a backward plan after a forward one, by their schedules."""

    def run(schedule: Schedule, forward: Schedule) -> list[str]:
        found: list[str] = []

        def keep(launch: Launch) -> None:
            found.append(launch.step)
            execute(launch)

        monkeypatch.setattr(stage, "execute", keep)
        call = here.call(plan(schedule), plan(forward))
        found.clear()
        call()
        return found

    return run


@pytest.mark.skipif(not interpreting(), reason="runs on the CPU")
def test_a_backward_plan_runs_after_a_forward_one(passes: Passes) -> None:
    """It does without a states pass only where the forward plan leaves the states that it needs."""
    alone = ["grad_states", "grad_qk", "grad_v"]
    for schedule, forward, before in (
        (Schedule(32), Schedule(32), []),
        (Schedule(32), Schedule(64), ["states"]),
        (Schedule(32), Schedule(32, 32, False), ["states"]),
        (Schedule(32, 32, False), Schedule(32), ["states"]),
    ):
        assert passes(schedule, forward) == [*before, *alone]
