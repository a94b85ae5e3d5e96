"""Each function against the float64 recurrence, with flash-linear-attention's parameters."""

from __future__ import annotations

import inspect
import itertools
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

import gla_kernels.fla
from gla_kernels import reference

fla: Any = gla_kernels.fla
SHAPE = (1, 70, 2, 16, 24)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GIVEN: Any = {
    "chunk_gla": lambda q, k, v, g, s: fla.chunk_gla(q, k, v, g, None, s, True),
    "fused_recurrent_gla": lambda q, k, v, g, s, gv=None: fla.fused_recurrent_gla(q, k, v, g, gv, None, s, True),
}
BY_HEAD = {
    "chunk_simple_gla": lambda q, k, v, g, s: fla.chunk_simple_gla(q, k, v, g.squeeze(-1), None, None, s, True),
    "fused_recurrent_simple_gla": lambda q, k, v, g, s: fla.fused_recurrent_simple_gla(
        q, k, v, g.squeeze(-1), None, None, s, True
    ),
}
GATELESS = {
    "fused_recurrent_gla": lambda q, k, v, g, s: fla.fused_recurrent_gla(q, k, v, None, None, None, s, True),
    "chunk_simple_gla": lambda q, k, v, g, s: fla.chunk_simple_gla(q, k, v, None, None, None, s, True, chunk_size=32),
    "fused_recurrent_simple_gla": lambda q, k, v, g, s: fla.fused_recurrent_simple_gla(
        q, k, v, None, None, None, s, True
    ),
    "chunk_linear_attn": lambda q, k, v, g, s: fla.chunk_linear_attn(q, k, v, None, s, True, False),
}


def spelt(function) -> str:
    """The parameters of a function, without annotations."""
    found = inspect.signature(function).parameters.values()
    return ", ".join(str(x.replace(annotation=inspect.Parameter.empty)) for x in found)


def test_parameters_are_those_of_fla(parameters):
    assert {name: spelt(getattr(fla, name)) for name in parameters} == parameters


def test_all_functions_are_public(parameters):
    assert set(parameters) <= set(fla.__all__)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("gates", [1.0, "resets"])
@pytest.mark.parametrize("call", GIVEN.values(), ids=GIVEN)
def test_a_gate_of_each_feature(judge, inputs, call, gates, dtype):
    judge(call, inputs(SHAPE, dtype, gates))


@pytest.mark.parametrize("gates", [None, 1.0])
def test_gates_of_the_value_side(judge, inputs, gates):
    judge(GIVEN["fused_recurrent_gla"], inputs(SHAPE, torch.float32, gates, value_gates=1.0))


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("gates", [1.0, "resets"])
@pytest.mark.parametrize("call", BY_HEAD.values(), ids=BY_HEAD)
def test_a_gate_of_each_head(judge, inputs, call, gates, dtype):
    x = inputs(SHAPE, dtype, gates)
    judge(call, replace(x, g=x.g[..., :1].contiguous()))


@pytest.mark.parametrize("call", GATELESS.values(), ids=GATELESS)
def test_no_gates(judge, inputs, call):
    judge(call, inputs(SHAPE, torch.float32, None))


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["chunk_simple_gla", "fused_recurrent_simple_gla"])
@pytest.mark.parametrize("both", [False, True])
def test_constant_gates_of_a_head_add_to_others_and_have_no_gradient(inputs, name, both):
    x = inputs(SHAPE, torch.float32, 1.0, states=False)
    g, gamma = x.g[..., 0].contiguous(), torch.tensor([-0.5, -0.1], device=DEVICE, requires_grad=True)
    o, _ = getattr(fla, name)(x.q.requires_grad_(), x.k, x.v, g if both else None, gamma)
    gates = gamma.detach().expand(g.shape) + (g if both else 0)
    want, _ = reference.recurrent(x.q.double(), x.k.double(), x.v.double(), gates.double().unsqueeze(-1))
    torch.testing.assert_close(o.double(), want, rtol=1e-4, atol=1e-4)
    o.sum().backward()
    assert gamma.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_retention_has_retnets_decays(inputs, dtype):
    x = inputs(SHAPE, dtype, None)
    decays = torch.tensor([1 - 2.0**-5, 1 - 2.0**-6], device=DEVICE, dtype=torch.float64).log()

    def definition(q, k, v, s):
        return reference.recurrent(q, k, v, decays.expand(SHAPE[:3]).unsqueeze(-1).to(q.dtype), None, s)

    judged(lambda q, k, v, s: fla.chunk_retention(q, k, v, None, s, True), definition, [x.q, x.k, x.v, x.initial_state])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_normalized_linear_attention(inputs, dtype):
    """From an initial state and an initial sum of keys, which are handed on."""
    x = inputs(SHAPE, dtype, None)

    def definition(q, k, v, s, z):
        o, final = reference.recurrent(q, k, v, None, 0.3, s)
        sums = k.to(z.dtype).cumsum(1) + z
        return (o / ((0.3 * q * sums).sum(-1, keepdim=True) + 1e-10)).to(o.dtype), final, sums[:, -1:]

    given = [x.q.abs() + 0.1, x.k.abs() + 0.1, x.v, x.initial_state, x.k[:, :1].abs().float() + 1]
    judged(lambda q, k, v, s, z: flat(fla.chunk_linear_attn(q, k, v, 0.3, (s, z), True)), definition, given)


