"""The chunkwise form of packed sequences, and of states that lie as [V, K], against float64, sequence by sequence."""

from __future__ import annotations

import pytest
import torch

from gla_kernels import Schedule, gla

LENGTHS = [(40,), (0, 16, 1, 32, 1, 0, 5), (3,) * 9, (7, 0, 0, 40)]
SCHEDULES = {
    "two levels": Schedule(32, 16),
    "one level": Schedule(16, 16),
    "not materialized": Schedule(16, 16, materialize=False),
    "segments": Schedule(16, 16, states_every=2),
}


def form(cu_seqlens=None, v_first=False, final=True, schedule=None, recompute=None):
    how = {"cu_seqlens": cu_seqlens, "state_v_first": v_first, "schedule": schedule, "recompute": recompute}
    return lambda q, k, v, g, s: gla(q, k, v, g, None, s, final, **how)


def judged(judge, packed, inputs, lengths, dims, dtype, gates, v_first=False, initial=True, final=True, **how):
    x = packed.inputs(inputs, lengths, dims, dtype, gates, initial, final, v_first)
    run = form(packed.ends(lengths, x.q.device), v_first, final, **how)
    judge(run, x, lambda reference: packed.one_by_one(reference, lengths, v_first))


@pytest.mark.parametrize(("seed", "schedule"), list(enumerate(SCHEDULES.values())), ids=SCHEDULES)
def test_drawn_lengths(judge, packed, inputs, seed, schedule):
    lengths = packed.drawn(seed % 2, total=50, chunk=16)
    dims = (1 + seed % 2, 12, 20)
    judged(judge, packed, inputs, lengths, dims, torch.float32, "resets", seed % 2 == 1, schedule=schedule)


@pytest.mark.each_value
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("final", [True, False])
def test_states_given_and_asked_for(judge, packed, inputs, lengths, initial, final):
    schedule = Schedule(32, 16)
    judged(judge, packed, inputs, lengths, (1, 16, 16), torch.float32, 0.2, False, initial, final, schedule=schedule)


@pytest.mark.exhaustive(gates=(None,))
@pytest.mark.parametrize(
    ("dtype", "gates"),
    [(torch.float16, None), (torch.float16, 40.0), (torch.bfloat16, 0.1), (torch.bfloat16, 40.0)],
    ids=str,
)
def test_16_bits(judge, packed, inputs, dtype, gates):
    judged(judge, packed, inputs, (20, 0, 37), (1, 16, 24), dtype, gates, v_first=True)


def test_states_made_again(judge, packed, inputs):
    judged(judge, packed, inputs, (20, 0, 37, 30), (1, 16, 16), torch.float32, 0.2, v_first=True, recompute=True)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_states_with_v_first_of_a_batch(inputs, outputs_of, schedule):
    x = inputs((2, 40, 1, 16, 24), torch.float32, 0.2)
    right = outputs_of(form(schedule=schedule), x)
    x.initial_state, x.d_final = x.initial_state.mT.contiguous(), x.d_final.mT.contiguous()
    for name, found in outputs_of(form(v_first=True, schedule=schedule), x).items():
        found = found.mT if name in ("final_state", "d_initial") else found
        torch.testing.assert_close(found, right[name], rtol=1e-5, atol=1e-5)  # slices that hand states on have others


@pytest.mark.parametrize("gates", [0.2, "resets"])
def test_sequences_of_whole_chunks_are_computed_as_those_of_a_batch(packed, inputs, outputs_of, gates):
    """To the bit, where no state is given: a closed gate would take a chunk to another path."""
    x = inputs((2, 32, 2, 16, 16), torch.float32, gates, states=False)
    right = outputs_of(form(final=False, schedule=Schedule(16, 16)), x)
    for name in ("q", "k", "v", "g", "do"):
        setattr(x, name, getattr(x, name).reshape(1, 64, 2, 16))
    run = form(packed.ends((32, 32), x.q.device), final=False, schedule=Schedule(16, 16))
    for name, found in outputs_of(run, x).items():
        assert found is None or torch.equal(found.reshape(right[name].shape), right[name]), name


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gates", [0.1, 1.0, "resets"])
@pytest.mark.parametrize(("H", "K", "V"), [(2, 60, 100), (2, 128, 128), (48, 64, 64), (4, 128, 256), (2, 256, 128)])
def test_full_size(judge, packed, inputs, dtype, gates, H, K, V):
    for states in (True, False):
        lengths = packed.drawn(H + states, 1000, 64)
        judged(judge, packed, inputs, lengths, (H, K, V), dtype, gates, states, states, states)
