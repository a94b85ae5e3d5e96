"""Energy of a call, from the GPU's own counter (NVML), without what the GPU draws at rest.

Calls follow one another for a second and more, their L2 as warm as the inputs' rotation leaves it. At rest means: the
CUDA context alive, memory allocated, nothing running, after a second of quiet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from glabench.failures import NotMeasured
from glabench.hardware import nvml
from glabench.run.cold import Call

SETTLE_S = 1.0  # of quiet before the power at rest is read
IDLE_S = 1.0
WARM_S = 0.3  # of calls before the first that counts
BUSY_S = 1.6
BATCH_S = 0.02  # of calls between two looks at the counter
POLL_S = 0.005
FEWEST_READINGS = 4
LEAST_S = 0.5  # between the two looks that count


@dataclass(frozen=True)
class Reading:
    """A look at the counter: when, what it said, and how many calls were done."""

    seconds: float
    joules: float
    calls: int


@dataclass(frozen=True)
class Spent:
    """What went by between two looks."""

    seconds: float
    joules: float
    calls: int

    @property
    def watts(self) -> float:
        return self.joules / self.seconds


def spent(readings: Sequence[Reading]) -> Spent:
    """Between the first and the last move of the counter, which moves only every so many milliseconds: read just after
    it moved, it is right. Raises NotMeasured when it moved too little."""
    moved = [now for before, now in pairwise(readings) if now.joules != before.joules]
    if len(moved) < 2 or moved[-1].seconds - moved[0].seconds < LEAST_S:
        raise NotMeasured("the GPU's energy counter moves too rarely")
    first, last = moved[0], moved[-1]
    return Spent(last.seconds - first.seconds, last.joules - first.joules, last.calls - first.calls)


def per_call(idle: Spent, busy: Spent, tokens: int) -> dict[str, Any]:
    """The row's ``energy``: joules of one call beyond what the GPU would have used at rest."""
    joules = (busy.joules - idle.watts * busy.seconds) / busy.calls
    if joules <= 0:
        raise NotMeasured(f"calls draw no more ({busy.watts:.0f} W) than the GPU at rest ({idle.watts:.0f} W)")
    return {
        "joules": joules,
        "idle_w": idle.watts,
        "mean_w": busy.watts,
        "seconds": busy.seconds,
        "calls": busy.calls,
        "tokens": tokens,
    }


def measure(run: Sequence[Call], tokens: int) -> dict[str, Any]:
    """Energy of one of the calls, in rotation, on the current CUDA device. tokens: of one call. Takes four seconds.

    Raises NotMeasured where the GPU does not count its energy.
    """
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)

    def joules() -> float:
        counted = nvml.energy_j(uuid)
        if counted is None:
            raise NotMeasured("the GPU does not count its energy")
        return counted

    joules()
    torch.cuda.synchronize()
    time.sleep(SETTLE_S)
    idle = spent(readings_of(_rest, joules, IDLE_S))
    batch = _batch(run)
    readings_of(batch, joules, WARM_S)
    return per_call(idle, spent(readings_of(batch, joules, BUSY_S)), tokens)


def readings_of(work: Callable[[], int], joules: Callable[[], float], seconds: float) -> list[Reading]:
    """Looks at the counter, one after each piece of work, until ``seconds`` are over. work: says how many calls."""
    began, calls = time.perf_counter(), 0
    readings = [Reading(0.0, joules(), 0)]
    while readings[-1].seconds < seconds or len(readings) < FEWEST_READINGS:
        calls += work()
        readings.append(Reading(time.perf_counter() - began, joules(), calls))
    return readings


def _rest() -> int:
    time.sleep(POLL_S)
    return 0


def _batch(run: Sequence[Call]) -> Callable[[], int]:
    """Some 20 ms of calls, the GPU done with all of them at the end."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for call in run:
        call()
    torch.cuda.synchronize()
    rounds = max(1, round(BATCH_S / (time.perf_counter() - began)))

    def work() -> int:
        for _ in range(rounds):
            for call in run:
                call()
        torch.cuda.synchronize()
        return rounds * len(run)

    return work
