"""Projections whose gradients of x are one sum, against autograd's own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gla_kernels import projections
from gla_kernels.projections import projected

WIDTHS = (16, 24, 40)  # of what is made of x


def made(dtype: torch.dtype, device: Any, bias: bool = False) -> tuple[Tensor, list[nn.Linear]]:
    torch.manual_seed(0)
    layers = [nn.Linear(32, n, bias=bias, device=device, dtype=dtype) for n in WIDTHS]
    return torch.randn(2, 9, 32, device=device, dtype=dtype, requires_grad=True), layers


def gradients(x: Tensor, layers: list[nn.Linear], found: list[Tensor]) -> list[Tensor]:
    wanted = [one for one in (x, *(layer.weight for layer in layers)) if one.requires_grad]
    return list(torch.autograd.grad(sum(y.float().sin().sum() for y in found), wanted))  # type: ignore[arg-type]


@pytest.fixture
def sums(monkeypatch: Any) -> list[int]:
    """How many products each sum was of."""
    found: list[int] = []
    apply = projections._Projections.apply

    def counted(x: Tensor, *weights: Tensor) -> Any:
        found.append(len(weights))
        return apply(x, *weights)

    monkeypatch.setattr(projections._Projections, "apply", counted)
    return found


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_same_outputs_and_gradients_as_one_by_one(compiled, frozen, device):
    x, layers = made(torch.float64, device)
    layers[1].weight.requires_grad_(not frozen)
    run = torch.compile(projected, fullgraph=True) if compiled else projected
    found, right = run(x, layers), [layer(x) for layer in layers]
    for one, other in itertools.chain(
        zip(found, right, strict=True), zip(gradients(x, layers, found), gradients(x, layers, right), strict=True)
    ):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


def test_plain_layers_have_one_sum(sums, device):
    x, layers = made(torch.bfloat16, device)
    found = projected(x, layers)
    assert sums == [3]
    assert [y.shape for y in found] == [(2, 9, n) for n in WIDTHS]


def other(what: str, device: Any) -> tuple[Tensor, list[nn.Linear]]:
    """Layers that are not plain, or an x that asks for no gradient."""
    x, layers = made(torch.float32, device, bias=what == "bias")
    if what == "hook":
        layers[0].register_forward_hook(lambda *_: None)
    if what == "subclass":
        layers[0].__class__ = type("Other", (nn.Linear,), {})
    return (x.detach() if what == "no gradient" else x), layers


@pytest.mark.parametrize("what", ["hook", "subclass", "bias", "no gradient"])
def test_others_are_called_one_by_one(what, sums, device):
    x, layers = other(what, device)
    found = projected(x, layers)
    assert sums == []
    assert all(torch.equal(y, layer(x)) for y, layer in zip(found, layers, strict=True))


def test_under_autocast_they_are_called_one_by_one(sums, device):
    x, layers = made(torch.float32, device)
    with torch.autocast(device.type, torch.bfloat16):
        assert projected(x, layers)[0].dtype == torch.bfloat16
    assert sums == []
