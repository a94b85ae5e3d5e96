"""Which plan a call runs: tuned here, shipped, tuned on a GPU of the same kind, or by size; and why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import triton

from gla_kernels import Machine, Plan, Schedule, chosen, default_config, keep, refresh
from gla_kernels.plan import choose, files
from gla_kernels.plan.apply import all_launches
from gla_kernels.plan.choose import by_model, predicted_ms, with_walks
from gla_kernels.plan.limits import why_not
from gla_kernels.plan.space import schedules
from gla_kernels.plan.table import header_of
from gla_kernels.schedule import SEGMENT_ROWS, Workload, cdiv

WORK = Workload("fwd", 4, 2048, 16, 128, 128)
H100 = Machine(90, "NVIDIA H100 80GB HBM3", 80 * 2**30)
A100 = Machine(80, "NVIDIA A100", 80 * 2**30)
OTHER = Schedule(128, 32)


@pytest.fixture
def alike(monkeypatch):
    """The cost model expects the same of all plans: those here are chosen to be told apart, not to be fast."""
    monkeypatch.setattr(choose, "predicted_ms", lambda work, plan, capability: 1.0)
    choose._predicted.cache_clear()
    yield
    choose._predicted.cache_clear()


def ship(entries: list[Any], machine: Machine) -> None:
    files.ship(entries, header_of(machine))
    refresh()


def test_tiles_by_size_where_nothing_was_tuned_for_the_schedule(tables, machine):
    choice = chosen(replace(WORK, schedule=OTHER), machine)
    assert choice.plan == Plan(OTHER, default_config(128, 128, 2, OTHER, 90))
    assert (choice.origin, choice.here, choice.stale) == ("by size", False, False)


def test_the_cost_model_chooses_the_schedule_where_it_is_open(tables, machine):
    choice = chosen(WORK, machine)
    assert choice.origin == "by the cost model"
    plans = [Plan(one, default_config(128, 128, 2, one, 90)) for one in schedules(WORK)]
    plans += [replace(plan, config=with_walks(plan.config, WORK)) for plan in plans if plan.schedule.rows == 64]
    plans = [plan for plan in plans if why_not(plan, WORK, 90) is None]
    assert choice.plan in plans
    assert predicted_ms(WORK, choice.plan, 90) == min(predicted_ms(WORK, plan, 90) for plan in plans)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_states_are_materialized_or_not_makes_no_difference_to_short_sequences(direction):
    for T, same in ((64, True), (SEGMENT_ROWS, True), (SEGMENT_ROWS + 1, False)):
        work = Workload(direction, 1, T, 4, 64, 64)
        config = default_config(64, 64, 2, Schedule(64))
        both = [all_launches(work, Plan(Schedule(64, 64, kept), config)) for kept in (True, False)]
        found = [[(one.step, one.grid, one.constexprs, shown(one.args)) for one in launches] for launches in both]
        assert (found[0] == found[1]) == same


def test_left_open_states_are_materialized(tables, machine, entry):
    """A table from when both were tried may have a forward plan that leaves the backward pass none."""
    without = Schedule(64, 64, False)
    assert all(schedule.materialize for schedule in schedules(WORK))
    keep([entry(plan=without)], machine)
    assert chosen(WORK, machine).origin == "by the cost model"
    assert chosen(replace(WORK, schedule=without), machine).plan == entry(plan=without).plan
    keep([entry(T=4096, plan=OTHER)], machine)
    assert chosen(WORK, machine).origin == "tuned here at B=4 T=4096 H=16, nearby"


def shown(args: dict[str, Any]) -> dict[str, Any]:
    return {name: (x.shape, x.dtype) if isinstance(x, torch.Tensor) else x for name, x in args.items()}


# Each with itself and with the next, and the largest keys with small and with middling values.
HEADS = [*((d, d) for d in (8, 60, 128, 256, 512)), (8, 60), (60, 128), (128, 256), (256, 512), (512, 8), (512, 128)]


@pytest.mark.pairwise
@pytest.mark.parametrize("capability", [80, 86, 90, 100])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_plan_by_size_can_always_run(capability, dtype, heads):
    K, V = heads
    long = Workload("fwd", 2, 3000, 4, K, V, dtype)
    # left open, it is one of these; to predict them all takes as long as all else here
    left_open = [None] if K == V else []
    for schedule in (*left_open, *schedules(long)):
        fwd = replace(long, schedule=schedule)
        for work in (fwd, replace(fwd, direction="bwd")):
            assert why_not(by_model(work, capability), work, capability) is None, work


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_by_the_cost_model_segments_are_even_too(tables, capability, direction):
    cut = 0
    for T in (3456, 4097, 6200, 9000):
        work = Workload(direction, 1, T, 4, 128, 128)
        schedule = chosen(work, Machine(capability)).plan.schedule
        if schedule.states_every is not None:
            chunks, count = cdiv(T, schedule.chunk), cdiv(cdiv(T, schedule.chunk), schedule.states_every)
            assert schedule.states_every == cdiv(chunks, count)
            cut += 1
    assert cut > 0


def test_what_was_tuned_here_is_cut_evenly_at_other_lengths_alone(tables, machine, entry):
    tuned = entry(T=2100, plan=Schedule(64, 64, True, 16))  # 33 chunks
    keep([tuned], machine)
    assert chosen(replace(WORK, T=2100), machine).plan == tuned.plan
    assert chosen(replace(WORK, T=2200), machine).plan.schedule.states_every == 12  # 35 chunks, in three
    assert chosen(replace(WORK, T=2048), machine).plan.schedule.states_every == 16


def test_a_plan_tuned_here_is_found_at_once(tables, machine, entry):
    assert chosen(WORK, machine).origin == "by the cost model"
    keep([entry(plan=OTHER)], machine)
    choice = chosen(WORK, machine)
    assert choice.plan == entry(plan=OTHER).plan
    assert choice.origin == "tuned here at B=4 T=2048 H=16"
    assert choice.here


def test_what_another_process_tuned_is_found_after_a_refresh(tables, machine, entry):
    assert chosen(WORK, machine).origin == "by the cost model"
    files.add([entry(plan=OTHER)], machine)
    assert chosen(WORK, machine).origin == "by the cost model"
    refresh()
    assert chosen(WORK, machine).plan.schedule == OTHER


def test_a_class_shares_its_plan(tables, machine, entry):
    keep([entry(plan=OTHER)], machine)
    for same in (replace(WORK, B=8, H=8), replace(WORK, T=2500), replace(WORK, K=100, V=70)):
        assert chosen(same, machine).here
        assert chosen(same, machine).plan.schedule == OTHER


def test_of_plans_tuned_here_for_the_class_the_nearest_serves(tables, machine, entry):
    keep([entry(T=2500, plan=Schedule(32)), entry(T=1600, plan=OTHER)], machine)
    for T, plan in ((1700, OTHER), (2400, Schedule(32))):
        found = chosen(replace(WORK, T=T), machine)
        assert (found.here, found.plan.schedule) == (True, plan)


def test_the_nearest_class_serves_where_none_is_the_same(tables, machine, entry, alike):
    keep([entry(T=512, plan=Schedule(32)), entry(T=16384, plan=OTHER)], machine)
    choice = chosen(replace(WORK, T=8192), machine)
    assert choice.plan.schedule == OTHER
    assert choice.origin == "tuned here at B=4 T=16384 H=16, nearby"
    assert not choice.here
    assert chosen(replace(WORK, T=128, B=1), machine).plan.schedule == Schedule(32)  # a quarter of T and of B
    assert chosen(replace(WORK, T=64, B=1), machine).origin == "by the cost model"  # an eighth of T


def test_a_nearby_plan_that_leaves_the_gpu_idle_is_cut_into_segments(tables, machine, entry):
    walked = entry()
    walked = replace(walked, plan=replace(walked.plan, config=with_walks(walked.plan.config, WORK)))
    keep([walked], machine)
    assert chosen(WORK, machine).plan == walked.plan  # measured, so not asked
    assert chosen(replace(WORK, B=6), machine).plan == walked.plan
    few = chosen(replace(WORK, B=1, T=4096), machine)  # 16 walks, twice as long
    assert few.origin == "tuned here at B=4 T=2048 H=16, nearby, other segments"
    assert few.plan.schedule.states_every is not None
    assert few.plan.config == walked.plan.config
    asked = chosen(replace(WORK, B=1, T=4096, schedule=walked.plan.schedule), machine)
    assert asked.plan == walked.plan


def test_of_plans_nearby_the_one_that_is_expected_to_be_fastest_serves(tables, machine, entry, monkeypatch):
    """Expected of each: the cost model's time here, times what that was off by where the plan was tuned."""
    times = {(Schedule(32), 2048): 1.0, (Schedule(32), 4096): 2.0, (OTHER, 2048): 9.0, (OTHER, 4096): 12.0}
    monkeypatch.setattr(choose, "predicted_ms", lambda work, plan, capability: times.get((plan.schedule, work.T), 1e9))
    choose._predicted.cache_clear()
    slow, fast = entry(B=3, plan=Schedule(32)), entry(B=6, plan=OTHER)
    keep([replace(slow, ms=1.0), replace(fast, ms=1.0)], machine)
    assert chosen(replace(WORK, T=4096), machine).plan.schedule == OTHER  # 1.33 ms, and 2
    keep([replace(fast, ms=2.0)], machine)
    assert chosen(replace(WORK, T=4096), machine).plan.schedule == Schedule(32)
    choose._predicted.cache_clear()


