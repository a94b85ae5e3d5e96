"""The SM clock from notes of the SMs' counters."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from glabench.hardware import nvml
from glabench.run import sm_clock
from glabench.run.sm_clock import Counted, Notes


def test_the_clock_is_cycles_over_time() -> None:
    assert Counted(1_980_000, 1_000_000).mhz == pytest.approx(1980)
    assert Counted.sum([Counted(1_980_000, 1_000_000), Counted(990_000, 500_000)]) == Counted(2_970_000, 1_500_000)
    assert Counted().mhz is None


class PlayedKernel:
    """Of a GPU with two SMs, which are looked at: what one has counted, in cycles and ns."""

    def __init__(self) -> None:
        self.counters = [(0, 0), (0, 0)]

    def __getitem__(self, grid: tuple[int, ...]) -> PlayedKernel:
        assert grid in ((2,), (2, 1, 1))
        return self

    def __call__(self, table: torch.Tensor, after: int, **options: object) -> PlayedKernel:
        for row, (cycles, ns) in zip(table, self.counters, strict=False):
            row[:2], row[2:] = torch.tensor([cycles, ns]), after * (torch.tensor([cycles, ns]) - row[:2])
        return self


def test_only_the_calls_that_are_asked_for_are_summed_over_sms(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros, kernel = torch.zeros, PlayedKernel()
    monkeypatch.setattr(torch, "zeros", lambda *shape, dtype, device: zeros(*shape, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=2))
    monkeypatch.setattr(sm_clock, "note_kernel", kernel)
    notes = Notes()
    for _ in range(2):
        notes.clear(3)
        for index, cycles in enumerate((100, 10_000, 300)):
            notes.before(index)
            kernel.counters = [(was + cycles + sm, ns + 100) for sm, (was, ns) in enumerate(kernel.counters)]
            notes.after(index)
        assert notes.counted([True, False, True]) == Counted(100 + 101 + 300 + 301, 400)


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


def test_each_counter_is_read_once(compiling_process: Callable[..., str]) -> None:
    assert compiling_process("-c", COMPILED).split("\n")[:3] == ["1 1 1"] * 3


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
    notes.clear(8)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for index in range(8):
        notes.before(index)
        call()
        notes.after(index)
    end.record()
    torch.cuda.synchronize()
    counted = notes.counted([True] * 8)
    assert counted.mhz is not None
    assert 0.3 * most.sm_mhz_max < counted.mhz < 1.02 * most.sm_mhz_max
    assert counted.ns / (1e6 * start.elapsed_time(end)) > 0.5 * properties.multi_processor_count  # most SMs have notes


@pytest.mark.gpu
def test_only_what_lies_between_two_notes_is_counted(call: Callable[[], object]) -> None:
    notes = Notes()
    notes.clear(3)
    notes.after(0)
    notes.before(1)
    notes.after(1)
    call()
    notes.after(1)
    notes.before(2)
    call()
    notes.after(2)
    torch.cuda.synchronize()
    nothing, little, most = (notes.counted([index == one for index in range(3)]) for one in range(3))
    assert nothing == Counted()
    assert 0 < little.ns < most.ns / 2
