"""What runs in the processes of ``measure.py``: cases timed as the harness does, with extra work planted behind calls.

``run_case`` is a pipeline as ``glabench.run.pipeline`` is, without its gate and its memory: only times are judged, and
every case has passed the whole pipeline first. $PLANTED, where it is set, says what is planted, as JSON:
{"percent": 3, "amounts": {case id: amount}}. ``handle`` finds these amounts.

An amount is turns of a loop of one dependent multiply-add each, on every SM; on a CPU, ns of a loop that waits. On a
GPU it is one more launch, which takes a time of its own even with no turns: so amounts are found by measuring.
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import triton
import triton.language as tl

from gla_kernels.launch import Launch, execute
from glabench.failures import one_line
from glabench.run import measure
from glabench.run.cold import Batch, Call, ColdSampler
from glabench.run.measure import Sampler
from glabench.run.pipeline import Draft, can_run, release, row_of
from glabench.run.rotation import rotated_inputs
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.store import Row
from glabench.systems.base import System, load

BLOCK = 128
UNIT_NS = {"cuda": 2.0, "cpu": 1.0}  # a first guess at what one unit takes: four cycles of 2 GHz, or what it says
SAMPLES = 96  # of each kind of call in a round of calibration
BATCH = 8  # of each kind, between two waits for the GPU
ROUNDS = 5
TOLERANCE = 0.002  # how far a ratio of medians may be off what was asked

Plant = Callable[[int], None]


@triton.jit(do_not_specialize=["n"])
def busy_kernel(p_x, n, BLOCK: tl.constexpr):
    """p_x [programs * BLOCK] float32, written: x = x / 2 + 1, n times one after another, from x = 0, 1, 2 .. on."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = o.to(tl.float32)
    for _ in range(n):
        x = x * 0.5 + 1.0
    tl.store(p_x + o, x)


