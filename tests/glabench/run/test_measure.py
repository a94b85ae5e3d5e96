"""The stopping rule on streams of made-up samples; what the clock brackets."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from glabench.hardware import nvml
from glabench.run import measure
from glabench.run.cold import HOPELESS, Batch
from glabench.run.measure import StoppingRule, running_noise
from glabench.run.sm_clock import Counted
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems.base import load
from glabench.systems.inputs import make_inputs

RULE = StoppingRule(min_samples=10, max_samples=500, min_time_s=0.1, max_time_s=2.0, max_noise=0.005)


def run_rule(rule: StoppingRule, stream: Iterator[float]) -> tuple[int, str]:
    samples: list[float] = []
    while (verdict := rule.verdict(samples)) is None:
        samples.append(next(stream))
    return len(samples), verdict


def steady(mean: float, noise: float, seed: int = 0) -> Iterator[float]:
    draw = random.Random(seed)
    while True:
        yield max(1e-3, draw.gauss(mean, noise * mean))


def test_a_quiet_stream_stops_as_soon_as_it_may() -> None:
    n, why = run_rule(RULE, steady(1.0, 0.001))
    assert n in (100, 101)  # 0.1 s of samples of 1 ms
    assert why == "noise under 0.5%"


def test_long_samples_need_the_smallest_number() -> None:
    assert run_rule(RULE, steady(100.0, 0.001))[0] == 10


def test_a_noisy_stream_stops_when_its_noise_has_levelled_off() -> None:
    n, why = run_rule(RULE, steady(1.0, 0.1))
    assert 100 <= n < 500
    assert why.startswith("noise levelled off at")


def test_few_long_and_noisy_samples_end_with_the_time_budget() -> None:
    n, why = run_rule(RULE, steady(150.0, 0.1))
    assert why == "time budget of 2 s"
    assert 12 <= n <= 16


def test_many_short_samples_end_at_their_number() -> None:
    assert run_rule(RULE, steady(0.01, 0.1)) == (500, "500 samples")


def test_the_running_noise_is_stdev_over_mean() -> None:
    samples = [1.0, 2.0, 4.0, 8.0]
    expected = [torch.tensor(samples[:n]).std().item() / torch.tensor(samples[:n]).mean().item() for n in (2, 3, 4)]
    assert running_noise(samples) == pytest.approx(expected, rel=1e-6)


class FakeGpu:
    """Samples of 1 ms at the SM clocks it is given, the last of them for ever."""

    def __init__(self, *mhz: float) -> None:
        self.mhz = list(mhz)
        self.batches: list[int] = []

    def batch(self, count: int) -> Batch:
        self.batches.append(count)
        mhz = self.mhz.pop(0) if len(self.mhz) > 1 else self.mhz[0]
        clocks = nvml.Clocks(mhz, 2000.0, 300.0, 50.0, ())
        return Batch([1.0] * count, clocks, [False] * count, Counted(round(1000 * mhz) * count, 1_000_000 * count))


class HungryGpu:
    """Draws more than it may: samples of 10 ms heat it up, rests cool it down, and hot it runs at 1700 of 2000 MHz.

    base: MHz that it never exceeds.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, base: float = 2000.0) -> None:
        self.base, self.heat_s, self.rests = base, 0.0, list[float]()
        monkeypatch.setattr("glabench.run.measure.time.sleep", self.rest)

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.heat_s = max(0.0, self.heat_s - seconds)

    def batch(self, count: int) -> Batch:
        mhz = min(self.base, 1700.0 if self.heat_s > 0.02 else 2000.0)
        self.heat_s += 0.01 * count
        noise = [0.2 * (len(self.rests) * count + i) % 3 for i in range(count)]  # so that it takes a while
        clocks = nvml.Clocks(mhz, 2000.0, 600.0, 50.0, ("power cap",))
        return Batch.on_time([(10.0 + x) * 2000.0 / mhz for x in noise], clocks)


def test_samples_at_a_low_clock_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glabench.run.measure.time.sleep", lambda seconds: None)
    gpu = FakeGpu(1000, 1000, 1970)
    found = measure.take(gpu, Settings())
    assert gpu.batches[0] == 1  # nothing is known about the call yet
    assert found.dropped == sum(gpu.batches[:2])
    assert len(found.kept_ms) == sum(gpu.batches[2:])
    assert found.stopped == "noise under 0.5%"
    assert len(found.readings) == len(gpu.batches) - 2
    assert found.counted.mhz == 1970
    assert found.counted.ns == 1_000_000 * len(found.kept_ms)


