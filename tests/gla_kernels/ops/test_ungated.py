"""Calls of `gla` without gates: where Hopper's walks of one gate a head take them, and that they are right there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gla_kernels import Plan, Schedule, default_config, gla
from gla_kernels.launch import execute
from gla_kernels.ops import gla_form
from gla_kernels.ops.form import Inputs
from gla_kernels.ops.forms import Chunkwise, Simple
from gla_kernels.ops.gla import launches
from gla_kernels.ops.library import room_of
from gla_kernels.ops.prepared import Prepared
from gla_kernels.schedule import HOPPER
from gla_kernels.simple.hopper import simple_walk_hopper_kernel

WIDE, MANY, NARROW = (4, 2048, 16, 128, 128), (6, 2048, 16, 128, 128), (32, 1024, 16, 64, 64)
PLAN = Plan(Schedule(), default_config(128, 128, 2, Schedule()))


def names(shape: tuple[int, ...], **asked: Any) -> list[str]:
    how: dict[str, Any] = {"dtype": torch.bfloat16, "gated": False, "capability": HOPPER}
    return [launch.name for launch in launches("gla", **how | dict(zip("BTHKV", shape, strict=True)) | asked)]


@pytest.mark.skipif(simple_walk_hopper_kernel is None, reason="Triton's Gluon is another")
@pytest.mark.parametrize(
    ("shape", "asked", "taken"),
    [
        (WIDE, {}, ["simple_decays_kernel", "simple_walk_hopper_kernel", "simple_grad_walks_hopper_kernel"]),
        (MANY, {"mode": "fwd"}, ["simple_decays_kernel", "simple_walk_hopper_kernel"]),
        (WIDE, {"mode": "fwd"}, None),  # too few programs, where plans have segments
        ((6, 2048, 16, 64, 64), {}, None),
        ((6, 2048, 16, 64, 128), {}, ["simple_decays_kernel", "simple_walk_kernel", "simple_grad_walk_hopper_kernel"]),
        ((2, 2048, 12, 128, 256), {}, None),
        (NARROW, {}, ["simple_decays_kernel", "simple_walk_kernel", "simple_grad_walk_hopper_kernel"]),
        (NARROW, {"mode": "fwd"}, None),  # Triton's walk of `gla` is the faster one
        ((2, 1024, 4, 128, 128), {}, None),  # too few heads to fill a GPU by walks
        ((4, 2048, 16, 96, 96), {}, None),
        ((4, 2048, 16, 256, 256), {}, None),
        (WIDE, {"capability": 80}, None),
        (WIDE, {"dtype": torch.float16}, None),
        (WIDE, {"gated": True}, None),
        (WIDE, {"schedule": Schedule()}, None),
        (WIDE, {"config": PLAN}, None),
        (WIDE, {"config": (None, None)}, None),
    ],
)
def test_hoppers_walks_of_one_gate_a_head_take_what_they_serve(
    shape: tuple[int, ...], asked: dict[str, Any], taken: list[str] | None
) -> None:
    found = names(shape, **asked)
    assert found == taken if taken else found and not any(name.startswith("simple_") for name in found)


@pytest.mark.skipif(simple_walk_hopper_kernel is None, reason="Triton's Gluon is another")
def test_a_call_takes_the_form_that_its_launches_say() -> None:
    meta = torch.device("meta")
    q, v = (torch.empty(4, 300, 16, D, dtype=torch.bfloat16, device="meta") for D in (128, 256))
    x = Inputs(q, q, v, None, None, None)
    for recompute in (None, False, True):
        form = gla_form.form_of(x, meta, 1.0, None, True, recompute)
        assert form == Simple(1.0, Schedule(), HOPPER, keep=not recompute)
    assert isinstance(gla_form.form_of(x, meta, 1.0, Schedule(), True, None), Chunkwise)
    on_cpu = Inputs(*(None if one is None else torch.empty(one.shape, dtype=one.dtype) for one in x))  # type: ignore[arg-type]
    assert isinstance(gla_form.form_of(on_cpu, torch.device("cpu"), 1.0, None, True, None), Chunkwise)


@pytest.mark.skipif(simple_walk_hopper_kernel is None, reason="Triton's Gluon is another")
@pytest.mark.parametrize("shape", [WIDE, NARROW, (32, 1000, 4, 128, 256), (9, 1, 16, 64, 128)])
def test_a_graph_makes_room_for_what_is_left(shape: tuple[int, ...]) -> None:
    B, T, H, K, V = shape
    q, v = (torch.empty(B, T, H, D, dtype=torch.bfloat16, device="meta") for D in (K, V))
    x, meta = Inputs(q, q, v, None, None, None), torch.device("meta")
    for recompute in (None, False, True):
        form = gla_form.form_of(x, meta, 1.0, None, True, recompute)
        assert isinstance(form, Simple)
        assert Prepared(form, x, False, meta).left_bytes <= room_of("gla", x, None, recompute)


@pytest.mark.parametrize("keep", [True, False])
def test_without_gates_nothing_decays(judge: Any, inputs: Any, keep: bool) -> None:
    """The form with Triton's kernels, which a CPU interprets too, states and their gradients included."""
    form = Simple(16**-0.5, Schedule(16), HOPPER, keep)

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, state: Any) -> Any:
            ctx.x = Inputs(q, k, v, None, None, state)
            o, final, ctx.left = form.forward(ctx.x, True, execute)
            return o, final

        @staticmethod
        def backward(ctx: Any, do: Any, d_final: Any) -> Any:
            needed = [True, True, True, False, False, True]
            dq, dk, dv, dg, _, d_state = form.backward(ctx.x, ctx.left, do.contiguous(), d_final, needed, execute)
            assert dg is None
            return dq, dk, dv, d_state

    judge(lambda q, k, v, g, state: Call.apply(q, k, v, state), inputs((1, 37, 2, 16, 24), torch.bfloat16, None))


@pytest.mark.gpu
@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize(("K", "V"), [(64, 64), (64, 128), (128, 64), (128, 128), (128, 256)])
def test_ragged_calls_with_states_on_a_gpu(
    judge: Any, inputs: Any, K: int, V: int, v_first: bool, recompute: bool | None
) -> None:
    def call(q: Any, k: Any, v: Any, g: Any, state: Any) -> Any:
        given = state.mT.contiguous() if v_first else state
        o, final = gla(q, k, v, None, None, given, True, state_v_first=v_first, recompute=recompute)
        return o, final.mT if v_first and final is not None else final

    judge(call, inputs((9, 300, 16, K, V), torch.bfloat16, None))


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_compiled_call_is_the_eager_one(compiled: bool) -> None:
    of = torch.compile(gla) if compiled else gla  # here: it imports for seconds, wherever tests are collected
    q, k, v = (torch.randn(3, 300, 16, 128, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    o, _ = of(q, k, v, None)
    found = torch.autograd.grad(o.float().square().sum(), (q, k, v))
    want = gla(q, k, v, None)[0]
    assert torch.equal(o, want)
    for one, right in zip(found, torch.autograd.grad(want.float().square().sum(), (q, k, v)), strict=True):
        assert torch.equal(one, right)
