"""The recurrent form of packed sequences, and of states that lie as [V, K], against float64, sequence by sequence."""

from __future__ import annotations

import pytest
import torch

from gla_kernels import gla_recurrent

LENGTHS = [(9,), (0, 1, 5, 1, 0), (3,) * 12]


def form(cu_seqlens=None, v_first=False, final=True):
    how = {"cu_seqlens": cu_seqlens, "state_v_first": v_first}
    return lambda q, k, v, g, s, gv=None: gla_recurrent(q, k, v, g, None, s, final, gv=gv, **how)


def judged(judge, packed, inputs, lengths, dims, dtype, gates, v_first=False, initial=True, final=True, **more):
    x = packed.inputs(inputs, lengths, dims, dtype, gates, initial, final, v_first, **more)
    run = form(packed.ends(lengths, x.q.device), v_first, final)
    judge(run, x, lambda reference: packed.one_by_one(reference, lengths, v_first))


@pytest.mark.parametrize("seed", range(3))
def test_drawn_lengths(judge, packed, inputs, seed):
    lengths = packed.drawn(seed, total=40, chunk=4)
    judged(judge, packed, inputs, lengths, (2, 12, 20), torch.float32, "resets", v_first=seed % 2 == 1)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize(("initial", "final"), [(True, True), (True, False), (False, True), (False, False)])
def test_states_given_and_asked_for(judge, packed, inputs, lengths, initial, final):
    judged(judge, packed, inputs, lengths, (1, 8, 8), torch.float32, 1.0, initial=initial, final=final)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gates", [None, 40.0])
def test_16_bits(judge, packed, inputs, dtype, gates):
    judged(judge, packed, inputs, (4, 0, 7), (2, 16, 8), dtype, gates, v_first=True)


@pytest.mark.parametrize(("gates", "value_gates"), [(1.0, "resets"), (None, 1.0)])
def test_gates_on_the_value_side(judge, packed, inputs, gates, value_gates):
    more = {"value_gates": value_gates, "v_first": True}
    judged(judge, packed, inputs, (4, 0, 1, 7), (2, 8, 12), torch.float32, gates, **more)


@pytest.mark.parametrize(("K", "V"), [(8, 12), (12, 12)])
@pytest.mark.parametrize("value_gates", [None, 1.0])
def test_states_with_v_first_of_a_batch(judge, inputs, outputs_of, K, V, value_gates):
    """Against float64; in the interpreter to the bit what the others give, while a GPU's lanes then hold a state the
    other way about, and add up in another order."""

    def turned(q, k, v, g, s, gv=None):
        o, final = form(v_first=True)(q, k, v, g, s.mT.contiguous(), gv)
        return o, final.mT

    x = inputs((2, 9, 2, K, V), torch.float32, 1.0, value_gates=value_gates)
    judge(turned, x)
    if not torch.cuda.is_available():
        found, right = outputs_of(turned, x), outputs_of(form(), x)
        assert all(torch.equal(found[name], right[name]) for name in right)


def test_each_sequence_as_by_itself(packed, inputs, outputs_of):
    """To the bit, with cu_seqlens of either type."""
    lengths = (5, 0, 1, 8)
    x = packed.inputs(inputs, lengths, (2, 8, 8), torch.bfloat16, "resets")
    right = outputs_of(packed.one_by_one(form(), lengths), x)
    for dtype in (torch.int32, torch.int64):
        found = outputs_of(form(packed.ends(lengths, x.q.device, dtype)), x)
        assert all(torch.equal(found[name], right[name]) for name in right)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gates", [None, 1.0, "resets"])
@pytest.mark.parametrize(("K", "V"), [(60, 100), (128, 256)])
def test_full_size(judge, packed, inputs, dtype, gates, K, V):
    judged(judge, packed, inputs, packed.drawn(0, 1000, 64), (2, K, V), dtype, gates, v_first=True)
