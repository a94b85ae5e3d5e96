"""Mamba-2's layer against section 7 of its paper, token by token in float64; and the package's in its place."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glabench.systems.models import mamba2
from glabench.systems.models.gla import EPS
from glabench.systems.models.mamba2 import CHUNK, HEAD, STATE, Mamba2, Packaged, ssd

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


@pytest.fixture
def packaged(monkeypatch: pytest.MonkeyPatch, stand_in_mamba: None) -> Packaged:
    """With the plain layer in the place of mamba_ssm's, whose parameters have the same names."""
    monkeypatch.setattr(sys.modules["mamba_ssm"], "Mamba2", Mamba2)
    return Packaged(WIDTH)


def test_the_package_s_own_layer_is_taken_where_it_is(monkeypatch: pytest.MonkeyPatch, stand_in_mamba: None) -> None:
    assert type(mamba2.mamba2(WIDTH)) is Mamba2
    assert "plain" in mamba2.implementation()
    monkeypatch.setattr(mamba2, "official", lambda: True)
    layer = mamba2.mamba2(WIDTH)
    assert isinstance(layer, Packaged)
    assert isinstance(layer.layer, nn.Identity)
    assert "mamba_ssm" in mamba2.implementation()
    x = torch.randn(1, 3, WIDTH)
    assert layer(x) is x


def test_another_operator_is_run_by_the_plain_layer_on_the_package_s_parameters(
    packaged: Packaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Mamba2(WIDTH)
    plain.load_state_dict(packaged.layer.state_dict())
    monkeypatch.setattr(packaged.layer, "forward", None)  # the package's own is not called

    def halved(*inputs: Tensor) -> Tensor:
        return ssd(*inputs) / 2

    x = torch.randn(2, LONGER, WIDTH)
    for operator in (ssd, halved):
        packaged.operator = plain.operator = operator
        assert torch.equal(packaged(x), plain(x))


def test_the_package_s_layer_is_left_alone_by_the_compiler(packaged: Packaged) -> None:
    compiled = torch.compile(nn.Sequential(nn.Identity(), packaged), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(torch.randn(1, 3, WIDTH))
    torch._dynamo.reset()
