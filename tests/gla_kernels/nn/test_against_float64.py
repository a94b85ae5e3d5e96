"""The layer, whole: as near to float64 as the same in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gla_kernels import Schedule, reference
from gla_kernels.nn import ACTIVATIONS

from .layers import FLOOR, HEADS, drawn

FACTOR = 4.0  # as in ../conftest.py: times the error of the same-dtype PyTorch form


def plain(
    x: Tensor, state: Tensor, weights: dict[str, Tensor], form: Callable[..., Any], heads: int, kv_heads: int,
    gate: Callable[[Tensor], Tensor] | None = F.silu, feature_map: Callable[[Tensor], Tensor] | None = None,
    clamp: float | None = None, gate_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The layer in plain PyTorch, by any form of the operator."""

    def by_heads(y: Tensor, n: int) -> Tensor:
        return y.unflatten(-1, (n, -1)).repeat_interleave(heads // n, -2)

    def through(name: str, y: Tensor) -> Tensor:
        return F.linear(y, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    q, k, v = through("q_proj", x), through("k_proj", x), through("v_proj", x)
    q, k = (y if feature_map is None else feature_map(y) for y in (q, k))
    g = through("gk_proj.1", through("gk_proj.0", x))
    g = F.logsigmoid(g if gate_dtype is None or g.dtype == torch.float64 else g.to(gate_dtype)) / 16
    g = g if clamp is None else g.clamp(min=clamp)
    o, final = form(by_heads(q, heads), *(by_heads(y, kv_heads) for y in (k, v, g)), None, state)
    norm = weights.get("g_norm_swish_gate.weight", weights.get("g_norm.weight"))
    o = F.rms_norm(o, o.shape[-1:], norm, 1e-5)
    if gate is not None:
        o = gate(by_heads(through("g_proj", x), heads)) * o
    return through("o_proj", o.flatten(-2)), final


def differentiated(outputs: tuple[Tensor, Tensor], ups: tuple[Tensor, Tensor], leaves: dict[str, Tensor]) -> Any:
    """Outputs and gradients by name."""
    cast = [up.to(out.dtype) for up, out in zip(ups, outputs, strict=True)]
    grads = torch.autograd.grad(outputs, list(leaves.values()), cast)
    return dict(zip(("y", "state", *leaves), (*outputs, *grads), strict=True))


MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # the layer's arguments, and those of `plain`
    "as it is": ({}, {}),
    "grouped": ({"num_heads": 4, "num_kv_heads": 2}, {"heads": 4, "kv_heads": 2}),
    "mapped and clamped": (
        {"feature_map": "relu", "gate_fn": "sigmoid", "clamp_min": -0.05},
        {"feature_map": F.relu, "gate": torch.sigmoid, "clamp": -0.05},
    ),
    "no output gate": ({"use_output_gate": False, "elementwise_affine": False}, {"gate": None}),
    "token by token": ({"mode": "fused_recurrent"}, {}),
    "few states": ({"schedule": Schedule(32, 16, materialize=False)}, {}),
}
CASES: list[tuple[str, torch.dtype, torch.dtype | None]] = [(name, torch.float32, None) for name in MODELS]
CASES += [("as it is", dtype, wide) for dtype in (torch.float16, torch.bfloat16) for wide in (None, torch.float32)]


@pytest.mark.parametrize(("model", "dtype", "gate_dtype"), CASES, ids=str)
def test_outputs_and_gradients_are_as_near_to_float64_as_plain_pytorch(made, model, dtype, gate_dtype):
    how, also = MODELS[model]
    layer = made(dtype, gate_dtype=gate_dtype, **how)
    x = drawn(layer, 2, 37)
    heads = also.get("heads", HEADS)
    state, up = (torch.randn(2, heads, 24 // heads, 48 // heads, device=x.device) for _ in range(2))
    ups = drawn(layer, 2, 37), up

    def leaves_of(kind: torch.dtype | None) -> dict[str, Tensor]:
        given = {"x": x, "initial_state": state, **layer.state_dict()}
        return {name: t.detach().clone().to(kind or t.dtype).requires_grad_() for name, t in given.items()}

    def by(form: Callable[..., Any], kind: torch.dtype | None) -> Any:
        leaves = leaves_of(kind)
        options = {"heads": HEADS, "kv_heads": HEADS, "gate_dtype": gate_dtype, **also}
        return differentiated(plain(leaves["x"], leaves["initial_state"], leaves, form, **options), ups, leaves)

    right, near = by(reference.recurrent, torch.float64), by(reference.chunkwise, None)
    leaves = {"x": x.requires_grad_(), "initial_state": state.requires_grad_(), **dict(layer.named_parameters())}
    found = differentiated(layer(x, state, True), ups, leaves)
    assert found.keys() == right.keys()
    for name, out in found.items():
        assert out.dtype == near[name].dtype, name
        norm = right[name].norm().item()
        allowed = FACTOR * (near[name].double() - right[name]).norm().item() + FLOOR * norm
        error = (out.double() - right[name]).norm().item()
        assert error <= allowed, f"{name}: off by {error:.3e}, allowed {allowed:.3e}, norm {norm:.3e}"


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_pytorch_s_that_have_the_name(name):
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    wanted = {
        "gelu": 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "logsigmoid": -(1 + torch.exp(-x)).log(),
        "relu": x.clamp(min=0),
        "sigmoid": 1 / (1 + torch.exp(-x)),
        "silu": x / (1 + torch.exp(-x)),
        "sqrelu": x.clamp(min=0) ** 2,
        "swish": x / (1 + torch.exp(-x)),
    }
    torch.testing.assert_close(ACTIVATIONS[name](x), wanted[name])
