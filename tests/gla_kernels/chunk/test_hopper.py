"""Where Hopper's own kernels serve, and what runs after them. Their results are judged by test_hopper_kernels.py and
test_strong_gates.py, and by test_gla.py, on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import gla_kernels.chunk
from gla_kernels import Plan, Schedule, Workload, default_config
from gla_kernels.chunk.packing import of_sequences
from gla_kernels.launch import Launch
from gla_kernels.plan.apply import all_launches, problem_of
from gla_kernels.plan.choose import with_walks
from gla_kernels.plan.limits import HOPPER_PASSES, why_not
from gla_kernels.plan.space import tiles
from gla_kernels.schedule import PASSES
from gla_kernels.tiles.descriptors import blocks

WORK = Workload("bwd", 1, 300, 2, 128, 256)


def backward(work: Workload, schedule: Schedule, **changes: bool) -> list[str]:
    """The kernels of a backward pass as a GPU would run them."""
    config = default_config(work.K, work.V, work.operand_bytes, schedule)
    config = replace(config, grad_qk=replace(config.grad_qk, **changes))
    return [launch.name for launch in all_launches(work, Plan(schedule, config))]


def test_bf16_in_chunks_of_64_is_done_by_hoppers_kernel():
    found = backward(replace(WORK, H=64), Schedule(64))
    assert found[-3:] == ["grad_qk_hopper_kernel", "grad_v_kernel", "grad_qk_strong_hopper_kernel"]


@pytest.mark.parametrize(
    ("work", "schedule", "changes"),
    [
        (replace(WORK, dtype="fp16"), Schedule(64), {}),
        (replace(WORK, gated=False), Schedule(64), {}),
        (replace(WORK, K=96), Schedule(64), {}),
        (replace(WORK, V=100), Schedule(64), {}),
        (replace(WORK, T=0), Schedule(64), {}),
        (WORK, Schedule(32), {}),
        (WORK, Schedule(128, 64), {}),
        (WORK, Schedule(64, 32), {}),
        (WORK, Schedule(64), {"hopper": False}),
    ],
)
def test_all_else_by_the_portable_one(work, schedule, changes):
    found = backward(work, schedule, **changes)
    assert "grad_qk_kernel" in found
    assert not {"grad_qk_hopper_kernel", "grad_qk_strong_hopper_kernel"} & set(found)


@pytest.mark.parametrize(("K", "V"), [(64, 64), (128, 128), (128, 512)])
@pytest.mark.parametrize("sequences", [None, 5])
def test_gates_in_float32_go_where_others_do(K, V, sequences):
    q = torch.empty(1, 3000, 1, K, dtype=torch.bfloat16, device="meta")
    v = torch.empty(1, 3000, 1, V, dtype=torch.bfloat16, device="meta")
    plan = Plan(Schedule(64), with_walks(default_config(K, V, 2, Schedule(64)), replace(FORWARD, K=K, V=V)))
    found: dict[torch.dtype, list[Launch]] = {torch.bfloat16: [], torch.float32: []}
    for dtype, launches in found.items():
        p = problem_of(q, q, v, q.to(dtype), 1.0, None, plan)
        if sequences:
            ends = torch.empty(sequences + 1, dtype=torch.int32, device="meta")
            native = p.all_native(p.config.walk, p.config.grad_walk, p.config.grad_qk)
            p = of_sequences(p, ends, native, lambda _: None)
        kept = gla_kernels.chunk.forward(p, False, launches.append, every=p.states_apart)[-1]
        grads = gla_kernels.chunk.backward(p, v, None, launches.append, kept)
        assert grads.g is not None
        assert grads.g.dtype == dtype
    narrow, wide = found.values()
    assert [launch.name for launch in wide] == [launch.name for launch in narrow]
    assert all("hopper" in launch.name for launch in wide)


def test_a_tensor_off_the_16_bytes_that_a_descriptor_wants_has_none():
    q = torch.zeros(1, 64, 1, 64, dtype=torch.bfloat16)
    off = torch.zeros(64 * 64 + 1, dtype=torch.bfloat16)[1:].view(q.shape)
    assert blocks({"p_q": q, "p_k": off, "p_g": None}, ("q", "k", "g"), 64, 64, 64) == {"q": (1, 64, 64)}


def test_only_hopper_has_them():
    schedule = Schedule(64)
    plan = Plan(schedule, default_config(128, 256, 2, schedule, 90))
    assert plan.config.grad_qk.hopper
    assert why_not(plan, WORK, 90, "grad_qk") is None
    assert why_not(plan, WORK, 100, "grad_qk") == "a kernel of Hopper's own needs compute capability 90"
    for capability in (80, 100):
        assert why_not(plan, WORK, capability, "grad_qk") is not None
        assert not default_config(128, 256, 2, schedule, capability).grad_qk.hopper
        assert not any(tile.hopper for step in PASSES for tile in tiles(step, 128, 256, capability))
    wide = replace(plan, config=replace(plan.config, grad_qk=replace(plan.config.grad_qk, block_v=128)))
    assert "tiles of 64 by 64" in (why_not(wide, WORK, 90, "grad_qk") or "")
    offered = {step for step in PASSES if any(tile.hopper for tile in tiles(step, 128, 256, 90))}
    assert offered == set(HOPPER_PASSES)


# --- Fused scans ------------------------------------------------------------------------------------------------------


def walks(work: Workload, schedule: Schedule) -> list[Launch]:
    """The launches of a plan with walks, as a GPU would run them."""
    config = with_walks(default_config(work.K, work.V, work.operand_bytes, schedule), work)
    return all_launches(work, Plan(schedule, config))


def walked(work: Workload, schedule: Schedule) -> list[str]:
    """Their passes."""
    return [launch.step for launch in walks(work, schedule)]


FORWARD = Workload("fwd", 1, 3000, 2, 128, 256)


@pytest.mark.parametrize(
    ("schedule", "before"),
    [
        (Schedule(64), []),
        (Schedule(64, 64, True, 16), ["states", "combine"]),
        (Schedule(64, 64, False), ["states"]),
    ],
)
def test_a_walk_does_two_passes_work(schedule, before):
    assert walked(FORWARD, schedule) == [*before, "walk", "output_strong"]
    found = walked(replace(FORWARD, direction="bwd"), schedule)
    assert found[-4:] == ["grad_walk", "grad_qk", "grad_v_strong", "grad_qk_strong"]
    assert "grad_v" not in found
    assert ("grad_states" in found) == bool(before)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(64, 64, True, 16), Schedule(64, 64, False)])
def test_the_passes_of_a_plan_with_walks_are_those_that_are_launched(direction, schedule):
    work = replace(FORWARD, direction=direction)
    config = with_walks(default_config(128, 256, 2, schedule), work)
    launched = {step for step in walked(work, schedule) if step != "combine" and not step.endswith("_strong")}
    assert launched == set(Plan(schedule, config).steps(work))


@pytest.mark.parametrize(
    ("changes", "schedule"),
    [
        ({"dtype": "fp16"}, Schedule(64)),
        ({"gated": False}, Schedule(64)),
        ({"K": 96}, Schedule(64)),
        ({"T": 0}, Schedule(64)),
        ({}, Schedule(32)),
        ({}, Schedule(128, 64)),
    ],
)
def test_where_a_walk_cannot_serve_the_passes_do(changes, schedule):
    for direction in ("fwd", "bwd"):
        work = replace(FORWARD, **{"direction": direction, **changes})
        assert not {"grad_walk", "output_strong"} & set(walked(work, schedule))


def test_a_negative_scale_goes_to_the_passes():
    """The walk backward in time adds the scale's logarithm to exponents."""
    q, v = (torch.empty(1, 64, 1, 64, dtype=torch.bfloat16, device="meta") for _ in range(2))
    schedule = Schedule(64)
    plan = Plan(schedule, with_walks(default_config(64, 64, 2, schedule), replace(FORWARD, K=64, V=64)))
    for scale, step in ((1.0, "grad_walk"), (-1.0, "grad_v"), (0.0, "grad_v")):
        found: list[Launch] = []
        gla_kernels.chunk.backward(problem_of(q, q, v, q, scale, None, plan), v, None, found.append)
        assert step in [launch.step for launch in found]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gated": False}, "portable and forward without"),
        ({"K": 192}, "K of up to 128"),
        ({"V": 192}, "whole tiles of V"),
        ({"dtype": "fp32"}, "bf16"),
    ],
)
def test_why_a_walk_cannot_run(changes, reason):
    schedule = Schedule(64)
    plan = Plan(schedule, with_walks(default_config(128, 256, 2, schedule, 90), FORWARD))
    work = replace(FORWARD, **changes)
    assert why_not(plan, FORWARD, 90, "walk") is None
    assert reason in (why_not(plan, work, 90, "walk") or "")
    assert "grad_walk: the plan has no such walk" in (
        why_not(Plan(schedule, default_config(128, 256, 2, schedule)), work, 90, "grad_walk") or ""
    )
    assert why_not(plan, FORWARD, 100, "walk") == "a kernel of Hopper's own needs compute capability 90"