def busy(x: torch.Tensor, n: int) -> Launch:
    """The launch that does n turns on x [programs * BLOCK] float32."""
    return Launch(busy_kernel, (x.numel() // BLOCK,), {"p_x": x, "n": n}, {"BLOCK": BLOCK})


def planter(device: str) -> Plant:
    """What does an amount of extra work on the device."""
    if device == "cpu":
        return _wait
    programs = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    x = torch.empty(programs * BLOCK, device=device)
    return lambda n: execute(busy(x, n))


def _wait(ns: int) -> None:
    end = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < end:
        pass


def behind(call: Call, plant: Plant, amount: int) -> Call:
    """The call, and then the amount of extra work."""

    def both() -> object:
        result = call()
        plant(amount)
        return result

    return both


def run_case(case: Case, sweep: str, settings: Settings) -> Row:
    """One row of the case's time alone; ``implementation`` says what was planted."""
    return row_of(_stages, case, sweep, settings, None)


def _stages(draft: Draft, case: Case, settings: Settings, system: System) -> None:
    if not can_run(draft, case, settings, system):
        return
    planted = json.loads(os.environ.get("PLANTED", "null"))
    with draft.phases("inputs"):
        run = measure.calls(system, case, rotated_inputs(case, settings, system))
    if planted is not None:
        amount = planted["amounts"][case.id]
        draft.found["implementation"] += f", planted {planted['percent']} % ({amount} units of work behind each call)"
        plant = planter(settings.device)
        run = [behind(call, plant, amount) for call in run]
    with draft.phases("compile"):  # as the gate would, so that warming up is not spent on loading kernels
        run[0]()
    with draft.phases("samples"):
        timing = measure.measure(run, settings)
    draft.found |= {"time": timing.time, "clocks": timing.clocks}


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """The child's side of calibration: {"case", "settings", "percents"} -> {"plain_ms", "least_percent", "planted"} as
    ``calibrate`` answers, or {"failed": why}."""
    case, settings = Case.from_dict(request["case"]), Settings.from_dict(request["settings"])
    try:
        system = load(case.system)
        run = measure.calls(system, case, rotated_inputs(case, settings, system))
        return calibrate(run, settings.device, request["percents"])
    except Exception as error:
        return {"failed": one_line(error)}
    finally:
        release(settings)


@dataclass
class Planted:
    """Work behind each call that is to make it slower by ``percent``. ms: what the call takes with it."""

    percent: int
    amount: int
    ms: float = math.nan

    def excess(self, plain_ms: float) -> float:
        """By how much the call is too slow, as a share of what it takes by itself."""
        return self.ms / plain_ms - 1 - self.percent / 100

    def possible(self, plain_ms: float) -> bool:
        """Whether there is an amount for it: not where even no work is too much."""
        return self.amount > 0 or self.excess(plain_ms) <= TOLERANCE

    def settled(self, plain_ms: float) -> bool:
        return abs(self.excess(plain_ms)) <= TOLERANCE or not self.possible(plain_ms)


def calibrate(run: Sequence[Call], device: str, percents: Sequence[int]) -> dict[str, Any]:
    """How much to plant behind calls for each slow-down in percent, by measuring all of them in turns.

    Answers {"plain_ms": without anything planted, "least_percent": what a plant of no work takes, "planted": {percent:
    {"amount": .., "percent": what it comes to, "possible": bool}}}, percent as text, for JSON. It is not possible where
    even a plant of no work is more than asked.
    """
    plant = planter(device)

    def medians(*amounts: int) -> list[float]:
        return _medians([run, *([behind(call, plant, amount) for call in run] for amount in amounts)], device)

    (plain_ms,) = medians()  # warms up, and is near enough for a guess
    plants = [Planted(percent, round(percent / 100 * plain_ms * 1e6 / UNIT_NS[device])) for percent in percents]
    for turn in range(ROUNDS):
        plain_ms, least_ms, *found = medians(0, *(one.amount for one in plants))
        for one, ms in zip(plants, found, strict=True):
            one.ms = ms
        unit_ms = (max(found) - least_ms) / max(1, *(one.amount for one in plants))
        if turn == ROUNDS - 1 or unit_ms <= 0 or all(one.settled(plain_ms) for one in plants):
            break
        for one in plants:
            if not one.settled(plain_ms):
                one.amount = max(0, round(one.amount - one.excess(plain_ms) * plain_ms / unit_ms))
    planted = {
        str(one.percent): {
            "amount": one.amount,
            "percent": 100 * (one.ms / plain_ms - 1),
            "possible": one.possible(plain_ms),
        }
        for one in plants
    }
    return {"plain_ms": plain_ms, "least_percent": 100 * (least_ms / plain_ms - 1), "planted": planted}


def _medians(kinds: Sequence[Sequence[Call]], device: str) -> list[float]:
    """Medians in ms of several kinds of calls, each with a call an input set, all in turns: of kinds, and of inputs, so
    that no call finds those of the call before it in a cache."""
    sets = len(kinds[0])
    turns = [kinds[turn % len(kinds)][turn % sets] for turn in range(len(kinds) * sets)]
    for call in turns[: len(kinds)]:
        call()  # compiles
    sampler: Sampler = ColdSampler(turns) if device == "cuda" else WallSampler(turns)
    samples: list[float] = []
    while len(samples) < SAMPLES * len(kinds):
        samples += sampler.batch(BATCH * len(kinds)).ms
    return [median(samples[kind :: len(kinds)]) for kind in range(len(kinds))]


class WallSampler:
    """As ``ColdSampler``, by the wall clock of a CPU."""

    def __init__(self, run: Sequence[Call]) -> None:
        self.run, self.turn = run, 0

    def batch(self, count: int) -> Batch:
        """``count`` samples in ms."""
        return Batch.on_time([self._sample() for _ in range(count)])

    def _sample(self) -> float:
        call = self.run[self.turn % len(self.run)]
        self.turn += 1
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1000
