"""Time: raw samples of one call, and the rule that says when there are enough of them.

On CUDA samples are cold and queued ahead (``glabench.run.cold``). Where the host queued a call too late all the same,
its sample is dropped.

A kernel that draws more power than the GPU may use is held back after some milliseconds, by how much depends on the
board and on what ran before it. So samples are taken at full clock: where a batch was not, it is dropped with all
before it, and the next ones are shorter and have rests between them (`Pace`).

On a CPU a sample is the wall time of the call, in a warm process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from glabench.hardware import nvml
from glabench.run.cold import HOPELESS, Batch, Call, ColdSampler, Renew, keep
from glabench.run.sm_clock import NOTHING, Counted
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems.base import System
from glabench.systems.inputs import Inputs

BATCH_S = 0.05  # samples queued between two looks at the clocks
BATCH_MOST = 32
PACED_BATCH_S = 0.003  # the same, where the clock was held back: it falls within milliseconds
REST_S = 0.1
REPEATS = 5  # samples of numbers that were asked before
NOISE_WINDOW = 24  # values of the noise that must agree before it counts as levelled off
NOISE_SPREAD = 0.05


@dataclass(frozen=True)
class StoppingRule:
    """When there are enough samples: nvbench's standard-deviation criterion.

    After ``min_samples`` and ``min_time_s`` of samples, stop when the noise (stdev / mean) is under ``max_noise``, or
    when it has levelled off: the noise after each of the last 24 samples differs by less than 5 % (stdev / mean), so
    that more samples would say the same. Otherwise at ``max_samples`` or ``max_time_s``.
    """

    min_samples: int
    max_samples: int
    min_time_s: float
    max_time_s: float
    max_noise: float

    @classmethod
    def of(cls, settings: Settings) -> StoppingRule:
        return cls(
            settings.min_samples, settings.max_samples, settings.min_time_s, settings.max_time_s, settings.max_noise
        )

    def verdict(self, samples_ms: Sequence[float]) -> str | None:
        """Why to stop now, or None to go on."""
        n, total = len(samples_ms), sum(samples_ms) / 1000
        if n >= max(self.min_samples, 2) and total >= self.min_time_s:
            noise = running_noise(samples_ms)
            if noise[-1] < self.max_noise:
                return f"noise under {self.max_noise:.1%}"
            window = noise[-NOISE_WINDOW:]
            if len(window) == NOISE_WINDOW and _spread(window) < NOISE_SPREAD:
                return f"noise levelled off at {noise[-1]:.1%}"
        if n >= self.max_samples:
            return f"{n} samples"
        if n >= self.min_samples and total >= self.max_time_s:
            return f"time budget of {self.max_time_s:g} s"
        return None


def running_noise(samples: Sequence[float]) -> list[float]:
    """stdev / mean of the first n samples, for n from 2 on."""
    noise, mean, squares = [], 0.0, 0.0
    for n, x in enumerate(samples, 1):
        delta = x - mean
        mean += delta / n
        squares += delta * (x - mean)
        if n > 1:
            noise.append(math.sqrt(squares / (n - 1)) / mean if mean > 0 else 0.0)
    return noise


def _spread(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)) / mean if mean > 0 else 0.0


def calls(system: System, case: Case, sets: Sequence[Inputs]) -> list[Call]:
    """What the clock brackets, one callable an input set.

    fwd: the forward without autograd. bwd: the gradients of every input from a forward done beforehand. fwdbwd: the
    forward and then those gradients. step: one token, the state carried on from call to call.
    """
    return [_call(system, case, one) for one in sets]


def _call(system: System, case: Case, inputs: Inputs) -> Call:
    if case.mode == "step":
        return _without_grad(lambda: system.step(inputs, case))
    if case.mode == "fwd":
        return _without_grad(lambda: system.forward(inputs, case))
    given = inputs.with_grad()
    leaves = list(given.leaves().values())

    def ends() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        o, state = system.forward(given, case)
        if state is None or given.dstate is None:
            return [o], [given.do]
        return [o, state], [given.do, given.dstate]

    if case.mode == "fwdbwd":
        return lambda: torch.autograd.grad(*_split(ends(), leaves))
    outputs, ups = ends()
    return lambda: torch.autograd.grad(outputs, leaves, ups, retain_graph=True)


def _split(
    ends: tuple[list[torch.Tensor], list[torch.Tensor]], leaves: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    return ends[0], leaves, ends[1]


def _without_grad(call: Call) -> Call:
    def quiet() -> object:
        with torch.no_grad():
            return call()

    return quiet


@dataclass(frozen=True)
class Timing:
    """What was measured: the row's ``time`` and ``clocks``; and on a GPU, where every sample was of new numbers, a few
    samples more of numbers that had been asked before."""

    time: dict[str, Any]
    clocks: dict[str, Any] | None
    repeated_ms: list[float] = field(default_factory=list)


def measure(run: Sequence[Call], settings: Settings, renew: Renew = keep) -> Timing:
    """Samples of the calls in rotation, on the settings' device, each of the numbers that ``renew`` gives it."""
    return _measure_cuda(run, settings, renew) if settings.device == "cuda" else _measure_cpu(run, settings, renew)