def test_a_shape_that_was_tuned_elsewhere_is_not_asked_about_but_its_class_is(tables, machine, entry, monkeypatch):
    walked = entry()
    walked = replace(walked, plan=replace(walked.plan, config=with_walks(walked.plan.config, WORK)), ms=1e3)
    ship([walked, replace(entry(B=5), ms=0.1)], machine)
    assert chosen(replace(WORK, B=8, H=8), machine).plan == walked.plan
    assert chosen(replace(WORK, T=2047), machine).plan == entry(B=5).plan


def test_lengths_that_are_alike_are_not_predicted_anew(tables, machine, entry, monkeypatch):
    expected = Mock(wraps=predicted_ms)
    choose._expected_best.cache_clear()
    choose._predicted.cache_clear()
    monkeypatch.setattr(choose, "predicted_ms", expected)
    first = chosen(replace(WORK, T=2000), machine)
    count = expected.call_count
    assert count > 0
    assert chosen(replace(WORK, T=2100), machine).plan.config == first.plan.config
    assert expected.call_count == count
    keep([entry()], machine)
    near = chosen(replace(WORK, T=3100), machine)
    assert expected.call_count > count
    count = expected.call_count
    assert chosen(replace(WORK, T=3130), machine) == near
    assert expected.call_count == count


