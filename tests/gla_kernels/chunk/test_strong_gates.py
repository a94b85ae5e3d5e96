"""Chunks that decay by too much for Hopper's walks and grad_qk, against float64: the kernels in Gluon that do these.

On a CPU their source runs (gluon_on_cpu.py), on a GPU they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gla_kernels import Plan, Schedule, default_config
from gla_kernels.chunk import strong_gates
from gla_kernels.chunk.packing import of_sequences
from gla_kernels.chunk.strong_gates import (
    grad_qk_strong_kernel,
    grad_v_strong_kernel,
    output_strong_kernel,
    run_of,
    strong_gates_of,
)
from gla_kernels.cost.work import work_of
from gla_kernels.plan.apply import problem_of

OUTPUTS = {
    output_strong_kernel: ("o",),
    grad_v_strong_kernel: ("dv",),
    grad_qk_strong_kernel: ("dq", "dk", "dg"),
}
TYPES = pytest.mark.parametrize("gate_type", [torch.bfloat16, torch.float32], ids=["bf16", "float32"])
KERNELS = pytest.mark.parametrize("kernel", OUTPUTS, ids=lambda kernel: kernel.fn.__name__)


def filled(x: Any, kernel: Any, place: Any) -> dict[str, Tensor]:
    """What a kernel writes, NaN where it writes nothing."""
    p, (args, into) = x.problem(), x.arguments(*OUTPUTS[kernel])
    place.run(strong_gates_of(p, kernel, args, p.whole, x.given["s"]))
    return into


def some_mild(g: Tensor) -> Tensor:
    """Strong gates, but for the third chunk."""
    return torch.where((torch.arange(g.shape[1]) // 64 == 2)[:, None, None], g, 20 * g)


def check(x: Any, kernel: Any, place: Any) -> None:
    """That it does all that is not mild, and is right."""
    x.check(filled(x, kernel, place), ~(x.mild_tiles if kernel is grad_qk_strong_kernel else x.mild))


def resets(strength: float) -> Callable[[Tensor], Tensor]:
    """Mild gates, but for single rows where every feature forgets all."""

    def gates(g: Tensor) -> Tensor:
        g = g * strength
        g[:, [5, 64, 100, 101, 130]] = -1e4
        return g

    return gates


GATES = {
    "6": lambda g: 6 * g,
    "16": lambda g: 16 * g,
    "40": lambda g: 40 * g,
    "closed": lambda g: torch.full_like(g, -1e4),
    "infinite": lambda g: torch.where(g < -1.5, -torch.inf, g),
    "weak with resets": resets(0.06),
    "mild with resets": resets(1.0),
    "some features": lambda g: torch.where(torch.arange(g.shape[-1]) % 7 == 3, 30 * g, g),
}


@pytest.mark.each_value  # each kernel has both types below, and no part of another's
@KERNELS
@TYPES
@pytest.mark.parametrize("gates", GATES)
def test_every_gate_strength(kernel, gates, gate_type, place, chunks):
    check(chunks((1, 150, 2, 128, 128), GATES[gates], gate_type), kernel, place)


@pytest.mark.pairwise
@KERNELS
@TYPES
@pytest.mark.parametrize(("K", "V"), [(64, 64), (64, 192), (128, 64), (64, 256), (192, 64)])
def test_head_dimensions(kernel, K, V, gate_type, place, chunks):
    if K > 128 and kernel is not grad_qk_strong_kernel:
        pytest.skip("walks have states of 128 features at most")
    check(chunks((2, 100, 1, K, V), GATES["16"], gate_type), kernel, place)


@pytest.mark.pairwise
@KERNELS
@TYPES
@pytest.mark.parametrize("V", [64, 192, 256])
def test_a_program_goes_from_chunk_to_chunk(kernel, V, gate_type, monkeypatch, place, chunks):
    monkeypatch.setattr(strong_gates, "WARPS", 1)
    x = chunks((1, 215, 1, 64, V), some_mild, gate_type)
    assert x.mild.flatten().tolist() == [False, False, True, False]
    check(x, kernel, place)


@pytest.mark.pairwise
@TYPES
@pytest.mark.parametrize("kernel", [output_strong_kernel, grad_v_strong_kernel], ids=["o", "dv"])
@pytest.mark.parametrize("packed", [False, True], ids=["alike", "packed"])
@pytest.mark.parametrize(("K", "V", "run"), [(128, 256, 2), (64, 192, 3), (64, 320, 5), (64, 512, 4), (64, 512, 2)])
def test_the_same_bits_however_many_tiles_of_v_a_program_goes_through(
    kernel, K, V, run, packed, gate_type, monkeypatch, launch, place, chunks
):
    x, tiles = chunks((1, 215, 1, K, V), some_mild, gate_type), V // (128 if V % 128 == 0 else 64)
    p = x.problem()
    if packed:
        p = of_sequences(p, torch.tensor([0, 40, 64, 150, 151, 215], device=place.device), True, launch)

    def found(run: int) -> Tensor:
        monkeypatch.setattr(strong_gates, "run_of", lambda *_: run)
        monkeypatch.setattr(strong_gates, "WARPS", 1)  # programs go from chunk to chunk
        args, into = x.arguments(*OUTPUTS[kernel])
        one = strong_gates_of(p, kernel, args, p.whole, x.given["s"])
        assert (one.constants["RUN"], one.grid[0]) == (run, tiles // run)
        launch(one)
        (y,) = into.values()
        return y

    apart, together = found(1), found(run)
    assert apart.isnan().any(-1).logical_not().sum() == 215 - 64
    assert torch.equal(apart.view(torch.int16), together.view(torch.int16))


def test_scores_are_made_once_where_that_leaves_programs_enough():
    assert [run_of(1, chunks, 4) for chunks in (1, 100_000)] == [1, 1]
    assert [run_of(2, chunks, 4) for chunks in (1, 128, 129, 4096)] == [1, 1, 2, 2]
    assert [run_of(4, chunks, 4) for chunks in (64, 65, 128, 129)] == [1, 2, 2, 4]
    assert [run_of(3, chunks, 4) for chunks in (85, 86)] == [1, 3]


@KERNELS
def test_mild_chunks_are_left_alone(kernel, place, chunks):
    def gates(g: Tensor) -> Tensor:
        g[:, 64:128, 1] *= 20
        return g

    x = chunks((1, 300, 2, 64, 64), gates)
    assert x.mild.sum() == x.mild.numel() - 1
    check(x, kernel, place)


@KERNELS
def test_the_same_twice(kernel, place, chunks):
    x = chunks((1, 128, 1, 64, 64), GATES["16"])
    first, second = filled(x, kernel, place), filled(x, kernel, place)
    assert all(torch.equal(one, second[name]) for name, one in first.items())


def test_rows_before_a_reset_do_not_show_behind_it(place, chunks):
    """However large they are: a sequence may be packed behind another one."""
    x = chunks((1, 150, 1, 64, 64), resets(0.1))
    small = filled(x, output_strong_kernel, place)["o"]
    x.given["v"][:, :5] *= 1000
    large = filled(x, output_strong_kernel, place)["o"]
    assert not torch.equal(large[:, :5], small[:, :5])
    assert (large - small)[:, 5:64].norm() <= 1e-4 * small[:, 5:64].norm()


@KERNELS
@pytest.mark.parametrize("warps", [strong_gates.WARPS, 1])
def test_what_is_read_where_all_is_mild_is_what_is_counted(kernel, warps, monkeypatch, place, chunks):
    if place.device != "cpu":
        pytest.skip("counts what the source reads")
    language, read = place.run.__globals__["gl"], []

    def load(p: Any, mask: Tensor, other: float) -> Tensor:
        found = torch.where(mask, p.x[torch.where(mask, p.at, 0)], other)
        read.append(int(mask.expand(found.shape).sum()))
        return found

    monkeypatch.setattr(language, "load", load)
    monkeypatch.setattr(strong_gates, "WARPS", warps)
    x = chunks((1, 200, 2, 128, 256), lambda g: g)
    p, (args, _) = x.problem(), x.arguments(*OUTPUTS[kernel])
    launch = strong_gates_of(p, kernel, args, p.whole, x.given["s"])
    place.run(launch)
    assert work_of(launch).requested_bytes == sum(read) * x.halves.element_size() > 0


def test_a_share_is_smaller_where_there_are_few_chunks():
    def share(B: int, T: int) -> Any:
        q, v = (torch.empty(B, T, 16, D, dtype=torch.bfloat16, device="meta") for D in (128, 256))
        schedule = Schedule(64)
        p = problem_of(q, q, v, q, 1.0, None, Plan(schedule, default_config(128, 256, 2, schedule)))
        state = p.state_buffer()
        args: dict[str, Any] = dict.fromkeys(("p_q", "p_k", "p_g", "p_dq", "p_dk", "p_dg"), q)
        args |= {"p_v": v, "p_do": v, "p_s": state, "p_ds": state}
        return strong_gates_of(p, grad_qk_strong_kernel, args, p.whole, state).args["share"]

    assert [share(1, 1024), share(4, 2048), share(64, 16384)] == [2, 16, 32]
