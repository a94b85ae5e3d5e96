"""The judge must itself be right, and ask everybody the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from glabench.run import oracle
from glabench.spec.case import Case
from glabench.systems.inputs import make_inputs

CASE = Case("gla", 3, 40, 4, 8, 8, "fp32", initial_state=True)


def test_the_first_and_the_last_pair_are_always_asked_about() -> None:
    pairs = oracle.ask(CASE, "cpu", 5).pairs
    assert len(pairs) == len(set(pairs)) == 5
    assert {(0, 0), (2, 3)} <= set(pairs)
    assert oracle.ask(replace(CASE, B=1, H=1), "cpu", 5).pairs == ((0, 0),)
    assert len(oracle.ask(CASE, "cpu", 1000).pairs) == 12


def test_systems_and_schedules_are_asked_the_same_question() -> None:
    one = oracle.ask(replace(CASE, chunk=64, mode="fwd"), "cpu", 5)
    two = oracle.ask(replace(CASE, system="gla_recurrent", mode="fwdbwd"), "cpu", 5)
    assert one == two
    assert oracle.answer(one) is oracle.answer(two)  # computed once
    assert one != oracle.ask(replace(CASE, seed=1), "cpu", 5)


def test_pairs_alone_have_the_outputs_they_have_among_all() -> None:
    question = oracle.ask(CASE, "cpu", 3)
    found = oracle.answer(question).reference
    inputs = make_inputs(CASE, "gla", "cpu")
    doubles = replace(inputs, **{name: x.double() for name, x in inputs.tensors()})
    from gla_kernels import reference

    whole = oracle.differentiate(reference.recurrent, doubles)
    for i, (b, h) in enumerate(question.pairs):
        assert torch.allclose(found["o"][0, :, i], whole["o"][b, :, h])
        assert torch.allclose(found["dg"][0, :, i], whole["dg"][b, :, h])
        assert torch.allclose(found["dinitial_state"][0, i], whole["dinitial_state"][b, h])


def test_gates_on_the_value_side_are_judged() -> None:
    found = oracle.answer(oracle.ask(replace(CASE, value_gate=True), "cpu", 2))
    assert found.reference["dgv"].shape == found.reference["dv"].shape
    assert 0 < found.baseline["dgv"].whole < 1e-5
    assert not torch.allclose(found.reference["o"], oracle.answer(oracle.ask(CASE, "cpu", 2)).reference["o"])


@pytest.mark.parametrize("value_gate", [False, True])
def test_a_step_is_the_recurrence_of_one_token(value_gate: bool) -> None:
    case = replace(CASE, mode="step", value_gate=value_gate)
    question = oracle.ask(case, "cpu", 100)
    inputs = make_inputs(case, "gla", "cpu")
    from gla_kernels import reference

    q, k, v = (x[:, None].double() for x in (inputs.q, inputs.k, inputs.v))
    assert inputs.g is not None
    assert inputs.initial_state is not None
    gv = None if inputs.gv is None else inputs.gv[:, None].double()
    o, state = reference.recurrent(q, k, v, inputs.g[:, None].double(), None, inputs.initial_state.double(), gv)
    found = oracle.answer(question).reference
    assert torch.allclose(found["o"][0], o[:, 0].flatten(0, 1))
    assert torch.allclose(found["final_state"][0], state.flatten(0, 1))


def test_a_step_of_attention_is_the_last_row_of_all() -> None:
    case = Case("sdpa", 2, 37, 3, 8, 8, "fp32", "step", gate_strength=None)
    question = oracle.ask(case, "cpu", 100)
    inputs = make_inputs(case, "attention", "cpu")
    q, k, v = (x.double().transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    rows = torch.cat([torch.zeros_like(k[:, :, :-1]), q], dim=2)
    o = torch.nn.functional.scaled_dot_product_attention(rows, k, v, is_causal=True)[:, :, -1]
    assert torch.allclose(oracle.answer(question).reference["o"][0], o.flatten(0, 1))


@pytest.mark.parametrize("tokens", [1, 37, oracle.TILE + 3])
def test_attention_and_its_gradients_are_those_of_autograd(tokens: int) -> None:
    case = Case("sdpa", 1, tokens, 2, 8, 8, "fp32", gate_strength=None, attn_heads=2, attn_dim=16)
    inputs = make_inputs(case, "attention", "cpu")
    doubles = replace(inputs, **{name: x.double() for name, x in inputs.tensors()})
    found = oracle.attention(doubles)
    given = doubles.with_grad()
    q, k, v = (x.transpose(1, 2) for x in (given.q, given.k, given.v))
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    expected = oracle.collect(given, o, None, gradients=True)
    assert set(found) == set(expected)
    for name in found:
        assert torch.allclose(found[name], expected[name], atol=1e-12), name


def test_pairs_are_picked_side_by_side() -> None:
    x = torch.arange(2 * 5 * 3 * 4).view(2, 5, 3, 4)
    picked = oracle.pick_pairs(x, ((0, 1), (1, 2)))
    assert picked.shape == (1, 5, 2, 4)
    assert torch.equal(picked[0, :, 0], x[0, :, 1])
    assert torch.equal(picked[0, :, 1], x[1, :, 2])
    state = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6)
    assert torch.equal(oracle.pick_pairs(state, ((1, 0),), time_axis=False), state[1:, :1])
