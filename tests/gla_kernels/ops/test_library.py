"""The functions inside torch.compile: one graph, without a break, that computes what the functions themselves do."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gla_kernels import Plan, Schedule, Workload, chosen, gla, gla_recurrent, gla_step, simple_gla
from gla_kernels.ops import library as compiled
from gla_kernels.ops.form import Inputs
from gla_kernels.ops.operators import MAKERS

Call = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def simple_gla_by_head(q, k, v, g, *more):
    return simple_gla(q, k, v, g[..., 0], *more)


CALLS: dict[str, Call] = {
    "gla": gla,
    "gla with recomputed states": lambda *given: gla(*given, recompute=True),
    "gla by a schedule": lambda *given: gla(*given, schedule=Schedule(32, 16, materialize=False)),
    "gla with gates on the value side": lambda q, k, v, g, *more: gla(q, k, v, g, *more, gv=g),
    "gla without gates": lambda q, k, v, g, *more: gla(q, k, v * g.exp(), None, *more),
    "gla_recurrent": gla_recurrent,
    "simple_gla": simple_gla_by_head,
}
WRONG: Any = 64
NONE: Any = None
MORE = pytest.mark.exhaustive
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """Without what other tests have compiled."""
    importlib.import_module("torch._dynamo.testing")  # here, for it takes seconds to import
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def drawn(T: int = 40, D: int = 16, dtype: torch.dtype = torch.float32, B: int = 1) -> list[torch.Tensor]:
    """q, k, v, g and an initial state, which require gradients."""
    q, k, v, g = (torch.randn(B, T, 2, D, device=DEVICE, dtype=dtype) for _ in range(4))
    state = torch.randn(B, 2, D, D, device=DEVICE)
    return [x.requires_grad_() for x in (q, k, v, -g.abs(), state)]


def results(call: Call, given: list[torch.Tensor], final: bool) -> list[torch.Tensor]:
    """o, the final state if ``final``, and the gradients of all that is given."""
    o, state = call(*given[:4], None, given[4], final)
    found = [o, state] if state is not None else [o]
    assert len(found) == 1 + final
    return [*found, *torch.autograd.grad(torch.stack([x.float().square().sum() for x in found]).sum(), given)]


# The other calls, and these with a final state, are slices below.
@pytest.mark.parametrize(
    ("call", "final", "lengths"),
    [
        pytest.param(CALLS["gla with recomputed states"], True, (17,), id="gla with recomputed states"),
        pytest.param(CALLS["gla with recomputed states"], True, (40, 17), id="of two lengths", marks=MORE),
        pytest.param(CALLS["gla by a schedule"], True, (40, 17), id="gla by a schedule", marks=MORE),
        pytest.param(gla_recurrent, False, (40,), id="gla_recurrent, o alone"),
    ],
)
def test_a_graph_computes_the_same_without_a_break(call, final, lengths):
    in_graph = torch.compile(call, fullgraph=True, backend="aot_eager")
    for T in lengths:
        given = drawn(T)
        want, got = results(call, given, final), results(in_graph, given, final)
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


SLICED = ("gla", "gla with gates on the value side", "gla without gates", "gla_recurrent", "simple_gla")


def dynamic(given: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same, with batch and length marked as dynamic."""
    for x in given:
        torch._dynamo.mark_dynamic(x, 0)
    for x in given[:4]:
        torch._dynamo.mark_dynamic(x, 1)
    return given


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(gla, id="gla"),
        pytest.param(simple_gla_by_head, id="simple_gla", marks=MORE),  # as packed sequences of it, by day
        pytest.param(gla_recurrent, id="gla_recurrent", marks=MORE),
        pytest.param(CALLS["gla with gates on the value side"], id="gla with gates on the value side", marks=MORE),
    ],
)
def test_one_graph_serves_all_batches_and_lengths_that_are_marked_as_dynamic(call):
    frames = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    in_graph = torch.compile(call, fullgraph=True, backend=frames)
    for B, T in ((2, 6), (3, 21)):
        given = drawn(T, B=B)
        want, got = results(call, given, True), results(in_graph, dynamic(given), True)
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    assert frames.frame_count == 1