def test_heads_count_for_more_than_length(tables, machine, entry, alike):
    keep([entry(B=8, plan=Schedule(32)), entry(T=8192, plan=OTHER)], machine)
    assert chosen(WORK, machine).plan.schedule == OTHER
    keep([entry(B=3, plan=Schedule(128))], machine)
    assert chosen(WORK, machine).plan.schedule == Schedule(128)


def test_a_tie_goes_to_the_smaller_class(tables, machine, entry, alike):
    keep([entry(T=4096, plan=OTHER), entry(T=1024, plan=Schedule(32))], machine)
    assert chosen(WORK, machine).plan.schedule == Schedule(32)


@pytest.mark.parametrize(
    "change", [{"direction": "bwd"}, {"dtype": "fp16"}, {"dtype": "fp32"}, {"gated": False}, {"K": 64}, {"V": 256}]
)
def test_other_work_shares_nothing(tables, machine, entry, change):
    keep([entry(plan=OTHER)], machine)
    assert chosen(replace(WORK, **change), machine).origin == "by the cost model"


def test_a_schedule_that_is_asked_for_is_never_another(tables, machine, entry):
    tuned = entry(schedule=OTHER)
    config = replace(tuned.plan.config, block_t=16)
    tuned = replace(tuned, plan=Plan(OTHER, config))
    keep([tuned, entry(plan=Schedule(64))], machine)
    assert chosen(replace(WORK, schedule=OTHER), machine).plan == tuned.plan
    assert chosen(WORK, machine).plan.schedule == Schedule(64)
    assert chosen(replace(WORK, schedule=Schedule(32)), machine).origin == "by size"


