"""The layer's weights by flash-linear-attention's names, saved, loaded and pickled."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from gla_kernels.nn import ACTIVATIONS, GatedLinearAttention

from .layers import drawn

PROBE = Path(__file__).with_name("nn_probe.py")
# Of fla/layers/gla.py in flash-linear-attention 0.6.0, `GatedLinearAttention.__init__`: the modules in their order,
# with hidden_size 64, 4 heads of 8 (keys) and 16 (values).
NAMES = {
    "q_proj.weight": (32, 64),
    "k_proj.weight": (32, 64),
    "v_proj.weight": (64, 64),
    "g_proj.weight": (64, 64),
    "gk_proj.0.weight": (16, 64),
    "gk_proj.1.weight": (32, 16),
    "gk_proj.1.bias": (32,),
    "o_proj.weight": (64, 64),
    "g_norm_swish_gate.weight": (16,),
}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # arguments; what else the names come to, None for gone
    "as it is": ({}, {}),
    "grouped": (
        {"num_kv_heads": 2},
        {"k_proj.weight": (16, 64), "v_proj.weight": (32, 64), "gk_proj.1.weight": (16, 16), "gk_proj.1.bias": (16,)},
    ),
    "norm apart": ({"fuse_norm": False}, {"g_norm_swish_gate.weight": None, "g_norm.weight": (16,)}),
    "another gate": ({"gate_fn": "silu"}, {"g_norm_swish_gate.weight": None, "g_norm.weight": (16,)}),
    "no gate": (
        {"use_output_gate": False},
        {"g_proj.weight": None, "g_norm_swish_gate.weight": None, "g_norm.weight": (16,)},
    ),
    "no weights of the norm": ({"elementwise_affine": False}, {"g_norm_swish_gate.weight": None}),
    "rank": ({"gate_low_rank_dim": 8}, {"gk_proj.0.weight": (8, 64), "gk_proj.1.weight": (32, 8)}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_names_shapes_and_order_are_flas(variant):
    """The order, too: an optimizer's state knows parameters by their place."""
    how, other = VARIANTS[variant]
    expected = {name: shape for name, shape in (NAMES | other).items() if shape is not None}
    layer = GatedLinearAttention(hidden_size=64, num_heads=4, **how)
    assert [(name, tuple(x.shape)) for name, x in layer.state_dict().items()] == list(expected.items())
    assert [name for name, _ in layer.named_parameters()] == list(expected)


def test_a_state_dict_comes_back(made):
    layer, other = made(), made()
    saved = copy.deepcopy(layer.state_dict())
    x = drawn(layer, 1, 20)
    assert not torch.equal(layer(x)[0], other(x)[0])
    other.load_state_dict(saved)
    assert torch.equal(layer(x)[0], other(x)[0])
    with pytest.raises(RuntimeError, match=r"Missing key.*gk_proj.0.weight"):
        other.load_state_dict({name: x for name, x in saved.items() if name != "gk_proj.0.weight"})


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_layer_can_be_pickled(made, name):
    layer = made(feature_map=name, gate_fn=name)
    other = pickle.loads(pickle.dumps(layer))
    x = torch.randn(3, device=layer.q_proj.weight.device)
    assert torch.equal(other.feature_map_fn(x), layer.feature_map_fn(x))
    assert torch.equal(other.gate_fn(x), layer.gate_fn(x))


def test_flas_layer_computes_the_same_from_the_same_weights(python_process, device):
    pytest.importorskip("fla.layers", reason="flash-linear-attention is not installed, or not its layers")
    done = python_process(str(PROBE), interpret=device.type == "cpu")
    assert done.stdout.splitlines()[-1] == "alike"
