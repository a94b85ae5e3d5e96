"""The chunkwise form in plain PyTorch is the recurrence, at any strength of gates, and grows as the length does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from gla_kernels import reference
from glabench.systems.batched_chunks import chunkwise

B, H, K, V = 2, 2, 8, 12


def inputs(T: int, strength: float | None, both: bool = False, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    made = torch.Generator().manual_seed(T)

    def random(D: int) -> Tensor:
        return torch.randn(B, T, H, D, dtype=torch.float64, generator=made).to(dtype)

    def gates(D: int) -> Tensor | None:
        return None if strength is None else strength * torch.nn.functional.logsigmoid(random(D))

    return {"q": random(K), "k": random(K), "v": random(V), "g": gates(K), "gv": gates(V) if both else None}


def outputs(form: Any, given: dict[str, Any], **how: Any) -> list[Tensor]:
    """Output, state and every gradient."""
    own = {name: None if x is None else x.clone().requires_grad_() for name, x in given.items()}
    found = form(**own, **how)
    sum((x.double() * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in found).backward()
    return [x.detach() for x in found] + [x.grad for x in own.values() if x is not None]


def near(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.isfinite().all()
        assert (one.double() - other).norm() <= tolerance * other.norm() + 1e-12


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("strength", [None, 0.0, 1.0, 40.0, 1e4])
@pytest.mark.parametrize("T", [1, 70, 128])
def test_it_is_the_recurrence_at_any_strength(T: int, strength: float | None, both: bool) -> None:
    given = inputs(T, strength, both)
    state = torch.randn(B, H, K, V, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    near(outputs(chunkwise, given, initial_state=state, chunk=32), outputs(reference.recurrent, given, initial_state=state), 1e-12)  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("strength", [None, 1.0, 40.0, 1e4])
def test_in_16_bits_it_is_no_farther_from_it_than_the_yardstick(strength: float | None) -> None:
    given = inputs(200, strength, dtype=torch.bfloat16)
    exact = outputs(reference.recurrent, {name: None if x is None else x.double() for name, x in given.items()})
    found, yardstick = (outputs(form, given) for form in (chunkwise, reference.chunkwise))
    for one, other, right in zip(found, yardstick, exact, strict=True):
        assert (one.double() - right).norm() <= 1.1 * (other.double() - right).norm() + 1e-12


def test_packed_sequences_know_nothing_of_each_other() -> None:
    given = {name: None if x is None else x[:1] for name, x in inputs(90, 1.0, both=True).items()}
    bounds = torch.tensor([0, 33, 33, 90])
    states = torch.randn(3, H, K, V, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    how = {"initial_state": states, "cu_seqlens": bounds}
    near(outputs(chunkwise, given, chunk=16, **how), outputs(reference.recurrent, given, **how), 1e-12)


def profiled_bytes(form: Any, T: int) -> int:
    """Bytes that a forward and a backward pass allocate."""
    given = inputs(T, None, dtype=torch.float32)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        outputs(form, given, chunk=16)
    return sum(max(0, event.self_cpu_memory_usage) for event in found.events())


def test_gradients_cost_as_much_more_as_there_is_more() -> None:
    """Of slices in a loop each has a gradient as long as the sequence: 16 times the work for four times the tokens."""
    short, long = (profiled_bytes(chunkwise, T) for T in (192, 768))
    assert long < 4.4 * short
    looped = [profiled_bytes(reference.chunkwise, T) for T in (192, 768)]
    assert looped[1] > 8 * looped[0]
