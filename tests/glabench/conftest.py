"""Synthetic tunings and profiles, as an H200 would give them. Made up, and only ever used by tests. And processes that
are forks of one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from itertools import islice, product
from typing import Any

import pytest

from glabench.analysis.tuning import Sums, Variant
from glabench.run.child import Child
from glabench.run.forks import Forks
from glabench.run.processes import worker_env
from glabench.spec.case import Case, Mode
from glabench.store import Row
from glabench.tuning_store import Finalist, Trial, Tuning

MakeTuning = Callable[..., Tuning]
STEPS = {"fwd": ("states", "output"), "bwd": ("states", "grad_states", "grad_qk", "grad_v")}
ALL_STEPS = ("states", "output", "grad_states", "grad_qk", "grad_v")
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
    others = tuple(astuple(v) for v in shared)
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
        cost = {"states": 0.2, "output": 0.5, "grad_states": 0.25, "grad_qk": 0.9, "grad_v": 0.6}[step]
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
        38.0, {"search": 30.0, "measure": 12.0, "finals": 8.0}, times=(),
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


MakeProfile = Callable[..., Row]
CEILINGS: dict[str, Any] = {
    "device": "NVIDIA H200", "source": "measured", "url": None, "hbm_copy_bytes_per_s": 4.2e12,
    "hbm_read_bytes_per_s": 4.4e12, "l2_read_bytes_per_s": 9.6e12, "l2_bytes": 60 * 2**20, "bf16_flops": 7.4e14,
    "fp16_flops": 7.5e14, "tf32_flops": 3.8e14, "fp32_flops": 5.9e13, "exps_per_s": 3.7e12, "launch_gap_s": 1.6e-6,
    "launch_host_s": 4.1e-6, "conditions": {"driver": "570.86.15", "sm_mhz": 1755.0, "power_limit_w": 700.0},
}  # fmt: skip
# pass -> (FLOP on tensor cores, exponentials, bytes read, bytes written, how often what is read is asked for), each but
# the last for one token of one head of K = V = 128; then how far the pass is from its bound
PASS_WORK = {
    "states": (32_768, 256, 768, 512, 1.0, 1.25), "output": (90_000, 512, 1536, 256, 1.6, 1.9),
    "grad_states": (32_768, 256, 768, 512, 1.0, 1.3), "grad_qk": (250_000, 1340, 2560, 1024, 1.8, 2.6),
    "grad_v": (90_000, 512, 1280, 256, 1.6, 1.7),
}  # fmt: skip
COMPILED = {"registers": 168, "spill_bytes": 0, "shared_bytes": 65536, "programs_per_sm": 2, "tensor_core": "wgmma"}


def counted(work: dict[str, Any], ms: float, place: int) -> dict[str, Any]:
    """What ncu might say: the first kernel leaves writes in L2, the second reads some of its input again."""
    kept = min(work["hbm_write_bytes"], 30 * 2**20) if place == 0 else 0
    again = 0.4 * work["hbm_read_bytes"] if place == 1 else 0
    return {
        "ms": ms, "hbm_read_bytes": work["hbm_read_bytes"] * 1.004 + again,
        "hbm_write_bytes": work["hbm_write_bytes"] - kept, "l2_read_bytes": 0.9 * work["requested_bytes"],
        "l2_write_bytes": 1.0 * work["write_bytes"], "l2_hit_share": 0.41, "tensor_share": 0.37,
        "occupancy_share": 0.24, "registers": 168, "stalls": {"long_scoreboard": 3.1, "wait": 1.2, "barrier": 0.4},
    }  # fmt: skip


def profiled_kernel(case: Case, step: str, direction: str, place: int, measured: bool, ncu: bool) -> dict[str, Any]:
    """One kernel of a profile; times are the busiest resource's, times what PASS_WORK says."""
    tokens = case.B * case.T * case.H * case.K / 128
    flops, exps, read, write, asked, slow = PASS_WORK[step]
    work: dict[str, Any] = {
        "programs": int(tokens / 64), "tensor_flops": {"bf16": flops * tokens, "tf32": flops * tokens / 8},
        "vector_flops": 6 * exps * tokens, "exps": exps * tokens, "read_bytes": int(read * tokens),
        "write_bytes": int(write * tokens), "requested_bytes": int((read * asked + write) * tokens),
        "hbm_read_bytes": int(read * tokens), "hbm_write_bytes": int(write * tokens), "tensors": {},
    }  # fmt: skip
    ms = 1e3 * tokens * max((read + write) / 4.2e12, flops / 7.4e14 + flops / 8 / 3.8e14, exps / 3.7e12) * slow + 0.002
    return {
        "name": f"{step}_kernel", "step": step, "direction": direction, "count": 1,
        "samples_ms": [ms * (1 + 0.004 * (i % 5 - 2)) for i in range(15)] if measured else None, "work": work,
        "predicted_ms": 1.07 * ms, "compiled": {**COMPILED, "spill_bytes": 96 * (step == "grad_qk")},
        "counters": counted(work, ms, place) if ncu else None,
    }  # fmt: skip


