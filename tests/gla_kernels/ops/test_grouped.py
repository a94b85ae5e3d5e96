"""Heads of v that share each one of q, k and g, against the float64 recurrence with those repeated.

Without a GPU everything runs in Triton's interpreter, on small shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from gla_kernels import Schedule, gla, gla_recurrent, gla_step, reference
from gla_kernels.launch import record
from gla_kernels.ops.form import Inputs
from gla_kernels.ops.grouped import together

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Schedule(16)


def repeated(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A form of as many heads of q as of v as one of groups."""

    def run(q: Any, k: Any, v: Any, g: Any, state: Any, gv: Any = None) -> Any:
        q, k, g = (None if x is None else x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k, g))
        return reference(q, k, v, g, state) if gv is None else reference(q, k, v, g, state, gv)

    return run


@pytest.fixture
def grouped(inputs):
    """Inputs of B, T, H of v, K, V, with one head of q, k and g for so many of v; see `conftest.make_inputs`."""

    def make(group: int, *args: Any, **options: Any) -> Any:
        x = inputs(*args, **options)
        return replace(x, **{n: None if t is None else t[:, :, ::group] for n in "qkg" for t in (getattr(x, n),)})

    return make


def form(call: Callable[..., Any] = gla, **how: Any) -> Callable[..., Any]:
    def run(q: Any, k: Any, v: Any, g: Any, state: Any, gv: Any = None) -> Any:
        return call(q, k, v, g, None, state, how.get("cu_seqlens") is None or state is not None, gv=gv, **how)

    return run


@pytest.mark.exhaustive(gates=(4.0, 40.0, "resets"))  # no group changes what strong gates are to kernels
@pytest.mark.parametrize("gates", [None, 0.06, 4.0, 40.0, "resets", "infinite"])
def test_every_gate_strength(judge, grouped, gates):
    judge(form(schedule=SMALL), grouped(2, (1, 37, 4, 20, 24), torch.float32, gates), repeated)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("materialize", [True, False])
def test_16_bits(judge, grouped, dtype, materialize):
    judge(form(schedule=Schedule(32, 16, materialize)), grouped(3, (2, 40, 3, 16, 16), dtype, 1.0), repeated)


@pytest.mark.parametrize(("group", "V"), [(1, 16), (5, 7), (2, 512), (6, 128), (3, 200)])
def test_a_group_of_any_size(judge, grouped, group, V):
    """Six heads of 128 go into two of 384, three of 200 and two of 512 into as many as there are."""
    judge(form(schedule=SMALL), grouped(group, (1, 18, group, 16, V), torch.float32, 1.0), repeated)


