"""The layer as it is trained: optimizers, frozen weights, checkpoints, torch.func, and dtypes under autocast."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from gla_kernels import gla

from .layers import drawn, near


def test_an_optimizer_changes_every_parameter_and_the_loss_falls(made):
    layer = made()
    x = drawn(layer, 2, 20)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    before = copy.deepcopy(layer.state_dict())
    losses = []
    for _ in range(4):
        loss = (layer(x)[0] - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 0.5)  # in place, on gradients that are parts of one
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert not [name for name, x in layer.state_dict().items() if torch.equal(x, before[name])]


def test_a_projection_that_is_no_plain_one_is_called(made):
    class Doubled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.inner(x)

    layer = made()
    x, other = drawn(layer, 2, 20), copy.deepcopy(layer)
    with torch.no_grad():
        other.g_proj.weight *= 2
    want = other(x)[0]
    layer.g_proj = Doubled(layer.g_proj)
    assert near(layer(x)[0], want)
    layer.g_proj = layer.g_proj.inner
    assert not near(layer(x)[0], want)
    layer.g_proj.register_forward_hook(lambda _, given, out: 2 * out)
    assert near(layer(x)[0], want)


def test_gradients_of_each_sequence_by_torch_func(made):
    layer = made()
    x, weights = drawn(layer, 2, 20), {name: p.detach() for name, p in layer.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layer, weights, (x[None],))[0].square().sum()

    found = vmap(grad(loss), in_dims=(None, 0))(weights, x)
    for n in range(2):
        want = torch.autograd.grad(layer(x[n : n + 1])[0].square().sum(), list(layer.parameters()))
        assert all(near(found[name][n], right) for name, right in zip(weights, want, strict=True))


def test_weights_that_are_frozen_get_no_gradient(made):
    layer = made()
    x = drawn(layer, 2, 20)
    layer(x)[0].sum().backward()
    want = {name: p.grad for name, p in layer.named_parameters()}
    layer.zero_grad()
    for frozen in (("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "g_proj", "gk_proj")):
        layer.requires_grad_(True)
        layer.zero_grad()
        for name in frozen:
            getattr(layer, name).requires_grad_(False)
        layer(x.clone().requires_grad_())[0].sum().backward()
        for name, p in layer.named_parameters():
            assert (p.grad is None) == name.startswith(frozen)
            assert p.grad is None or torch.equal(p.grad, want[name])


def test_a_checkpoint_and_recomputed_states_come_to_the_same_bits(made):
    layer = made()
    x = drawn(layer, 2, 40)

    def gradients(y: Tensor) -> list[Tensor]:
        return [y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))]

    want = gradients(layer(x)[0])
    assert all(map(torch.equal, want, gradients(checkpoint(lambda x: layer(x)[0], x, use_reentrant=False))))
    layer.recompute = True
    assert all(map(torch.equal, want, gradients(layer(x)[0])))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[torch.dtype]]:
    """The dtypes of q, k, v and g in each call of `gla` by a layer."""
    found = list[list[torch.dtype]]()

    def watched(*given: Any, **how: Any) -> Any:
        found.append([x.dtype for x in given[:4]])
        return gla(*given, **how)

    monkeypatch.setattr("gla_kernels.nn.gla", watched)
    return found


def test_gates_are_in_the_dtype_that_is_asked_for(made, seen):
    for gate_dtype in (None, torch.float32):
        layer = made(torch.bfloat16, gate_dtype=gate_dtype)
        layer(drawn(layer, 1, 20))
    assert seen == [[torch.bfloat16] * 4, [torch.bfloat16] * 3 + [torch.float32]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_under_autocast_the_operator_takes_16_bits_and_weights_keep_theirs(made, device, seen, dtype):
    layer = made()
    x = drawn(layer, 2, 20)
    want = layer(x)[0]
    seen.clear()
    with torch.autocast(device.type, dtype):
        y, _ = layer(x)
        token = layer(x[:, :1])[0]
    assert y.dtype == token.dtype == dtype
    assert seen == [[dtype] * 4]
    near = layer.to(dtype)(x.to(dtype))[0]  # all of it in 16 bits
    assert (y - want).norm() <= 2 * (near - want).norm()
    layer = made()
    with torch.autocast(device.type, dtype):
        y, _ = layer(x)
    y.float().square().sum().backward()
    grads = {p.grad.dtype for p in layer.parameters() if p.grad is not None}
    assert grads == {torch.float32}