@pytest.mark.parametrize("call", [gla, pytest.param(simple_gla_by_head, marks=MORE)], ids=["gla", "simple_gla"])
def test_a_second_length_makes_one_more_graph_which_serves_all_others(call):
    frames = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    in_graph = torch.compile(call, fullgraph=True, backend=frames)
    for T in (20, 33, 16):  # of two chunks and three, a multiple of 16 last
        given = drawn(T)
        want, got = results(call, given, False), results(in_graph, given, False)
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    assert frames.frame_count == 2


def test_a_graph_takes_what_lies_anyhow_in_memory():
    q, k, v, g, state = drawn(B=2)
    given = [*(x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in (q, k, v, g)), state]
    in_graph = torch.compile(gla, fullgraph=True, backend="aot_eager")
    want, got = results(gla, given, True), results(in_graph, given, True)
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_computes_the_same(strict):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v, g, state):
            return gla(q, k, v, g, None, state, True)

    given = tuple(x.detach() for x in drawn())
    exported = torch.export.export(Layer(), given, strict=strict).module()
    assert all(torch.equal(a, b) for a, b in zip(exported(*given), Layer()(*given), strict=True))


@pytest.mark.each_value
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("outside", [True, False])
def test_a_checkpoint_computes_the_same_again(backend, outside):
    def layer(*given):
        return gla(*given)[0] * 2

    def again(*given):
        return checkpoint(in_graph if outside else layer, *given, use_reentrant=False)

    given = drawn()[:4]
    want = torch.autograd.grad(layer(*given).sum(), given)
    in_graph = torch.compile(layer, fullgraph=True, backend=backend)
    whole = again if outside else torch.compile(again, fullgraph=True, backend=backend)
    got = torch.autograd.grad(whole(*given).sum(), given)
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_a_scale_may_be_an_input_of_the_graph():
    q, k, v, g, _ = (x.detach() for x in drawn())
    in_graph = torch.compile(gla, fullgraph=True, backend="aot_eager")
    for scale in (0.25, 3.0, 2):
        assert torch.equal(in_graph(q, k, v, g, scale)[0], gla(q, k, v, g, scale)[0])
    with pytest.raises(ValueError, match="scale: expected a number that float32 holds"):
        in_graph(q, k, v, g, float("nan"))


def test_only_gradients_that_are_asked_for_come_out():
    q, k, v, g, state = drawn()
    given = [q, k.detach(), v, g.detach(), state.detach()]
    in_graph = torch.compile(gla, fullgraph=True, backend="aot_eager")
    calls: tuple[Call, Call] = (gla, in_graph)
    want, got = (torch.autograd.grad(call(*given[:4], None, state)[0].sum(), [q, v]) for call in calls)
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


@pytest.mark.parametrize(
    "call",
    [pytest.param(CALLS[name], id=name, marks=[MORE] * (" " in name)) for name in SLICED],
)
@pytest.mark.parametrize("sizes", [((2, 9),), pytest.param(((2, 9), (3, 18)), marks=MORE)], ids=str)
def test_slices_of_a_projection_are_copied_by_the_operator_alone(call, sizes):
    """Not by the graph; no bit depends on it, of a second batch and length included, which others have above."""

    def split(x, *more):
        q, k, v, g = (y.unflatten(-1, (2, 16)) for y in x.split(32, -1))
        return call(q, k, v, g, *more)

    frames = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    in_graph = torch.compile(split, fullgraph=True, backend=frames)
    for B, T in sizes:
        *tensors, state = drawn(T, B=B)
        joined = torch.cat([x.flatten(2) for x in tensors], -1).detach().requires_grad_()
        found = []
        for run in (lambda x, *more: call(*(y.unflatten(-1, (2, 16)).contiguous() for y in x.split(32, -1)), *more),
                    split, in_graph):  # fmt: skip
            o, final = run(joined, None, state, True)
            loss = o.square().sum() + final.square().sum()
            found.append([o, final, *torch.autograd.grad(loss, [joined, state])])
        assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(found[0], one, strict=True))
    assert frames.frame_count == len(sizes)
    if call is gla:  # all that a graph asks to be contiguous is the state
        asked = [node for graph in frames.graphs for node in graph.graph.nodes if node.target == "contiguous"]
        assert len(asked) == len(frames.graphs)


