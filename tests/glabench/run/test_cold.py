"""What is late, and how long the GPU spins, on a GPU and a host with one clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from glabench.hardware import nvml
from glabench.run import cold
from glabench.run.sm_clock import Counted

MAKES_EVENT_S = 3e-5  # CUDA makes an event when it is first recorded
TAKES_NOTE_S = 1e-5


class Queue:
    """A GPU and a host with one clock, in seconds: the GPU works off what the host queues, and spins as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = self.gpu = 0.0
        queue = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = 0.0
                self.made = False

            def record(self) -> None:
                queue.host += 0.0 if self.made else MAKES_EVENT_S
                self.made = True
                self.at = queue.gpu = max(queue.gpu, queue.host)

            def elapsed_time(self, end: Event) -> float:
                return 1000 * (end.at - self.at)

        def synchronize() -> None:
            queue.host = max(queue.host, queue.gpu)

        class Notes:
            """Of an SM at 2 GHz."""

            def clear(self, calls: int) -> None:
                self.began, self.took = 0.0, [0.0] * calls

            def before(self, index: int) -> None:
                self.began = self.now()

            def after(self, index: int) -> None:
                self.took[index] = self.now() - self.began

            def now(self) -> float:
                queue.host += TAKES_NOTE_S
                queue.gpu = max(queue.gpu, queue.host)
                return queue.gpu

            def counted(self, calls: Sequence[bool]) -> Counted:
                seconds = sum(took for took, one in zip(self.took, calls, strict=True) if one)
                return Counted(round(2e9 * seconds), round(1e9 * seconds))

        properties = SimpleNamespace(uuid="", L2_cache_size=8)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(cold, "Notes", Notes)
        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.work(cycles / 2e9))
        monkeypatch.setattr(torch, "empty", lambda *shape, **options: torch.zeros(1))
        monkeypatch.setattr(nvml, "clocks", lambda uuid: None)
        monkeypatch.setattr(time, "perf_counter", lambda: self.host)

    def work(self, seconds: float) -> None:
        """The GPU is given so much to do, which it begins when it is there."""
        self.gpu = max(self.gpu, self.host) + seconds

    def call(self, python_s: float, gpu_s: float, waits: bool = False) -> None:
        """Queue a kernel after so much Python; with ``waits`` until it is done."""
        self.host += python_s
        self.work(gpu_s)
        if waits:
            self.host = max(self.host, self.gpu)


def test_what_the_host_holds_up_is_late_and_spins_grow_and_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)
    held_up: dict[int, float] = {}
    turn = [-3]

    def call() -> None:
        turn[0] += 1
        queue.call(1e-4 + held_up.get(turn[0], 0.0), 1e-3)

    sampler = cold.ColdSampler([call])
    least = sampler.spin_s
    assert least == pytest.approx(1.5e-4 + cold.SPIN_MARGIN_S)
    samples, _, late, counted = sampler.batch(4)
    assert samples == pytest.approx([1.0] * 4)
    assert late == [False] * 4
    assert counted.mhz == pytest.approx(2000)
    assert 4e6 <= counted.ns < 4.5e6
    assert sampler.spin_s == least
    held_up[turn[0] + 1] = 0.003  # the first of a batch: nothing is queued before it
    samples, _, late, counted = sampler.batch(4)
    assert late == [True, False, False, False]
    assert 3e6 <= counted.ns < 3.5e6
    assert samples[0] > 2.0  # it waited
    assert sampler.spin_s == 2 * least
    sampler.batch(cold.CALM - 4)
    assert sampler.spin_s == 2 * least
    sampler.batch(4)
    assert sampler.spin_s == least
    assert not sampler.launch_bound


def test_where_python_is_slow_after_every_rest_few_samples_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)
    python_s = [1e-4]
    sampler = cold.ColdSampler([lambda: queue.call(python_s[0], 1e-3)])
    python_s[0] = sampler.spin_s + cold.HEAD_START_S  # with the events more than the spins cover
    late = [sampler.batch(1).late[0] for _ in range(3 * cold.CALM)]
    assert 1 <= sum(late) <= 3


def test_a_call_of_many_kernels_is_queued_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)

    def call() -> None:
        for _ in range(124):
            queue.call(1.4e-4, 6e-5)

    sampler = cold.ColdSampler([call])
    samples, _, late, _ = sampler.batch(4)
    assert samples == pytest.approx([124 * 0.06] * 4)
    assert not any(late)
    assert not sampler.launch_bound


def test_a_call_that_waits_for_the_gpu_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)
    sampler = cold.ColdSampler([lambda: queue.call(1e-5, 1e-4, waits=True)])
    assert not sampler.launch_bound
    flags = [all(sampler.batch(4).late) for _ in range(cold.HOPELESS + 6)]
    assert flags == [True] * cold.HOPELESS + [False] * 6
    assert sampler.launch_bound
    assert sampler.spin_s == sampler.least_spin_s


@pytest.mark.gpu
def test_a_call_that_the_host_holds_up_is_late() -> None:
    x = torch.zeros(1 << 20, device="cuda")
    held_up = {20, 21}
    turn = [-2]  # the sampler's own two calls come before

    def call() -> None:
        turn[0] += 1
        if turn[0] in held_up:
            time.sleep(0.03)
        x.add_(1)

    sampler = cold.ColdSampler([call])
    spin_s = sampler.spin_s
    assert not any(sampler.batch(8).late)
    assert sampler.spin_s == spin_s
    late = sampler.batch(24).late
    assert 1 <= sum(late) <= 4
    assert sampler.spin_s == 2 * spin_s
