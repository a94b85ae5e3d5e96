"""What the layer refuses: each wrong argument and each wrong call is named."""

from __future__ import annotations

import pytest
import torch

from gla_kernels import Schedule
from gla_kernels.nn import GatedLinearAttention

from .layers import HEADS, WRONG, drawn


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"mode": "fused_chunk"}, "mode: expected chunk, fused_recurrent, got 'fused_chunk'"),
        ({"hidden_size": 0}, "hidden_size: expected a number of 1 or more, got 0"),
        ({"hidden_size": 64.0}, "hidden_size: expected a number of 1 or more, got 64.0"),
        ({"num_heads": 0}, "num_heads: expected a number of 1 or more, got 0"),
        ({"num_heads": True}, "num_heads: expected a number of 1 or more, got True"),
        ({"num_kv_heads": 3}, "num_kv_heads: expected a divisor of num_heads=4, got 3"),
        ({"gate_low_rank_dim": 0}, "gate_low_rank_dim: expected a number of 1 or more, got 0"),
        ({"expand_k": 0.3}, r"expand_k: expected hidden_size \* expand_k / num_heads to be a whole .* 512, got 64"),
        ({"expand_k": 0.0}, "expand_k: expected hidden_size"),
        ({"hidden_size": 4096}, "expand_v: expected hidden_size .* = 1024"),
        ({"feature_map": "elu"}, "feature_map: expected gelu, .* got 'elu'"),
        ({"gate_fn": "softmax"}, "gate_fn: expected gelu, .* got 'softmax'"),
        ({"use_short_conv": True}, r"use_short_conv: expected False, got True: .*gla_kernels.fla.accelerate\(\)"),
        ({"gate_logit_normalizer": 0}, "gate_logit_normalizer: expected a positive number, got 0"),
        ({"clamp_min": 1.0}, "clamp_min: expected a number of 0 or less, or None, got 1.0"),
        ({"gate_dtype": torch.float16}, "gate_dtype: expected torch.float32, or None for that of x, got torch.float16"),
        ({"mode": "fused_recurrent", "schedule": Schedule()}, "schedule: expected None in mode 'fused_recurrent', got"),
        ({"mode": "fused_recurrent", "recompute": True}, "recompute: expected None in mode 'fused_recurrent', got"),
    ],
    ids=str,
)
def test_an_argument_that_is_wrong_is_named(how, text):
    with pytest.raises(ValueError, match=text):
        GatedLinearAttention(**{"hidden_size": 64, "num_heads": 4, **how})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda layer, x: layer(WRONG), r"x: expected a tensor \[B, T, 48\], got str"),
        (lambda layer, x: layer(x[0]), r"x: expected shape \[B, T, 48\], got \[20, 48\]"),
        (lambda layer, x: layer(x[..., :8]), r"x: expected shape \[B, T, 48\], got \[2, 20, 8\]"),
        (lambda layer, x: layer(x.double()), r"x: expected dtype torch.float32 as of the weights, got torch.float64"),
        (lambda layer, x: layer(x, x), r"initial_state: expected shape \[2, 2, 12, 24\]"),
        (lambda layer, x: layer(x[:, :1], x), r"initial_state: expected shape \[2, 2, 12, 24\]"),
        (lambda layer, x: layer(x, None, WRONG), "output_final_state: expected True or False, got 'wrong'"),
        (lambda layer, x: layer(x, cu_seqlens=torch.tensor([0, 20], device=x.device)), "q: expected B = 1"),
        (lambda layer, x: layer.step(x, x), r"x: expected shape \[B, 48\], got \[2, 20, 48\]"),
        (lambda layer, x: layer.step(x[:, 0], x), r"state: expected shape \[2, 2, 12, 24\]"),
        (lambda layer, x: layer.double()(x.double()), "q: expected float32, float16 or bfloat16"),
    ],
)
def test_what_a_call_is_given_wrongly_is_named(made, call, text):
    layer = made()
    with torch.no_grad(), pytest.raises(ValueError, match=text):
        call(layer, drawn(layer, 2, 20))


def test_schedules_and_recompute_reach_the_operator(made):
    for name in ("schedule", "recompute"):
        layer = made(**{name: WRONG})
        with pytest.raises(ValueError, match=f"{name}: expected"):
            layer(drawn(layer, 1, 20))


def test_a_step_is_refused_where_gradients_are_required(made):
    layer = made()
    with pytest.raises(ValueError, match=r"expected inputs without gradients \(torch.no_grad\(\)\)"):
        layer.step(drawn(layer, 2), torch.zeros(2, HEADS, 12, 24, device=layer.q_proj.weight.device))
