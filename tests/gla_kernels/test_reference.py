"""The oracles against each other, and the recurrence against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

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


def by_definition(q, k, v, g, state, gv=None):
    """The two equations as they stand, for autograd."""
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp().unsqueeze(-1) * (1 if gv is None else gv[:, t].exp().unsqueeze(-2))
        state = state + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        outputs.append((q[:, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs, 1) * q.shape[-1] ** -0.5, state


@pytest.mark.parametrize("features", [12, 1], ids=["of features", "of heads"])
@pytest.mark.parametrize("value_gates", [None, 1.0, "infinite"])
def test_the_judges_gradients_are_those_of_the_definition(inputs, outputs_of, value_gates, features):
    x = inputs((2, reference.SEGMENT + 9, 2, 12, 20), torch.float64, "infinite", value_gates=value_gates)
    x = replace(x, g=x.g[..., :features])
    right = outputs_of(by_definition, x)
    found = outputs_of(lambda q, k, v, g, s, gv=None: reference.recurrent(q, k, v, g, None, s, gv), x)
    for name, expected in right.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-12, atol=1e-12, msg=name)


def test_16_bit_inputs_keep_a_float32_state(inputs):
    x = inputs((1, 20, 1, 8, 8), torch.bfloat16, 1.0)
    for form in (reference.recurrent, reference.chunkwise, reference.parallel):
        o, state = form(x.q, x.k, x.v, x.g)
        assert (o.dtype, state.dtype) == (torch.bfloat16, torch.float32)


LENGTHS = (20, 1, 0, 33, 23)


def bounds_of(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(lengths)])


PACKED: dict[str, Any] = {
    "recurrent": reference.recurrent,
    "chunkwise": partial(reference.chunkwise, chunk=16, sub_chunk=16),
    "parallel": reference.parallel,
}


@pytest.mark.parametrize("gates", [None, 1.0, "resets"])
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences_know_nothing_of_each_other(inputs, outputs_of, name, states, gates):
    """A sequence's outputs, states and gradients are those that it has alone."""
    form, bounds = PACKED[name], bounds_of(LENGTHS)
    x = inputs((1, sum(LENGTHS), 2, 6, 10), torch.float64, gates)
    first, last = (torch.randn(len(LENGTHS), 2, 6, 10, device=x.q.device).double() for _ in range(2))
    x = replace(x, initial_state=first if states else None, d_final=last)
    found = outputs_of(lambda q, k, v, g, s: form(q, k, v, g, initial_state=s, cu_seqlens=bounds), x)
    parts = []
    for n, (start, end) in enumerate(pairwise(bounds.tolist())):
        tokens = {name: getattr(x, name) for name in ("q", "k", "v", "g", "do")}
        rows = {name: None if t is None else t[:, start:end] for name, t in tokens.items()}
        alone = replace(x, **rows, initial_state=first[n : n + 1] if states else None, d_final=last[n : n + 1])
        if start < end:
            parts.append((n, start, end, outputs_of(lambda q, k, v, g, s: form(q, k, v, g, initial_state=s), alone)))
    assert len(parts) == 4
    for n, start, end, alone in parts:
        for key, expected in alone.items():
            rows = found[key][n : n + 1] if key in ("final_state", "d_initial") else found[key][:, start:end]
            torch.testing.assert_close(rows, expected, rtol=1e-12, atol=1e-12, msg=key)
    (empty,) = {n for n, length in enumerate(LENGTHS) if not length}
    assert torch.equal(found["final_state"][empty], first[empty] if states else torch.zeros_like(first[empty]))
    if states:
        assert torch.equal(found["d_initial"][empty], last[empty])


def test_packed_sequences_with_gates_on_both_sides(inputs):
    x = inputs((1, sum(LENGTHS), 2, 6, 10), torch.float64, 1.0, value_gates=1.0, states=False)
    bounds = bounds_of(LENGTHS)
    o, state = reference.recurrent(x.q, x.k, x.v, x.g, gv=x.gv, cu_seqlens=bounds)
    other, also = reference.chunkwise(x.q, x.k, x.v, x.g, gv=x.gv, cu_seqlens=bounds)
    torch.testing.assert_close(other, o, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(also, state, rtol=1e-9, atol=1e-9)
    rows = slice(21, 54)
    alone, last = reference.recurrent(x.q[:, rows], x.k[:, rows], x.v[:, rows], x.g[:, rows], gv=x.gv[:, rows])
    torch.testing.assert_close(o[:, rows], alone)
    torch.testing.assert_close(state[3:4], last)


@pytest.mark.parametrize(
    ("batch", "bounds", "states", "said"),
    [
        (2, [0, 4], None, "cu_seqlens: expected a batch of 1, got 2"),
        (1, [0, 3], None, r"cu_seqlens: expected bounds from 0 to T=4 that never fall, got \[0, 3\]"),
        (1, [1, 4], None, "cu_seqlens: expected bounds"),
        (1, [0, 3, 2, 4], None, "cu_seqlens: expected bounds"),
        (1, [0], None, "cu_seqlens: expected bounds"),
        (1, [0, 2, 4], 1, "initial_state: expected 2 states, got 1"),
    ],
)
def test_bounds_that_are_none(inputs, batch, bounds, states, said):
    x = inputs((batch, 4, 1, 2, 2), torch.float64, 1.0, states=False)
    state = None if states is None else torch.zeros(states, 1, 2, 2).double()
    with pytest.raises(ValueError, match=said):
        reference.recurrent(x.q, x.k, x.v, x.g, initial_state=state, cu_seqlens=torch.tensor(bounds))
