"""Gates on the value side, and on both, against the float64 recurrence: every gate strength, length, shape and dtype.

Without a GPU all but what is marked gpu runs in Triton's interpreter, on small shapes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import gla_kernels.value_gates.problem
from gla_kernels import Plan, Schedule, default_config, gla, launches, reference
from gla_kernels.launch import execute, record

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# key side and value side: alike, one of them, mild beside strong, and hard resets, of -inf too
GATES = [(0.06, 0.06), (1.0, 1.0), (None, 2.0), (16.0, 0.06), (4.0, 40.0), ("resets", "resets"), (1.0, "closed")]
GATES += [("infinite", "infinite")]


def name(value: object) -> str:
    if isinstance(value, Schedule):
        return f"{value.chunk}-{value.sub_chunk}-{'m' if value.materialize else 'w'}"
    return str(value).removeprefix("torch.").replace(" ", "")


def form(schedule: Schedule | None = None, final: bool = True, recompute: bool = False):
    return lambda q, k, v, g, s, gv: gla(q, k, v, g, None, s, final, gv=gv, schedule=schedule, recompute=recompute)


@pytest.mark.parametrize(("gates", "value_gates"), GATES, ids=name)
def test_every_gate_strength(judge, inputs, gates, value_gates):
    x = inputs((1, 20, 1, 16, 12), torch.float32, gates, value_gates=value_gates)
    judge(form(Schedule(16, 16)), x)


@pytest.mark.parametrize("schedule", [Schedule(32, 16), Schedule(64, 64), Schedule(64, 16, False)], ids=name)
def test_every_schedule(judge, inputs, schedule):
    # chunks of 32 are not mild, and sub-chunks of 16 are
    x = inputs((1, schedule.chunk - 3, 1, 8, 8), torch.float32, 1.5, value_gates="resets")
    judge(form(schedule), x)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=name)
def test_16_bits(judge, inputs, dtype):
    x = inputs((1, 20, 1, 20, 12), dtype, 4.0, value_gates=1.0)
    judge(form(Schedule(16, 16)), x)


@pytest.mark.parametrize(
    ("gates", "value_gates", "left_out"),
    [(1.0, 0.06, ("gv_strong",)), (None, 1.0, ("gv_strong",)), (0.06, "closed", ("gv_mild",))],
    ids=name,
)
def test_which_kernel_takes_a_chunk(judge, inputs, monkeypatch, one_by_one, gates, value_gates, left_out):
    def some(launch):
        if launch.step not in left_out:
            execute(launch)

    monkeypatch.setattr(record, "execute", some)
    judge(form(Schedule(16, 16)), inputs((1, 20, 1, 16, 12), torch.float32, gates, value_gates=value_gates))


@pytest.mark.parametrize("side", ["g", "gv"])
def test_a_chunk_that_is_not_mild_among_others(judge, inputs, side):
    x = inputs((1, 40, 1, 16, 16), torch.float16, 1.0, value_gates=1.0)
    getattr(x, side)[0, 20, 0, 3] = -1e4
    judge(form(Schedule(16, 16)), x)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 48), (torch.float16, 208)], ids=name)
@pytest.mark.parametrize("over", [-1, 1])
def test_gates_at_the_limit_of_mild_chunks(judge, inputs, dtype, limit, over):
    x, decay = inputs((1, 20, 1, 16, 16), dtype, 1.0, value_gates=1.0), (limit + over) / 16  # powers of two a row
    both = {side: torch.full_like(x.v, -decay * math.log(2)) for side in ("g", "gv")}
    judge(form(Schedule(16, 16)), replace(x, **both))


@pytest.mark.parametrize("T", [1, 17])
def test_any_length(judge, inputs, T):
    judge(form(Schedule(16, 16)), inputs((1, T, 1, 12, 20), torch.float32, 1.0, value_gates=1.0))


def test_head_dimensions_of_several_tiles(judge, inputs, monkeypatch):
    monkeypatch.setattr(gla_kernels.value_gates.problem, "COLUMNS", 16)
    judge(form(Schedule(16, 16)), inputs((1, 10, 1, 20, 18), torch.float32, 1.0, value_gates=8.0))


@pytest.mark.parametrize("recompute", [True, False])
def test_slices_that_hand_a_state_on(judge, inputs, monkeypatch, recompute):
    monkeypatch.setattr(gla_kernels.value_gates.problem, "segments_at_once", lambda *_: 2)
    x = inputs((1, 33, 1, 8, 8), torch.float32, 0.5, value_gates=0.5)  # 3 chunks, in slices of 2 and 1
    judge(form(Schedule(16, 16, False), recompute=recompute), x)


def test_without_states(judge, inputs):
    judge(form(final=False), inputs((1, 12, 2, 8, 8), torch.float32, 1.0, states=False, value_gates=1.0))


def test_gates_in_float32_with_16_bit_inputs(judge, inputs):
    x = inputs((1, 12, 1, 16, 16), torch.bfloat16, 1.0, gate_dtype=torch.float32, value_gates=1.0)
    judge(form(Schedule(16, 16)), x)


def test_the_same_tensor_as_keys_and_values(judge, inputs):
    x = inputs((1, 20, 1, 16, 16), torch.float32, 1.0, value_gates=1.0)
    one = x.k.clone()
    o, _ = gla(x.q, one, one, x.g, gv=x.gv)
    q, k, g, gv = (t.double() for t in (x.q, one, x.g, x.gv))
    expected, _ = reference.recurrent(q, k, k, g, gv=gv)
    torch.testing.assert_close(o.double(), expected, rtol=1e-5, atol=1e-5)


def test_an_empty_sequence_hands_the_state_on(inputs, outputs_of):
    x = inputs((2, 0, 2, 16, 8), torch.float32, 1.0, value_gates=1.0)
    found = outputs_of(form(), x)
    assert torch.equal(found["final_state"], x.initial_state)
    assert torch.equal(found["d_initial"], x.d_final)


def test_what_there_is_only_without_them(inputs):
    x = inputs((1, 20, 1, 16, 16), torch.float32, 1.0, value_gates=1.0)
    plan = Plan(Schedule(64), default_config(16, 16, 4, Schedule(64)))
    with pytest.raises(ValueError, match=r"config: with gv .* expected None, got Plan"):
        gla(x.q, x.k, x.v, x.g, gv=x.gv, config=plan)
    with pytest.raises(ValueError, match="schedule: with gv expected a chunk of at most 64, got 128"):
        gla(x.q, x.k, x.v, x.g, gv=x.gv, schedule=Schedule(128))
    with pytest.raises(ValueError, match="schedule: with gv expected states_every=None, got 2"):
        gla(x.q, x.k, x.v, x.g, gv=x.gv, schedule=Schedule(64, states_every=2))
    with pytest.raises(
        ValueError, match=r"gv: expected shape \[1, 20, 1, 16\] \(B, T, H, V, as v\), got \[1, 20, 1, 8\]"
    ):
        gla(x.q, x.k, x.v, x.g, gv=x.gv[..., :8])
    with pytest.raises(ValueError, match=r"gv: expected dtype torch.float32 .*, got torch.float64"):
        gla(x.q, x.k, x.v, x.g, gv=x.gv.double())


def test_launches_of_a_call():
    found = launches("gla", B=1, T=100, H=2, K=32, V=64, dtype=torch.bfloat16, value_gated=True)
    walked = ["copy", "gv_walk", "gv_mild"]  # from a state of zeros
    strong = "gv_strong"  # what is not mild
    assert [launch.step for launch in found] == [*walked, strong, *walked, "gv_mild", strong]


@pytest.mark.gpu
@pytest.mark.parametrize(("gates", "value_gates"), [*GATES, (40.0, 40.0), (1e4, 1.0)], ids=name)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(("K", "V"), [(128, 64), (256, 256)])
def test_gate_strengths_at_full_size(judge, inputs, dtype, gates, value_gates, K, V):
    judge(form(), inputs((1, 3001, 2, K, V), dtype, gates, value_gates=value_gates))


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [16, 32, 64])
@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(("K", "V"), [(8, 8), (60, 100), (64, 64), (128, 256), (512, 64)])
def test_shapes_at_full_size(judge, inputs, dtype, chunk, materialize, K, V):
    x = inputs((2, 1001, 3, K, V), dtype, 1.0, value_gates=1.0)
    judge(form(Schedule(chunk, 16, materialize)), x)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_the_same_inputs_give_the_same_bits(inputs, outputs_of, dtype):
    x = inputs((2, 1001, 3, 128, 128), dtype, 1.0, value_gates="resets")
    once, again = outputs_of(form(), x), outputs_of(form(), x)
    assert all(torch.equal(once[n], again[n]) for n in once)
