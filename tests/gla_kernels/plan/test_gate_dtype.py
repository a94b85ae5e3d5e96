"""Gates in float32 beside 16-bit inputs: another workload, with the plans of gates in 16 bits until it has its own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import Machine, Plan, Schedule, Workload, chosen, default_config, keep, launches, refresh
from gla_kernels.cost.work import work_of
from gla_kernels.plan import files
from gla_kernels.plan.apply import all_launches
from gla_kernels.plan.request import plan_of
from gla_kernels.plan.table import header_of, key_of

WORK = Workload("fwd", 4, 2048, 16, 128, 128)
WIDE = replace(WORK, gate_dtype="fp32")
OTHER = Schedule(128, 32)
A100 = Machine(80, "NVIDIA A100", 80 * 2**30)


def wide(made: Any, plan: Schedule = OTHER) -> Any:
    """An entry like the one made, but tuned with float32 gates, and a plan that is told apart."""
    return replace(made, work=replace(made.work, gate_dtype="fp32"), plan=Plan(plan, default_config(128, 128, 2, plan)))


def test_gates_of_the_inputs_dtype_are_no_other_workload():
    assert replace(WORK, gate_dtype="bf16") == WORK
    assert replace(WORK, dtype="fp32", gate_dtype="fp32") == replace(WORK, dtype="fp32")
    assert replace(WORK, gated=False, gate_dtype="fp32") == replace(WORK, gated=False)
    assert WIDE != WORK
    assert key_of(WIDE) != key_of(WORK)


def test_workloads_are_written_as_before_unless_gates_are_in_float32():
    assert list(WORK.to_dict()) == ["direction", "B", "T", "H", "K", "V", "dtype", "gated", "schedule"]
    assert WIDE.to_dict() == {**WORK.to_dict(), "gate_dtype": "fp32"}
    for work in (WORK, WIDE):
        assert Workload.from_dict(json.loads(json.dumps(work.to_dict()))) == work


@pytest.mark.parametrize("given", ["fp16", "float32", 4, True])
def test_another_dtype_of_gates_is_refused(given):
    with pytest.raises(ValueError, match=r"gate_dtype: expected bf16, fp32 or None, got"):
        replace(WORK, gate_dtype=given)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_without_plans_of_their_own_they_have_those_of_gates_in_16_bits(direction):
    """With what is shipped, at shapes tuned, nearby and far from any, and for a GPU without a table."""
    refresh()
    shapes = [(1, 8192, 96, 128, 128), (2, 15213, 10, 128, 128), (3, 700, 5, 128, 256), (1, 50, 2, 24, 40)]
    for shape in shapes:
        for machine in (Machine(90, "NVIDIA H200", 150109880320), Machine(80)):
            for dtype in ("bf16", "fp16"):
                usual = Workload(direction, *shape, dtype=dtype)
                found, like = chosen(replace(usual, gate_dtype="fp32"), machine), chosen(usual, machine)
                assert found.plan == like.plan
                assert found.stale == like.stale
                tuned = "tuned" in like.origin
                assert (f", for gates in {dtype}" in found.origin) == tuned


def test_what_was_tuned_for_other_gates_is_no_tuning_of_these(tables, machine, entry):
    keep([entry()], machine)
    assert chosen(WORK, machine).here
    found = chosen(WIDE, machine)
    assert (found.plan, found.here) == (entry().plan, False)
    assert found.origin == "tuned here at B=4 T=2048 H=16, for gates in bf16"


def test_their_own_plan_serves_them_alone(tables, machine, entry):
    keep([entry(), wide(entry())], machine)
    assert chosen(WORK, machine).plan == entry().plan
    found = chosen(WIDE, machine)
    assert (found.plan.schedule, found.here) == (OTHER, True)
    assert found.origin == "tuned here at B=4 T=2048 H=16"


def test_a_plan_of_their_own_serves_nearby_where_none_is_nearer(tables, machine, entry):
    near = replace(WIDE, T=3900)
    keep([entry(T=4096), wide(entry(T=1024))], machine)
    assert chosen(near, machine).plan == entry(T=4096).plan
    keep([wide(entry(T=4096))], machine)
    assert chosen(near, machine).plan.schedule == OTHER
    assert chosen(replace(near, gate_dtype=None), machine).plan == entry(T=4096).plan


def test_a_plan_of_their_own_is_read_from_a_file_again(tables, machine, entry):
    path = files.ship([entry(), wide(entry())], header_of(machine))
    refresh()
    assert chosen(WIDE, machine).plan.schedule == OTHER
    lines = [json.loads(line.rstrip(",")) for line in path.read_text().splitlines() if line.startswith('{"workload')]
    assert [one["workload"].get("gate_dtype") for one in lines].count("fp32") == 1
    assert [one["workload"].get("gate_dtype", "none") for one in lines].count("none") == 1


def test_a_schedule_by_the_cost_model_is_that_of_gates_in_16_bits(tables):
    config = default_config(128, 128, 2, Schedule(64))
    assert plan_of(WIDE, config, A100) == plan_of(WORK, config, A100)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_launches_have_the_gates_that_the_workload_has(direction):
    plan = Plan(Schedule(64), default_config(128, 128, 2, Schedule(64), 80))
    for work, dtype in (
        (replace(WORK, direction=direction), torch.bfloat16),
        (replace(WIDE, direction=direction), torch.float32),
    ):
        found = [x for one in all_launches(work, plan) for name, x in one.args.items() if name in ("p_g", "p_dg")]
        assert found
        assert {x.dtype for x in found if x is not None} == {dtype}


def test_their_bytes_are_counted():
    plan = Plan(Schedule(64), default_config(128, 128, 2, Schedule(64), 80))
    (*_, narrow), (*_, twice) = (
        [work_of(one).traffic["g"] for one in all_launches(work, plan)] for work in (WORK, WIDE)
    )
    assert twice.read == 2 * narrow.read


def test_the_public_list_of_launches_knows_them():
    shape: dict[str, Any] = {"B": 1, "T": 128, "H": 2, "K": 64, "V": 64, "dtype": torch.bfloat16}
    for op in ("gla", "gla_recurrent"):
        for given, dtype in ((None, torch.bfloat16), (torch.float32, torch.float32)):
            found = [
                one.args["p_g"] for one in launches(op, **shape, gate_dtype=given) if one.args.get("p_g") is not None
            ]
            assert found
            assert {x.dtype for x in found} == {dtype}
