"""Which workloads a sweep or a shape asks to tune."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gla_kernels import Schedule, Workload
from gla_kernels.plan.table import key_of
from glabench.errors import UserError
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.systems.gla import Gla
from glabench.tune import stage
from glabench.tune.session import describe
from glabench.tune.works import merged, of_cases, of_shape, of_sweep

SHAPE: dict[str, Any] = {"B": 1, "T": 64, "H": 2, "K": 32, "V": 32}


def test_a_shape_in_both_directions() -> None:
    assert of_shape("4,2048, 16,128,256") == [
        Workload("fwd", 4, 2048, 16, 128, 256, "bf16"),
        Workload("bwd", 4, 2048, 16, 128, 256, "bf16"),
    ]
    assert of_shape("1,2,3,4,5", "fp32", "bwd") == [Workload("bwd", 1, 2, 3, 4, 5, "fp32")]


def test_what_is_misspelt() -> None:
    with pytest.raises(UserError, match=r"--dtype bf17: unknown dtype.*bf16"):
        of_shape("1,2,3,4,5", "bf17")
    for name in ("1,2,3,4,5", "board"):
        with pytest.raises(UserError, match=r"--mode bwdd: unknown mode.*bwd"):
            of_shape(name, mode="bwdd") if "," in name else of_sweep(name, "bwdd")


def test_cases_of_one_shape_are_one_group_with_each_direction_once() -> None:
    cases = [
        Case("gla", **SHAPE, mode="bwd"),
        Case("fla", **SHAPE, mode="fwd"),
        Case("gla", **SHAPE, mode="fwd"),
        Case("gla", **SHAPE, mode="fwd", initial_state=True),
        Case("gla", **SHAPE, mode="fwdbwd", gate_strength=None),
        Case("gla", **SHAPE, mode="fwd", gate_strength=8.0),
        Case("gla", **SHAPE, mode="fwd", chunk=64, sub_chunk=16, materialize=False),
        Case("gla_recurrent", **SHAPE, mode="step"),
        Case("gla", **SHAPE, mode="bwd", value_gate=True, chunk=16),  # kernels that are not tuned
        Case("gla", **SHAPE, mode="bwd", lengths="uniform:2", chunk=16),  # nor are their plans for packed sequences
        Case("gla", **SHAPE, mode="fwd", gate_dtype="fp32"),
    ]
    fwd = Workload("fwd", 1, 64, 2, 32, 32)
    ungated = [Workload(name, 1, 64, 2, 32, 32, gated=False) for name in ("fwd", "bwd")]
    asked = Workload("fwd", 1, 64, 2, 32, 32, schedule=Schedule(64, 16, False))
    wide = Workload("fwd", 1, 64, 2, 32, 32, gate_dtype="fp32")
    assert of_cases(cases) == [[fwd, Workload("bwd", 1, 64, 2, 32, 32)], ungated, [asked], [wide]]


def test_a_shape_with_gates_in_float32_and_its_case() -> None:
    forward, backward = of_shape("1,64,2,32,32", gate_dtype="fp32")
    assert (forward.gate_dtype, backward.gate_dtype) == ("fp32", "fp32")
    assert of_shape("1,64,2,32,32", gate_dtype="bf16") == of_shape("1,64,2,32,32")
    case = stage.case_of(forward)
    assert (case.dtype, case.gate_dtype) == ("bf16", "fp32")
    assert Gla(CATALOG["gla"]).workload(case) == forward
    assert describe(forward) == "B=1 T=64 H=2 K=32 V=32 bf16, gates in fp32"
    with pytest.raises(UserError, match="--gate-dtype fp8: expected bf16, as q, or fp32"):
        of_shape("1,64,2,32,32", gate_dtype="fp8")


def test_what_several_ask_for_is_tuned_once() -> None:
    backward, both = of_shape("1,64,2,32,32", mode="bwd"), of_shape("1,64,2,32,32")
    other = of_shape("1,64,2,32,64", mode="fwd")
    assert merged([backward, other, both]) == [both, other]


def test_a_mode_leaves_the_other_direction_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("title: x\ndefaults: {B: 1, T: 64, H: 2, K: 32, V: 32}\naxes: {system: gla, mode: [fwd]}\n")
    assert [[work.direction for work in group] for group in of_sweep(str(path), "fwdbwd")] == [["fwd"]]
    with pytest.raises(UserError, match=r"--mode bwd: no case of .*mine.yaml runs that direction"):
        of_sweep(str(path), "bwd")
    assert {work.direction for group in of_sweep("board", "bwd") for work in group} == {"bwd"}


def test_the_grid_of_the_shipped_plans_and_the_board_share_no_class() -> None:
    board, grid = ([work for group in of_sweep(name) for work in group] for name in ("tuning_board", "tuning_grid"))
    assert len({key_of(work) for work in grid}) == len(grid)
    assert not {key_of(work) for work in grid} & {key_of(work) for work in board}


def test_the_random_shapes_are_tuned_nowhere() -> None:
    sweeps = ("tuning_board", "tuning_grid", "tuning_between", "tuning_random")
    tuned = {work for name in sweeps for group in of_sweep(name) for work in group}
    drawn = [work for group in of_sweep("random_shapes") for work in group]
    assert len(set(drawn)) == len(drawn) == 100
    assert not tuned & set(drawn)


def test_random_shapes_are_drawn_as_they_say() -> None:
    drawn = [work for name in ("tuning_random", "random_shapes") for group in of_sweep(name) for work in group]
    shapes = list(dict.fromkeys((w.B, w.T, w.H, w.K, w.V) for w in drawn))
    assert shapes == [shape for seed in range(1, 6) for shape in draw(seed)]


def draw(seed: int) -> list[tuple[int, ...]]:
    """Fifty shapes B, T, H, K, V, as `random_shapes` says."""
    rng, shapes = random.Random(seed), list[tuple[int, ...]]()
    while len(shapes) < 50:
        K, V = rng.choice(((64, 64), (128, 128), (128, 256), (256, 256)))
        heads = log_uniform(rng, 8, 512)
        B = round(log_uniform(rng, 1, heads))
        H, T = max(1, round(heads / B)), round(log_uniform(rng, 500, 20000))
        if 2**14 <= B * H * T <= (2**19 if K == 256 else 2**20):
            shapes.append((B, T, H, K, V))
    return sorted(shapes, key=lambda shape: (shape[3], shape[4], shape[0] * shape[1] * shape[2]))


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def test_what_the_kernels_do_not_take_is_not_tuned() -> None:
    fine = Case("gla", 1, 256, 2, 64, 64)
    too_large, no_schedule = replace(fine, K=1024), replace(fine, chunk=64, sub_chunk=48)
    assert of_cases([too_large, fine, no_schedule]) == of_cases([fine])
    assert len(of_cases([fine])) == 1
    with pytest.raises(UserError, match=r"^1,256,2,1024,64: K=1024 is above the largest head dimension"):
        of_shape("1,256,2,1024,64")