def test_a_gpu_that_draws_too_much_rests_until_it_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = HungryGpu(monkeypatch)
    found = measure.take(gpu, Settings())
    assert found.dropped > 0
    assert len(found.kept_ms) >= 30  # min_time_s
    assert max(found.kept_ms) < 13.0
    assert {reading.sm_mhz for reading in found.readings} == {2000.0}
    assert gpu.rests[0] == 0.0
    assert set(gpu.rests) == {0.0, measure.REST_S}


def test_the_clock_that_the_gpu_counted_stands_beside_what_nvml_read() -> None:
    samples = measure.Samples(
        [1.0], 0, "", [nvml.Clocks(2000.0, 2000.0, 300.0, 50.0, ())], Counted(1_979_960, 1_000_000)
    )
    assert (measure._clocks(samples) or {})["sm_mhz_counted"] == 1980.0
    assert "sm_mhz_counted" not in (measure._clocks(replace(samples, counted=Counted())) or {"sm_mhz_counted": 0})
    assert measure._clocks(replace(samples, readings=[])) is None


class TiredGpu:
    """The less it rested before a batch, the slower it is; its clock says so at the sixth batch alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rested_s, self.batches = 0.0, 0
        monkeypatch.setattr("glabench.run.measure.time.sleep", self.rest)

    def rest(self, seconds: float) -> None:
        self.rested_s = seconds

    def batch(self, count: int) -> Batch:
        self.batches += 1
        mhz = 1700.0 if self.batches == 6 else 2000.0
        return Batch.on_time([2.0 - self.rested_s] * count, nvml.Clocks(mhz, 2000.0, 600.0, 50.0, ("power cap",)))


def test_what_was_taken_without_rests_is_not_beside_what_was_taken_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = TiredGpu(monkeypatch)
    found = measure.take(gpu, Settings())
    assert set(found.kept_ms) == {2.0 - measure.REST_S}
    assert found.dropped == 1 + 5 * (measure.BATCH_S / 0.002)
    assert found.stopped == "noise under 0.5%"
    assert len(found.readings) == gpu.batches - 6


def test_a_gpu_that_no_rest_makes_fast_has_a_time_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = HungryGpu(monkeypatch, base=1500.0)
    found = measure.take(gpu, Settings())
    assert len(found.kept_ms) >= 30
    assert found.dropped == 0
    assert len(found.readings) > HOPELESS
    assert "under 98% of its maximum, nothing dropped" in found.stopped
    assert sum(gpu.rests) < 1.0
    assert gpu.rests[-1] == 0.0  # given up


def test_where_time_is_up_slow_samples_are_better_than_none() -> None:
    found = measure.take(FakeGpu(900), replace(Settings(), max_wall_s=0.01))
    assert len(found.kept_ms) >= 2
    assert found.dropped == 0
    assert "under 98% of its maximum, nothing dropped" in found.stopped


class HeldUp:
    """Samples of 1 ms; of those that the host queued too late, 5 ms: each of the first ``late``, and every tenth."""

    def __init__(self, late: float = 0) -> None:
        self.late, self.taken, self.marked = late, 0, 0

    def batch(self, count: int) -> Batch:
        late = [self.taken + i < self.late or (self.taken + i) % 10 == 0 for i in range(count)]
        self.taken += count
        self.marked += sum(late)
        return Batch([5.0 if too_late else 1.0 for too_late in late], None, late)


def test_samples_of_calls_that_were_queued_too_late_are_dropped_and_counted() -> None:
    host = HeldUp(late=3)
    found = measure.take(host, Settings())
    assert set(found.kept_ms) == {1.0}
    assert found.late == host.marked > 3
    assert (found.dropped, found.launches) == (0, False)
    assert found.stopped == "noise under 0.5%"


def test_a_call_that_is_always_queued_too_late_has_a_time_all_the_same() -> None:
    found = measure.take(HeldUp(late=math.inf), replace(Settings(), max_wall_s=0.05))
    assert len(found.kept_ms) >= 10
    assert set(found.kept_ms) == {5.0}
    assert (found.dropped, found.late, found.launches) == (0, 0, True)


def test_where_time_is_up_late_samples_are_better_than_none() -> None:
    found = measure.take(HeldUp(late=math.inf), replace(Settings(), max_wall_s=0.0))
    assert len(found.kept_ms) >= 2
    assert (found.late, found.launches) == (0, True)


class Both:
    """Batches at a low clock, whose samples are of 2 ms, or at a full one, 1 ms; late ones for ever."""

    def __init__(self, slow: set[int]) -> None:
        self.slow, self.batches = slow, 0

    def batch(self, count: int) -> Batch:
        self.batches += 1
        slow = self.batches in self.slow
        clocks = nvml.Clocks(1000.0 if slow else 2000.0, 2000.0, 300.0, 50.0, ())
        return Batch([2.0 if slow else 1.0] * count, clocks, [True] * count)


@pytest.mark.parametrize("slow", [{1, 2, 3, 4}, {5}, {1, 9}])
def test_late_samples_at_a_low_clock_are_dropped_for_the_clock(monkeypatch: pytest.MonkeyPatch, slow: set[int]) -> None:
    monkeypatch.setattr("glabench.run.measure.time.sleep", lambda seconds: None)
    found = measure.take(Both(slow), replace(Settings(), max_wall_s=0.05))
    assert set(found.kept_ms) == {1.0}
    assert found.launches
    rested = min(slow)  # after this batch; those before are of a GPU that did not rest
    assert 0 < found.dropped <= 32 * (rested - 1 + len(slow))


def test_where_time_is_up_late_samples_at_a_low_clock_are_said_to_be_so() -> None:
    found = measure.take(Both(set(range(100))), replace(Settings(), max_wall_s=0.0))
    assert set(found.kept_ms) == {2.0}
    assert "under 98% of its maximum, nothing dropped" in found.stopped
    assert found.readings


CASE = Case("chunkwise_torch", 1, 40, 2, 8, 8, "fp32", initial_state=True)


@pytest.mark.parametrize(("mode", "results"), [("fwd", 2), ("bwd", 5), ("fwdbwd", 5)])
def test_a_call_runs_what_its_mode_says(mode: str, results: int) -> None:
    case = replace(CASE, mode=mode)  # type: ignore[arg-type]  # a mode from the list above
    call, other = measure.calls(load(case.system), case, [make_inputs(case, "gla", "cpu", salt) for salt in (0, 1)])
    found = call()
    assert isinstance(found, tuple)
    assert len(found) == results  # (o, state), or the gradients of q, k, v, g and the initial state
    again = call()  # a graph may be walked again
    assert isinstance(again, tuple)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    other_found = other()
    assert isinstance(other_found, tuple)
    assert not torch.equal(found[0], other_found[0])  # each call has its own numbers


def test_a_forward_builds_no_graph() -> None:
    case = replace(CASE, mode="fwd")
    (call,) = measure.calls(load(case.system), case, [make_inputs(case, "gla", "cpu")])
    found = call()
    assert isinstance(found, tuple)
    assert not found[0].requires_grad


def test_a_step_carries_its_state_on() -> None:
    case = replace(CASE, system="recurrent_torch", mode="step")
    (call,) = measure.calls(load(case.system), case, [make_inputs(case, "gla", "cpu")])
    first, second = call(), call()
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert not torch.equal(first[0], second[0])


def test_a_cpu_measurement_keeps_its_samples() -> None:
    settings = replace(Settings.for_device("cpu"), warmup_s=0.0, min_time_s=0.0, max_time_s=0.01, min_samples=4)
    seen: list[int] = []
    timing = measure.measure([lambda: seen.append(0), lambda: seen.append(1)], settings)
    assert timing.clocks is None
    assert timing.time["clock"] == "cpu_wall"
    assert timing.time["warmup"] == 1
    assert len(timing.time["samples_ms"]) >= 4
    assert len(seen) == 1 + len(timing.time["samples_ms"])
    assert seen[1:5] == [0, 1, 0, 1]  # the sets take turns
    assert timing.time["stopped"]


@pytest.mark.gpu
def test_a_cuda_measurement_is_cold_and_queued_ahead() -> None:
    x = torch.zeros(1 << 20, device="cuda")
    timing = measure.measure([lambda: x.add_(1)], replace(Settings(), min_time_s=0.0, max_time_s=0.05))
    samples = timing.time["samples_ms"]
    assert timing.time["clock"] == "cuda_events_cold_l2"
    assert not timing.time["launch_bound"]
    assert len(samples) + timing.time["dropped"] >= 10
    assert min(samples) > 0
