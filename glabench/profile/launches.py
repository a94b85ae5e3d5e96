"""GPU time of every kernel that a call launches, by CUPTI through torch.profiler.

Calls are cold and queued ahead as ``run.cold.ColdSampler`` does it. The spin before a call, and a short one after
it, are kernels themselves: they tell on the GPU's own time line where a call begins and ends, whatever Python was doing
meanwhile. What lies between two calls, the flush of the L2, is dropped with them. Kernels of a CUDA graph, which a call
of ours may come to be, are events of their own, too.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glabench.run.cold import SPIN_MARGIN_S, Call, ColdSampler
from glabench.run.gpu_events import Event, gpu_events
from glabench.run.measure import BATCH_MOST

CALLS = 30
EVENTS = 30_000  # about as many are collected: fewer calls where one call has thousands of kernels
FEWEST_CALLS = 5
SPIN = "spin_kernel"  # part of the name of the kernel behind torch.cuda._sleep
OPENS_US = SPIN_MARGIN_S * 1e6 / 2  # a spin this long opens a call; the one that closes it takes a few microseconds


@dataclass(frozen=True)
class Launched:
    """What one call had the GPU do, in the order in which it started."""

    events: tuple[Event, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(event.name for event in self.events)

    @property
    def span_us(self) -> float:
        """From the first start to the last end."""
        return max(event.end_us for event in self.events) - self.events[0].start_us

    @property
    def gaps_us(self) -> float:
        """How long of the span nothing was running."""
        gaps, done = 0.0, self.events[0].start_us
        for event in self.events:
            gaps += max(0.0, event.start_us - done)
            done = max(done, event.end_us)
        return gaps

    @property
    def overlap_us(self) -> float:
        """How much the events' times add up to beyond the time that anything was running: streams side by side."""
        return max(0.0, sum(event.dur_us for event in self.events) - (self.span_us - self.gaps_us))


def calls_of(events: Iterable[Event]) -> list[Launched]:
    """The calls among the events of a time line, whatever their order and streams.

    A call whose opening or closing spin is missing, lost by the profiler, is left out, and so is one without kernels.
    """
    calls: list[Launched] = []
    current: list[Event] | None = None
    for event in sorted(events, key=lambda e: e.start_us):
        if SPIN not in event.name:
            if current is not None:
                current.append(event)
        elif event.dur_us >= OPENS_US:
            current = []
        else:
            if current:
                calls.append(Launched(tuple(current)))
            current = None
    return calls


def alike(calls: Sequence[Launched]) -> list[Launched]:
    """The calls that launched the same kernels in the same order as most did."""
    if not calls:
        return []
    ((usual, _),) = Counter(call.names for call in calls).most_common(1)
    return [call for call in calls if call.names == usual]


def call_count(events_per_call: int) -> int:
    """How many calls to profile."""
    return max(FEWEST_CALLS, min(CALLS, EVENTS // max(events_per_call, 1)))


def profile_calls(run: Sequence[Call]) -> tuple[list[Launched], int]:
    """(what each call launched, how many calls were made) on the current CUDA device, the calls in rotation.

    A few calls are profiled first: the profiler is slow when it starts, and they tell how many kernels a call has.
    """
    first = _profile(run, 2)
    count = call_count(max((len(call.events) for call in first), default=1))
    return _profile(run, count), count


def _profile(run: Sequence[Call], count: int) -> list[Launched]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        sampler = ColdSampler(run)  # its own calls come before the first spin, and do not count
        for number in range(1, count + 1):
            _marked(sampler)
            if number % BATCH_MOST == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
    return calls_of(gpu_events(profiler.events() or ()))


def _marked(sampler: ColdSampler) -> None:
    """One cold call between two spins."""
    call = sampler.cold()
    call()
    torch.cuda._sleep(1)


def write_trace(run: Call, path: Path) -> None:
    """A Chrome trace of one cold call, what Python and what the GPU did, as gzipped JSON. Raises OSError."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    sampler = ColdSampler([run])
    with torch.profiler.profile(activities=activities) as profiler:
        _marked(sampler)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(whole))
        trace = json.loads(whole.read_text())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(trace))


def packed(trace: dict[str, Any]) -> bytes:
    """The events of a Chrome trace, gzipped: nothing of the machine's files and folders, the same bytes every time."""
    slim = {"displayTimeUnit": trace.get("displayTimeUnit", "ms"), "traceEvents": trace["traceEvents"]}
    return gzip.compress(json.dumps(slim, separators=(",", ":")).encode(), mtime=0)
