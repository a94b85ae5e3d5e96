"""What a table of tuned plans holds, and what of it is believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gla_kernels import Schedule, Workload, default_config, launches
from gla_kernels.plan.files import SHIPPED, slug
from gla_kernels.plan.table import Entry, ShapeClass, TableError, header_of, read, shape_class, space_hash
from gla_kernels.schedule import steps_of


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 2048, 16, 128, 128), ShapeClass(2048, 64, 128, 128)),
        ((3, 2900, 1, 100, 60), ShapeClass(4096, 3, 128, 64)),  # 2900 / 2048 is more than 4096 / 2900
        ((5, 2890, 1, 8, 129), ShapeClass(2048, 6, 16, 256)),  # 6 / 5 is less than 5 / 4
        ((7, 2048, 16, 64, 64), ShapeClass(2048, 128, 64, 64)),
        ((1, 1, 1, 16, 16), ShapeClass(16, 1, 16, 16)),
        ((0, 0, 3, 16, 16), ShapeClass(16, 1, 16, 16)),
    ],
)
def test_shape_classes(shape, expected):
    assert shape_class(Workload("fwd", *shape)) == expected


@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize("T", [1, 64, 65, 1024, 1025, 5000])
def test_the_passes_of_a_direction_are_those_that_are_launched(T, materialize):
    for schedule in (Schedule(16, 16, materialize), Schedule(256, 64, materialize)):
        for direction in ("fwd", "bwd"):
            work = Workload(direction, 1, T, 1, 16, 16)
            shape = {"B": 1, "T": T, "H": 1, "K": 16, "V": 16, "dtype": torch.bfloat16}
            found = launches("gla", mode=direction, schedule=schedule, **shape)
            kept = direction == "bwd" and materialize  # the forward pass has left its states
            assert steps_of(work, schedule, False)[kept:] == tuple(dict.fromkeys(launch.step for launch in found))


def test_an_entry_comes_back_as_it_was(entry):
    for one in (
        entry(),
        entry(direction="bwd", dtype="fp16", gated=False),
        entry(schedule=Schedule(128, 32, False, 8)),
    ):
        assert Entry.from_dict(json.loads(json.dumps(one.to_dict())), 90) == one


def test_an_entry_from_before_there_were_segments_has_none(entry):
    one = entry(schedule=Schedule(128))
    values = one.to_dict()
    del values["plan"]["schedule"]["states_every"], values["workload"]["schedule"]["states_every"]
    assert Entry.from_dict(values, 90) == one


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("workload.T", -4096, "T: expected an integer from 0"),
        ("workload.B", True, "B: expected an integer from 0"),
        ("workload.B", 8, "class: not that of the workload"),
        ("workload.dtype", "fp8", "dtype: expected bf16, fp16, fp32, got 'fp8'"),
        ("workload.direction", "sideways", "direction: expected fwd or bwd, got 'sideways'"),
        ("workload.gated", 1, "gated: expected True or False, got 1"),
        ("workload.schedule", {"chunk": 48}, "chunk: expected one of"),
        ("workload.schedule", {"chunk": 128}, "not of the schedule that was asked for"),
        ("class", {}, "class: not that"),
        ("ms", float("nan"), "ms: expected a time > 0"),
        ("ms", 0.0, "ms: expected a time > 0"),
        ("ms", "fast", "ms: expected a time > 0"),
        ("plan.block_t", 48, "block_t=48 is none of"),
        ("plan.tiles.output", [128, 48, 4, 1], "block_v=48 is no power of two"),
        ("plan.tiles.output", [128, 64, 3, 1], "num_warps=3 is no power of two"),
        ("plan.tiles.output", [128, 64, 4, 99], "num_stages=99 is too large"),
        ("plan.tiles.output", [128, 256, 4, 1], "block_v=256 is more than the head dimension"),
        ("plan.tiles.states", [128], "missing"),
        ("plan.tiles", {}, "tiles: expected states"),
        ("plan.schedule", {"chunk": 64, "sub_chunk": 16}, "does not divide sub_chunk=16"),
        ("plan", None, "subscriptable"),
    ],
)
def test_an_entry_that_no_tuner_wrote_is_refused(entry, where, value, message):
    values: dict[str, Any] = entry().to_dict()
    *path, last = where.split(".")
    inner = values
    for name in path:
        inner = inner[name]
    inner[last] = value
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        Entry.from_dict(values, 90)


def test_a_chunk_much_longer_than_the_sequence_is_refused_unless_asked_for(entry):
    short = {"T": 32, "plan": Schedule(256)}
    with pytest.raises(ValueError, match="chunk=256 is too long for T=32"):
        Entry.from_dict(entry(**short).to_dict(), 90)
    assert Entry.from_dict(entry(**short, schedule=Schedule(256)).to_dict(), 90).work.T == 32


def test_a_plan_of_a_roomier_gpu_is_refused(entry):
    one = entry(K=256, V=256, direction="bwd", dtype="fp32")
    tile = replace(one.plan.config.grad_qk, block_k=128, block_v=256)
    config = default_config(256, 256, 4, one.plan.schedule, 86)  # without descriptors
    large = replace(one, plan=replace(one.plan, config=replace(config, grad_qk=replace(tile, descriptors=False))))
    assert Entry.from_dict(large.to_dict(), 90) == large
    with pytest.raises(ValueError, match="needs at least 128 KiB of shared memory, a program has 99"):
        Entry.from_dict(large.to_dict(), 86)


def test_a_plan_with_tensor_descriptors_is_refused_where_there_are_none(entry):
    one = entry()
    assert all(tile.descriptors for tile in one.plan.config.tiles().values())
    with pytest.raises(ValueError, match="tensor descriptors need compute capability 90"):
        Entry.from_dict(one.to_dict(), 80)


def test_a_table_belongs_to_a_gpu(machine):
    assert header_of(machine).device == "NVIDIA H200"
    with pytest.raises(TableError, match="there is none here"):
        header_of(replace(machine, device=None))


def test_a_missing_file_is_no_table(tmp_path):
    assert read(tmp_path / "none.json") is None


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*")), ids=lambda path: path.name)
def test_what_is_shipped_is_sound(path: Path) -> None:
    table = read(path)
    assert table is not None
    assert table.refused == ()
    assert table.entries
    assert table.header.space == space_hash(), "tuned in another search space: nothing of it would be used"
    assert path.name == f"{slug(table.header.device)}.json"
