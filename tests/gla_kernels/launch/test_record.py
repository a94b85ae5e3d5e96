"""Host code that is recorded: where its tensors lie, what it may not do, and that its launches compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gla_kernels import Schedule, chunk
from gla_kernels.launch import Launch, execute, interpreting
from gla_kernels.launch.record import ALIGNMENT, Program, record
from gla_kernels.ops import simple_gla as simple_api
from gla_kernels.ops.form import Form, Inputs
from gla_kernels.ops.forms import Recurrent
from gla_kernels.ops.gla_form import form_of
from gla_kernels.ops.prepared import LEFT, Prepared
from gla_kernels.tiles.slices import Share

Tensors = Sequence[torch.Tensor | None]
KERNEL = SimpleNamespace(arg_names=["p_x", "p_y"], fn=SimpleNamespace(__name__="a_kernel"))


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def a_launch(*tensors: torch.Tensor | None, grid: tuple[int, ...] = (1,)) -> Launch:
    return Launch(KERNEL, grid, {f"p_{i}": x for i, x in enumerate(tensors)})


def recorded(host: Callable[[Any], tuple[Tensors, Tensors]], *inputs: torch.Tensor | None) -> Program:
    return record(host, inputs, torch.device("cpu"))


def span(program: Program, x: torch.Tensor) -> tuple[int, int, int]:
    """The address that a tensor lies at, and its first byte and the one after its last behind it."""
    base, offset = program.where(x)
    return base, offset, offset + x.nbytes


# --- Where tensors lie ------------------------------------------------------------------------------------------------

LIVES = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 8), st.integers(0, 3)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(LIVES)
def test_buffers_that_are_in_use_at_once_share_no_bytes(lives: list[tuple[int, int, int]]) -> None:
    """Of sizes in bytes, the launch that first takes each and how many later the last. Neighbours are at once."""
    buffers = [meta(size, dtype=torch.uint8) for size, *_ in lives]

    def host(launch: Any) -> tuple[Tensors, Tensors]:
        for i in range(12):
            taken = [x for x, (_, first, more) in zip(buffers, lives, strict=True) if i in (first, first + more)]
            launch(a_launch(*taken))
        return (), ()

    program = recorded(host)
    spans = [span(program, x) for x in buffers]
    for i, ((_, first, more), (base, start, end)) in enumerate(zip(lives, spans, strict=True)):
        assert base == program.at_left + 1
        assert start % ALIGNMENT == 0
        assert end <= program.scratch_bytes
        for (_, other, longer), (_, there, until) in zip(lives[:i], spans[:i], strict=True):
            apart = first > other + longer + 1 or other > first + more + 1
            assert apart or end <= there or until <= start
    assert program.scratch_bytes <= sum(-(-size // ALIGNMENT) * ALIGNMENT for size, *_ in lives)


def test_buffers_of_other_times_share_bytes() -> None:
    first, last = meta(1000), meta(1000)

    def host(launch: Any) -> tuple[Tensors, Tensors]:
        for taken in ([first], [], [last]):
            launch(a_launch(*taken))
        return (), ()

    program = recorded(host)
    assert program.where(first) == program.where(last)
    assert program.scratch_bytes == 4000


def test_views_lie_in_the_memory_that_they_are_of() -> None:
    x, scratch = meta(4, 8), meta(6, 100, dtype=torch.bfloat16)

    def host(launch: Any) -> tuple[Tensors, Tensors]:
        launch(a_launch(x[1:], x.view(32)[3:], scratch[2], scratch.select(1, 5)))
        return (), ()

    program = recorded(host, x)
    taken = list(program.launches[0].args.values())
    assert [program.where(one) for one in taken[:2]] == [(0, 32), (0, 12)]
    base = program.at_left + 1
    assert [program.where(one) for one in taken[2:]] == [(base, 400), (base, 10)]


def test_results_and_what_is_left_have_addresses_of_their_own() -> None:
    """What is left: an input, a result, two buffers of one block, and nothing."""
    x, result, small, large = meta(4), meta(3), meta(5), meta(300)

    def host(launch: Any) -> tuple[Tensors, Tensors]:
        launch(a_launch(x, result, small, large))
        return (None, result), (x, result, small, None, large)

    program = recorded(host, None, x)
    assert (program.at_results, program.at_left) == (2, 4)
    assert program.where(x) == (1, 0)
    assert program.where(result) == (3, 0)
    assert [None if one is None else (one.base, one.offset) for one in program.left] == [
        (1, 0), (3, 0), (4, 0), None, (4, ALIGNMENT)
    ]  # fmt: skip
    assert (program.left_bytes, program.scratch_bytes) == (ALIGNMENT + 3 * ALIGNMENT, 0)
    assert [None if one is None else one.shape for one in program.results] == [None, (3,)]


def test_blocks_of_an_earlier_program_lie_where_it_left_them() -> None:
    x, y = meta(4), meta(4)

    def host(launch: Any) -> tuple[Tensors, Tensors]:
        launch(a_launch(x, y))
        return (), ()

    program = record(host, (None, None), torch.device("cpu"), ((x, 1, 0), (None, 1, 512), (y, 1, 1024)))
    assert (program.where(x), program.where(y), program.at_results) == ((1, 0), (1, 1024), 2)


def test_empty_grids_are_no_launches() -> None:
    program = recorded(lambda launch: (launch(a_launch(meta(1), grid=(0, 3))), ((), ()))[1])
    assert program.launches == ()


# --- What host code may not do ----------------------------------------------------------------------------------------

COMPUTED: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda x: x.sum(),
    "zeros_like": torch.zeros_like,
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: x.copy_(x[:]),
    "clone": lambda x: x.clone(),
    "another dtype": lambda x: x.bfloat16(),
    "contiguous": lambda x: x.t().contiguous(),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_what_pytorch_would_compute_is_refused(name: str) -> None:
    x = meta(4, 3)

    def host(launch: Any) -> tuple[Tensors, Tensors]:
        COMPUTED[name](x)
        return (), ()

    with pytest.raises(RuntimeError, match="host code computes with PyTorch"):
        recorded(host, x)


@pytest.mark.parametrize(
    "result",
    [lambda x: x, lambda x: x[1:], lambda _: meta(4)[:2], lambda _: meta(4, 3).t()],
    ids=["an input", "a view of it", "a part", "turned"],
)
def test_a_result_that_shares_its_memory_is_refused(result: Any) -> None:
    x = meta(4)
    with pytest.raises(RuntimeError, match="a result shares its memory"):
        recorded(lambda launch: ((result(x),), ()), x)


def test_part_of_a_buffer_cannot_be_left() -> None:
    with pytest.raises(RuntimeError, match="what is left for later shares its memory"):
        recorded(lambda launch: ((), (meta(4)[1:],)))


# --- What the launches compute ----------------------------------------------------------------------------------------


def chunkwise(schedule: Schedule | None, recompute: bool = False) -> Callable[[Inputs], Form]:
    return lambda x: form_of(x, torch.device("cpu"), 0.25, schedule, True, recompute)


FORMS: dict[str, tuple[Callable[[Inputs], Form], str]] = {
    "materialized": (chunkwise(Schedule(16, 16)), "g"),
    "by default": (chunkwise(None), "g"),
    "not materialized": (chunkwise(Schedule(16, 16, False)), "g"),
    "in segments": (chunkwise(Schedule(16, 16, states_every=2)), "g"),
    "recomputed": (chunkwise(Schedule(16, 16), True), "g"),
    "not materialized, recomputed": (chunkwise(Schedule(16, 16, False), True), "g"),
    "without gates": (chunkwise(Schedule(16, 16)), ""),
    "value gates": (chunkwise(Schedule(16, 16)), "gv"),
    "value gates, not materialized": (chunkwise(Schedule(16, 16, False)), "gv"),
    "recurrent": (lambda _: Recurrent(0.25), "g"),
    "recurrent without gates": (lambda _: Recurrent(0.25), ""),
    "simple": (lambda x: simple_api._form(x, torch.device("cpu"), 0.25, Schedule(16), True), "simple"),
    "simple, not materialized": (
        lambda x: simple_api._form(x, torch.device("cpu"), 0.25, Schedule(16, materialize=False), True), "simple"
    ),
}  # fmt: skip


BOTH_OF_WHAT_OTHERS_ARE = (
    "by default", "not materialized, recomputed", "value gates, not materialized", "recurrent without gates",
)  # fmt: skip


def drawn(gates: str, T: int = 40, B: int = 2) -> tuple[Inputs, torch.Tensor, torch.Tensor]:
    """What a call is given, and the gradients of what it returns."""
    q, k, v, g, gv, do = (torch.randn(B, T, 3, 16) for _ in range(6))
    g, gv, state = -g.abs(), -gv.abs(), torch.randn(B, 3, 16, 16)
    key = g[..., 0].contiguous() if gates == "simple" else g if gates else None
    return Inputs(q, k, v, key, gv if gates == "gv" else None, state), do, torch.randn_like(state)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes go by slices, and backward ones by groups of two heads: views with offsets."""
    monkeypatch.setattr(chunk.parted, "segments_at_once", lambda *_: 1)
    monkeypatch.setattr(
        chunk.parted, "share_of", lambda _B, _H, _, head, at_once, room: Share(1, 2, at_once, head.in_turn)
    )


