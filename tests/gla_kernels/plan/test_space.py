"""Tiles by size that fit the GPU they are for: cross-compiled, as no interpreter can tell."""

from __future__ import annotations

import json

import pytest

from gla_kernels import KernelConfig, Plan, Schedule, Tile, Workload, default_config
from gla_kernels.plan.limits import why_not
from gla_kernels.plan.space import SEGMENTS, segments
from gla_kernels.schedule import CHUNKS, cdiv

FITS = """
import json, sys
import torch
from gla_kernels import Schedule, launches
from glabench.hardware.crosscompile import cross_compile
for K, V, dtype, chunk, sub_chunk, capability in json.loads(sys.argv[1]):
    found = launches("gla", B=8, T=2048, H=32, K=K, V=V, dtype=getattr(torch, dtype), mode="fwd",
                     schedule=Schedule(chunk, sub_chunk), capability=capability)
    largest = ("output_kernel", "walk_wide_hopper_kernel")
    entries = cross_compile([x for x in found if x.name in largest], f"sm_{capability}")
    print(json.dumps([entry["error"] for entry in entries]))
"""
LARGEST = [  # heads of 256 in bfloat16 by chunks of 64 are in test_compiled.py
    (256, 128, "bfloat16", 256, 256, 90),  # float32 operands off the diagonal too
    (128, 128, "float32", 64, 64, 80),
    (512, 512, "bfloat16", 64, 64, 86),  # a GeForce, whose tiles are the same for every head from 128 on
]


def test_the_largest_kernels_fit_the_shared_memory(compiling_process):
    answers = compiling_process("-c", FITS, json.dumps(LARGEST)).splitlines()
    found = dict(zip(LARGEST, map(json.loads, answers), strict=True))
    assert found == {case: [None] for case in LARGEST}


@pytest.mark.parametrize("capability", [80, 86, 90])
@pytest.mark.parametrize("operand_bytes", [2, 4])
@pytest.mark.parametrize(("K", "V"), [(8, 8), (60, 100), (128, 256), (512, 512)])
def test_row_blocks_divide_every_sub_chunk(K, V, operand_bytes, capability):
    for chunk in CHUNKS:
        for sub_chunk in (s for s in CHUNKS if s <= chunk):
            schedule = Schedule(chunk, sub_chunk)
            config = default_config(K, V, operand_bytes, schedule, capability)
            assert sub_chunk % config.block_t == 0
            # a product needs 16 rows and columns
            tiles = (config.states, config.output, config.grad_states, config.grad_qk, config.grad_v)
            assert min(config.block_t, *(min(t.block_k, t.block_v) for t in tiles)) >= 16


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("K", "V"), [(8, 8), (60, 100), (128, 128), (128, 256), (512, 512)])
def test_tiles_by_size_are_none_that_the_compiler_gets_wrong(K, V, dtype):
    for chunk in CHUNKS:
        for sub_chunk in (s for s in CHUNKS if s <= chunk):
            work, schedule = Workload("bwd", 1, 1000, 2, K, V, dtype), Schedule(chunk, sub_chunk)
            plan = Plan(schedule, default_config(K, V, work.operand_bytes, schedule))
            assert {why_not(plan, work, 90, step) for step in plan.config.tiles()} == {None}


@pytest.mark.parametrize(
    ("step", "tile", "chunk", "dtype", "right"),
    [
        ("output", (32, 128), 64, "bf16", True),
        ("output", (32, 128), 128, "bf16", False),
        ("output", (64, 32), 64, "bf16", False),
        ("grad_v", (32, 256), 64, "bf16", True),
        ("grad_qk", (32, 128), 64, "bf16", False),
        ("grad_qk", (32, 64), 64, "fp16", True),
        ("grad_qk", (32, 64), 128, "fp16", False),
        ("grad_qk", (32, 64), 128, "fp32", True),
        ("states", (32, 32), 128, "bf16", True),
    ],
)
def test_narrow_tiles_that_the_compiler_gets_wrong_are_refused(step, tile, chunk, dtype, right):
    work = Workload("bwd", 1, 1000, 2, 128, 256, dtype)
    config = KernelConfig(64, *5 * (Tile(*tile),))
    assert (why_not(Plan(Schedule(chunk, 64), config), work, 90, step) is None) is right
    assert why_not(Plan(Schedule(chunk, 64), config), work, 80, step) is None


@pytest.mark.parametrize("T", [1025, 2049, 3400, 4096, 5532, 11393])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_segments_are_as_few_and_as_even_as_they_can_be(T, chunk):
    none, *cuts = segments(Workload("fwd", 1, T, 8, 128, 128, "bf16", True, None), chunk)
    allowed = [rows for rows in SEGMENTS if rows < T]
    assert none is None
    assert len(cuts) == len(allowed) == len(set(cuts))
    chunks = cdiv(T, chunk)
    for every, rows in zip(cuts, allowed, strict=True):
        count = cdiv(chunks, rows // chunk)
        assert every is not None
        assert every * chunk <= rows
        assert cdiv(chunks, every) == count
        assert (every - 1) * count < chunks  # one chunk less, and these many segments do not reach the end


def test_many_heads_are_not_cut():
    assert segments(Workload("fwd", 8, 8192, 64, 128, 128, "bf16", True, None), 64) == [None]