def judged(call, definition, given):
    """What is returned and all gradients, against the definition in float64, and in these dtypes for what rounding
    allows."""
    right, near = ends_of(definition, [x.double() for x in given]), ends_of(definition, given)
    for number, (want, plain, found) in enumerate(zip(right, near, ends_of(call, given), strict=True)):
        allowed = 4 * (plain - want).norm() + 2**-16 * want.norm()
        assert (found - want).norm() <= allowed, f"{number}: off by {(found - want).norm()}, allowed {allowed}"


def ends_of(call, given):
    """What a call returns and the gradients of what it is given, in float64."""
    given = [x.detach().requires_grad_() for x in given]
    ends = call(*given)
    torch.manual_seed(1)
    ups = [torch.randn(x.shape, dtype=torch.float64, device=x.device).to(x.dtype) for x in ends]
    return [x.detach().double() for x in (*ends, *torch.autograd.grad(ends, given, ups))]


def flat(found):
    return found[0], *found[1]


def test_z_comes_with_normalize_alone_and_in_the_dtype_of_keys(inputs):
    x = inputs((1, 20, 1, 16, 16), torch.float16, None, states=False)
    assert fla.chunk_linear_attn(x.q, x.k, x.v, normalize=False)[1] is None
    o, (final, z) = fla.chunk_linear_attn(x.q, x.k, x.v)
    assert final is None
    assert (o.dtype, z.dtype, tuple(z.shape)) == (torch.float16, torch.float16, (1, 1, 1, 16))
    _, (_, wide) = fla.chunk_linear_attn(x.q, x.k, x.v, initial_state=(None, z.float()))
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide[:, 0], x.k.float().sum(1) + z[:, 0].float(), rtol=1e-5, atol=1e-5)


def test_results_have_the_dtype_of_v_and_states_are_float32(inputs):
    x = inputs((1, 20, 1, 16, 16), torch.bfloat16, 1.0, states=False, gate_dtype=torch.float32)
    by_head = x.g[..., 0].contiguous()
    for o, final in (
        fla.chunk_gla(x.q, x.k, x.v, x.g, output_final_state=True),
        fla.fused_recurrent_gla(x.q, x.k, x.v, x.g, output_final_state=True),
        fla.chunk_simple_gla(x.q, x.k, x.v, by_head, output_final_state=True),
        fla.fused_recurrent_simple_gla(x.q, x.k, x.v, by_head, output_final_state=True),
        fla.chunk_retention(x.q, x.k, x.v, output_final_state=True),
    ):
        assert (o.dtype, final.dtype) == (torch.bfloat16, torch.float32)


def test_scale_may_be_a_whole_number_and_flags_may_be_none(inputs):
    x = inputs((1, 20, 1, 16, 16), torch.float32, 1.0, states=False)
    once = fla.chunk_gla(x.q, x.k, x.v, x.g, scale=1)
    again = fla.chunk_gla(x.q, x.k, x.v, x.g, scale=1.0, output_final_state=None)
    assert torch.equal(once[0], again[0])
    assert once[1] is again[1] is None


