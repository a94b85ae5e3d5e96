"""What the host's two clocks bracket, on a GPU and a host with one clock; how many values are taken."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from glabench.run import eager


class Machine:
    """A host, and a GPU that works off what the host queues. Both have one clock, in seconds; synchronizing takes the
    host until the GPU is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = self.gpu = 0.0
        self.calls: list[str] = []
        self.found_idle: list[bool] = []
        self.collects: list[bool] = []
        monkeypatch.setattr(torch.cuda, "synchronize", self._synchronize)
        monkeypatch.setattr(time, "perf_counter", lambda: self.host)

    def _synchronize(self) -> None:
        self.host = max(self.host, self.gpu)

    def call(self, python_s: float, gpu_s: float, name: str = "") -> None:
        self.calls.append(name)
        self.found_idle.append(self.gpu <= self.host)
        self.collects.append(gc.isenabled())
        self.host += python_s
        self.gpu = max(self.gpu, self.host) + gpu_s


def test_a_call_is_queued_on_an_idle_gpu_and_its_kernels_are_in_the_wall_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    found = eager.measure([lambda: machine.call(3e-4, 2e-3)])
    assert found.host_ms == pytest.approx([0.3] * len(found.host_ms))
    assert all(machine.found_idle[: len(found.host_ms)])
    count = -(-eager.RUN_S // 2.3e-3)  # calls in a row: the host waits for the GPU at their end alone
    assert found.wall_ms == pytest.approx([2.0 + 0.3 / count] * len(found.wall_ms))
    assert len(machine.calls) == len(found.host_ms) + count * len(found.wall_ms)
    assert not any(machine.collects)
    assert gc.isenabled()


def test_of_a_call_that_waits_for_python_the_wall_time_is_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    found = eager.measure([lambda: machine.call(1.5e-3, 1e-4)])
    assert found.host_ms == pytest.approx([1.5] * len(found.host_ms))
    assert found.wall_ms == pytest.approx([1.5] * len(found.wall_ms), rel=0.01)


def test_inputs_take_turns_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    eager.measure([lambda: machine.call(1e-4, 1e-3, "a"), lambda: machine.call(1e-4, 1e-3, "b")])
    assert machine.calls == ["a", "b"] * (len(machine.calls) // 2) + ["a"] * (len(machine.calls) % 2)


def test_a_short_call_has_many_samples_and_a_long_one_few(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    short = eager.measure([lambda: machine.call(1e-5, 1e-4)])
    assert len(short.host_ms) == eager.QUEUE.most
    assert eager.WALL.least <= len(short.wall_ms) <= eager.WALL.most
    slow = Machine(monkeypatch)
    long = eager.measure([lambda: slow.call(1e-3, 2.0)])
    assert long.host_ms == pytest.approx([1.0])
    assert long.wall_ms == pytest.approx([2001.0])
    assert len(slow.calls) == 1  # no more is spent on it


@pytest.mark.parametrize("gpu_s", [1e-5, 1e-3, 1e-2, 3e-2, 6e-2, 0.2])
def test_all_of_it_takes_less_than_a_second(monkeypatch: pytest.MonkeyPatch, gpu_s: float) -> None:
    machine = Machine(monkeypatch)
    found = eager.measure([lambda: machine.call(1e-4, gpu_s)])
    assert machine.gpu < 1.0
    assert min(len(found.host_ms), len(found.wall_ms)) >= 2


def test_a_budget_is_spent_at_most_and_after_the_least_that_fits() -> None:
    budget = eager.Budget(least=3, most=5, usual_s=1.0, limit_s=2.0)
    assert [budget.is_spent(taken, 0.1) for taken in range(7)] == [False] * 5 + [True] * 2
    assert [budget.is_spent(taken, 1.5) for taken in range(5)] == [False] * 3 + [True] * 2
    assert [budget.is_spent(taken, 2.5) for taken in range(3)] == [False, True, True]


@pytest.mark.gpu
def test_on_a_gpu_python_waits_for_no_kernel_while_it_queues() -> None:
    from glabench.run.cold import ColdSampler

    cycles = int(ColdSampler([lambda: None]).hertz * 2e-3)
    found = eager.measure([lambda: torch.cuda._sleep(cycles)])
    assert max(found.host_ms) < min(found.wall_ms)  # 2 ms of spinning are in the wall time alone
    assert min(found.wall_ms) > 1.0
