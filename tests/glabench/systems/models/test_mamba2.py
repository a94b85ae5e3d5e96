"""Mamba-2's layer against section 7 of its paper, token by token in float64; and the package's in its place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glabench.systems.models import mamba2
from glabench.systems.models.gla import EPS
from glabench.systems.models.mamba2 import CHUNK, HEAD, STATE, Mamba2

from .agreement import assert_is_what_is_written, assert_knows_no_later_token, randomized
from .test_mamba import convolution_written_out

WIDTH, INNER = 64, 128
LONGER = 2 * CHUNK + 1  # tokens: three chunks, the last a part


def written_out(layer: Mamba2, x: Tensor) -> Tensor:
    B, T, _ = x.shape
    z, xbc, steps = (x @ layer.in_proj.weight.mT).split([INNER, INNER + 2 * STATE, INNER // HEAD], -1)
    x, b, c = convolution_written_out(xbc, layer.conv1d).split([INNER, STATE, STATE], -1)
    x, steps, a = x.unflatten(-1, (-1, HEAD)), F.softplus(steps + layer.dt_bias), -layer.A_log.exp()
    state = x.new_zeros(B, INNER // HEAD, STATE, HEAD)
    outputs = []
    for t in range(T):
        new = b[:, t, None, :, None] * (steps[:, t, :, None] * x[:, t])[:, :, None]
        state = (steps[:, t] * a).exp()[..., None, None] * state + new
        outputs.append(torch.einsum("bn,bhnp->bhp", c[:, t], state) + layer.D[:, None] * x[:, t])
    y = torch.stack(outputs, 1).flatten(2) * F.silu(z)
    return (y * (y.square().mean(-1, keepdim=True) + EPS).rsqrt() * layer.norm.weight) @ layer.out_proj.weight.mT


def test_layer_is_what_the_paper_writes() -> None:
    assert_is_what_is_written(*randomized(Mamba2(WIDTH), WIDTH, LONGER), written_out)


def test_later_tokens_change_nothing_before_them() -> None:
    assert_knows_no_later_token(*randomized(Mamba2(WIDTH), WIDTH, LONGER), first=CHUNK + 5)


def test_the_package_s_own_layer_is_taken_where_it_is(monkeypatch: pytest.MonkeyPatch, stand_in_mamba: None) -> None:
    assert type(mamba2.mamba2(WIDTH)) is Mamba2
    assert "plain" in mamba2.implementation()
    monkeypatch.setattr(mamba2, "official", lambda: True)
    assert isinstance(mamba2.mamba2(WIDTH), nn.Identity)
    assert "mamba_ssm" in mamba2.implementation()
