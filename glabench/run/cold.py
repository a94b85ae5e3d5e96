"""One cold sample on a GPU, all of it queued before the GPU begins.

A buffer twice the L2 is written first, then the GPU spins for longer than Python needs to queue the call, then two
events bracket the call alone, and outside of these two notes of the SMs' cycles
(``glabench.run.sm_clock``). All of the call's kernels are queued by the time the clock starts, so neither Python nor
the launch latency of the first kernel is in the time, only the GPU's own gaps between kernels. Where the host was held
up and queued a call too late, its sample is marked, and the next spins are longer. A call of a thousand kernels and
more (a Python loop over time) cannot be queued ahead, nor can one that waits for the GPU inside: its time holds its
launches, as it does in real use, and ``launch_bound`` says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from glabench.hardware import nvml
from glabench.run.sm_clock import NOTHING, Counted, Notes

Call = Callable[[], object]
Renew = Callable[[int], None]  # gives the inputs of a turn other numbers, of as many turns as there are

# A call that Python needs longer than this to queue is bound by its launches. Of these `gla` has up to 124 on the
# board, without materialized states: one by one they took Python 17 ms on some machines. A CUDA graph, which a call
# comes to be after some firings at the same addresses, is queued sooner, and then spins are longer than they need be.
MAX_SPIN_S = 0.03
SPIN_MARGIN_S = 40e-6  # what else is queued while it spins: a note and two events
CALM = 16  # samples on time, one after another, before spins are shorter again
HEAD_START_S = 200e-6  # of a batch: an idle GPU is woken meanwhile, and Python takes longer over the first sample
HOPELESS = 5  # batches in vain, one after another: no call is queued ahead, or the clock will not come back


def keep(turn: int) -> None:
    """No new numbers."""


class Batch(NamedTuple):
    """Samples in ms, the clocks that NVML read when all of them were queued, for each whether the GPU began it before
    all of the call was queued, so that it may have waited, and the SM clock as it was counted during those that were
    not late: an SM that waits runs at a higher one."""

    ms: list[float]
    clocks: nvml.Clocks | None
    late: list[bool]
    counted: Counted = NOTHING

    @classmethod
    def on_time(cls, ms: list[float], clocks: nvml.Clocks | None = None) -> Batch:
        """Of samples none of which was late."""
        return cls(ms, clocks, [False] * len(ms))


class ColdSampler:
    """Takes batches of samples on the current CUDA device; see the module's docstring."""

    def __init__(self, run: Sequence[Call], renew: Renew = keep) -> None:
        self.run, self.renew = run, renew
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.uuid = str(properties.uuid)
        self.flush = torch.empty(2 * properties.L2_cache_size, dtype=torch.int8, device="cuda")
        self.turn = 0
        self._events: list[torch.cuda.Event] = []
        self._notes = Notes()
        self.flush.zero_()  # CUDA loads a kernel when it is first launched, and the first sample would be late
        torch.cuda._sleep(1)
        self.host_s = min(self._host_seconds(call) for call in [*run, *run][:4])
        top = nvml.clocks(self.uuid)
        self.hertz = (top.sm_mhz_max if top is not None else 2000.0) * 1e6
        self.spin_s = self.least_spin_s = min(1.5 * self.host_s + SPIN_MARGIN_S, MAX_SPIN_S)
        self.in_vain = 0  # batches of late samples alone, one after another
        self.on_time = 0  # samples since spins became longer, or shorter

    @property
    def launch_bound(self) -> bool:
        """Whether Python needs longer to queue the call than the GPU is kept spinning, however long that is."""
        return self.host_s > MAX_SPIN_S or self.in_vain >= HOPELESS

    def _host_seconds(self, call: Call) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        torch.cuda.synchronize()
        return seconds

    def cold(self) -> Call:
        """The call whose turn it is, with what makes it a cold one queued before it: new numbers, the flush, then the
        spin."""
        call = self.run[self.turn % len(self.run)]
        self.renew(self.turn)
        self.turn += 1
        self.flush.zero_()
        torch.cuda._sleep(int(self.spin_s * self.hertz))
        return call

    def _made(self, count: int) -> list[torch.cuda.Event]:
        """So many events. CUDA makes one when it is first recorded, which takes Python as long as to queue a kernel."""
        while len(self._events) < count:
            self._events.append(torch.cuda.Event(enable_timing=True))
            self._events[-1].record()
        return self._events[:count]

    def batch(self, count: int) -> Batch:
        """``count`` samples. After some that were late, the next batch's spins are twice as long, and after CALM that
        were not, half as long. Of a call that is ``launch_bound`` none is called late."""
        origin, *marks = self._made(2 * count + 1)
        starts, ends, queued_ms = marks[::2], marks[1::2], list[float]()
        self._notes.clear(count)
        torch.cuda.synchronize()
        began = time.perf_counter()
        origin.record()  # the GPU is idle, so this is now by its clock, too
        torch.cuda._sleep(int(HEAD_START_S * self.hertz))
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            call = self.cold()
            self._notes.before(index)
            start.record()
            call()
            end.record()
            self._notes.after(index)
            queued_ms.append(1000 * (time.perf_counter() - began))
        reading = nvml.clocks(self.uuid)
        torch.cuda.synchronize()
        late = [
            not self.launch_bound and origin.elapsed_time(start) < ms
            for start, ms in zip(starts, queued_ms, strict=True)
        ]
        if not self.launch_bound:
            self.in_vain = self.in_vain + 1 if all(late) else 0
        self._adapt(count, any(late))
        samples = [start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)]
        return Batch(samples, reading, late, self._notes.counted([not one for one in late]))

    def _adapt(self, count: int, late: bool) -> None:
        """The next batch's spins. Not shorter after every batch without late samples: between rests a batch is one
        sample, for which Python is slower than before, and every second one would be late."""
        self.on_time = 0 if late else self.on_time + count
        if self.launch_bound:
            self.spin_s = self.least_spin_s
        elif late:
            self.spin_s = min(2 * self.spin_s, MAX_SPIN_S)
        elif self.on_time >= CALM:
            self.spin_s, self.on_time = max(self.spin_s / 2, self.least_spin_s), 0
