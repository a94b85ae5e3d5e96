"""What PyTorch does with a function that is given to it: checkpoints, CUDA graphs, meta tensors, changes in place.

What torch.compile does is in test_compiled_graphs.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gla_kernels import Launch, Schedule, gla, gla_recurrent, gla_step, launches, simple_gla
from gla_kernels.launch.record import Program, record
from gla_kernels.ops import autograd, prepared
from gla_kernels.ops import simple_gla as simple_ops
from gla_kernels.ops.form import Inputs

Call = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]

CALLS: dict[str, Call] = {
    "gla": gla,
    "gla with gates on the value side": lambda q, k, v, g, *more: gla(q, k, v, g, *more, gv=g),
    "gla_recurrent": gla_recurrent,
    "simple_gla": lambda q, k, v, g, *more: simple_gla(q, k, v, g[..., 0], *more),
}
EVERY = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def drawn(B: int = 1, T: int = 20, H: int = 1, D: int = 16, device: str = DEVICE) -> list[torch.Tensor]:
    """q, k, v and g, which require gradients."""
    q, k, v, g = (torch.randn(B, T, H, D, device=device) for _ in range(4))
    return [x.requires_grad_() for x in (q, k, v, -g.abs())]


@EVERY
def test_a_checkpoint_computes_the_same_again(call):
    given = drawn()
    want = torch.autograd.grad(call(*given)[0].sum(), given)
    got = torch.autograd.grad(checkpoint(lambda *x: call(*x)[0], *given, use_reentrant=False).sum(), given)
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


@EVERY
@pytest.mark.parametrize("empty", [{"B": 0}, {"H": 0}], ids=str)
def test_no_sequence_or_head_is_no_work(call, empty):
    given = drawn(**empty)
    state = torch.zeros(given[0].shape[0], given[0].shape[2], 16, 16, device=DEVICE, requires_grad=True)
    o, final = call(*given, None, state, True)
    assert (o.shape, final.shape) == (given[2].shape, state.shape)
    grads = torch.autograd.grad(o.sum() + final.sum(), [*given, state])
    assert [grad.shape for grad in grads] == [x.shape for x in (*given, state)]


@pytest.mark.parametrize("empty", [{"B": 0}, {"H": 0}], ids=str)
@pytest.mark.parametrize("schedule", [None, Schedule(16, states_every=1), Schedule(16, materialize=False)], ids=str)
def test_no_sequence_or_head_is_no_work_in_segments_either(schedule, empty):
    """Of so many tokens that the schedule by default has segments."""
    given = drawn(T=4096, **empty)
    state = torch.zeros(given[0].shape[0], given[0].shape[2], 16, 16, device=DEVICE, requires_grad=True)
    q, k, v, g = given
    o, final = gla(q, k, v, g, None, state, True, schedule=schedule)
    assert final is not None
    grads = torch.autograd.grad(o.sum() + final.sum(), [*given, state])
    assert [x.shape for x in (o, final, *grads)] == [x.shape for x in (given[2], state, *given, state)]


@EVERY
def test_meta_tensors_get_the_shapes_of_results_and_gradients(call):
    given = drawn(T=70, device="meta")
    o, final = call(*given, None, None, True)
    assert (o.shape, final.shape) == ((1, 70, 1, 16), (1, 1, 16, 16))
    assert [grad.shape for grad in torch.autograd.grad(o.sum() + final.sum(), given)] == [x.shape for x in given]


@EVERY
def test_a_second_derivative_is_refused_of_a_constant_gradient_too(call):
    """Else a penalty on the gradients would be left out of theirs, without a word."""
    given = drawn()
    grads = torch.autograd.grad(call(*given)[0].sum(), given, create_graph=True)
    loss = given[0].sum() + sum(grad.square().sum() for grad in grads)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        loss.backward()


def test_a_state_that_a_step_changed_is_missed_by_the_backward_pass_that_needs_it():
    q, k, v, g = drawn()
    state = torch.randn(1, 1, 16, 16, device=DEVICE)
    o, _ = gla(q, k, v, g, None, state, schedule=Schedule(16, materialize=False))
    with torch.no_grad():
        gla_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


class NeedsItsResult:
    """What stands for a prepared call whose backward pass reads o, as with gates of the value side on Hopper."""

    leaves = (True, False)

    def forward(self, x: Inputs) -> Any:
        return 2 * x.v, None, None, x

    def backward(self, x: Inputs, results: Any, left: Any, do: torch.Tensor, *_: Any) -> Any:
        return None, None, do * results[0], None, None, None


def test_a_result_that_was_changed_is_missed_by_the_backward_pass_that_needs_it():
    q, k, v, g = drawn()
    o, _ = autograd.call(NeedsItsResult(), Inputs(q, k, v, g, None, None), True)  # type: ignore[arg-type]
    assert torch.equal(torch.autograd.grad(o.sum(), v)[0], 2 * v)
    o, _ = autograd.call(NeedsItsResult(), Inputs(q, k, v, g, None, None), True)  # type: ignore[arg-type]
    o.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@EVERY
def test_what_pytorch_negates_as_it_is_read_is_read_so(call):
    """Its sign is a bit beside the memory, which is all that a kernel sees."""
    given = [x.detach() for x in drawn()]
    *_, g = given
    turned = torch.view_as_complex(torch.stack([g, -g], -1)).conj().imag  # g, by way of a bit
    assert turned.is_neg()
    assert torch.equal(turned, g)
    assert torch.equal(call(*given[:3], turned)[0], call(*given)[0])
    one = [torch._neg_view(-x).requires_grad_() for x in given]  # contiguous, so that no copy resolves the bit
    q, k, v, g = (x.clone().requires_grad_() for x in given)
    do = torch.randn_like(v)
    got = torch.autograd.grad(call(*one)[0], one, torch._neg_view(-do))
    want = torch.autograd.grad(call(q, k, v, g)[0], [q, k, v, g], do)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("call", [gla, gla_recurrent])
def test_a_final_state_that_no_backward_pass_reads_may_change(call):
    q, k, v, _ = drawn()
    o, state = call(q, k, v, None, output_final_state=True)
    with torch.no_grad():
        gla_step(q[:, -1], k[:, -1], v[:, -1], None, state.detach())
    got = torch.autograd.grad(o.sum(), [q, k, v])
    want = torch.autograd.grad(call(q, k, v, None)[0].sum(), [q, k, v])
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


Seen = tuple[str, tuple[int, ...], dict[str, object], dict[str, object]]


def seen(launch: Launch) -> Seen:
    """A launch but for its tensors."""
    numbers = {name: x for name, x in launch.args.items() if not isinstance(x, torch.Tensor)}
    return launch.name, launch.grid, launch.constexprs, numbers


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches of each direction of a call, which are recorded as it is made for the first time."""
    found: list[Launch] = []

    def note(*host: Any) -> Program:
        program = record(*host)
        found.extend(program.launches)
        return program

    monkeypatch.setattr(prepared, "record", note)
    return found