def test_one_token_after_another_is_the_whole_sequence(inputs):
    """As a model decodes, and no state is written over."""
    x = inputs((2, 5, 2, 16, 16), torch.float32, 1.0)
    whole, last = fla.fused_recurrent_gla(x.q, x.k, x.v, x.g, None, None, x.initial_state, True)
    state, before = x.initial_state, x.initial_state.clone()
    for t in range(5):
        rows = slice(t, t + 1)
        o, state = fla.fused_recurrent_gla(
            x.q[:, rows], x.k[:, rows], x.v[:, rows], x.g[:, rows], initial_state=state, output_final_state=True
        )
        torch.testing.assert_close(o, whole[:, rows])
    torch.testing.assert_close(state, last)
    assert torch.equal(x.initial_state, before)


SEQUENCES = [0, 1, 1, 40, 57]
PACKED = {
    "chunk_gla": lambda q, k, v, g, **how: fla.chunk_gla(q, k, v, g, cu_seqlens_cpu=None, **how),
    "fused_recurrent_gla": lambda q, k, v, g, **how: fla.fused_recurrent_gla(q, k, v, g, **how),
    "fused_recurrent_gla, gv": lambda q, k, v, g, **how: fla.fused_recurrent_gla(q, k, v, g, v.clamp(max=0), **how),
    "chunk_simple_gla": lambda q, k, v, g, **how: fla.chunk_simple_gla(q, k, v, g[..., 0], **how),
    "chunk_simple_gla, no gates": lambda q, k, v, g, **how: fla.chunk_simple_gla(q, k, v, **how),
    "fused_recurrent_simple_gla": lambda q, k, v, g, **how: fla.fused_recurrent_simple_gla(q, k, v, g[..., 0], **how),
}


