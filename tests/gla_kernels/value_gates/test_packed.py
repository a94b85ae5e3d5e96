"""Gates on the value side, of packed sequences and with states that lie as [V, K], against float64, sequence by
sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gla_kernels import Schedule, gla
from gla_kernels.value_gates import problem

SMALL = Schedule(16, 16)
LENGTHS = (0, 3, 16, 13, 0, 1, 20)


def form(cu_seqlens=None, v_first=False, final=True, schedule=SMALL, recompute=None):
    how = {"cu_seqlens": cu_seqlens, "state_v_first": v_first, "schedule": schedule, "recompute": recompute}
    return lambda q, k, v, g, s, gv: gla(q, k, v, g, None, s, final, gv=gv, **how)


@pytest.fixture
def judged(judge, packed, inputs):
    def run(lengths, dims, dtype, gates, value_gates, initial=False, final=False, v_first=False, **how):
        x = packed.inputs(inputs, lengths, dims, dtype, gates, initial, final, v_first, value_gates=value_gates)
        lies = packed.ends(lengths, x.q.device)
        judge(form(lies, v_first, final, **how), x, lambda f: packed.one_by_one(f, lengths, v_first))

    return run


@pytest.mark.parametrize(
    ("gates", "value_gates"), [(0.06, 0.06), (None, 1.0), ("resets", "resets"), (1.0, "closed")], ids=str
)
def test_every_gate_strength(judged, gates, value_gates):
    judged(LENGTHS, (1, 16, 12), torch.float32, gates, value_gates)


@pytest.mark.parametrize("seed", range(2))
def test_drawn_lengths(judged, packed, seed):
    how = {"schedule": Schedule(32, 16, materialize=seed == 0), "recompute": seed == 1}
    judged(packed.drawn(seed, 80), (2, 8, 12), torch.float32, 1.0, 1.0, **how)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bits(judged, dtype):
    judged((3, 16, 13), (1, 16, 12), dtype, 1.0, 1.0)


def test_many_tiny_sequences(judged, packed):
    judged(packed.MANY_TINY, (1, 8, 8), torch.float32, 1.0, 1.0)


@pytest.mark.parametrize(("initial", "final"), [(True, True), (True, False), (False, True)])
def test_states_given_and_asked_for(judged, initial, final):
    judged((4, 0, 9), (1, 8, 12), torch.float32, 1.0, 1.0, initial, final, v_first=True)


def test_a_final_state_without_a_gradient(packed, inputs, outputs_of):
    """That the backward pass goes by chunks then, which the forward pass has not."""
    x = packed.inputs(inputs, (4, 0, 9), (1, 8, 8), torch.float32, 1.0, False, False, value_gates=1.0)
    lies = packed.ends((4, 0, 9), x.q.device)
    asked, not_asked = outputs_of(form(lies), x), outputs_of(form(lies, final=False), x)
    for name in ("dq", "dk", "dv", "dg", "dgv"):
        assert torch.equal(asked[name], not_asked[name]), name


def test_gates_of_first_rows_have_no_gradient(packed, inputs, outputs_of):
    x = packed.inputs(inputs, (4, 0, 20, 9), (1, 8, 8), torch.float32, 1.0, False, False, value_gates=1.0)
    assert not outputs_of(form(packed.ends((4, 0, 20, 9), x.q.device), final=False), x)["dgv"][:, [0, 4, 24]].any()


@pytest.mark.parametrize("schedule", [SMALL, Schedule(16, 16, False)], ids=["kept", "walked"])
@pytest.mark.parametrize(("K", "V"), [(8, 12), (12, 12)])
def test_states_with_v_first_of_a_batch(inputs, outputs_of, monkeypatch, schedule, K, V):
    monkeypatch.setattr(problem, "segments_at_once", lambda *_: 1)
    x = inputs((2, 20, 1, K, V), torch.float32, 1.0, value_gates=1.0)
    right = outputs_of(form(schedule=schedule), x)
    x = replace(x, initial_state=x.initial_state.mT.contiguous(), d_final=x.d_final.mT.contiguous())
    for name, found in outputs_of(form(v_first=True, schedule=schedule), x).items():
        assert torch.equal(found.mT if name in ("final_state", "d_initial") else found, right[name]), name


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("gates", "value_gates"), [(1.0, 1.0), (None, 1.0), ("resets", "resets")], ids=str)
@pytest.mark.parametrize("states", [False, True])
def test_real_sizes(judged, packed, dtype, gates, value_gates, states):
    judged(packed.drawn(0, 1500, 64), (2, 128, 64), dtype, gates, value_gates, states, states, schedule=None)