@pytest.fixture(scope="session")
def make_profile() -> MakeProfile:
    """``make_profile("fwdbwd", ncu=True, T=4096, chunk=64)``: a row of `glabench profile` from an H200; with
    ``measured=False`` one that a machine without a GPU predicts for it."""

    def make(
        mode: Mode = "fwd", measured: bool = True, ncu: bool = False, trace: str | None = None,
        started: str = "2026-11-21T09:00:00+00:00", **sizes: Any,
    ) -> Row:  # fmt: skip
        shape = {"B": 4, "T": 4096, "H": 16, "K": 128, "V": 128, "chunk": 64, "sub_chunk": 16, "materialize": True}
        case = Case("gla", mode=mode, **{**shape, **sizes})
        order = [(step, "fwd") for step in STEPS["fwd"] if mode != "bwd"]
        order += [(step, "bwd") for step in STEPS["bwd"] if mode != "fwd"]
        kernels = [profiled_kernel(case, *one, place, measured, ncu) for place, one in enumerate(order)]
        gaps = 0.003 * len(kernels)
        spans = [sum(k["samples_ms"][i] for k in kernels) + gaps for i in range(15)] if measured else None
        profile = {
            "target": {"name": "NVIDIA H200", "arch": "sm_90", "sms": 132, "here": measured},
            "ceilings": CEILINGS if measured else {**CEILINGS, "source": "datasheet", "conditions": None},
            "samples_ms": [ms + 0.002 for ms in spans] if spans else None, "span_ms": spans, "kernels": kernels,
            "ncu": {"version": "2025.1", "refused": None} if ncu else None, "parts": None, "energy": None,
            "memory": None, "trace": trace, "notes": [],
        }  # fmt: skip
        if measured:
            profile |= extras(case, kernels)
        environment = H200 if measured else {**H200, "device": "AMD EPYC 9554", "kind": "cpu", "copy_bytes_per_s": None}
        return Row(case.id, "board", asdict(case), "ok", profile=profile, environment=environment, started=started)

    return make


def extras(case: Case, kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """What only a GPU tells: energy, memory, and the forward taken apart."""
    width = case.B * case.T * case.H * case.K * 2
    kinds = {"inputs": 4 * width, "outputs": width, "gradients": 0, "states": width, "saved": 0, "workspace": 2**20}
    ms = {kernel["step"]: kernel["samples_ms"] for kernel in kernels}
    found: dict[str, Any] = {
        "energy": {"joules": 0.7, "idle_w": 118.0, "mean_w": 566.0, "seconds": 1.1, "calls": 800,
                   "tokens": case.B * case.T},
        "memory": {"peak_bytes": sum(kinds.values()), "kinds": kinds, "model": {**kinds, "workspace": 0}},
    }  # fmt: skip
    if "output" in ms and case.materialize:
        scale = (case.chunk or 64) / 64
        found["parts"] = {"intra_ms": [x * scale for x in ms["output"]], "inter_ms": [x / scale for x in ms["states"]]}
    else:
        found["notes"] = ["parts: only the forward of a schedule that materializes is taken apart"]
    return found


@pytest.fixture(scope="session")
def profile_rows(make_profile: MakeProfile) -> list[Row]:
    """Several lengths and chunk sizes in both modes with counters, one row without ncu, one that ncu refused, one
    that is predicted on a CPU, and one that failed."""
    modes: tuple[Mode, ...] = ("fwd", "fwdbwd")
    rows = [make_profile(mode, ncu=True, B=16384 // t, T=t) for mode in modes for t in (1024, 4096, 16384)]
    rows += [make_profile("fwd", ncu=True, chunk=chunk, sub_chunk=16) for chunk in (16, 128, 256)]
    plain = make_profile("bwd", T=2048, B=8)
    refused = make_profile("fwd", T=2048, B=8, K=256, V=256, H=8)
    assert refused.profile is not None
    said = {"version": None, "refused": "<b>ERR_NVGPUCTRPERM</b>: counters are for root here"}
    refused = replace(refused, profile={**refused.profile, "ncu": said})
    case = Case("gla", 2, 3001, 4, 100, 100, mode="fwd")
    failed = Row(case.id, "board", asdict(case), "oom", "CUDA out of memory: asked for 48.00 GiB", environment=H200,
                 started="2026-11-21T09:00:00+00:00")  # fmt: skip
    return [*rows, plain, refused, make_profile("fwdbwd", measured=False), failed]


@pytest.fixture(scope="session")
def forking() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """``with forking():`` the processes that commands start to compile or time in are forks of one, as on a GPU machine
    those that compile are: importing the same takes each of them longer than what tests ask for. One that interprets
    begins as ever."""
    forks = Forks(
        worker_env("compile"), ("glabench.run.pipeline", "glabench.profile.pipeline", "glabench.tune.compile_worker")
    )
    start = Child._start

    def forked(self: Child) -> None:
        if self.env.get("TRITON_INTERPRET", "") is None:
            self.forks = forks
        start(self)

    @contextmanager
    def of_one() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Child, "_start", forked)
            yield

    yield of_one
    forks.close()


@pytest.fixture
def forked(forking: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """In a test: see `forking`."""
    with forking():
        yield