# --- Wide heads -------------------------------------------------------------------------------------------------------

WIDE = replace(FORWARD, K=256)
PREPARED = ["prepare", "prepare_strong"]


def test_wide_heads_walk_on_what_was_prepared_and_leave_nothing_to_strong_gates_but_their_gradients():
    assert walked(WIDE, Schedule(64)) == [*PREPARED, "walk"]
    backward = replace(WIDE, direction="bwd")
    assert walked(backward, Schedule(64)) == [*PREPARED, "states", "grad_walk", "grad_qk", "grad_qk_strong"]
    assert walked(WIDE, Schedule(64, 64, True, 16)) == [*PREPARED, "states", "combine", "walk"]


def test_wide_heads_without_materialized_states_walk_where_slices_take_turns():
    """A walk then goes over one slice, and is of what was prepared of that."""
    schedule = Schedule(64, 64, False)
    plan = Plan(schedule, with_walks(default_config(256, 256, 2, schedule), WIDE))
    assert {"states", "output"} <= set(walked(WIDE, schedule))
    assert "take turns" in (why_not(plan, WIDE, 90, "walk") or "")
    many = replace(WIDE, H=64)
    assert why_not(plan, many, 90) is None
    assert set(walked(many, schedule)) == {"copy", *PREPARED, "walk"}