def test_a_plan_that_won_with_every_schedule_allowed_serves_its_own(tables, machine, entry):
    keep([entry(plan=OTHER)], machine)
    choice = chosen(replace(WORK, schedule=OTHER), machine)
    assert choice.here
    assert choice.plan == entry(plan=OTHER).plan
    own = entry(schedule=OTHER)
    own = replace(own, plan=Plan(OTHER, replace(own.plan.config, block_t=16)))
    keep([own], machine)
    assert chosen(replace(WORK, schedule=OTHER), machine).plan == own.plan


def test_a_plan_that_cannot_run_here_is_passed_over(tables, machine, entry, alike):
    keep([entry(T=64, plan=Schedule(64)), entry(T=16, plan=Schedule(16))], machine)
    assert chosen(replace(WORK, T=30), machine).plan.schedule == Schedule(16)  # a chunk of 64 is too long for 30


def test_here_before_shipped_but_the_same_class_before_a_nearby_one(tables, machine, entry, alike):
    ship([entry(plan=Schedule(128)), entry(T=8192, plan=Schedule(128))], machine)
    choice = chosen(WORK, machine)
    assert choice.plan.schedule == Schedule(128)
    assert choice.origin == "shipped for NVIDIA H200, tuned at B=4 T=2048 H=16"
    assert not choice.here
    keep([entry(plan=OTHER)], machine)
    assert chosen(WORK, machine).plan.schedule == OTHER
    assert chosen(replace(WORK, T=8192), machine).plan.schedule == Schedule(128)
    assert chosen(replace(WORK, T=4096), machine).plan.schedule == OTHER  # a tie


def test_other_gpus_of_the_same_capability_come_next(tables, machine, entry, alike):
    ship([entry(plan=OTHER), entry(T=8192, plan=OTHER)], machine)
    choice = chosen(WORK, H100)
    assert choice.plan.schedule == OTHER
    assert choice.origin == "tuned on NVIDIA H200 (same compute capability) at B=4 T=2048 H=16"
    assert chosen(WORK, A100).origin == "by the cost model"
    assert chosen(WORK, Machine(90)).origin == "tuned on NVIDIA H200 at B=4 T=2048 H=16"
    ship([entry(T=1024, plan=Schedule(32))], H100)
    assert chosen(WORK, H100).plan.schedule == Schedule(32)  # its own, though only nearby
    assert chosen(replace(WORK, T=8192, B=16), H100).plan.schedule == OTHER  # its own are too far


def test_a_few_plans_of_a_gpu_do_not_stand_in_for_a_table_of_another(tables, machine, entry, alike):
    ship([entry(plan=OTHER)], machine)
    ship([entry(T=512, plan=Schedule(32))], H100)
    assert chosen(WORK, H100).plan.schedule == Schedule(32)  # two octaves from its own, which a tie goes to
    ship([entry(T=256, plan=Schedule(32))], H100)
    assert chosen(WORK, H100).plan.schedule == OTHER  # three octaves from its own, and none from the other's
    assert chosen(replace(WORK, T=256), H100).plan.schedule == Schedule(32)


def test_plans_from_other_sources_say_so(tables, machine, entry):
    path = files.ship([entry()], header_of(machine))
    values = json.loads(path.read_text())
    values["header"]["triton"] = "2.0"
    path.write_text(json.dumps(values))
    refresh()
    choice = chosen(WORK, machine)
    assert choice.stale
    why = f"outdated: tuned with Triton 2.0, and this is {triton.__version__}"
    assert choice.origin == f"shipped for NVIDIA H200, tuned at B=4 T=2048 H=16, {why}"
