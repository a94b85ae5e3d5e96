"""The measuring kernels do what they are timed for: their sums are right, and compilers leave their loads in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gla_kernels.launch import execute
from glabench.hardware import streams

PROBE = Path(__file__).with_name("streams_probe.py")
READER = streams.Reader(64, 4, 4)


@pytest.fixture(scope="module")
def compiled(compiling_process: Callable[..., str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(compiling_process(str(PROBE)).splitlines()[-1])
    return answer


def numbers(count: int, device: torch.device) -> torch.Tensor:
    return torch.randint(-8, 8, (count,), device=device).float()  # sums of these are exact


def test_reading_once_sums_slices(device: torch.device) -> None:
    data = numbers(12 * READER.floats, device)
    launch, sums = streams.read_once(data, READER)
    execute(launch)
    torch.testing.assert_close(sums, data.view(-1, READER.floats).sum(1), rtol=0, atol=0)


def test_reading_over_and_over_reads_everything_as_often(device: torch.device) -> None:
    data = numbers(8 * READER.block, device)
    launch, sums = streams.read_over(data, READER, 3)
    execute(launch)
    assert len(sums) == 24
    assert sums.sum() == 3 * READER.steps * data.sum()
    blocks = data.view(8, -1).sum(1)
    expected = [sum(blocks[(5 * i + step) % 8] for step in range(4)) for i in range(24)]
    torch.testing.assert_close(sums, torch.stack([torch.as_tensor(x) for x in expected]), rtol=0, atol=0)


def test_programs_that_read_together_begin_at_different_blocks() -> None:
    for reader in (READER, streams.Reader(64, 4, 3)):
        launch, sums = streams.read_over(torch.empty(64 * reader.block, device="meta"), reader, 2)
        begins = [i * launch.args["stride"] % 64 for i in range(len(sums))]
        assert sorted(begins) == sorted([*range(64), *range(64)])
        assert len(set(begins[:64])) == 64


def test_exponentials_are_taken_as_often_as_is_counted(device: torch.device) -> None:
    x = torch.linspace(0, 1, 2 * streams.EXP_BLOCK, device=device)
    expected = x.double()
    for _ in range(2 * streams.EXP_UNROLL):
        expected = torch.exp2(-expected)
    execute(streams.exponentiate(x, 2))
    torch.testing.assert_close(x.double(), expected, rtol=0, atol=1e-6)
    # it converges, but after these few it has not: one round more or less would show
    assert abs(expected[0] - torch.exp2(-expected)[0]) > 1e-6


def test_the_smallest_kernel_writes_its_mark(device: torch.device) -> None:
    out = torch.full((2,), 7, dtype=torch.int32, device=device)
    execute(streams.mark(out))
    assert out.tolist() == [0, 7]


def test_compilers_leave_every_load_and_exponential_in_the_loop(compiled: dict[str, Any]) -> None:
    assert len(compiled) == 15
    for name, found in compiled.items():
        assert found["error"] is None, name
        assert not found["spill_bytes"], name
        assert found["stores"] > 0, name
        _, kind, *sizes = name.split()
        if kind == "read":  # four floats a load and thread
            block, warps = map(int, sizes)
            assert found["loads"] == block // (4 * 32 * warps), name
        if kind == "exp2":
            assert found["exps"] == streams.EXP_UNROLL * streams.EXP_BLOCK // 128, name
