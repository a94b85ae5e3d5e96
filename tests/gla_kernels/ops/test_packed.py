"""Packed sequences, and states that lie as [V, K], in graphs of torch.compile, in programs that are recorded, and what
is refused of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gla_kernels import Schedule, gla, gla_recurrent, gla_step, simple_gla
from gla_kernels.launch import execute
from gla_kernels.ops import simple_gla as simple_ops
from gla_kernels.ops.form import Form, Inputs
from gla_kernels.ops.forms import Recurrent
from gla_kernels.ops.prepared import Prepared
from gla_kernels.ops.value_gates import ValueGated

Call = Callable[..., Any]
H, D = 2, 16

CALLS: dict[str, Call] = {
    "gla with gates on the value side": lambda q, k, v, g, *more, **how: gla(q, k, v, g, *more, gv=g, **how),
    "gla_recurrent": gla_recurrent,
    "simple_gla": lambda q, k, v, g, *more, **how: simple_gla(q, k, v, g[..., 0], *more, **how),
}
EVERY = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """Without what other tests have compiled."""
    importlib.import_module("torch._dynamo.testing")  # here, for it takes seconds to import
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def drawn(T: int, N: int) -> list[torch.Tensor]:
    """q, k, v, g and the states before N sequences, which require gradients."""
    q, k, v, g = (torch.randn(1, T, H, D, device=DEVICE) for _ in range(4))
    return [x.requires_grad_() for x in (q, k, v, -g.abs(), torch.randn(N, H, D, D, device=DEVICE))]


def results(call: Call, given: list[torch.Tensor], lies: torch.Tensor, states: bool) -> list[torch.Tensor]:
    """o, the final states if there are ``states``, and the gradients of all that is given."""
    *rows, state = given
    how = {"cu_seqlens": lies, "state_v_first": True}
    o, final = call(*rows, None, state if states else None, states, **how)
    found = [o, final] if states else [o]
    loss = torch.stack([x.square().sum() for x in found]).sum()
    return [*found, *torch.autograd.grad(loss, given if states else rows)]


@pytest.mark.each_value  # that states may be missing is decided in one place for all calls
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.exhaustive(call=(gla_recurrent,))
@EVERY
def test_one_graph_serves_all_lengths_that_are_marked_as_dynamic(packed, call, states):
    frames = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    in_graph = torch.compile(call, fullgraph=True, backend=frames)
    for lengths in ((4, 9, 5), (9, 0, 1, 13)):
        lies, given = packed.ends(lengths, DEVICE), drawn(sum(lengths), len(lengths))
        want = results(call, given, lies, states)
        for x in (lies, given[-1]):
            torch._dynamo.mark_dynamic(x, 0)
        for x in given[:-1]:
            torch._dynamo.mark_dynamic(x, 1)
        got = results(in_graph, given, lies, states)
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    assert frames.frame_count == 1


FORMS: dict[str, Callable[[Inputs], Form]] = {
    "recurrent": lambda _: Recurrent(0.25, True),
    "simple": lambda x: simple_ops._form(x, torch.device("cpu"), 0.25, Schedule(16), True, None, True),
    "value gates": lambda _: ValueGated(0.25, Schedule(16, 16), True, True),
}


@pytest.mark.each_value
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("d_final", [True, False])
def test_a_program_computes_bit_for_bit_what_its_host_code_does(packed, name, states, d_final):
    if torch.cuda.is_available():
        pytest.skip("runs host code on the CPU")
    q, k, v, g, state = (x.detach() for x in drawn(33, 3))
    g = g[..., 0].contiguous() if name == "simple" else g
    lies = packed.ends((4, 16, 13), "cpu")
    x = Inputs(q, k, v, g, g if name == "value gates" else None, state if states else None, lies)
    form, needed, do = FORMS[name](x), tuple(one is not None for one in x[:6]), torch.randn_like(v)
    d_state = torch.randn_like(state) if d_final else None
    with torch.no_grad():
        o, final, left = form.forward(x, d_final, execute)
        want = [o, final, *form.backward(x, left, do, d_state, needed, execute)]
        prepared = Prepared(form, x, d_final, torch.device("cpu"))
        for _ in range(2):  # recorded, then made again
            o, final, block, _ = prepared.forward(x)
            got = [o, final, *prepared.backward(x, (o, final), block, do, d_state, needed)]
            for a, b in zip(got, want, strict=True):
                assert (a is None) == (b is None)
                assert a is None or (b is not None and torch.equal(a, b))


@EVERY
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([0, 3, 4], None),
        ([1, 3, 4], "cu_seqlens: expected 0 first, got 1"),
        ([0, 3, 2], "cu_seqlens: expected ascending numbers, got 2 after 3, at 2"),
        ([0, 3, 5], r"cu_seqlens: expected 4 \(T\) last, got 5"),
        ([0], r"cu_seqlens: expected shape \[N\+1\], of one sequence or more, got \[1\]"),
        ([0.0, 4.0], "cu_seqlens: expected int32 or int64, got torch.float32"),
    ],
)
def test_what_is_wrong_with_lengths_is_said(call, wrong, message):
    given = [x.detach() for x in drawn(4, 2)[:4]]
    lies = torch.tensor(wrong, device=DEVICE)
    if message is None:
        call(*given, cu_seqlens=lies, check=True)
        return
    with pytest.raises(ValueError, match=message):
        call(*given, cu_seqlens=lies, check=True)


@EVERY
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cu_seqlens": [0, 4]}, "cu_seqlens: expected a tensor, got list"),
        ({"initial_state": torch.zeros(1, H, D, 8)}, r"initial_state: expected shape \[2, 2, 8, 16\] \(N, H, V, K\)"),
        ({"initial_state": torch.zeros(2, H, D, 8)}, r"initial_state: expected shape \[2, 2, 8, 16\] \(N, H, V, K\)"),
        ({"state_v_first": 1}, "state_v_first: expected True or False, got 1"),
    ],
)
def test_what_is_wrong_beside_lengths_is_said(call, changed, message):
    q, k, v, g = (x.detach() for x in drawn(4, 2)[:4])
    how = {"cu_seqlens": torch.tensor([0, 3, 4], device=DEVICE), "state_v_first": True} | changed
    how = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in how.items()}
    if call is CALLS["gla with gates on the value side"]:
        call = lambda q, k, v, g, **how: gla(q, k, v, g, gv=v, **how)  # noqa: E731
    with pytest.raises(ValueError, match=message):
        call(q, k, v[..., :8].contiguous(), g, **how)


@EVERY
def test_sequences_are_packed_in_one_row(call):
    given = [torch.cat([x.detach()] * 2) for x in drawn(4, 2)[:4]]
    with pytest.raises(ValueError, match=r"q: expected B = 1 where sequences are packed \(cu_seqlens\), got 2"):
        call(*given, cu_seqlens=torch.tensor([0, 4], device=DEVICE))


@pytest.mark.parametrize("value_gates", [False, True])
def test_a_step_of_a_state_with_v_first(value_gates, same_sums):
    q, k, v, g, state = (x.detach() for x in drawn(2, 2))
    q, k, v, g, state = q[0], k[0], v[0, ..., :8].contiguous(), g[0], state[..., :8].contiguous()
    gv, turned = -v.abs() if value_gates else None, state.mT.contiguous()
    o = gla_step(q, k, v, g, state, gv=gv)
    assert same_sums(gla_step(q, k, v, g, turned, gv=gv, state_v_first=True), o)
    assert torch.equal(turned.mT, state)


@pytest.mark.gpu
@EVERY
def test_a_cuda_graph_is_replayed_with_other_lengths(packed, call):
    lies, given = packed.ends((40, 100, 60), DEVICE), [x.detach() for x in drawn(200, 3)]
    how = {"cu_seqlens": lies, "state_v_first": True}
    call(*given[:4], None, given[4], True, **how)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, final = call(*given[:4], None, given[4], True, **how)
    for lengths in ((200, 0, 0), (1, 64, 135)):
        lies.copy_(packed.ends(lengths, DEVICE))
        graph.replay()
        right = call(*given[:4], None, given[4], True, **(how | {"cu_seqlens": packed.ends(lengths, DEVICE)}))
        assert torch.equal(o, right[0])
        assert torch.equal(final, right[1])
