"""Mamba's layer against sections 3.2 to 3.4 of its paper, token by token in float64; and the package's in its place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glabench.systems.models import mamba
from glabench.systems.models.mamba import STATE, STEPS, TAPS, Mamba, step_bias

from .agreement import assert_is_what_is_written, assert_knows_no_later_token, randomized

WIDTH, INNER, RANK = 4, 8, 1  # the interpreter scans number by number


def written_out(layer: Mamba, x: Tensor) -> Tensor:
    B, T, _ = x.shape
    x, z = (x @ layer.in_proj.weight.mT).split(INNER, -1)
    x = convolution_written_out(x, layer.conv1d)
    of_steps, of_b, of_c = layer.x_proj.weight.split([RANK, STATE, STATE])
    steps = F.softplus(x @ of_steps.mT @ layer.dt_proj.weight.mT + layer.dt_proj.bias)
    b, c, a = x @ of_b.mT, x @ of_c.mT, -layer.A_log.exp()
    state = x.new_zeros(B, INNER, STATE)
    outputs = []
    for t in range(T):
        state = (steps[:, t, :, None] * a).exp() * state + (steps * x)[:, t, :, None] * b[:, t, None]
        outputs.append((state @ c[:, t, :, None])[..., 0] + layer.D * x[:, t])
    return (torch.stack(outputs, 1) * F.silu(z)) @ layer.out_proj.weight.mT


def convolution_written_out(x: Tensor, convolution: nn.Conv1d) -> Tensor:
    """Swish of the sum of what each token and the three before it have, weighted channel by channel."""
    weights, bias = convolution.weight[:, 0], convolution.bias
    assert bias is not None
    past = F.pad(x, (0, 0, TAPS - 1, 0))
    taps = [weights[:, i] * past[:, i : i + x.shape[1]] for i in range(TAPS)]
    return F.silu(torch.stack(taps).sum(0) + bias)


def test_layer_is_what_the_paper_writes() -> None:
    assert_is_what_is_written(*randomized(Mamba(WIDTH), WIDTH), written_out)


def test_later_tokens_change_nothing_before_them() -> None:
    assert_knows_no_later_token(*randomized(Mamba(WIDTH), WIDTH))


def test_steps_begin_between_their_bounds() -> None:
    steps = F.softplus(step_bias(1000).detach())
    low, high = STEPS
    assert steps.min() > low * 0.99
    assert steps.max() < high * 1.01
    assert steps.log().median().exp() == pytest.approx((low * high) ** 0.5, rel=0.2)


def test_the_package_s_own_layer_is_taken_where_it_is(monkeypatch: pytest.MonkeyPatch, stand_in_mamba: None) -> None:
    assert type(mamba.mamba(WIDTH)) is Mamba
    assert "baselines.selective_scan" in mamba.implementation()
    monkeypatch.setattr(mamba, "official", lambda: True)
    assert isinstance(mamba.mamba(WIDTH), nn.Identity)
    assert "mamba_ssm" in mamba.implementation()
