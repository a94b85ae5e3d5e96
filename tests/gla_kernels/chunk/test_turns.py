"""Slices of a long sequence that take turns (`Schedule(materialize=False)` with many heads), against float64.

Without a GPU everything here runs in Triton's interpreter, on small shapes.
"""

from __future__ import annotations

import pytest
import torch

from gla_kernels import Plan, Schedule, Workload, chunk, default_config, gla, machine_of
from gla_kernels import schedule as config
from gla_kernels.launch import execute, interpreting
from gla_kernels.plan.apply import all_launches
from gla_kernels.plan.choose import with_walks
from gla_kernels.schedule import Direction, in_turn
from gla_kernels.tiles.slices import Share

SCHEDULE = Schedule(16, 16, False)


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two heads are enough, and two chunks' states fill the buffer."""
    monkeypatch.setattr(config, "HEADS_IN_TURN", 2)
    monkeypatch.setattr(chunk.parted, "segments_at_once", lambda *_: 2)


def form(final: bool = True, recompute: bool = False):
    return lambda q, k, v, g, s: gla(q, k, v, g, None, s, final, schedule=SCHEDULE, recompute=recompute)


@pytest.mark.each_value  # that states are given is no matter of strength
@pytest.mark.parametrize("gates", [None, 0.06, 4.0, "resets", "closed"])
@pytest.mark.parametrize("states", [True, False])
def test_every_gate_strength(judge, inputs, states, gates):
    judge(form(final=states), inputs((1, 50, 2, 16, 24), torch.float32, gates, states))


@pytest.mark.parametrize("T", [1, 32, 33, 97])
def test_any_length(judge, inputs, T):
    judge(form(), inputs((1, T, 1, 16, 16), torch.float32, 0.1))


def test_states_kept_between_slices_are_those_made_again(monkeypatch, one_by_one, inputs, outputs_of):
    x, found = inputs((1, 100, 2, 16, 16), torch.float32, 0.1), []

    def keep(launch):
        found.append(launch.step)
        execute(launch)

    monkeypatch.setattr("gla_kernels.launch.record.execute", keep)
    kept = outputs_of(form(), x)
    passes = [step for step in found if step == "states"]
    found.clear()
    again = outputs_of(form(recompute=True), x)
    assert len(passes) == 4 + 4  # forward, backward
    assert found.count("states") == 4 + 3 + 4  # the last slice's end is nobody's start
    for name, out in kept.items():
        assert torch.equal(out, again[name]), name


@pytest.mark.exhaustive(heads=(3,))
@pytest.mark.parametrize(("batches", "heads", "states"), [(2, 3, True), (1, 2, True), (1, 3, False)])
def test_heads_that_take_turns_have_the_same_gradients(monkeypatch, inputs, outputs_of, states, batches, heads):
    """Of three heads of some sequences; a group at the end is smaller than the others."""
    x = inputs((batches + 1, 40, 3, 16, 16), torch.float32, 0.1, states)
    whole = outputs_of(form(final=states), x)
    in_parts(monkeypatch, batches, heads)
    for name, out in outputs_of(form(final=states), x).items():
        assert torch.equal(out, whole[name]), name


def in_parts(monkeypatch: pytest.MonkeyPatch, batches: int, heads: int) -> None:
    """Backward passes go by groups of so many sequences and heads."""
    monkeypatch.setattr(
        chunk.parted, "share_of", lambda _B, _H, _, head, at_once, room: Share(batches, heads, at_once, head.in_turn)
    )


def test_each_slice_starts_where_the_one_before_it_ended():
    """And all of them are launched alike, so that one kernel serves."""
    ends: dict[Direction, tuple[str, str]] = {"fwd": ("p_s0", "p_st"), "bwd": ("p_dst", "p_ds0")}
    for direction, (start, end) in ends.items():
        work = Workload(direction, 1, 100, 2, 64, 64)
        plan = Plan(SCHEDULE, default_config(64, 64, 2, SCHEDULE))
        step = "states" if direction == "fwd" else "grad_states"
        walks = [launch for launch in all_launches(work, plan, other=plan) if launch.step == step]
        assert [one.args["first_seg"] for one in walks] == ([0, 1, 2, 3] if direction == "fwd" else [3, 2, 1, 0])
        assert {repr(one.constexprs) for one in walks} == {repr(walks[0].constexprs)}
        assert len({id(one.args[name]) for one in walks for name in (start, end)}) == 1


@pytest.mark.skipif(not interpreting(), reason="on a GPU tested at full size")
def test_a_walk_without_gates_needs_no_states(judge, inputs):
    schedule = Schedule(16, 16, False)
    work = Workload("fwd", 1, 70, 2, 16, 16, "fp32", gated=False)
    plan = Plan(schedule, with_walks(default_config(16, 16, 4, schedule), work))
    walks = [launch for launch in all_launches(work, plan) if launch.step != "copy"]  # of the state that they start at
    assert {(launch.step, launch.args["p_s"]) for launch in walks} == {("walk", None)}
    judge(
        lambda q, k, v, g, s: gla(q, k, v, g, None, s, True, config=plan),
        inputs((1, 70, 2, 16, 16), torch.float32, None),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("gates", [None, 0.06, 1.0, 4.0, "resets", "closed"])
@pytest.mark.parametrize("walks", [False, True])
def test_turns_at_full_size(judge, inputs, walks, gates):
    schedule = Schedule(64, 64, False)
    work, capability = Workload("fwd", 1, 1001, 2, 128, 128, gated=gates is not None), machine_of().capability
    tiles = default_config(128, 128, 2, schedule, capability)
    plan = Plan(schedule, with_walks(tiles, work, capability) if walks else tiles)
    judge(
        lambda q, k, v, g, s: gla(q, k, v, g, None, s, True, config=plan),
        inputs((1, 1001, 2, 128, 128), torch.bfloat16, gates),
    )


@pytest.mark.gpu
@pytest.mark.parametrize(("batches", "heads"), [(2, 3), (1, 3), (1, 2)])
@pytest.mark.parametrize("walks", [False, True])
def test_heads_that_take_turns_at_full_size(monkeypatch, inputs, outputs_of, walks, batches, heads):
    """Bit for bit: descriptors of some heads' rows reach no other rows."""
    schedule = Schedule(64, 64, False)
    work, capability = Workload("fwd", 3, 1001, 3, 128, 128), machine_of().capability
    tiles = default_config(128, 128, 2, schedule, capability)
    plan = Plan(schedule, with_walks(tiles, work, capability) if walks else tiles)
    x = inputs((3, 1001, 3, 128, 128), torch.bfloat16, 1.0)

    def call(q, k, v, g, s):
        return gla(q, k, v, g, None, s, True, config=plan)

    whole = outputs_of(call, x)
    in_parts(monkeypatch, batches, heads)
    for name, out in outputs_of(call, x).items():
        assert torch.equal(out, whole[name]), name


def test_heads_decide(monkeypatch):
    monkeypatch.undo()
    assert in_turn(Schedule(64, 64, False), config.HEADS_IN_TURN, 128)
    assert in_turn(Schedule(64, 64, False), config.HEADS_IN_TURN // 2, 256)
    assert not in_turn(Schedule(64, 64, False), config.HEADS_IN_TURN - 1, 128)
    assert not in_turn(Schedule(64, 64, False, 4), config.HEADS_IN_TURN, 128)
    assert not in_turn(Schedule(64), config.HEADS_IN_TURN, 128)