@pytest.mark.each_value  # a gradient that is not given is left out of any form in one place
@pytest.mark.skipif(not interpreting(), reason="runs host code on the CPU")
@pytest.mark.usefixtures("in_parts")
@pytest.mark.exhaustive(name=BOTH_OF_WHAT_OTHERS_ARE)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("d_final", [True, False])
def test_a_program_computes_bit_for_bit_what_its_host_code_does(name: str, d_final: bool) -> None:
    of, gates = FORMS[name]
    # Of two chunks, or segments of two, of a sequence, or two.
    x, do, d_state = drawn(gates, 40 if name == "in segments" else 20, 1 + (name in ("materialized", "simple")))
    form, needed = of(x), tuple(one is not None for one in x)
    with torch.no_grad():
        o, state, left = form.forward(x, True, execute)
        want = [o, state, *form.backward(x, left, do, d_state if d_final else None, needed, execute)]
        prepared = Prepared(form, x, True, torch.device("cpu"))
        for _ in range(2):  # recorded, then made again
            o, state, block, _ = prepared.forward(x)
            grads = prepared.backward(x, (o, state), block, do, d_state if d_final else None, needed)
            for number, (a, b) in enumerate(zip([o, state, *grads], want, strict=True)):
                assert (a is None) == (b is None), number
                assert a is None or (b is not None and torch.equal(a, b)), number


