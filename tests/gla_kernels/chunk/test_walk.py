"""The forward pass without gates in one walk, beside the two passes whose work it does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gla_kernels import Plan, Schedule, Workload, chunk, default_config, gla, reference
from gla_kernels.launch import Launch, execute
from gla_kernels.ops.gla_form import DTYPE_NAMES
from gla_kernels.plan.apply import all_launches, problem_of
from gla_kernels.plan.choose import by_model, with_walks
from gla_kernels.plan.limits import why_not

WORK = Workload("fwd", 1, 300, 2, 64, 64, gated=False)


def walked(work: Workload, schedule: Schedule) -> Plan:
    config = replace(default_config(work.K, work.V, work.operand_bytes, schedule), block_t=schedule.chunk)
    return Plan(schedule, with_walks(config, work))


def forward(x, plan, keep):
    """o, the final state, what is kept, and the passes."""
    found: list[str] = []

    def run(launch):
        found.append(launch.step)
        execute(launch)

    problem = problem_of(x.q, x.k, x.v, None, x.q.shape[-1] ** -0.5, x.initial_state, plan)
    return *chunk.forward(problem, True, run, keep), found


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("T", "K", "V"), [(1, 16, 16), (64, 32, 64), (150, 20, 72), (200, 64, 128)])
@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(64, 64, True, 1), Schedule(32)], ids=str)
def test_one_walk_is_what_two_passes_are(inputs, dtype, T, K, V, schedule):
    x = inputs((2 if T <= 64 else 1, T, 2, K, V), dtype, None)
    work = replace(WORK, T=T, K=K, V=V, dtype=DTYPE_NAMES[dtype])
    plan = walked(work, schedule)
    o, final, kept, found = forward(x, plan, True)
    assert found[-1] == "walk"
    assert "output" not in found
    without, end, nothing, _ = forward(x, plan, False)
    assert nothing is None
    assert torch.equal(o, without)
    assert torch.equal(final, end)
    apart = replace(plan, config=replace(plan.config, walk=None))
    o_apart, final_apart, kept_apart, _ = forward(x, apart, True)
    exact = x.cast(torch.float64)
    right, end = reference.recurrent(exact.q, exact.k, exact.v, None, initial_state=exact.initial_state)
    for one, other, of_float64 in ((o, o_apart, right), (final, final_apart, end)):
        error, allowed = (one.double() - of_float64).norm(), (other.double() - of_float64).norm()
        assert error <= 1.5 * allowed + 1e-6 * of_float64.norm()
    torch.testing.assert_close(kept.states.float(), kept_apart.states.float(), rtol=1e-2, atol=1e-2)


def test_gradients_go_by_the_states_that_a_walk_keeps(inputs):
    outputs = []
    for walks in (True, False):
        x = inputs((1, 200, 2, 32, 32), torch.float32, None)
        schedule = Schedule(64)
        plan = walked(replace(WORK, K=32, V=32, dtype="fp32"), schedule)
        plan = plan if walks else replace(plan, config=replace(plan.config, walk=None))
        given = [y.requires_grad_() for y in (x.q, x.k, x.v)]
        o, _ = gla(x.q, x.k, x.v, None, config=(plan, None))
        outputs.append(torch.autograd.grad(o, given, x.do))
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_without_a_backward_pass_there_is_no_room_for_states():
    plan = walked(WORK, Schedule(64))
    assert [launch.args["p_s"].shape for launch in all_launches(WORK, plan)] == [(2, 5, 64, 64)]
    q = torch.empty(1, 300, 2, 64, device="meta", dtype=torch.bfloat16)
    found: list[Launch] = []
    chunk.forward(problem_of(q, q, q, None, 1.0, None, plan), False, found.append, keep=False)
    assert [launch.args["p_s"] for launch in found] == [None]


@pytest.mark.parametrize(
    ("changes", "schedule"),
    [({"K": 256}, Schedule(64)), ({}, Schedule(64, 32)), ({}, Schedule(128, 64)), ({"direction": "bwd"}, Schedule(64))],
)
def test_where_none_can_serve(changes, schedule):
    work = replace(WORK, **changes)
    plan = Plan(
        schedule, with_walks(replace(default_config(work.K, 64, 2, schedule), block_t=schedule.rows // 2), work)
    )
    assert why_not(plan, work, 90, "walk") is not None
    launched = {launch.step for launch in all_launches(work, plan)}
    assert "walk" not in launched


def test_the_model_takes_it_where_heads_are_many():
    work = replace(WORK, B=32, T=1024, H=16)
    for capability in (80, 90):
        assert by_model(work, capability).config.walk is not None
    assert by_model(replace(work, gated=True), 80).config.walk is None