@pytest.mark.parametrize("name", ["q", "v"])
def test_wide_heads_off_the_16_bytes_that_a_descriptor_wants_go_by_passes(name):
    """q is read by what prepares it alone, v by the walk."""
    shape = (1, 128, 1, 256)
    aligned = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    off = torch.empty(128 * 256 + 1, dtype=torch.bfloat16, device="meta")[1:].view(shape)
    x = dict.fromkeys("qkvg", aligned) | {name: off}
    plan = Plan(Schedule(64), with_walks(default_config(256, 256, 2, Schedule(64)), WIDE))
    found: list[Launch] = []
    gla_kernels.chunk.forward(problem_of(x["q"], x["k"], x["v"], x["g"], 1.0, None, plan), False, found.append)
    steps = [launch.step for launch in found]
    assert "output" in steps
    assert not {"prepare", "walk"} & set(steps)


def packed_wide(schedule: Schedule, states: Tensor | None = None) -> list[Launch]:
    """The launches of both directions of packed sequences of wide heads, as a GPU would run them."""
    q = torch.empty(1, 3000, 1, 256, dtype=torch.bfloat16, device="meta")
    plan = Plan(schedule, with_walks(default_config(256, 256, 2, schedule), WIDE))
    p = problem_of(q, q, q, q, 1.0, states, plan)
    native = p.all_native(p.config.walk, p.config.grad_walk, p.config.grad_qk)
    found: list[Launch] = []
    p = of_sequences(p, torch.empty(6, dtype=torch.int32, device="meta"), native, found.append)
    kept = gla_kernels.chunk.forward(p, states is not None, found.append, every=p.states_apart)[-1]
    gla_kernels.chunk.backward(p, q, states, found.append, kept)
    return found


def test_packed_wide_heads_walk():
    both = [*PREPARED, "walk", *PREPARED, "grad_walk", "grad_qk", "grad_qk_strong"]
    found = packed_wide(Schedule(64))
    assert [launch.step for launch in found] == ["marks", "edges", *both]
    # where no sequence has states, what walks is the kernel of one sequence
    assert not any(launch.constexprs["PACKED"] for launch in found if launch.step in ("walk", "grad_walk"))
    found = packed_wide(Schedule(64), torch.empty(5, 1, 256, 256, device="meta"))
    assert set(both) < {launch.step for launch in found}
    assert not {"states", "output", "close"} & {launch.step for launch in found}


def test_packed_wide_heads_whose_states_are_not_materialized_go_by_passes():
    """All of them: what goes by closed gates knows no marks."""
    steps = {launch.step for launch in packed_wide(Schedule(64, 64, False))}
    assert {"close", "states", "output", "grad_states", "grad_v"} <= steps
    assert not {"edges", "prepare", "walk", "grad_walk"} & steps


@pytest.mark.parametrize(("keep", "every", "states"), [(False, 1, 0), (True, 5, 10), (True, 1, 47)])
def test_a_forward_walk_of_wide_heads_has_room_for_states_that_are_kept_alone(keep, every, states):
    """Those of strong gates, which narrower heads' walks store for another kernel, nobody asks for."""
    q = torch.empty(1, 3000, 1, 256, dtype=torch.bfloat16, device="meta")
    plan = Plan(Schedule(64), with_walks(default_config(256, 256, 2, Schedule(64)), WIDE))
    found: list[Launch] = []
    gla_kernels.chunk.forward(problem_of(q, q, q, q, 1.0, None, plan), False, found.append, keep, every)
    (walk,) = (launch for launch in found if launch.step == "walk")
    room = [walk.args[name] for name in ("p_s", "p_few") if walk.args[name] is not None]
    assert sum(one.shape[1] for one in room) == states
