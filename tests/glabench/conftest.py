"""Synthetic tunings, as `glabench tune` would write them on an H200. Made up, and only ever used by tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import pytest

from glabench.analysis.tuning import Sums, Variant
from glabench.tune.record import Finalist, Trial, Tuning

MakeTuning = Callable[..., Tuning]
STEPS = {"fwd": ("states", "output"), "bwd": ("states", "grad_states", "grad_q", "grad_k", "grad_v")}
ALL_STEPS = ("states", "output", "grad_states", "grad_q", "grad_k", "grad_v")
H200 = {
    "device": "NVIDIA H200", "kind": "cuda", "device_slug": "nvidia-h200", "memory_bytes": 150_754_820_096,
    "driver": "570.86.15", "cuda": "13.0", "capability": "9.0", "torch": "2.11.0+cu130", "triton": "3.6.0",
    "python": "3.12.9", "glabench": "0.1.0", "commit": "0123456789abcdef", "dirty": False, "fingerprint": "f00dfeed",
    "copy_bytes_per_s": 4.28e12, "os": "Linux 6.8", "cpu_count": 16,
}  # fmt: skip
FAILURES = {
    0: ("compile_error", "needs 260 KiB of shared memory, sm_90 has 227"),
    1: ("wrong", "o: error 1.8 exceeds its tolerance 0.005"),
    2: ("crashed", "the process was killed by SIGABRT"),
    3: ("timeout", "no result after 15 s; the process was killed"),
    4: ("oom", "CUDA out of memory: asked for 48.00 GiB"),
    5: ("unsupported", "<b>not</b> for this shape"),
}


def plan(variant: Variant, tiles: dict[str, list[int]]) -> dict[str, Any]:
    """A plan of a record; passes that are not given have a tile that says nothing."""
    schedule = {"chunk": variant.chunk, "sub_chunk": variant.sub_chunk, "materialize": variant.materialize}
    whole = {step: tiles.get(step, [64, 64, 4, 1]) for step in ALL_STEPS}
    return {"schedule": schedule, "block_t": variant.block_t, "tiles": whole}


def trial(
    variant: Variant, step: str, tile: list[int], samples: list[float] | None, predicted: float = 1.0,
    status: str = "ok", reason: str | None = None, shared: tuple[Variant, ...] = (),
) -> Trial:  # fmt: skip
    """One trial of a record."""
    schedule = {"chunk": variant.chunk, "sub_chunk": variant.sub_chunk, "materialize": variant.materialize}
    candidate = {"schedule": schedule, "block_t": variant.block_t, "step": step, "tile": tile}
    compiled = {"registers": 168, "spill_bytes": 0, "shared_bytes": 65536, "programs_per_sm": 3}
    others = tuple((v.chunk, v.sub_chunk, v.materialize, v.block_t) for v in shared)
    return Trial(candidate, predicted, status, reason, tuple(samples or ()), compiled, others)


@dataclass
class Space:
    """A made-up space whose times follow from sizes, so that every tuning of a workload sees the same ones."""

    work: dict[str, Any]
    rng: random.Random

    def launches(self) -> Iterator[tuple[Variant, str, list[int], tuple[Variant, ...]]]:
        subs = (16, 64)
        for chunk, kept, block_t in product((32, 64, 128), (True, False), (16, 32)):
            shared = [Variant(chunk, sub, kept, block_t) for sub in subs if block_t <= sub <= chunk]
            for step, bk, bv, warps in product(self.steps(kept), (32, 64, 128), (64, 128), (4, 8)):
                homes = [shared] if step.endswith("states") else [[one] for one in shared]
                for first, *rest in (home for home in homes if home):
                    yield first, step, [bk, bv, warps, 1], tuple(rest)

    def steps(self, materialize: bool) -> list[str]:
        direction = self.work["direction"]
        return [step for step in STEPS[direction] if materialize or direction == "bwd" or step != "states"]

    def ms(self, variant: Variant, step: str, tile: list[int]) -> float:
        size = self.work["B"] * self.work["T"] * self.work["H"] * self.work["K"] / 2**26
        cost = {"states": 0.2, "output": 0.5, "grad_states": 0.25, "grad_q": 0.7, "grad_k": 0.9, "grad_v": 0.6}[step]
        chunk = {32: 1.3, 64: 1.0, 128: 1.06}[variant.chunk]
        slow = (1 if variant.materialize else 1.25) * (1.1 if variant.block_t == 16 else 1)
        slow *= 1.04 if variant.sub_chunk == 64 and not step.endswith("states") else 1
        fit = 1 + 0.25 * abs(tile[0] - 64) / 64 + 0.1 * (tile[1] == 64) + 0.15 * (tile[2] == 8)
        return size * cost * chunk * slow * fit + 0.004


def sampled(rng: random.Random, ms: float, count: int) -> list[float]:
    return [round(ms * rng.lognormvariate(0, 0.006), 6) for _ in range(count)]


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., dict[str, Any]]:
    """``make_plan(Variant(64, 16, True, 16), {"states": [64, 64, 4, 1]})``: a plan of a record."""
    return plan


@pytest.fixture(scope="session")
def make_trial() -> Callable[..., Trial]:
    """``make_trial(variant, "states", [64, 64, 4, 1], [1.0, 1.1], status="ok", shared=(other,))``: one trial."""
    return trial


@pytest.fixture(scope="session")
def make_tuning() -> MakeTuning:
    """``make_tuning("fwd", strategy="model", seed=1, T=4096, failures=True, incumbent=plan)``: a tuning with an
    incumbent, of all candidates where the strategy is exhaustive, else of a tenth of them."""

    def make(
        direction: str = "fwd", strategy: str = "model", seed: int = 0, failures: bool = True,
        incumbent: dict[str, Any] | None = None, started: str = "2026-11-21T09:00:00+00:00", most: int | None = None,
        **sizes: Any,
    ) -> Tuning:  # fmt: skip
        shape = {"B": 4, "T": 4096, "H": 16, "K": 128, "V": 128, "dtype": "bf16", "gated": True, "schedule": None}
        work = {"direction": direction, **shape, **sizes}
        rng = random.Random(seed)
        space = Space(work, rng)
        everything = [(*one, space.ms(*one[:3])) for one in space.launches()]
        guessed = [(one, one[-1] * rng.lognormvariate(0, 0.15)) for one in everything]
        order = guessed if strategy == "exhaustive" else in_turns(guessed)
        count = len(order) if strategy == "exhaustive" else most or len(order) // 5
        fails = len(FAILURES) if failures else 0
        trials = []
        for place, ((variant, step, tile, shared, ms), predicted) in enumerate(islice(order, count)):
            status, reason = FAILURES[place // 7] if place % 7 == 3 and place // 7 < fails else ("ok", None)
            samples = sampled(rng, ms, 5 if ms < 2 * everything[0][-1] else 2) if status == "ok" else []
            trials.append(trial(variant, step, tile, samples, predicted, status, reason, shared))
        return judged(trials, work, strategy, len(everything), rng, space, incumbent, started)

    return make


def in_turns(guessed: list[tuple[Any, float]]) -> list[tuple[Any, float]]:
    """The candidates of each pass by prediction, one pass after the other."""
    ranked = sorted(guessed, key=lambda pair: pair[1])
    seen: dict[str, int] = {}
    places = []
    for (_, step, *_), _ in ranked:
        seen[step] = seen.get(step, 0) + 1
        places.append(seen[step])
    return [pair for _, pair in sorted(zip(places, ranked, strict=True), key=lambda one: one[0])]


def judged(
    trials: list[Trial], work: dict[str, Any], strategy: str, feasible: int, rng: random.Random, space: Space,
    incumbent: dict[str, Any] | None, started: str,
) -> Tuning:  # fmt: skip
    """The finals: the best plans of the three best variants and the incumbent."""
    sums = Sums(trials)

    def timed(found: dict[str, Any]) -> tuple[float, ...]:
        variant = Variant.of(found)
        return tuple(
            sampled(rng, sum(space.ms(variant, s, found["tiles"][s]) for s in space.steps(variant.materialize)), 25)
        )

    plans = [plan(v, {step: one.candidate["tile"] for step, one in sums.best[v].items()}) for v in sums.ranking()[:3]]
    finalists = [Finalist(one, "candidate", "search", "ok", None, timed(one)) for one in plans]
    old = incumbent or plan(Variant(64, 64, True, 16), {})
    finalists.append(Finalist(old, "incumbent", "by size", "ok", None, timed(old)))
    winner = min(range(len(finalists)), key=lambda i: sorted(finalists[i].samples_ms)[12])
    return Tuning(
        work, strategy, 60.0, feasible, tuple(trials), tuple(finalists), winner, "the strategy ended", H200, started,
        38.0, {"search": 30.0, "measure": 12.0, "finals": 8.0},
    )  # fmt: skip


@pytest.fixture(scope="session")
def tunings(make_tuning: MakeTuning) -> list[Tuning]:
    """Four shapes in both directions: each searched twice, the smaller two measured wholly as well; one without a
    winner. A shape's two directions belong to one run."""
    shapes = [{"T": 1024}, {"T": 4096}, {"B": 1, "T": 16384, "H": 32}, {"K": 256, "V": 256, "H": 8}]
    found = []
    for number, sizes in enumerate(shapes):
        for direction in ("fwd", "bwd"):
            first = make_tuning(direction, seed=number, started="2026-11-21T09:00:00+00:00", **sizes)
            second = make_tuning(
                direction, seed=number + 10, failures=False, incumbent=first.finalists[0].plan,
                started="2026-11-22T09:00:00+00:00", **sizes,
            )  # fmt: skip
            found += [first, second]
            if number < 2:
                found.append(make_tuning(direction, "exhaustive", seed=number + 20, **sizes))
    lost = make_tuning("fwd", T=2048, seed=5)
    refused = [replace(f, status="wrong", reason="o: error 1.8 exceeds its tolerance 0.005") for f in lost.finalists]
    return [*found, replace(lost, winner=None, finalists=tuple(refused))]
