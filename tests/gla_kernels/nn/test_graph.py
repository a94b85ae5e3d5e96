"""The layer in a graph of torch.compile: without a break, packed, and a step that updates its state."""

from __future__ import annotations

import pytest
import torch

from .layers import drawn


@pytest.mark.usefixtures("afresh")
@pytest.mark.parametrize("sizes", [((2, 20),), pytest.param(((2, 7), (3, 20)), marks=pytest.mark.exhaustive)], ids=str)
def test_a_graph_computes_the_same_without_a_break(made, sizes):
    layer = made()
    in_graph = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for B, T in sizes:  # a part of a chunk, and two chunks
        x = drawn(layer, B, T)
        found = []
        for run in (layer, in_graph):
            y, state = run(x, None, True)
            loss = y.square().sum() + state.square().sum()
            found.append([y, state, *torch.autograd.grad(loss, list(layer.parameters()))])
        assert all(map(torch.equal, *found))


@pytest.mark.usefixtures("afresh")
def test_a_graph_of_packed_sequences_under_autocast_computes_the_same(made, packed, device):
    layer = made(num_kv_heads=1, gate_dtype=torch.float32, clamp_min=-1.0)
    x, ends = drawn(layer, 1, 28), packed.ends((7, 0, 20, 1), device)
    found = []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        with torch.autocast(device.type, torch.float16):
            y, _ = run(x, cu_seqlens=ends)
        found.append([y, *torch.autograd.grad(y.float().square().sum(), list(layer.parameters()))])
    assert all(map(torch.equal, *found))


@pytest.mark.usefixtures("afresh")
@torch.no_grad()
def test_a_step_in_a_graph_updates_the_state(made):
    layer = made()
    _, state = layer(drawn(layer, 2, 20), output_final_state=True)
    x, other = drawn(layer, 2), state.clone()
    in_graph = torch.compile(layer.step, fullgraph=True, backend="aot_eager")
    assert torch.equal(in_graph(x, state), layer.step(x, other))
    assert torch.equal(state, other)
