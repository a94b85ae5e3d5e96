"""Gates of low rank and their gradients, against the same in float64, which `torch.nn.functional` computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gla_kernels import nn
from gla_kernels.low_rank import LEAST_ROWS, MOST_RANK, low_rank_gates, serves

SIZES = [  # rows, rank, columns
    ((2, 600), 16, 256), ((1100,), 16, 130), ((3, 401), 5, 64), ((1029,), 40, 100), ((2100,), 64, 70),
]  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Of a result, of what a tensor core reads, or in float32 of z, which is some tens; the interpreter cuts bfloat16 off.
ROUNDING = {torch.float32: 2**-20, torch.bfloat16: 2**-8 if torch.cuda.is_available() else 2**-7, torch.float16: 2**-10}


def plain(x: Tensor, w: Tensor, b: Tensor | None, normalizer: float, least: float | None) -> Tensor:
    g = F.logsigmoid(F.linear(x, w, b)) / normalizer
    return g if least is None else g.clamp_min(least)


def made(rows: tuple[int, ...], rank: int, columns: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """x, W, b and dg: logits of a few, with some far out on both sides."""
    torch.manual_seed(0)
    x, w, b = torch.randn(*rows, rank), torch.randn(columns, rank), torch.randn(columns)
    x[..., ::7, :] *= 6
    return [y.to(device, dtype) for y in (x, w, b, torch.randn(*rows, columns))]


@pytest.mark.each_value
@pytest.mark.parametrize("least", [None, -0.05])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("gates", [None, torch.float32])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "rank", "columns"), SIZES)
def test_gates_and_gradients(rows, rank, columns, dtype, gates, biased, least, device):
    """Gates within one rounding; gradients within two, of the result, and of dz where a product takes it, or in float32
    within twice what PyTorch is off by, which is over two of dW where most gates are as good as their bound."""
    x, w, b, dg = made(rows, rank, columns, dtype, device)
    given = [y.requires_grad_() for y in ([x, w, b] if biased else [x, w])]
    right = [y.detach().double().requires_grad_() for y in given]
    assert serves(x, w, b if biased else None)
    g = low_rank_gates(x, w, b if biased else None, 16.0, least, gates or dtype)
    expected = plain(right[0], right[1], right[2] if biased else None, 16.0, least)
    assert g.dtype == (gates or dtype)
    # where g is small z is large, in float32
    atol = ROUNDING[torch.float32] * float(F.linear(right[0], *right[1:]).detach().abs().max()) / 16.0
    assert torch.allclose(g.double(), expected, rtol=ROUNDING[g.dtype], atol=atol)

    # where a gate is as good as its bound rounding says whether it has a gradient: PyTorch's float32 fails here, too
    near = 0.0 if least is None else atol + ROUNDING[torch.float32] * abs(least)
    dg = dg.to(g.dtype) if least is None else dg.to(g.dtype).masked_fill((expected - least).abs() <= near, 0.0)
    found, exact = torch.autograd.grad(g, given, dg), torch.autograd.grad(expected, right, dg.double())
    theirs = torch.autograd.grad(plain(x, w, b if biased else None, 16.0, least), given, dg.to(dtype))
    for one, other, wanted in zip(found, theirs, exact, strict=True):
        assert one.dtype == dtype
        allowed = 2 * ROUNDING[dtype] * wanted.norm()
        if dtype == torch.float32:
            allowed = max(allowed, 2 * (other.double() - wanted).norm())
        assert (one.double() - wanted).norm() <= allowed


def test_two_runs_are_the_same_bits(device):
    x, w, b, dg = made((2, 600), 16, 256, torch.bfloat16, device)
    given = [y.requires_grad_() for y in (x, w, b)]
    runs = [torch.autograd.grad(low_rank_gates(*given, 16.0, None, x.dtype), given, dg) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_a_graph_computes_the_same(device):
    x, w, b, dg = made((2, 600), 16, 256, torch.bfloat16, device)
    given = [y.requires_grad_() for y in (x, w, b)]

    def call(*inputs: Tensor) -> Tensor:
        g: Tensor = low_rank_gates(*inputs, 16.0, None, torch.bfloat16)
        return g

    results = []
    for run in (call, torch.compile(call, fullgraph=True)):
        g = run(*given)
        results.append([g, *torch.autograd.grad(g, given, dg)])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize(
    "given",
    [
        (torch.ones(LEAST_ROWS - 1, 16), torch.ones(8, 16)),
        (torch.ones(LEAST_ROWS, MOST_RANK + 1), torch.ones(8, MOST_RANK + 1)),
        (torch.ones(LEAST_ROWS, 16), torch.ones(8, 16, dtype=torch.bfloat16)),
        (torch.ones(LEAST_ROWS, 16).double(), torch.ones(8, 16).double()),
    ],
    ids=["few rows", "a large rank", "two dtypes", "float64"],
)
def test_what_it_does_not_serve(given):
    x, weight = given
    assert not serves(x, weight, None)


@pytest.mark.parametrize(("tokens", "listened"), [(LEAST_ROWS, False), (LEAST_ROWS, True), (LEAST_ROWS - 1, False)])
def test_the_layer_makes_its_gates_so_where_it_may(tokens, listened, device, monkeypatch):
    """And with a hook on a projection, or few tokens, as before."""
    torch.manual_seed(0)
    layer = nn.GatedLinearAttention(hidden_size=32, num_heads=1, clamp_min=-0.04).to(device)
    calls: list[Tensor] = []

    def counted(x: Tensor, *how: Any) -> Any:
        calls.append(x)
        return low_rank_gates(x, *how)

    monkeypatch.setattr(nn, "low_rank_gates", counted)
    if listened:
        layer.gk_proj[1].register_forward_hook(lambda *_: None)
    x = torch.randn(1, tokens, 32, device=device)
    g = layer._inputs(x)[3]
    assert len(calls) == (tokens >= LEAST_ROWS and not listened)
    weight, bias = (y.double() for y in layer.gk_proj[1].parameters())
    right = plain(layer.gk_proj[0](x).double(), weight, bias, 16.0, -0.04)
    assert torch.allclose(g.flatten(2).double(), right, rtol=1e-5, atol=1e-7)
