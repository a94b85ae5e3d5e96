"""Walks over time that are cut into segments (`Schedule.states_every`), against the float64 recurrence.

Without a GPU everything here runs in Triton's interpreter, on small shapes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gla_kernels import Plan, Schedule, Workload, chunk, default_config, gla
from gla_kernels.cost.model import predict_ms
from gla_kernels.plan.apply import all_launches
from gla_kernels.plan.choose import by_model
from gla_kernels.plan.space import SEGMENTS, schedules
from gla_kernels.tiles import operands
from gla_kernels.tiles.slices import Share

GATES = [None, 0.06, 4.0, 40.0, "resets", "closed"]
LONG = Workload("fwd", 1, 16384, 4, 128, 128)


def form(schedule: Schedule):
    return lambda q, k, v, g, s: gla(q, k, v, g, None, s, True, schedule=schedule)


def name(value: object) -> str:
    if isinstance(value, Schedule):
        return f"{value.chunk}-{value.rows}-{'m' if value.materialize else 'w'}-{value.states_every}"
    return str(value).removeprefix("torch.")


@pytest.mark.each_value
@pytest.mark.parametrize("gates", GATES, ids=name)
@pytest.mark.parametrize("schedule", [Schedule(32, 16, True, 2), Schedule(32, 16, False, 2)], ids=name)
def test_every_gate_strength(judge, inputs, schedule, gates):
    judge(form(schedule), inputs((1, 70, 1, 16, 32), torch.float32, gates))


@pytest.mark.each_value  # gates of every strength are above
@pytest.mark.parametrize("gates", [0.06, "resets"])
@pytest.mark.exhaustive(states_every=(4, 5))
@pytest.mark.parametrize("states_every", [1, 2, 3, 4, 5, 100])
@pytest.mark.parametrize("materialize", [True, False])
def test_any_number_of_chunks_a_segment(judge, inputs, materialize, states_every, gates):
    judge(form(Schedule(16, 16, materialize, states_every)), inputs((1, 70, 1, 16, 16), torch.float32, gates))


@pytest.mark.each_value  # test_gla.py has each with both, of one segment
@pytest.mark.exhaustive(T=(31, 64, 65))
@pytest.mark.parametrize("T", [1, 31, 32, 33, 64, 65, 97])
@pytest.mark.parametrize("materialize", [True, False])
def test_any_length(judge, inputs, materialize, T):
    judge(form(Schedule(16, 16, materialize, 2)), inputs((1, T, 1, 16, 16), torch.float32, 0.1))


@pytest.mark.each_value  # test_gla.py has dtypes with gates
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name)
@pytest.mark.parametrize("gates", [None, 1.0, "resets"], ids=name)
def test_every_dtype(judge, inputs, gates, dtype):
    judge(form(Schedule(32, 16, True, 1)), inputs((1, 70, 1, 16, 16), dtype, gates))


@pytest.mark.each_value  # tiles of K and of V are cut apart
@pytest.mark.parametrize("K", [20, 40])
@pytest.mark.parametrize("V", [24, 72])
def test_any_head_dimension(judge, inputs, K, V):
    judge(form(Schedule(32, 16, True, 1)), inputs((1, 90, 1, K, V), torch.float32, 0.1))


@pytest.mark.each_value  # with states each has both
@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize("gates", [None, 0.1], ids=name)
def test_without_states(judge, inputs, gates, materialize):
    judge(form(Schedule(16, 16, materialize, 2)), inputs((1, 70, 2, 16, 16), torch.float32, gates, states=False))


@pytest.mark.exhaustive(gates=(0.06,))
@pytest.mark.parametrize("gates", [None, 0.06, "resets"], ids=name)
def test_slices_of_segments(judge, inputs, monkeypatch, gates):
    monkeypatch.setattr(chunk.parted, "segments_at_once", lambda *_: 2)
    judge(form(Schedule(16, 16, False, 2)), inputs((1, 90, 1, 16, 16), torch.float32, gates))


def test_segments_of_heads_that_take_turns(inputs, outputs_of, monkeypatch):
    x, call = inputs((1, 70, 3, 16, 16), torch.float32, 0.1), form(Schedule(16, 16, False, 2))
    monkeypatch.setattr(chunk.parted, "segments_at_once", lambda *_: 2)
    whole = outputs_of(call, x)
    monkeypatch.setattr(chunk.parted, "share_of", lambda *_: Share(1, 2, 2, False))
    for name, out in outputs_of(call, x).items():
        assert torch.equal(out, whole[name]), name


@pytest.mark.parametrize("materialize", [True, False])
def test_the_same_twice_and_near_a_walk_over_all_of_it(inputs, outputs_of, materialize):
    x = inputs((1, 70, 1, 16, 16), torch.float32, 0.06)
    first, second = (outputs_of(form(Schedule(16, 16, materialize, 3)), x) for _ in range(2))
    whole = outputs_of(form(Schedule(16, 16, materialize)), x)
    for what, out in first.items():
        assert torch.equal(out, second[what]), what
        torch.testing.assert_close(out, whole[what], rtol=1e-5, atol=1e-5 * float(whole[what].abs().max()))


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("materialize", [True, False])
def test_no_program_walks_over_more_than_a_segment(direction, materialize):
    schedule = Schedule(64, 64, materialize, 16)
    config = default_config(128, 128, 2, schedule)
    walks = [
        x for x in all_launches(replace(LONG, direction=direction), Plan(schedule, config)) if "seg_rows" in x.args
    ]
    assert {launch.args["seg_rows"] for launch in walks} == {1024}
    for launch in walks:
        start = launch.args["p_s0" if launch.step == "states" else "p_dst"]
        assert (start is None) == launch.constexprs["LAST"]


def test_nobody_asks_what_the_last_segment_adds():
    schedule = Schedule(64, 64, True, 16)
    plan = Plan(schedule, default_config(128, 128, 2, schedule))
    first, combined, walk, _ = all_launches(LONG, plan)
    assert [launch.args["n_seg"] for launch in (first, combined, walk)] == [15, 16, 16]
    assert combined.args["p_add"].shape == (4, 15, 128, 128)
    assert (combined.args["p_s"].dtype, combined.args["p_s"].shape) == (torch.float32, (4, 16, 128, 128))


def test_a_segment_that_holds_the_sequence_is_no_segment():
    short = replace(LONG, T=1000)
    cut, whole = (Plan(s, default_config(128, 128, 2, s)) for s in (Schedule(64, 64, True, 16), Schedule(64)))
    assert [x.constexprs for x in all_launches(short, cut)] == [x.constexprs for x in all_launches(short, whole)]


def test_segments_are_tried_where_heads_are_few_and_sequences_long():
    def rows(work: Workload) -> set[int]:
        return {s.chunk * s.states_every for s in schedules(work) if s.states_every is not None}

    assert rows(LONG) == rows(replace(LONG, B=2, H=16)) == set(SEGMENTS)
    assert rows(replace(LONG, B=8, H=32)) == set()
    assert rows(replace(LONG, T=1500)) == {752, 768}  # halves, in chunks
    assert rows(replace(LONG, T=1024)) == set()
    assert len(set(schedules(LONG))) == len(list(schedules(LONG)))


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_the_cost_model_cuts_long_sequences_of_few_heads(direction):
    work = replace(LONG, direction=direction)
    assert by_model(work, 90).schedule.states_every is not None
    assert by_model(replace(work, B=8, H=32), 90).schedule.states_every is None


def test_combining_takes_little_of_the_time(monkeypatch):
    monkeypatch.setattr(operands, "interpreting", lambda: False)  # as on a GPU: the interpreter's products are others
    schedule = Schedule(64, 64, True, 16)
    launches = all_launches(LONG, Plan(schedule, default_config(128, 128, 2, schedule)))
    total = sum(predict_ms(launch, 90) for launch in launches)
    (combined,) = (predict_ms(launch, 90) for launch in launches if launch.step == "combine")
    assert 0 < combined < 0.1 * total