@pytest.fixture
def filled() -> Iterator[None]:
    """PyTorch fills what it allocates: what is left for a backward pass has bytes at its end that nobody writes."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("function", "value_gates"),
    [(name, False) for name in MAKERS] + [pytest.param(name, True, marks=MORE) for name in ("gla", "gla_recurrent")],
)
def test_operators_keep_what_pytorch_is_promised(function, value_gates):
    q, k, v, g, state = drawn(T=9)
    if function == "simple_gla":
        g = g[..., 0].detach().requires_grad_()
    x = Inputs(q, k, v, g, g if value_gates else None, state)
    sorts = [None if t is None else (tuple(t.shape), t.dtype, t.device) for t in x]
    how = (
        [0, 2],  # which of the tensors are copied, as if they lay in rows
        0.25,
        True,
        compiled.room_of(function, x, None, False),
        compiled.settled(function, sorts, True, None, True, False),
    )
    torch.library.opcheck(torch.ops.gla_kernels.forward.default, (*x, *how))
    with torch.no_grad():
        found = torch.ops.gla_kernels.forward(*x, *how)
    left = found if value_gates and how[3] else found[1:]  # o, too, where a backward pass may need it
    needed = [t is not None for t in x[:6]]
    grads = torch.randn_like(v), torch.randn_like(state)
    torch.library.opcheck(torch.ops.gla_kernels.backward.default, (*x, left, *grads, needed, *how))


def test_a_step_of_decoding_changes_the_state_in_a_graph():
    q, k, v, g = (x[:, 0].detach() for x in drawn()[:4])
    state = torch.randn(1, 2, 16, 16, device=DEVICE)
    other = state.clone()
    in_graph = torch.compile(lambda *given: gla_step(*given) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(in_graph(q, k, v, g, state), gla_step(q, k, v, g, other) * 2)
    assert torch.equal(state, other)
    torch.library.opcheck(torch.ops.gla_kernels.step.default, (q, k, v, g, None, state, 0.25, False))


def test_steps_of_batches_of_any_size_share_a_graph():
    frames = torch._dynamo.testing.CompileCounter()
    in_graph = torch.compile(gla_step, fullgraph=True, backend=frames, dynamic=True)
    for B in (3, 4, 5, 7):
        q, k, v, g = (torch.randn(B, 2, 16, device=DEVICE) for _ in range(4))
        in_graph(q, k, v, -g.abs(), torch.zeros(B, 2, 16, 16, device=DEVICE))
    assert frames.frame_count == 1


def test_a_plan_that_is_given_runs_beside_the_graph():
    given = drawn()[:4]
    plan = chosen(Workload("fwd", 1, 40, 2, 16, 16, "fp32")).plan
    ran = []

    def call(q, k, v, g):
        return gla(q, k, v, g, config=plan)[0] * 2

    def backend(graph, _):
        ran.append(graph)
        return graph.forward

    assert isinstance(plan, Plan)
    assert torch.equal(torch.compile(call, backend=backend)(*given), call(*given))
    assert ran


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda q, k, v, g: gla(q, k[:, :3], v, g), "k: expected shape"),
        (lambda q, k, v, g: gla(q, k.to("meta"), v, g), "k: expected device"),
        (lambda q, k, v, g: gla(WRONG, k, v, g), "q: expected a tensor, got int"),
        (lambda q, k, v, g: gla_recurrent(q, k, v, WRONG), "g: expected a tensor, got int"),
        (lambda *given: gla(*given, schedule=WRONG), "schedule: expected a Schedule or None, got int"),
        (lambda q, k, v, g: gla_recurrent(q, k, v.double(), g), "v: expected dtype torch.float32"),
        (lambda q, k, v, g: simple_gla(q, k, v, NONE), r"g: expected a tensor \[B, T, H\], got NoneType"),
        (lambda q, k, v, g: simple_gla(q, k, v, g), "for a gate of each feature there is gla"),
        (lambda q, k, v, g: gla(q, k, v, g, True), "scale: expected a number or None, got bool"),
        (lambda q, k, v, g: gla(q, k, v, g, output_final_state=WRONG), "output_final_state: expected True or False"),
        (lambda q, k, v, g: gla(q[0, 0, 0, 0], k, v, g), "q: expected 4 axes"),
        (lambda q, k, v, g: gla(q, NONE, v, g), "k: expected a tensor, got NoneType"),
        (lambda q, k, v, g: gla_step(q, k, v, g, q), "q: expected 3 axes"),
        (lambda q, k, v, g: gla_step(NONE, k, v, g, q), "q: expected a tensor, got NoneType"),
        (lambda q, k, v, g: gla_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], NONE), "state: expected a tensor"),
        (lambda q, k, v, g: gla_step(q[0, 0, 0, 0], k, v, g, q), "q: expected 3 axes"),
        (lambda q, k, v, g: gla_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], q), "state: expected shape"),
    ],
)
def test_bad_input_is_named_while_the_graph_is_made(call, text):
    with torch.no_grad(), pytest.raises(Exception, match=text):
        torch.compile(call, fullgraph=True, backend="aot_eager")(*drawn()[:4])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda q, k, v, g, state: gla(q, NONE, v, g, initial_state=state),
        lambda q, k, v, g, state: gla(q, k, v, g, initial_state=[1] if state is not None else None),  # type: ignore[arg-type]
        lambda q, k, v, g, state: gla(q[..., :0], k[..., :0], v, g[..., :0]),
        pytest.param(
            lambda q, k, v, g, state: gla_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], state.requires_grad_()), marks=MORE
        ),
        pytest.param(
            lambda q, k, v, g, state: gla_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], state[:, :, :4]), marks=MORE
        ),
        lambda q, k, v, g, state: gla_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], NONE),
    ],
)
def test_a_call_that_was_refused_does_not_spoil_the_next_ones(wrong):
    """Without fullgraph: the compiler gives up functions in which what it traces raises, and traces what they call."""

    def either(right, *given):
        if not right:
            return wrong(*given)
        with torch.no_grad():
            q, k, v, g, state = given
            return gla(q, k, v, g)[0] + gla_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], state.clone())[:, None]

    given = [x.detach() for x in drawn()]
    in_graph = torch.compile(either, backend="aot_eager")
    want = either(True, *given)
    with pytest.raises(Exception, match=r"expected"):
        in_graph(False, *(x.clone() for x in given))
    assert torch.equal(in_graph(True, *given), want)


@pytest.mark.gpu
@pytest.mark.parametrize("call", [gla, simple_gla_by_head], ids=["gla", "simple_gla"])
def test_inductor_replays_cuda_graphs_of_the_same(call):
    in_graph = torch.compile(call, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):  # recorded at the second call
        given = drawn(T=300, D=64, dtype=torch.bfloat16, B=2)
        torch.compiler.cudagraph_mark_step_begin()
        got = [x.clone() for x in results(in_graph, given, True)]
        assert all(torch.equal(a, b) for a, b in zip(results(call, given, True), got, strict=True))


def test_what_is_marked_as_constant_is_so_by_pytorch_s_own_mark():
    @torch.compiler.assume_constant_result
    def constant():
        return 0

    assert vars(compiled.settled) == vars(compiled.step_settled) == vars(constant) != {}


def test_no_compiler_is_imported_with_the_package(compiling_process):
    compiling_process("-c", "import gla_kernels.nn, sys; assert not {'torch._dynamo', 'sympy'} & set(sys.modules)")
