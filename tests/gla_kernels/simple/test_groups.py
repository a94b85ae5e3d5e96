"""Heads of queries and keys, or of values, that several states share, with one gate a state: against the float64
recurrence with those repeated. Without a GPU everything runs in Triton's interpreter, on small shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import Schedule, simple_gla
from gla_kernels.launch import record
from gla_kernels.ops.simple_gla import launches
from gla_kernels.simple import call

KEPT, WALKED = Schedule(16), Schedule(16, materialize=False)
OF_Q, OF_V = ("q", "k"), ("v",)  # what has fewer heads
BOTH = pytest.mark.parametrize("few", [OF_Q, OF_V], ids=["shared_q", "shared_v"])


def form(schedule: Schedule = KEPT, cu_seqlens: Any = None, final: bool = True, **how: Any) -> Callable[..., Any]:
    def run(q: Any, k: Any, v: Any, g: Any, state: Any) -> Any:
        how.update(cu_seqlens=cu_seqlens, schedule=schedule)
        return simple_gla(q, k, v, g.squeeze(-1), None, state, final, **how)

    return run


def repeated(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A form of as many heads of everything as one of groups."""

    def run(q: Any, k: Any, v: Any, g: Any, state: Any) -> Any:
        H = max(q.shape[2], v.shape[2])
        q, k, v, g = (x.repeat_interleave(H // x.shape[2], 2) for x in (q, k, v, g))
        return reference(q, k, v, g, state)

    return run


def thin(x: Any, few: tuple[str, ...], group: int) -> Any:
    """Inputs with one head for so many, of those that are named, and one gate a head."""
    return replace(x, g=x.g[..., :1].contiguous(), **{name: getattr(x, name)[:, :, ::group] for name in few})


@pytest.fixture(params=["passes", "walks"])
def ways(request, monkeypatch):
    """Passes over all chunks at once, or, however few the heads are, walks over time that make o and dv."""
    monkeypatch.setattr(call, "MANY_WALKS", 1 if request.param == "walks" else 10**9)


@BOTH
@pytest.mark.parametrize("gates", [0.06, "resets", "infinite"])
def test_every_gate_strength(judge, inputs, gates, few):
    judge(form(), thin(inputs((1, 37, 2, 20, 24), torch.float32, gates), few, 2), repeated)


@pytest.mark.each_value
@BOTH
@pytest.mark.parametrize("schedule", [KEPT, WALKED, Schedule(32)], ids=["kept", "walked", "32"])
def test_walks_and_passes(judge, inputs, ways, few, schedule):
    judge(form(schedule), thin(inputs((1, 37, 6, 20, 24), torch.bfloat16, "resets"), few, 3), repeated)


@pytest.mark.each_value  # tiles are the same in all types; bfloat16 has heads of both kinds above
@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_several_tiles(judge, inputs, dtype, few):
    judge(form(), thin(inputs((1, 20, 4, 72, 70), dtype, 1.0), few, 2), repeated)


@BOTH
def test_slices(judge, inputs, monkeypatch, few):
    monkeypatch.setattr(call, "segments_at_once", lambda *_: 2)
    judge(form(WALKED), thin(inputs((1, 83, 2, 70, 8), torch.float32, "resets"), few, 2), repeated)


@pytest.mark.parametrize("enough", [1, 8, 10**9])
def test_dq_and_dk_by_parts_of_a_group(judge, inputs, monkeypatch, enough):
    """All twelve heads by a program, six, or three by one each of four that are added up, for halves end there."""
    monkeypatch.setattr(call, "FEW_WALKS", enough)
    shares, original = [], call.Call.share

    def share(self: call.Call, columns: int) -> int:
        shares.append(original(self, columns))
        return shares[-1]

    monkeypatch.setattr(call.Call, "share", share)
    judge(form(), thin(inputs((2, 20, 12, 16, 8), torch.float32, 1.0), OF_Q, 12), repeated)
    assert shares == [{1: 12, 8: 6, 10**9: 3}[enough]]


@pytest.mark.parametrize("group", [1, 5])
def test_one_head_of_queries_for_all(judge, inputs, group):
    judge(form(), thin(inputs((1, 20, group, 8, 8), torch.float32, 1.0), OF_Q, group), repeated)


def test_gates_of_the_heads_of_queries(judge, inputs):
    """One gate for all heads that share queries."""
    x = thin(inputs((1, 20, 4, 8, 12), torch.float32, 1.0), OF_Q, 2)
    judge(form(), replace(x, g=x.g[:, :, ::2]), repeated)


@pytest.mark.each_value
@BOTH
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("v_first", [True, False])
def test_packed_sequences(judge, inputs, packed, few, states, v_first):
    lengths = (0, 19, 1, 14, 30)
    x = packed.inputs(inputs, lengths, (4, 20, 12), torch.float32, "resets", states, states, v_first)
    run = form(KEPT, packed.ends(lengths, x.q.device), states, state_v_first=v_first)
    judge(run, thin(x, few, 2), lambda reference: repeated(packed.one_by_one(reference, lengths, v_first)))


@pytest.mark.each_value
@BOTH
def test_packed_walks(judge, inputs, packed, ways, few):
    lengths = (16, 3, 0, 40)
    x = packed.inputs(inputs, lengths, (4, 12, 8), torch.bfloat16, 4.0)
    run = form(WALKED, packed.ends(lengths, x.q.device))
    judge(run, thin(x, few, 4), lambda reference: repeated(packed.one_by_one(reference, lengths)))


@BOTH
def test_states_with_values_first_are_those_the_other_way_about(inputs, few):
    x = thin(inputs((2, 20, 4, 16, 12), torch.float32, 1.0), few, 2)
    o, state = form()(x.q, x.k, x.v, x.g, x.initial_state)
    o_too, turned = form(state_v_first=True)(x.q, x.k, x.v, x.g, x.initial_state.mT)
    assert torch.equal(o, o_too)
    assert torch.equal(state, turned.mT)


@BOTH
def test_the_final_state_alone_has_gradients(inputs, few):
    """There is no gradient of o then, which does not have the shape of v."""
    x = thin(inputs((1, 20, 4, 8, 8), torch.float32, 1.0), few, 2)
    given = [t.detach().requires_grad_() for t in (x.q, x.k, x.v, x.g)]
    _, state = form()(*given, None)
    dq, dk, dv, dg = torch.autograd.grad(state.sum(), given)
    assert not dq.any()
    assert all(t.any() for t in (dk, dv, dg))


def test_nothing_is_repeated(inputs, monkeypatch, one_by_one):
    """Kernels get q, k and v where they lie, and no buffer has as many heads of K as there are states."""
    seen: dict[int, int] = {}
    monkeypatch.setattr(record, "execute", lambda one: seen.update(
        {t.data_ptr(): t.numel() for t in one.args.values() if isinstance(t, torch.Tensor) and t.numel()}
    ))  # fmt: skip
    x = thin(inputs((4, 64, 8, 64, 8), torch.bfloat16, 1.0, states=False), OF_Q, 8)
    x = replace(x, **{name: getattr(x, name).contiguous().requires_grad_() for name in "qkvg"})
    monkeypatch.setattr(call, "FEW_WALKS", 1)
    simple_gla(x.q, x.k, x.v, x.g.squeeze(-1))[0].backward(x.do)
    assert {x.q.data_ptr(), x.k.data_ptr(), x.v.data_ptr()} <= set(seen)
    states = 4 * 8 * 64 * 8  # of the only chunk
    assert max(seen.values()) <= max(states, 4 * 64 * 64) < 4 * 64 * 8 * 64


@pytest.mark.parametrize("few", [OF_Q, pytest.param(OF_V, marks=pytest.mark.exhaustive)], ids=["shared_q", "shared_v"])
def test_a_graph_computes_the_same_without_a_break(inputs, few):
    torch._dynamo.reset()
    x = thin(inputs((2, 20, 4, 16, 16), torch.float32, 1.0), few, 2)

    def loss(q: Any, k: Any, v: Any, g: Any, state: Any) -> Any:
        o, last = simple_gla(q, k, v, g.squeeze(-1), None, state, True)
        assert last is not None
        return o.sum() + last.sum()

    found = []
    for run in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        given = [t.detach().requires_grad_() for t in (x.q, x.k, x.v, x.g, x.initial_state)]
        found.append(torch.autograd.grad(run(*given), given))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_launches_are_of_as_many_states_as_there_are():
    shape: dict[str, Any] = {"B": 2, "T": 2048, "H": 64, "K": 128, "V": 64, "dtype": torch.bfloat16, "qk_heads": 1}
    by_passes = launches(**shape, capability=80)
    assert "simple_grad_qk_group_kernel" in [launch.name for launch in by_passes]
    walked = launches(**shape)
    assert [launch.step for launch in walked[2:]] == ["simple_grad_walk", "sum", "sum"]
    assert walked[2].args["p_dq"].shape == (64 * 2, 2048, 1, 128)  # a part of each head
    wide = launches(**(shape | {"K": 64, "V": 256}))
    assert [launch.step for launch in wide[2:]] == ["simple_grad_walk", "sum", "sum", "sum"]  # dq, dk, dg
    assert wide[2].args["p_dq"].shape == (64 * 2 * 2, 2048, 1, 64)  # and of each half of V
    assert wide[2].args["p_dg"].shape == (2 * 2, 2048, 64)
    apart = launches(**(shape | {"V": 128, "H": 32}))
    assert [launch.step for launch in apart[2:]] == ["simple_grad_walks", "simple_gates", "sum", "sum"]  # dq, dk
    assert apart[2].args["p_dq"].shape == (32 * 2, 2048, 1, 128)
    assert all(launch.args["p_q"].shape[2] == 1 for launch in by_passes + walked if "p_q" in launch.args)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, device="meta")


@pytest.mark.parametrize(("changes", "message"), [
    ({"v": zeros(2, 8, 3, 24)}, r"v: expected shape \[2, 8, 2, V\].*, or a part or so many times those 2 heads, got "),
    ({"v": zeros(2, 8, 0, 24)}, "v: expected shape"),
    ({"v": zeros(2, 8, 4, 300)}, "v: expected a head dimension .* from 1 to 256, got 300"),
    ({"g": zeros(2, 8, 3)}, r"g: expected shape \[2, 8, 4\] \(B, T, H, as v\), got \[2, 8, 3\]$"),
    ({"g": zeros(2, 8, 2, 16)}, "g: expected shape .*; for a gate of each feature there is gla"),
    ({"v": zeros(2, 8, 1, 24), "g": zeros(2, 8, 1)}, r"g: expected shape \[2, 8, 2\] \(B, T, H, as q\)"),
    ({"initial_state": zeros(2, 2, 16, 24)}, r"initial_state: expected shape \[2, 4, 16, 24\].*got \[2, 2, 16, 24\]"),
])  # fmt: skip
def test_bad_call(changes, message):
    q = zeros(2, 8, 2, 16)
    given = {"q": q, "k": q, "v": zeros(2, 8, 4, 24), "g": zeros(2, 8, 4)} | changes
    with pytest.raises(ValueError, match=message):
        simple_gla(**given)
