"""Whole plans as the finals run them, and single passes beside a reference plan, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from gla_kernels import Launch, Plan, Schedule, Tile, Workload, default_config, machine_of
from gla_kernels.chunk.problem import LaunchBy, Problem
from gla_kernels.launch import execute, interpreting
from gla_kernels.plan.limits import why_not
from glabench.systems.inputs import make_inputs
from glabench.tune import stage
from glabench.tune.candidate import Candidate, Variant, base_config, candidates_of, plan_of, variants
from glabench.tune.stage import Stage

WORK = Workload("bwd", 1, 80, 1, 16, 16, "fp32")
Passes = Callable[[Schedule, Schedule], list[str]]


def plan(schedule: Schedule) -> Plan:
    return Plan(schedule, default_config(16, 16, 4, schedule))


@pytest.fixture(autouse=True)
def on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "gpu" in request.keywords:
        return
    monkeypatch.setattr(stage, "make_inputs", lambda case, operator, device: make_inputs(case, operator, "cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.fixture
def here() -> Stage:
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


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 128 rows, and slices of one segment; walks of Hopper's own are launched here, not run."""

    def walk(
        problem: Problem, kernel: object, tile: Tile | None, launch_by: LaunchBy, *args: Any, **flags: Any
    ) -> Launch | None:
        return launch_by(kernel, tile, *args, **flags) if tile is not None and tile.hopper else None

    monkeypatch.setattr("gla_kernels.chunk.parted.SEGMENT_ROWS", 128)
    monkeypatch.setattr("gla_kernels.chunk.parted.segments_at_once", lambda *nbytes: 1)
    monkeypatch.setattr(Problem, "hopper_launch", walk)


@pytest.mark.each_value
@pytest.mark.skipif(not interpreting(), reason="runs on the CPU")
@pytest.mark.parametrize(("direction", "step"), [("fwd", "states"), ("bwd", "grad_states")])
@pytest.mark.parametrize(
    ("schedule", "walks"),
    [(schedule, walks) for schedule in (Schedule(64, 64, True, 2), Schedule(64, 64, False)) for walks in (False, True)],
    ids=["segments", "segments-walks", "slices", "slices-walks"],
)
@pytest.mark.usefixtures("short_segments")
def test_a_pass_is_compared_with_what_it_does_in_its_plan(
    direction: Literal["fwd", "bwd"], step: str, schedule: Schedule, walks: bool
) -> None:
    """Where a walk makes the states within segments, a pass makes those between; in slices, those of one."""
    here = Stage(Workload(direction, 1, 200, 1, 64, 64), 90)
    here.trial(Candidate(Variant(schedule, 64, walks), step, Tile(64, 64, 4, 1)))  # else raises WrongResult


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of a chunk that take turns, backward over a few heads at a time: fewer with smaller row blocks."""
    monkeypatch.setattr("gla_kernels.schedule.HEADS_IN_TURN", 1)
    monkeypatch.setattr("gla_kernels.tiles.slices.ENOUGH", 1)
    monkeypatch.setattr("gla_kernels.chunk.parted.segments_at_once", lambda *nbytes: 1)
    monkeypatch.setattr("gla_kernels.chunk.parted.room_for", lambda *nbytes: 26_000)


def shares(work: Workload) -> set[tuple[int, int]]:
    """Sequences and heads at once, with row blocks of 16 and of 64."""
    found = [Plan(Schedule(64, rows, False), default_config(16, 16, 4, Schedule(64, rows, False))) for rows in (16, 64)]
    shares = [stage._problem(Stage(work, 90).inputs, work, one).share for one in found]
    return {(one.batches, one.heads) for one in shares}


TURNS = Workload("bwd", 2, 150, 4, 16, 16, "fp32")


@pytest.mark.each_value
@pytest.mark.skipif(not interpreting(), reason="runs on the CPU")
@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize(
    ("direction", "step"),
    [("fwd", "states"), ("fwd", "output"), *(("bwd", step) for step in ("states", "grad_states", "grad_qk", "grad_v"))],
)
@pytest.mark.usefixtures("turns")
def test_a_pass_of_slices_in_turn_is_compared_with_the_same_slice(
    direction: Literal["fwd", "bwd"], step: str, rows: int
) -> None:
    """Which heads a slice has depends on the row blocks, and where it starts from is written over."""
    found = shares(TURNS)
    assert len(found) == 2
    assert (TURNS.B, TURNS.H) not in found
    here = Stage(replace(TURNS, direction=direction), 90)
    here.trial(Candidate(Variant(Schedule(64, rows, False), rows), step, Tile(16, 16, 4, 1)))


@pytest.mark.skipif(not interpreting(), reason="runs on the CPU")
@pytest.mark.usefixtures("turns")
def test_every_copy_between_slices_in_turn_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice starts from what is copied for it, so that no pass is given memory that nothing has written."""
    ran, wanted = list[Launch](), list[Launch]()
    inputs, turn = Stage(TURNS, 90).inputs, plan(Schedule(64, 64, False))
    stage.run_plan(inputs, TURNS, turn, wanted.append)

    def run(launch: Launch) -> None:
        ran.append(launch)
        execute(launch)

    monkeypatch.setattr(stage, "execute", run)
    passes = stage._passes(inputs, TURNS, turn, None)
    assert [one.step for one in ran].count("copy") == [one.step for one in wanted].count("copy") > 1
    assert not any(step == "copy" for step, _ in passes)
    starts = [one.launch.args[name] for one in passes.values() for name in stage.STARTS if name in one.launch.args]
    assert starts
    assert all(x.isfinite().all() for x in (*starts, *(x for _, x in inputs.tensors())))


@pytest.mark.skipif(not interpreting(), reason="runs on the CPU")
@pytest.mark.usefixtures("turns")
def test_a_walk_over_slices_in_turn_is_compared_with_two_passes() -> None:
    here = Stage(Workload("fwd", 1, 150, 2, 16, 16, "fp32", gated=False), 90)
    here.trial(Candidate(Variant(Schedule(64, 64, False), 64, True), "walk", Tile(16, 16, 4, 1)))


@pytest.mark.gpu
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_hoppers_kernels_are_judged_over_groups_of_heads_in_turn(direction: Literal["fwd", "bwd"]) -> None:
    """Here a backward pass without materialized states works on a few heads of a sequence at once."""
    work = Workload(direction, 4, 2048, 16, 128, 128, schedule=Schedule(64, 64, False))
    capability = machine_of().capability
    here = Stage(work, capability)
    for variant in (one for one in variants(work) if one.block_t == 64):
        for one in candidates_of(work, Plan(variant.schedule, base_config(work, variant, capability)), capability):
            if why_not(plan_of(work, [one], capability), work, capability, one.step) is None:
                here.trial(one)  # else raises WrongResult
