"""The fused recurrent kernels and the one-token step against the float64 recurrence."""

from __future__ import annotations

import pytest
import torch

from gla_kernels import gla_recurrent, gla_step, reference

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def form(q, k, v, g, s, gv=None):
    return gla_recurrent(q, k, v, g, None, s, True, gv=gv)


@pytest.mark.parametrize("gates", [None, 0.0, 1.0, 40.0, 1e4, "resets", "infinite", "closed"])
def test_every_gate_strength(judge, inputs, gates):
    judge(form, inputs((2, 17, 2, 16, 24), torch.float32, gates))


@pytest.mark.parametrize(
    ("gates", "value_gates"),
    [(1.0, 1.0), (None, 40.0), ("resets", "resets"), ("infinite", "infinite"), (1.0, "closed")],
)
def test_gates_on_the_value_side(judge, inputs, gates, value_gates):
    judge(form, inputs((1, 20, 1, 16, 24), torch.float32, gates, value_gates=value_gates))


def test_gradient_of_value_gates_without_a_final_state(judge, inputs):
    x = inputs((1, 12, 1, 8, 8), torch.float32, 1.0, states=False, value_gates=1.0)
    judge(lambda q, k, v, g, s, gv: gla_recurrent(q, k, v, g, gv=gv), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(judge, inputs, dtype):
    judge(form, inputs((1, 17, 2, 16, 16), dtype, 1.0))


@pytest.mark.parametrize(("T", "K", "V"), [(1, 8, 8), (7, 60, 100), (5, 512, 20), (5, 20, 512)])
def test_any_shape(judge, inputs, T, K, V):
    judge(form, inputs((1, T, 2, K, V), torch.float32, 1.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gates", [None, 1.0, "resets"])
def test_step_updates_the_state_in_place(inputs, dtype, gates):
    x = inputs((3, 1, 2, 20, 36), dtype, gates)
    q, k, v = (t[:, 0] for t in (x.q, x.k, x.v))
    g = None if x.g is None else x.g[:, 0]
    wide = x.cast(torch.float64)
    o_right, state_right = reference.recurrent(wide.q, wide.k, wide.v, wide.g, initial_state=wide.initial_state)
    state = x.initial_state.clone()
    with torch.no_grad():
        o = gla_step(q, k, v, g, state)
    torch.testing.assert_close(state.double(), state_right, rtol=1e-5, atol=1e-5)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(o.double(), o_right[:, 0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("value_gates", [None, 1.0])
def test_steps_make_a_sequence(inputs, value_gates):
    x = inputs((2, 12, 2, 16, 16), torch.float32, 1.0, value_gates=value_gates)
    expected, end = gla_recurrent(x.q, x.k, x.v, x.g, None, x.initial_state, True, gv=x.gv)
    state = x.initial_state.clone()
    with torch.no_grad():
        gates = [None] * 12 if x.gv is None else x.gv.unbind(1)
        o = [gla_step(x.q[:, t], x.k[:, t], x.v[:, t], x.g[:, t], state, gv=gates[t]) for t in range(12)]
    torch.testing.assert_close(torch.stack(o, dim=1), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, end, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gates", [None, 1 / 16, 1.0, 40.0, "resets"])
@pytest.mark.parametrize(("K", "V"), [(64, 64), (128, 256), (512, 512)])
def test_full_size(judge, inputs, dtype, gates, K, V):
    judge(form, inputs((1, 1001, 2, K, V), dtype, gates))