@pytest.mark.parametrize("name", FORMS)
def test_what_is_left_is_one_block_inputs_and_results(name: str) -> None:
    """And all launches lie within what they are given."""
    of, gates = FORMS[name]
    x, *_ = drawn(gates)
    prepared = Prepared(of(x), x, True, torch.device("cpu"))
    forward = prepared._forward.program
    backward = prepared._backward_program(True, tuple(one is not None for one in x))
    bases = {one.base for one in forward.left if one is not None}
    assert bases <= {*range(len(x)), forward.at_results, forward.at_results + 1, forward.at_left}
    assert (forward.at_left in bases) == (forward.left_bytes > 0)
    assert backward.left_bytes == 0
    for program, left_at in ((forward, forward.at_left), (backward, LEFT)):
        inputs = list(x) if program is forward else [*x, *results_of(forward)]
        rooms = {i: one.nbytes for i, one in enumerate(inputs) if one is not None}
        rooms |= {left_at: forward.left_bytes, program.at_left + 1: program.scratch_bytes}
        for launch in program.launches:
            for one in launch.args.values():
                if isinstance(one, torch.Tensor):
                    base, start = program.where(one)
                    last = sum((n - 1) * step for n, step in zip(one.shape, one.stride(), strict=True))
                    assert base not in rooms or start + (last + 1) * one.element_size() <= rooms[base]


def results_of(forward: Program) -> list[torch.Tensor]:
    """o and the final state, without data. They come after what is given."""
    assert len(Inputs._fields) + 2 == LEFT
    return [one.on_meta() for one in forward.results if one is not None]


@pytest.mark.skipif(not interpreting(), reason="runs host code on the CPU")
def test_a_call_with_other_gradients_wanted_is_another_program() -> None:
    x, do, _ = drawn("simple")
    prepared = Prepared(FORMS["simple"][0](x), x, False, torch.device("cpu"))
    with torch.no_grad():
        o, state, block, _ = prepared.forward(x)
        every = (True, True, True, True, False, True)
        whole = prepared.backward(x, (o, state), block, do, None, every)
        part = prepared.backward(x, (o, state), block, do, None, (True, True, True, False, False, True))
    assert whole[3] is not None
    for number in (0, 1, 2, 5):
        a, b = whole[number], part[number]
        assert (a is None) == (b is None)
        assert a is None or (b is not None and torch.equal(a, b))