def _warm_up(run: Sequence[Call], seconds: float, synchronize: Callable[[], None]) -> int:
    """Call at least once, and for ``seconds``; how many calls that took. The gate has run the system before."""
    count, start = 0, time.perf_counter()
    while count < 1 or time.perf_counter() - start < seconds:
        run[count % len(run)]()
        synchronize()
        count += 1
    return count


def _measure_cpu(run: Sequence[Call], settings: Settings, renew: Renew) -> Timing:
    """Numbers are renewed after a call, so that they are out of the caches when its turn comes again."""
    warmup = _warm_up(run, settings.warmup_s, lambda: None)
    for turn in range(len(run)):
        renew(turn)
    rule, samples = StoppingRule.of(settings), list[float]()
    began = time.perf_counter()
    while (stopped := rule.verdict(samples)) is None:
        if len(samples) >= 2 and time.perf_counter() - began > settings.max_wall_s:
            stopped = f"wall budget of {settings.max_wall_s:g} s"
            break
        turn = len(samples)
        samples.append(_wall_ms(run[turn % len(run)]))
        renew(turn)
    facts = {"clock": "cpu_wall", "samples_ms": samples, "dropped": 0, "stopped": stopped, "warmup": warmup}
    return Timing(facts, None)


def _wall_ms(call: Call) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


class Sampler(Protocol):
    """Takes samples in batches: ``ColdSampler`` on a GPU."""

    def batch(self, count: int) -> Batch: ...


@dataclass
class Pace:
    """How long batches are, and how long the GPU rests before each, by whether its clock was held back.

    It rests for long at once, and samples of before do not count. The less it rests the slower it is, also where the
    clock, read while a batch is queued, is full again: while rests still grew one of cuDNN's calls took an H200 2.06 ms
    at first, then 1.97 and 1.94, and 1.80 at last, and its median was of how many samples there were of each.

    in_vain: batches held back one after another, although the GPU rested.
    """

    batch_s: float = BATCH_S
    rest_s: float = 0.0
    in_vain: int = 0

    def after(self, held_back: bool) -> bool:
        """Go on after a batch; whether the GPU rests from now on, and did not before."""
        rested = self.rest_s > 0
        if not held_back:
            self.in_vain = 0
            return False
        self.in_vain += rested
        self.batch_s, self.rest_s = PACED_BATCH_S, REST_S
        return not rested

    @property
    def hopeless(self) -> bool:
        """Whether the GPU is no faster after a rest: its clock is locked, or it is too hot."""
        return self.in_vain >= HOPELESS


@dataclass(frozen=True)
class Samples:
    """What a sampler gave until the rule said stop. readings: of the clocks, while what was kept was taken; counted:
    the SM clock during it. late: how many more were dropped because their call was queued too late; launches: these are
    kept, for hardly any were not."""

    kept_ms: list[float]
    dropped: int
    stopped: str
    readings: list[nvml.Clocks]
    counted: Counted = NOTHING
    late: int = 0
    launches: bool = False


