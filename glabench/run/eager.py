"""What a call costs beside its kernels: how long Python takes to queue it, and what one of many eager calls takes.

Samples of ``glabench.run.cold`` are of the GPU's work alone. A model sees more of a call: the host prepares and queues
it, autograd included, and where that takes longer than the kernels, the GPU waits. Two clocks of the host say how much,
the same for every system:

  queued in   from before the call until it returns. The GPU is idle before, so that no launch waits for room in the
              queue. A backward pass is queued in a thread of autograd's; the call returns when all of it is
  wall        calls one after another between two synchronizations, over their number: what a training loop sees of one

Both are of warm calls, on the sets of inputs in turns. Neither L2 nor clocks are seen to: these times are of use, not
of kernels. Python collects no garbage meanwhile, as it would at some call and not at another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import TypeVar

import torch

from glabench.run.cold import Call
from glabench.run.memory import no_collection

Value = TypeVar("Value")

RUN_S = 0.04  # calls in a row, judged by how long one takes alone: together they take half of this or more


@dataclass(frozen=True)
class Budget:
    """How many values are taken: ``most``, or as many as fit into ``usual_s`` but ``least``; or fewer, where these do
    not fit into ``limit_s``. One is taken in any case."""

    least: int
    most: int
    usual_s: float
    limit_s: float

    def is_spent(self, taken: int, seconds: float) -> bool:
        enough = taken >= self.most or (taken >= self.least and seconds >= self.usual_s)
        return enough or (taken > 0 and seconds >= self.limit_s)


QUEUE = Budget(least=5, most=100, usual_s=0.15, limit_s=0.3)
WALL = Budget(least=3, most=15, usual_s=0.3, limit_s=0.4)


@dataclass(frozen=True)
class Eager:
    """Raw values in ms: what Python took to queue each of some calls, and what a call took in each of some runs."""

    host_ms: list[float]
    wall_ms: list[float]

    def to_dict(self) -> dict[str, list[float]]:
        """What the row keeps."""
        return {"host_ms": self.host_ms, "wall_ms": self.wall_ms}


def measure(run: Sequence[Call]) -> Eager:
    """The host's two times of the calls, which take turns and have run before, on the current CUDA device.

    A call that alone takes as long as a run is one: its wall times are those from before it until the GPU was done.
    """
    calls = cycle(run)
    alone = _taken(QUEUE, lambda: _alone(next(calls)))
    host_ms, whole_ms = [host for host, _ in alone], [whole for _, whole in alone]
    count = -(-1000 * RUN_S // median(whole_ms))
    if count < 2:
        return Eager(host_ms, whole_ms)
    return Eager(host_ms, _taken(WALL, lambda: _in_a_row([next(calls) for _ in range(int(count))])))


def _taken(budget: Budget, take: Callable[[], Value]) -> list[Value]:
    """Values one after another, until the budget is spent."""
    values, began = list[Value](), time.perf_counter()
    while not budget.is_spent(len(values), time.perf_counter() - began):
        values.append(take())
    return values


def _alone(call: Call) -> tuple[float, float]:
    """Of one call on an idle GPU, in ms: until it returned, and until the GPU was done. Its result is freed later."""
    with no_collection():
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = call()
        queued = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()
    del result
    return 1000 * (queued - start), 1000 * (done - start)


def _in_a_row(calls: Sequence[Call]) -> float:
    """Of calls one after another, ms a call."""
    with no_collection():
        torch.cuda.synchronize()
        start = time.perf_counter()
        for call in calls:
            call()
        torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - start) / len(calls)