@pytest.mark.parametrize(("heads", "group", "V", "expected"), [
    (4, 4, 128, 4), (8, 4, 128, 4), (8, 8, 128, 4), (64, 64, 64, 8), (7, 7, 128, 1), (2, 2, 512, 1), (2, 2, 513, 0),
    (2, 1, 16, 0), (3, 3, 170, 3), (3, 3, 171, 1),
])  # fmt: skip
def test_as_many_heads_go_into_one_as_fit(heads, group, V, expected):
    q, v = torch.empty(1, 2, heads // group, 8, device="meta"), torch.empty(1, 2, heads, V, device="meta")
    assert together(Inputs(q, q, v, q, None, None), False) == expected


@pytest.mark.parametrize("value_gates", [None, 1.0])
@pytest.mark.parametrize("gates", [None, 1.0])
def test_token_by_token(judge, grouped, gates, value_gates):
    x = grouped(2, (2, 9, 4, 12, 10), torch.float32, gates, value_gates=value_gates)
    judge(form(gla_recurrent), x, repeated)


@pytest.mark.parametrize("gates", [1.0, "resets"])
def test_gates_of_the_value_side(judge, grouped, gates):
    x = grouped(2, (1, 35, 4, 16, 20), torch.float32, gates, value_gates=1.0)
    judge(form(schedule=Schedule(32, 16)), x, repeated)


@pytest.mark.each_value
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("v_first", [True, False])
def test_packed_sequences(judge, inputs, packed, v_first, states):
    lengths = (0, 19, 1, 30)
    x = packed.inputs(inputs, lengths, (4, 16, 12), torch.float32, "resets", states, states, v_first)
    x = replace(x, q=x.q[:, :, ::2], k=x.k[:, :, ::2], g=x.g[:, :, ::2])
    cu_seqlens = packed.ends(lengths, x.q.device)
    alone = lambda reference: repeated(packed.one_by_one(reference, lengths, v_first))  # noqa: E731
    judge(form(cu_seqlens=cu_seqlens, state_v_first=v_first, schedule=SMALL), x, alone)


def test_states_with_values_first_are_those_the_other_way_about(grouped):
    x = grouped(2, (2, 20, 4, 16, 12), torch.float32, 1.0)
    o, state = gla(x.q, x.k, x.v, x.g, None, x.initial_state, True, schedule=SMALL)
    o_too, turned = gla(x.q, x.k, x.v, x.g, None, x.initial_state.mT, True, schedule=SMALL, state_v_first=True)
    assert torch.equal(o, o_too)
    assert state is not None
    assert turned is not None
    assert torch.equal(state, turned.mT)


def test_nothing_is_repeated_or_copied(grouped, monkeypatch, one_by_one):
    """The kernels get q, k, g and v where they lie, and o comes out where the caller has it."""
    seen: set[int] = set()
    monkeypatch.setattr(record, "execute", lambda one: seen.update(
        t.data_ptr() for t in one.args.values() if isinstance(t, torch.Tensor)
    ))  # fmt: skip
    x = grouped(4, (1, 20, 8, 16, 16), torch.float32, 1.0, states=False)
    x = replace(x, q=x.q.contiguous(), k=x.k.contiguous(), g=x.g.contiguous())
    o, _ = gla(x.q, x.k, x.v, x.g)
    assert {t.data_ptr() for t in (x.q, x.k, x.v, x.g, o)} <= seen


@pytest.mark.parametrize("v_first", [True, False])
@pytest.mark.parametrize("gates", [None, 1.0])
def test_steps_make_a_sequence(grouped, gates, v_first):
    x = grouped(3, (2, 4, 6, 10, 40), torch.float32, gates, value_gates=1.0)
    right, last = repeated(lambda q, k, v, g, s, gv: reference.recurrent(q, k, v, g, None, s, gv))(
        x.q, x.k, x.v, x.g, x.initial_state, x.gv
    )
    state = (x.initial_state.mT if v_first else x.initial_state).contiguous().clone()
    for t in range(4):
        row: list[Any] = [None if y is None else y[:, t] for y in (x.q, x.k, x.v, x.g, x.gv)]
        o = gla_step(row[0], row[1], row[2], row[3], state, gv=row[4], state_v_first=v_first)
        assert (o - right[:, t]).norm() <= 1e-5 * right[:, t].norm()
    assert ((state.mT if v_first else state) - last).norm() <= 1e-5 * last.norm()


@pytest.mark.parametrize("call", [gla, pytest.param(gla_recurrent, marks=pytest.mark.exhaustive)])
def test_a_graph_computes_the_same_without_a_break(grouped, call):
    torch._dynamo.reset()
    x = grouped(2, (2, 20, 4, 16, 16), torch.float32, 1.0)

    def loss(*given: Any) -> Any:
        o, state = call(*given[:4], None, given[4], True)
        return o.sum() + state.sum()

    found = []
    for run in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        given = [t.detach().requires_grad_() for t in (x.q, x.k, x.v, x.g, x.initial_state)]
        found.append(torch.autograd.grad(run(*given), given))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_step_in_a_graph_updates_the_state(grouped):
    torch._dynamo.reset()
    x = grouped(2, (2, 1, 4, 16, 16), torch.float32, 1.0)
    rows: Any = [t[:, 0] for t in (x.q, x.k, x.v, x.g)]
    ours, theirs = x.initial_state.clone(), x.initial_state.clone()
    step: Any = gla_step
    o = step(*rows, ours)
    assert torch.equal(o, torch.compile(step, backend="aot_eager", fullgraph=True)(*rows, theirs))
    assert torch.equal(ours, theirs)


def test_fake_tensors_get_shapes():
    with FakeTensorMode():
        q, v = (torch.empty(2, 8, H, d, device=DEVICE) for H, d in ((2, 16), (6, 24)))
        o, state = gla(q, q, v, q, output_final_state=True)
        assert o.shape == v.shape
        assert state is not None
        assert state.shape == (2, 6, 16, 24)


def test_vmap_is_a_loop(grouped):
    x = grouped(2, (3, 9, 4, 8, 8), torch.float32, 1.0, states=False)
    of_one = lambda *given: gla(*(t[None] for t in given))[0][0]  # noqa: E731
    together = torch.func.vmap(of_one)(x.q, x.k, x.v, x.g)
    assert torch.equal(together, gla(x.q, x.k, x.v, x.g)[0])


def zeros(*shape: int, **options: Any) -> torch.Tensor:
    return torch.zeros(*shape, device="meta", **options)


@pytest.mark.parametrize("call", [gla, gla_recurrent])
@pytest.mark.parametrize(("changes", "message"), [
    ({"v": zeros(2, 8, 5, 24)}, r"v: expected shape \[2, 8, 2, V\].*, or so many times those 2 heads, got \[2, 8, 5, "),
    ({"v": zeros(2, 8, 1, 24)}, r"v: .*got \[2, 8, 1, 24\]; heads of v that several of q share have to be repeated: "
        r"v.repeat_interleave\(2, -2\)"),
    ({"v": zeros(2, 8, 0, 24)}, r"v: expected shape .*got \[2, 8, 0, 24\]"),
    ({"v": zeros(2, 9, 4, 24)}, r"v: expected shape .*got \[2, 9, 4, 24\]"),
    ({"v": zeros(2, 8, 4, 513)}, "v: expected a head dimension .* from 1 to 512, got 513"),
    ({"v": zeros(2, 8, 4, 24).half()}, "v: expected dtype torch.float32 as of q, got torch.float16"),
    ({"k": zeros(2, 8, 4, 16)}, r"k: expected shape \[2, 8, 2, 16\].*got \[2, 8, 4, 16\]"),
    ({"g": zeros(2, 8, 4, 16)}, r"g: expected shape \[2, 8, 2, 16\].*got \[2, 8, 4, 16\]"),
    ({"gv": zeros(2, 8, 2, 24)}, r"gv: expected shape \[2, 8, 4, 24\].*got \[2, 8, 2, 24\]"),
    ({"initial_state": zeros(2, 2, 16, 24)}, r"initial_state: expected shape \[2, 4, 16, 24\].*got \[2, 2, 16, 24\]"),
    ({"initial_state": zeros(1, 4, 16, 24)}, r"initial_state: expected shape \[2, .*got \[1, "),
    ({"initial_state": 3.0}, "initial_state: expected a tensor, got float"),
    ({"state_v_first": "no"}, "state_v_first: expected True or False, got 'no'"),
])  # fmt: skip
def test_bad_call(call, changes, message):
    q = zeros(2, 8, 2, 16)
    given = {"q": q, "k": q, "v": zeros(2, 8, 4, 24), "g": q} | changes
    with pytest.raises(ValueError, match=message):
        call(**given)


def test_bad_step():
    q = zeros(2, 2, 16)
    with pytest.raises(ValueError, match=r"state: expected shape \[2, 6, 16, 24\].*got \[2, 2, 16, 24\]"):
        gla_step(q, q, zeros(2, 6, 24), q, zeros(2, 2, 16, 24))
    with pytest.raises(ValueError, match=r"v: .*got \[2, 1, 24\]; heads of v .*v.repeat_interleave\(2, -2\)"):
        gla_step(q, q, zeros(2, 1, 24), q, zeros(2, 2, 16, 24))
