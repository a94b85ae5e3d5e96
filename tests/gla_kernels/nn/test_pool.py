"""The layer with the states of many requests in a pool: as with a state of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gla_kernels.nn import GatedLinearAttention


@pytest.fixture(autouse=True)
def where_kernels_run(device: torch.device) -> Iterator[None]:
    with device:
        yield


@pytest.fixture
def slots() -> torch.Tensor:
    return torch.tensor([3, 0], dtype=torch.int32)


@pytest.fixture(params=[{}, {"num_kv_heads": 1, "use_output_gate": False}], ids=["as in the paper", "grouped"])
def layer(request: pytest.FixtureRequest) -> GatedLinearAttention:
    torch.manual_seed(0)
    return GatedLinearAttention(hidden_size=32, num_heads=2, **request.param)


def test_prompts_and_steps(layer: GatedLinearAttention, slots: torch.Tensor) -> None:
    """Two prompts packed, then a token of each, then two; a pool of a tail and one without."""
    x = torch.randn(2, 12, 32)
    with torch.no_grad():
        right = layer(x)[0]
        for options in ({}, {"tail": 2, "tokens": 2}):
            pool = layer.state_pool(4, **options)
            prompts = torch.cat([x[0, :9], x[1, :5]])[None]
            y = layer.prefill(prompts, pool, slots, torch.tensor([0, 9, 14]))
            torch.testing.assert_close(y[0], torch.cat([right[0, :9], right[1, :5]]), atol=1e-5, rtol=1e-4)
            at = torch.tensor([9, 5])
            y = layer.serve(x[[0, 1], at], pool, slots)
            torch.testing.assert_close(y, right[[0, 1], at], atol=1e-5, rtol=1e-4)
            if options:
                both = torch.stack([at + 1, at + 2], 1)
                rows = torch.tensor([[0], [1]])
                y = layer.serve(x[rows, both], pool, slots, accept=torch.tensor([1, 1]))
                torch.testing.assert_close(y, right[rows, both], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_a_pool_is_as_the_weights_are(layer: GatedLinearAttention, slots: torch.Tensor) -> None:
    pool = layer.to(torch.bfloat16).state_pool(4, dtype=torch.float16, tail=4)
    assert pool.state.shape == (4, layer.num_heads, layer.head_k_dim, layer.head_v_dim)
    x = torch.randn(1, 32, dtype=torch.bfloat16)
    assert layer.serve(x, pool, slots[:1]).dtype == torch.bfloat16
    assert pool.state.dtype == torch.float16
