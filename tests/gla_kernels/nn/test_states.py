"""The layer with states: a prompt and then tokens, one by one, and sequences that are packed."""

from __future__ import annotations

import pytest
import torch

from .layers import HEADS, drawn, near


@pytest.mark.parametrize("how", [{}, {"num_kv_heads": 1}, {"use_output_gate": False}], ids=str)
@torch.no_grad()
def test_a_prompt_and_then_a_token_at_a_time_is_the_whole(made, how):
    layer = made(**how)
    x = drawn(layer, 2, 24)
    whole, last = layer(x, output_final_state=True)
    assert layer(x)[1] is None
    y, state = layer(x[:, :20], None, True)
    assert near(y, whole[:, :20])
    kept, before = state, state.clone()
    for t in range(20, 22):  # by the layer itself, which leaves a state as it is
        y, state = layer(x[:, t : t + 1], state, True)
        assert near(y, whole[:, t : t + 1])
    assert torch.equal(kept, before)
    for t in range(22, 24):  # in place
        assert near(layer.step(x[:, t], state), whole[:, t])
    assert near(state, last)


def test_a_single_token_has_gradients(made):
    layer = made()
    x = drawn(layer, 2, 9)
    whole = layer(x)[0][:, -1:]
    _, state = layer(x[:, :-1], output_final_state=True)
    last, _ = layer(x[:, -1:], state)
    want, got = (torch.autograd.grad(y.square().sum(), list(layer.parameters())) for y in (whole, last))
    for a, b in zip(want, got, strict=True):
        assert near(b, a)


@pytest.mark.parametrize("mode", ["chunk", "fused_recurrent"])
def test_packed_sequences_are_the_separate_ones(made, packed, mode):
    layer, lengths = made(mode=mode), (7, 0, 20, 1)
    x = drawn(layer, 1, sum(lengths))
    states = torch.randn(len(lengths), HEADS, 12, 24, device=x.device)
    ends = packed.ends(lengths, x.device)
    found, after = layer(x, states, True, cu_seqlens=ends)
    parts = [
        layer(part, states[n : n + 1], True)
        for n, part in enumerate(x.split(lengths, 1))
        if part.shape[1]  # nothing becomes of the state of none
    ]
    whole = torch.cat([y for y, _ in parts], 1)
    assert near(found, whole)
    assert near(after[[0, 2, 3]], torch.cat([state for _, state in parts]))
    assert torch.equal(after[1], states[1])
    want, got = (torch.autograd.grad(y.square().sum(), list(layer.parameters())) for y in (whole, found))
    for a, b in zip(want, got, strict=True):
        assert near(b, a)
