"""The SM clock from two notes of its counters."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
import torch

from glabench.hardware import nvml
from glabench.run.sm_clock import Counted, Notes, counted


def test_the_clock_is_cycles_over_time() -> None:
    assert Counted(1_980_000, 1_000_000).mhz == pytest.approx(1980)
    assert Counted.sum([Counted(1_980_000, 1_000_000), Counted(990_000, 500_000)]) == Counted(2_970_000, 1_500_000)
    assert Counted().mhz is None


def test_notes_of_two_sms_say_nothing_of_each_other() -> None:
    calls = [([0, 100, 10], [0, 300, 110]), ([0, 300, 120], [5, 9_000, 220]), ([7, 50, 300], [7, 150, 350])]
    assert counted(calls) == Counted(300, 150)


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from glabench.run.sm_clock import note_kernel

for capability in (80, 90, 100):
    source = ASTSource(note_kernel, {"notes": "*i64", "index": "i32"}, {})
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1}).asm["ptx"]
    print(*(ptx.count(counter) for counter in ("%clock64", "%globaltimer", "%smid")))
"""


def test_each_counter_is_read_once(python_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert python_process("-c", COMPILED).stdout.split("\n")[:3] == ["1 1 1"] * 3


@pytest.mark.gpu
def test_what_the_gpu_counts_is_a_clock_that_it_has() -> None:
    most = nvml.clocks(str(torch.cuda.get_device_properties(0).uuid))
    assert most is not None
    x = torch.zeros(1 << 26, device="cuda")
    notes = Notes(8)
    for index in range(8):
        notes.take(2 * index)
        x.add_(1)
        notes.take(2 * index + 1)
    torch.cuda.synchronize()
    mhz = notes.counted().mhz
    assert mhz is not None
    assert 0.3 * most.sm_mhz_max < mhz < 1.02 * most.sm_mhz_max