PLANNED = {
    "in slices": ({"T": 1024, "H": 64, "schedule": Schedule(16, materialize=False)}, True),
    "without gates": ({"T": 100, "H": 1, "schedule": None}, False),
}


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwdbwd"])
@pytest.mark.parametrize(("asked", "gated"), PLANNED.values(), ids=PLANNED)
def test_what_is_planned_is_what_a_call_launches(asked, gated, mode, monkeypatch):
    """A forward pass that no backward one follows leaves it nothing."""
    launched = recorded(monkeypatch)
    given = (x.detach().bfloat16() for x in drawn(T=asked["T"], H=asked["H"], device="meta"))
    q, k, v, g = (x.requires_grad_(mode != "fwd") for x in given)
    o, _ = gla(q, k, v, g if gated else None, schedule=asked["schedule"])
    if mode == "bwd":
        launched.clear()
    if mode != "fwd":
        o.sum().backward()
    planned = launches("gla", B=1, K=16, V=16, dtype=torch.bfloat16, mode=mode, gated=gated, **asked)
    assert [seen(x) for x in launched] == [seen(x) for x in planned]


def test_what_simple_gla_plans_is_what_it_launches(monkeypatch):
    launched = recorded(monkeypatch)
    q, k, v, g = drawn(device="meta")
    simple_gla(q, k, v, g[..., 0].contiguous())[0].sum().backward()
    planned = simple_ops.launches(B=1, T=20, H=1, K=16, V=16, dtype=torch.float32)
    assert [seen(x) for x in launched] == [seen(x) for x in planned]


def test_nothing_is_planned_to_run_for_no_sequence():
    planned = launches("gla", B=0, T=4096, H=1, K=16, V=16, dtype=torch.float16)
    assert all(math.prod(launch.grid) == 0 for launch in planned)


def test_what_is_planned_does_not_hang_on_the_default_dtype():
    want = launches("gla_step", B=1, T=1, H=1, K=16, V=16, dtype=torch.float16, mode="step")
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = launches("gla_step", B=1, T=1, H=1, K=16, V=16, dtype=torch.float16, mode="step")
    finally:
        torch.set_default_dtype(torch.float32)
    assert [launch.name for launch in got] == [launch.name for launch in want]


def captured(function: Callable[[], list[torch.Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
    """The function's work as a CUDA graph, after one call that compiles, and what a replay fills."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = function()
    return graph, found


@pytest.mark.gpu
@EVERY
def test_a_cuda_graph_replays_both_directions_on_other_inputs(call):
    given = [x.detach().bfloat16().requires_grad_() for x in drawn(T=300, H=2, D=64)]

    def both() -> list[torch.Tensor]:
        o = call(*given)[0]
        return [o, *torch.autograd.grad(o.sum(), given)]

    graph, found = captured(both)
    with torch.no_grad():
        for x, other in zip(given, drawn(T=300, H=2, D=64), strict=True):
            x.copy_(other)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(found, both(), strict=True))


@pytest.mark.gpu
def test_a_cuda_graph_replays_a_step_of_decoding():
    q, k, v, g = (x[:, 0].detach() for x in drawn(T=1))
    state = torch.zeros(1, 1, 16, 16, device=DEVICE)
    graph, (found,) = captured(lambda: [gla_step(q, k, v, g, state)])
    state.zero_()
    graph.replay()
    graph.replay()
    want = torch.zeros_like(state)
    gla_step(q, k, v, g, want)
    assert torch.equal(gla_step(q, k, v, g, want), found)
    assert torch.equal(state, want)
