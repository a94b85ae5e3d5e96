"""The SM clock from notes of the SMs' counters."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
import torch

from glabench.hardware import nvml
from glabench.run.sm_clock import Counted, Notes


def test_the_clock_is_cycles_over_time() -> None:
    assert Counted(1_980_000, 1_000_000).mhz == pytest.approx(1980)
    assert Counted.sum([Counted(1_980_000, 1_000_000), Counted(990_000, 500_000)]) == Counted(2_970_000, 1_500_000)
    assert Counted().mhz is None


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from glabench.run.sm_clock import note_kernel

for capability in (80, 90, 100):
    source = ASTSource(note_kernel, {"table": "*i64", "after": "i32"}, {})
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1}).asm["ptx"]
    print(*(ptx.count(counter) for counter in ("%clock64", "%globaltimer", "%smid")))
"""


def test_each_counter_is_read_once(python_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert python_process("-c", COMPILED).stdout.split("\n")[:3] == ["1 1 1"] * 3


@pytest.fixture
def call() -> Callable[[], object]:
    x = torch.zeros(1 << 26, device="cuda")
    return lambda: x.add_(1)


@pytest.mark.gpu
def test_what_the_gpu_counts_is_a_clock_that_it_has(call: Callable[[], object]) -> None:
    properties = torch.cuda.get_device_properties(0)
    most = nvml.clocks(str(properties.uuid))
    assert most is not None
    notes = Notes()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(8):
        notes.before()
        call()
        notes.after()
    end.record()
    torch.cuda.synchronize()
    counted = notes.counted()
    assert counted.mhz is not None
    assert 0.3 * most.sm_mhz_max < counted.mhz < 1.02 * most.sm_mhz_max
    assert counted.ns / (1e6 * start.elapsed_time(end)) > 0.5 * properties.multi_processor_count  # most SMs have notes


@pytest.mark.gpu
def test_only_what_lies_between_two_notes_is_counted_and_only_once(call: Callable[[], object]) -> None:
    notes = Notes()
    notes.after()
    torch.cuda.synchronize()
    assert notes.counted() == Counted()
    notes.before()
    notes.after()
    call()
    notes.after()
    torch.cuda.synchronize()
    between = notes.counted()
    notes.before()
    call()
    notes.after()
    torch.cuda.synchronize()
    assert 0 < between.ns < notes.counted().ns / 2
    assert notes.counted() == Counted()
