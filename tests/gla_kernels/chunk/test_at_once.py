"""Passes whose chunks a GPU takes all at once: o and dv by Hopper's own kernels, at any gates, begun beside the passes
over states. Against float64; on a CPU the kernels' source runs (gluon_on_cpu.py), on a GPU they do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gla_kernels import Plan, Schedule, Workload, chunk, default_config, reference
from gla_kernels.chunk import grad_states, states
from gla_kernels.chunk.hopper import grad_v_hopper_kernel, output_hopper_kernel
from gla_kernels.chunk.packing import of_sequences
from gla_kernels.chunk.problem import Problem
from gla_kernels.chunk.strong_gates import (
    at_once,
    chunk_rows_of,
    grad_qk_strong_kernel,
    grad_v_strong_kernel,
    output_strong_kernel,
    strong_gates_of,
)
from gla_kernels.launch import Launch
from gla_kernels.plan.apply import all_launches, problem_of

CONFIG = default_config(128, 128, 2, Schedule(64))
ERROR = 4e-3  # of the norm: outputs are rounded to bfloat16, and states are, which they come from


def resets(g: Tensor) -> Tensor:
    """Single rows where every feature forgets all."""
    g[:, [5, 64, 100, 101, 130]] = -torch.inf
    return g


GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "0.06": lambda g: 0.06 * g,
    "1": lambda g: g,
    "16": lambda g: 16 * g,
    "1e4": lambda g: 1e4 * g,
    "infinite": lambda g: torch.where(g < -1.5, -torch.inf, g),
    "resets": resets,
    "some mild": lambda g: torch.where((torch.arange(g.shape[1]) // 64 == 1)[:, None, None], g, 20 * g),
}
TYPES = pytest.mark.parametrize("gate_type", [torch.bfloat16, torch.float32], ids=["bf16", "float32"])
BACK = pytest.mark.parametrize("back", [False, True], ids=["o", "dv"])


# --- Either kernel ----------------------------------------------------------------------------------------------------


def made(x: Any, back: bool, place: Any) -> Tensor:
    """o or dv, of all chunks."""
    p, (args, into) = x.problem(), x.arguments("dv" if back else "o")
    launch = chunk_rows_of(p, back, args, p.whole, x.given["s"])
    assert launch is not None
    assert launch.early
    place.run(launch)
    x.check(into, torch.ones_like(x.mild))
    return into["dv" if back else "o"]


@pytest.mark.pairwise
@TYPES
@BACK
@pytest.mark.parametrize("shape", [(1, 150, 2, 128, 128), (2, 140, 1, 64, 192), (1, 140, 1, 128, 256)], ids=str)
@pytest.mark.parametrize("gates", GATES)
def test_rows_are_right_and_those_of_strong_chunks_the_same_bits_as_behind_a_walk(
    gates, shape, back, gate_type, place, chunks
):
    x = chunks(shape, GATES[gates], gate_type)
    found, (name, kernel) = made(x, back, place), ("dv", grad_v_strong_kernel) if back else ("o", output_strong_kernel)
    p, (args, into) = x.problem(), x.arguments(name)
    place.run(strong_gates_of(p, kernel, args, p.whole, x.given["s"]))
    there = ~into[name].isnan()
    assert torch.equal(found[there], into[name][there])


@TYPES
@pytest.mark.parametrize("shape", [(1, 192, 1, 64, 64), (1, 192, 1, 128, 128)], ids=str)
@pytest.mark.parametrize("strength", [1.0, 16.0])
def test_a_gate_that_is_no_number_leaves_none_in_its_chunk(strength, shape, gate_type, place, chunks):
    """At all features of o and dv, and of what its feature has of dq, dk and dg."""
    x = chunks(shape, lambda g: strength * g, gate_type)
    x.given["g"][0, 70, 0, 7] = torch.nan
    here = torch.arange(192) // 64 == 1
    for back in (False, True):
        p, (args, into) = x.problem(), x.arguments("dv" if back else "o")
        launch = chunk_rows_of(p, back, args, p.whole, x.given["s"])
        assert launch is not None
        place.run(launch)
        (y,) = into.values()
        assert torch.equal(y.isnan().all(-1)[0, :, 0].cpu(), here)
        assert torch.equal(y.isnan().any(-1)[0, :, 0].cpu(), here)
    if strength > 1:
        for kernel, names in {output_strong_kernel: ["o"], grad_qk_strong_kernel: ["dq", "dk", "dg"]}.items():
            p, (args, into) = x.problem(), x.arguments(*names)
            place.run(strong_gates_of(p, kernel, args, p.whole, x.given["s"]))
            for y in into.values():
                shut = (x.given["g"][0, :, 0, 7] <= -18.0).cpu() & here & (y is into.get("dg"))  # without a gradient
                assert torch.equal(y[0, :, 0, 7].isnan().cpu(), here & ~shut)


@BACK
@TYPES
def test_states_are_read_once_the_launch_before_is_done(back, gate_type, monkeypatch, place, chunks):
    if place.device != "cpu":
        pytest.skip("follows what the source does")
    x = chunks((1, 150, 2, 64, 128), GATES["16"], gate_type)
    p, (args, _) = x.problem(), x.arguments("dv" if back else "o")
    name = "p_ds" if back else "p_s"
    launch = chunk_rows_of(p, back, args, p.whole, args[name])
    assert launch is not None
    done = steps_of(launch, args[name], monkeypatch, place)
    program = ["wait", *["states"] * done[1:].index("wait")]
    assert done == program * launch.grid[0]


def steps_of(launch: Launch, states: Tensor, monkeypatch: Any, place: Any) -> list[str]:
    """What a launch does of these, in order: waits for the one before it, lets the next begin, reads states."""
    names = place.run.__globals__["_names"](sys.modules[launch.kernel.fn.__module__])
    done, load = [], names["async_load"]

    def read(described: Any, *rest: Any) -> None:
        if described.x.data_ptr() == states.data_ptr():
            done.append("states")
        load(described, *rest)

    monkeypatch.setitem(names, "async_load", read)
    monkeypatch.setitem(names, "gdc_wait", lambda: done.append("wait"))
    monkeypatch.setitem(names, "gdc_launch_dependents", lambda: done.append("next"))
    place.run(launch)
    return done


def test_dv_behind_a_walk_lets_the_next_begin_once_all_before_it_is_done(monkeypatch, place, chunks):
    """Which reads what a launch before this one writes, the states of strong gates."""
    if place.device != "cpu":
        pytest.skip("follows what the source does")
    x = chunks((1, 150, 2, 64, 128), GATES["1"])
    p, (args, _) = x.problem(), x.arguments("dv")
    launch = strong_gates_of(p, grad_v_strong_kernel, args, p.whole, args["p_ds"])
    assert steps_of(launch, args["p_ds"], monkeypatch, place) == ["wait", "next"] * launch.grid[0]


# --- Where they serve -------------------------------------------------------------------------------------------------


def problem(B: int, T: int, H: int, K: int, V: int, capability: int = 90) -> Problem:
    q, v = (torch.empty(B, T, H, D, dtype=torch.bfloat16, device="meta") for D in (K, V))
    schedule = Schedule(64)
    return problem_of(q, q, v, q, 1.0, None, Plan(schedule, default_config(K, V, 2, schedule, capability)))


def serves(*shape: int, **changes: Any) -> bool:
    return at_once(replace(problem(*shape), **changes))


def test_they_serve_where_a_gpu_takes_all_chunks_at_once():
    """Programs are a chunk and tile of V each, and 132 of them find an SM each on an H100."""
    assert [serves(2, T, 4, 128, 128) for T in (64, 1024, 1056, 1057)] == [True, True, False, False]
    assert [serves(1, 64 * n, 12, 64, 64) for n in (11, 12)] == [True, False]
    assert [serves(2, 512, 4, K, V) for K, V in ((64, 64), (128, 256), (128, 192))] == [True, True, False]
    assert [serves(1, 64 * n, 1, 128, 256) for n in (66, 67, 130)] == [True, False, False]


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ((2, 512, 4, 256, 128), {}),
        ((2, 512, 4, 96, 64), {}),
        ((2, 512, 4, 64, 100), {}),
        ((2, 0, 4, 64, 64), {}),
        ((2, 512, 4, 64, 64), {"scale": -1.0}),
        ((2, 512, 4, 64, 64), {"g": None}),
    ],
    ids=str,
)
def test_and_nowhere_else(shape, changes):
    assert not serves(*shape, **changes)


def test_nor_before_hopper_nor_of_packed_sequences():
    shape, ends = (1, 512, 4, 64, 64), torch.empty(3, dtype=torch.int32, device="meta")
    assert serves(*shape)
    assert not at_once(problem(*shape, capability=80))
    assert not any(at_once(of_sequences(problem(*shape), ends, native, lambda _: None)) for native in (False, True))


def early(work: Workload) -> list[tuple[str, bool]]:
    """The launches of a direction by passes, and whether they may begin early."""
    return [(launch.name, launch.early) for launch in all_launches(work, Plan(Schedule(64), CONFIG))]


@pytest.mark.parametrize("gate_dtype", ["bf16", "fp32"])
def test_what_begins_early(gate_dtype):
    """Each beside the launch just before it, of which it waits for all that it reads."""
    work = Workload("fwd", 2, 1024, 4, 128, 128, gate_dtype=gate_dtype)
    assert early(work) == [("states_kernel", False), ("output_hopper_kernel", True)]
    assert early(replace(work, H=5)) == [("states_kernel", False), ("output_kernel", False)]
    assert early(replace(work, direction="bwd"))[-4:] == [
        ("grad_states_kernel", False), ("grad_v_hopper_kernel", True), ("grad_qk_hopper_kernel", False),
        ("grad_qk_strong_hopper_kernel", False),
    ]  # fmt: skip
    assert early(replace(work, direction="bwd", H=5))[-4:] == [
        ("grad_states_kernel", False), ("grad_qk_hopper_kernel", False), ("grad_v_kernel", False),
        ("grad_qk_strong_hopper_kernel", True),
    ]  # fmt: skip


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_passes_over_states_let_the_next_begin_where_it_is_to(direction, monkeypatch):
    for module in (states, grad_states):
        monkeypatch.setattr(module, "interpreting", lambda: False)
    for H in (4, 5):
        found = all_launches(Workload(direction, 2, 1024, H, 128, 128), Plan(Schedule(64), CONFIG))
        leads = [launch.constants["LEADS"] for launch in found if launch.step.endswith("states")]
        assert leads == [H == 4] * (1 if direction == "fwd" else 2)


# --- Both directions --------------------------------------------------------------------------------------------------


@pytest.mark.each_value  # pairs are above, of either kernel by itself
@TYPES
@pytest.mark.parametrize("states_every", [None, 1], ids=["whole", "segments"])
@pytest.mark.parametrize(("T", "K", "V"), [(150, 64, 128), (192, 128, 64)])
@pytest.mark.parametrize("bounded", [False, True], ids=["from zero", "from a state"])
@pytest.mark.parametrize("gates", GATES)
def test_both_directions(gates, bounded, T, K, V, states_every, gate_type, launch, place):
    """o, the final state and all gradients: with states at either end, or without."""
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(1, T, 2, D).bfloat16() for D in (K, K, V, V))
    g = GATES[gates](torch.nn.functional.logsigmoid(torch.randn(1, T, 2, K))).to(gate_type)
    first, d_last = (torch.randn(1, 2, K, V) if bounded else None for _ in range(2))
    leaves = [x.double().requires_grad_() for x in (q, k, v, g)]
    start = None if first is None else first.double().requires_grad_()
    o, last = reference.recurrent(leaves[0], leaves[1], leaves[2], leaves[3], None, start)
    assert last is not None
    total = (o * do.double()).sum() + (0.0 if d_last is None else (last * d_last.double()).sum())
    right = [o, last, *torch.autograd.grad(total, leaves if start is None else [*leaves, start])]

    schedule, names = Schedule(64, 64, states_every=states_every), list[str]()
    plan = Plan(schedule, default_config(K, V, 2, schedule))
    q, k, v, g, do = (x.to(place.device) for x in (q, k, v, g, do))
    first, d_last = (None if x is None else x.to(place.device) for x in (first, d_last))

    def seen(one: Launch) -> None:
        names.append(one.name)
        launch(one)

    p = problem_of(q, k, v, g, K**-0.5, first, plan)
    found, final, kept = chunk.forward(p, True, seen)
    grads = chunk.backward(p, do, d_last, seen, kept)
    assert {output_hopper_kernel.fn.__name__, grad_v_hopper_kernel.fn.__name__} <= set(names)
    got = [found, final, grads.q, grads.k, grads.v, grads.g, *([grads.initial_state] if bounded else [])]
    for name, x, of in zip(("o", "last", "dq", "dk", "dv", "dg", "d_first"), got, right, strict=False):
        assert x is not None
        size = of.norm() + (1e-2 * (q.cpu().double() * right[2]).norm() if name == "dg" else 0.0)
        error = (x.cpu().double() - of).norm()
        assert error <= ERROR * size, f"{name}: off by {error / size:.1e}"