@pytest.mark.each_value
@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("call", PACKED.values(), ids=PACKED)
def test_packed_sequences_are_those_one_by_one(inputs, call, v_first):
    """From states of their own; an empty one hands its on."""
    x = inputs((1, SEQUENCES[-1], 2, 16, 24), torch.float32, 1.0, states=False)
    states = torch.randn(4, 2, *((24, 16) if v_first else (16, 24)), device=DEVICE)
    ends = torch.tensor(SEQUENCES, device=DEVICE)
    how = {"output_final_state": True, "state_v_first": v_first}
    o, final = call(x.q, x.k, x.v, x.g, initial_state=states, cu_seqlens=ends, **how)
    assert final.shape == states.shape
    for n, (first, end) in enumerate(itertools.pairwise(SEQUENCES)):
        if first == end:
            assert torch.equal(final[n], states[n])
            continue
        alone = (y[:, first:end] for y in (x.q, x.k, x.v, x.g))
        own = states[n : n + 1].mT.contiguous() if v_first else states[n : n + 1]
        o_n, final_n = call(*alone, initial_state=own, output_final_state=True)
        torch.testing.assert_close(o[:, first:end], o_n, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(final[n : n + 1].mT if v_first else final[n : n + 1], final_n, rtol=1e-4, atol=1e-4)


def test_packed_retention_and_normalized_sequences_are_those_one_by_one(inputs):
    x = inputs((1, SEQUENCES[-1], 2, 16, 24), torch.float32, None, states=False)
    q, k, v = x.q.abs() + 0.1, x.k.abs() + 0.1, x.v
    states, sums = torch.randn(4, 2, 16, 24, device=DEVICE), torch.rand(4, 1, 2, 16, device=DEVICE) + 1
    ends = torch.tensor(SEQUENCES, dtype=torch.int32, device=DEVICE)
    o, (final, z) = fla.chunk_linear_attn(q, k, v, None, (states, sums), True, cu_seqlens=ends)
    kept, last = fla.chunk_retention(q, k, v, None, states, True, cu_seqlens=ends)
    assert torch.equal(z[1], sums[1])
    for n, (first, end) in enumerate(itertools.pairwise(SEQUENCES)):
        if first == end:
            continue
        alone, one = [y[:, first:end] for y in (q, k, v)], slice(n, n + 1)
        o_n, (final_n, z_n) = fla.chunk_linear_attn(*alone, None, (states[one], sums[one]), True)
        for found, want in ((o[:, first:end], o_n), (final[one], final_n), (z[one], z_n)):
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
        kept_n, last_n = fla.chunk_retention(*alone, None, states[one], True)
        torch.testing.assert_close(kept[:, first:end], kept_n, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(last[one], last_n, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["fused_recurrent_gla", "fused_recurrent_simple_gla"])
def test_the_old_name_of_state_v_first(inputs, name):
    x = inputs((1, 10, 1, 16, 24), torch.float32, None, states=False)
    call = getattr(fla, name)
    with pytest.warns(DeprecationWarning, match="state_v_first") as told:
        _, old = call(x.q, x.k, x.v, output_final_state=True, transpose_state_layout=True)
    assert told[0].filename == __file__
    _, new = call(x.q, x.k, x.v, output_final_state=True, state_v_first=True)
    assert torch.equal(old, new)
    assert tuple(new.shape) == (1, 1, 24, 16)
    with pytest.raises(ValueError, match="transpose_state_layout"):
        call(x.q, x.k, x.v, state_v_first=True, transpose_state_layout=True)


def test_what_fla_refuses_is_refused(inputs):
    x = inputs((1, 10, 1, 16, 24), torch.float32, None, states=False)
    with pytest.raises(NotImplementedError, match="chunk_gla"):
        fla.fused_chunk_gla(q=x.q, k=x.k, v=x.v, g=x.q)
    with pytest.raises(ValueError, match="power of 2"):
        fla.chunk_simple_gla(x.q, x.k, x.v, chunk_size=48)
    for call in (fla.chunk_simple_gla, fla.chunk_retention):
        with pytest.raises(DeprecationWarning, match="head_first"):
            call(x.q, x.k, x.v, head_first=True)


@pytest.mark.parametrize("chunk", [None, 8, 16, 32, 256])
def test_a_chunk_that_these_kernels_lack_is_another_one(inputs, chunk):
    x = inputs((1, 40, 1, 16, 24), torch.float32, 1.0, states=False)
    g = x.g[..., 0].contiguous()
    found, want = fla.chunk_simple_gla(x.q, x.k, x.v, g, chunk_size=chunk), fla.chunk_simple_gla(x.q, x.k, x.v, g)
    torch.testing.assert_close(found[0], want[0], rtol=1e-4, atol=1e-4)
    assert fla.chunk_retention(x.q, x.k, x.v, chunk_size=chunk)[0].isfinite().all()


def test_keyword_arguments_that_fla_ignores_are_ignored(inputs):
    x = inputs((1, 10, 1, 16, 24), torch.float32, None, states=False)
    for name in ("fused_recurrent_gla", "chunk_simple_gla", "fused_recurrent_simple_gla", "chunk_retention"):
        call = getattr(fla, name)
        assert torch.equal(call(x.q, x.k, x.v, something=1)[0], call(x.q, x.k, x.v)[0])


def test_wrong_shapes_are_told_as_the_operators_tell_them(inputs):
    x = inputs((1, 10, 1, 16, 24), torch.float32, 1.0, states=False)
    with pytest.raises(ValueError, match=r"k: expected shape \[1, 10, 1, 16\]"):
        fla.chunk_gla(x.q, x.k[:, :5], x.v, x.g)


@pytest.mark.exhaustive(name=("linear", "fused_recurrent_gla", "simple"))
@pytest.mark.parametrize("name", ["chunk_gla", "linear", "fused_recurrent_gla", "simple"])
def test_one_graph_without_a_break(inputs, name):
    x = inputs((1, 40, 2, 16, 24), torch.float32, 1.0)
    calls = {
        "chunk_gla": lambda q, k, v, g, s: fla.chunk_gla(q, k, v, g, None, s, True, True),
        "fused_recurrent_gla": lambda q, k, v, g, s: fla.fused_recurrent_gla(q, k, v, g, initial_state=s, extra=1),
        "simple": lambda q, k, v, g, s: (
            fla.chunk_simple_gla(q, k, v, g[..., 0], chunk_size=32)[0]
            + fla.fused_recurrent_simple_gla(q, k, v, g_gamma=g[0, 0, :, 0])[0],
            fla.chunk_retention(q, k, v, output_final_state=True)[1],
        ),
        "linear": lambda q, k, v, g, s: flat(fla.chunk_linear_attn(q.exp(), k.exp(), v, None, s, True))[:2],
    }
    state = x.initial_state.mT.contiguous() if name == "chunk_gla" else x.initial_state
    given = [y.requires_grad_() for y in (x.q, x.k, x.v, x.g, state)]

    def all_of(call):
        ends = [y for y in call(*given) if y is not None]
        return [*ends, *torch.autograd.grad([y.sum() for y in ends], given, allow_unused=True)]

    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", fla.FallbackWarning)
        want = all_of(calls[name])
        found = all_of(torch.compile(calls[name], fullgraph=True, backend="aot_eager"))
    for a, b in zip(want, found, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)