@dataclass
class _Batches:
    """Samples of several batches, those that were late apart, and the clocks that were read in them."""

    ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    readings: list[nvml.Clocks] = field(default_factory=list)
    counted: Counted = NOTHING

    @property
    def count(self) -> int:
        return len(self.ms) + len(self.late_ms)

    def add(self, batch: Batch) -> None:
        for ms, late in zip(batch.ms, batch.late, strict=True):
            (self.late_ms if late else self.ms).append(ms)
        self.readings += [] if batch.clocks is None else [batch.clocks]
        self.counted = Counted.sum([self.counted, batch.counted])

    def take_over(self, other: _Batches) -> None:
        """All that the other has, which has nothing then."""
        self.ms += other.ms
        self.late_ms += other.late_ms
        self.readings += other.readings
        self.counted = Counted.sum([self.counted, other.counted])
        other.ms, other.late_ms, other.readings, other.counted = [], [], [], NOTHING


def take(sampler: Sampler, settings: Settings) -> Samples:
    """Batches of samples until the rule, or the wall budget, says stop.

    A batch during which the SM clock was under ``full_clock`` of its maximum is dropped and counted, and so are
    those before the GPU rested, from when on the wall budget counts anew. A GPU that is never fast (locked clocks,
    heat) still has a time: then nothing is dropped, and ``stopped`` says so. Samples that were late are dropped as
    well, unless nearly all are: such a call waits for its launches.
    """
    rule, pace, began = StoppingRule.of(settings), Pace(), time.perf_counter()
    kept, slow, count, full_clock = _Batches(), _Batches(), 1, settings.full_clock
    while (stopped := rule.verdict(kept.ms)) is None:
        if kept.count + slow.count >= 2 and time.perf_counter() - began > settings.max_wall_s:
            stopped = f"wall budget of {settings.max_wall_s:g} s"
            break
        time.sleep(pace.rest_s)
        batch = sampler.batch(count)
        took_ms, reading = sum(batch.ms), batch.clocks
        held_back = reading is not None and reading.sm_mhz < full_clock * reading.sm_mhz_max
        (slow if held_back else kept).add(batch)
        if pace.after(held_back):
            slow.take_over(kept)
            began = time.perf_counter()
        if pace.hopeless:
            kept.take_over(slow)
            pace, full_clock = Pace(), 0.0
        count = max(1, min(BATCH_MOST, int(pace.batch_s * 1000 / max(took_ms / count, 1e-3))))
    if kept.count < min(settings.min_samples, slow.count):
        kept.take_over(slow)
        full_clock = 0.0
    launches = len(kept.ms) < min(settings.min_samples, len(kept.late_ms))
    if launches:
        kept.ms, kept.late_ms = kept.ms + kept.late_ms, []
    if full_clock < settings.full_clock:
        stopped += f"; SM clock mostly under {settings.full_clock:.0%} of its maximum, nothing dropped"
    return Samples(kept.ms, slow.count, stopped, kept.readings, kept.counted, len(kept.late_ms), launches)


def _measure_cuda(run: Sequence[Call], settings: Settings, renew: Renew) -> Timing:
    warmup = _warm_up(run, settings.warmup_s, torch.cuda.synchronize)
    sampler = ColdSampler(run, renew)
    found = take(sampler, settings)
    facts = {
        "clock": "cuda_events_cold_l2",
        "samples_ms": found.kept_ms,
        "dropped": found.dropped,
        "late": found.late,
        "stopped": found.stopped,
        "warmup": warmup,
        "launch_bound": sampler.launch_bound or found.launches,
    }
    if renew is keep:
        return Timing(facts, _clocks(found))
    sampler.renew = keep
    for call in run:
        call()
    return Timing(facts, _clocks(found), sampler.batch(REPEATS).ms)


def _clocks(found: Samples) -> dict[str, Any] | None:
    """What NVML read, and beside it the SM clock that the GPU counted; None where NVML read nothing."""
    clocks, counted = nvml.summarise(found.readings), found.counted.mhz
    return clocks if clocks is None or counted is None else {**clocks, "sm_mhz_counted": round(counted, 1)}
