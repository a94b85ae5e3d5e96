"""The oracles against each other, and the recurrence against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from gla_kernels import reference


def test_two_tokens_by_hand():
    q = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]], dtype=torch.float64)
    k = torch.tensor([[[[5.0, 6.0]], [[7.0, 8.0]]]], dtype=torch.float64)
    v = torch.tensor([[[[1.0]], [[10.0]]]], dtype=torch.float64)
    g = torch.tensor([[[[0.0, 0.0]], [[math.log(0.5), math.log(0.25)]]]], dtype=torch.float64)
    o, state = reference.recurrent(q, k, v, g, scale=1.0)
    # S_1 = (5, 6); S_2 = (5/2 + 70, 6/4 + 80)
    assert state.flatten().tolist() == pytest.approx([72.5, 81.5])
    assert o.flatten().tolist() == pytest.approx([1 * 5 + 2 * 6, 3 * 72.5 + 4 * 81.5])


@pytest.mark.parametrize("gates", [None, 0.0, 1.0, 40.0, "resets", "infinite", "closed"])
@pytest.mark.parametrize(
    "other",
    [
        lambda q, k, v, g, s: reference.parallel(q, k, v, g, initial_state=s),
        lambda q, k, v, g, s: reference.chunkwise(q, k, v, g, initial_state=s, chunk=32, sub_chunk=16),
    ],
    ids=["parallel", "chunkwise"],
)
def test_the_forms_agree_in_float64(inputs, outputs_of, other, gates):
    x = inputs((2, 77, 2, 12, 20), torch.float64, gates)
    right = outputs_of(lambda q, k, v, g, s: reference.recurrent(q, k, v, g, initial_state=s), x)
    found = outputs_of(other, x)
    for name, expected in right.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-9, msg=name)


def test_16_bit_inputs_keep_a_float32_state(inputs):
    x = inputs((1, 20, 1, 8, 8), torch.bfloat16, 1.0)
    for form in (reference.recurrent, reference.chunkwise, reference.parallel):
        o, state = form(x.q, x.k, x.v, x.g)
        assert (o.dtype, state.dtype) == (torch.bfloat16, torch.float32)
