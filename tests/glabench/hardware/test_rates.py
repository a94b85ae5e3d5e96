"""What rates are counted from, on a CPU that plays a GPU: every timed span takes 2 ms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glabench.hardware import nvml, rates, streams

SPAN_S = 0.002


class Event:
    """A CUDA event; the time between any two is SPAN_S."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.recorded = False

    def record(self) -> None:
        self.recorded = True

    def elapsed_time(self, end: Event) -> float:
        assert self.recorded
        assert end.recorded
        return 1000 * SPAN_S


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> rates.Stopwatch:
    properties = SimpleNamespace(uuid="1", multi_processor_count=2, L2_cache_size=3 * 2**20)
    for name, value in {
        "current_device": lambda: 0,
        "get_device_properties": lambda device: properties,
        "synchronize": lambda: None,
        "mem_get_info": lambda: (2**40, 2**40),
        "Event": Event,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    small: dict[str, Any] = {
        "DEVICE": "cpu", "BUFFER_BYTES": 300_000, "L2_BYTES": 2**25, "PRODUCT": 16, "EXP_PROGRAMS": 3, "EXP_ROUNDS": 2,
        "LAUNCHES": 4, "SAMPLES": 2, "WARMUP": 1, "WAKE_S": 0.01,
        "READERS": (streams.Reader(64, 4, 4), streams.Reader(2**15, 4, 2)),
    }  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(rates, name, value)
    monkeypatch.setattr(nvml, "clocks", lambda uuid: nvml.Clocks(1900, 1980, 600, 60, ()))
    return rates.Stopwatch()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The launches that are executed, which here do nothing."""
    found: list[Any] = []
    monkeypatch.setattr(rates, "execute", found.append)
    return found


def test_a_buffer_read_once_is_its_bytes(watch: rates.Stopwatch, launched: list[Any]) -> None:
    # 300,000 bytes are 75,000 floats, of which the larger reader takes 65,536 at a time
    assert rates.hbm_read_bytes_per_s(watch) == pytest.approx(65_536 * 4 / SPAN_S)
    assert {launch.args["p_in"].numel() for launch in launched} == {65_536}
    assert {launch.constexprs["BLOCK"] for launch in launched} == {64, 2**15}


def test_memory_that_is_taken_is_left_alone(
    watch: rates.Stopwatch, launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (5 * 70_000 * 4, 2**40))
    monkeypatch.setattr(rates, "BUFFER_BYTES", 2**40)
    assert rates.hbm_read_bytes_per_s(watch) == pytest.approx(65_536 * 4 / SPAN_S)


def test_the_l2_is_counted_for_every_block_that_a_program_reads(watch: rates.Stopwatch, launched: list[Any]) -> None:
    found = rates.l2_read_bytes_per_s(watch)
    read = {x.grid[0] * x.args["n_steps"] * x.constexprs["BLOCK"] * 4 for x in launched}
    assert read == {2**25}
    assert found == pytest.approx(2**25 / SPAN_S)
    assert {launch.args["p_in"].numel() * 4 for launch in launched} == {2**20}


@pytest.mark.parametrize(("l2_bytes", "mib"), [(40 * 2**20, 8), (50 * 2**20, 16), (60 * 2**20, 16), (126 * 2**20, 32)])
def test_the_l2_buffer_is_a_power_of_two_within_a_third(l2_bytes: int, mib: int) -> None:
    assert rates.l2_floats(l2_bytes) * rates.FLOAT_BYTES == mib * 2**20


@pytest.mark.parametrize(("dtype", "precision"), [(torch.bfloat16, "ieee"), (torch.float32, "tf32")])
def test_a_product_is_two_flop_a_multiply_add(watch: rates.Stopwatch, dtype: torch.dtype, precision: str) -> None:
    assert rates.product_flops(watch, dtype, precision) == pytest.approx(2 * 16**3 / SPAN_S)


def test_torch_multiplies_afterwards_as_before() -> None:
    setting = torch.backends.cuda.matmul
    before, legacy = setting.fp32_precision, torch.get_float32_matmul_precision()

    def fail() -> None:
        with rates.float32_products("tf32"):
            assert setting.fp32_precision == "tf32"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (setting.fp32_precision, torch.get_float32_matmul_precision()) == (before, legacy)


def test_exponentials_are_counted_as_they_are_taken(watch: rates.Stopwatch, launched: list[Any]) -> None:
    found = rates.exps_per_s(watch)
    assert found == pytest.approx(3 * 2 * streams.EXP_BLOCK * 2 * streams.EXP_UNROLL / SPAN_S)
    assert launched[0].grid == (6,)


def test_a_launch_is_a_share_of_its_queue(
    watch: rates.Stopwatch, launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spins: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", spins.append)
    monkeypatch.setattr(rates, "_host_seconds", lambda run: run() or 0.004)
    gap_s, host_s = rates.launch_seconds(watch)
    assert gap_s == pytest.approx(SPAN_S / 4)
    assert host_s == pytest.approx(0.001)
    assert spins == [int(2 * 0.004 * 1980e6)] * 2  # before each sample, for longer than the queue takes to fill
    assert len(launched) == 4 * (1 + 1 + 2)


def test_clocks_are_read_while_the_work_runs(watch: rates.Stopwatch) -> None:
    calls: list[None] = []
    assert watch.seconds(lambda: calls.append(None)) == pytest.approx(SPAN_S)
    assert len(calls) == rates.WARMUP + rates.SAMPLES
    assert len(watch.readings) == 1


def test_torch_s_own_random_numbers_stay_as_they_were(watch: rates.Stopwatch) -> None:
    before = torch.get_rng_state()
    rates.wake()
    found = rates.random_numbers(1000)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.std() == pytest.approx(1, abs=0.1)
