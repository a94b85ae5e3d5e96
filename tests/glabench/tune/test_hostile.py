"""Twenty hostile candidates in the middle of a real tuning, on a real GPU: each is recorded with its reason, everything
else is measured, and the winner is the one that wins without them."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch

from gla_kernels import Launch, Plan, Schedule, Tile, Workload
from gla_kernels.launch import interpreting
from glabench.hardware.crosscompile import local_arch
from glabench.systems.inputs import make_inputs
from glabench.tune import stage
from glabench.tune.candidate import Candidate, Variant, base_config, candidates_of
from glabench.tune.compiler import CompilePool
from glabench.tune.gpu import Gpu
from glabench.tune.stage import Pass, Stage, WrongResult
from glabench.tune.tuner import Tuner
from glabench.tuning_store import Tuning

# In float16, for which there is no kernel of Hopper's own: the winner has passes that a plant can stand in for. A pass
# takes longer than copying what it writes, as the one that cheats does to get into the finals.
WORK = Workload("fwd", 2, 16384, 16, 64, 64, "fp16", schedule=Schedule(64, 64, True))
TRIAL_LIMIT_S = 8.0
COMPILE_LIMIT_S = 45.0  # a new process included, beside others that start
SAMPLES = 25
SAME = 1.10  # two plans that take the same time, measured in turns, differ by less

KILLED = r"^no result after {:g} s; the process was killed$"
OFF = r"^[os] is off by \d\.\de[+-]\d+; \d\.\de-\d+ from the reference plan is allowed$"
DIFFER = r"^two runs of the same inputs differ in [os]$"
# How many of each, and what the record must say: the status, and the reason as a regular expression.
PLANTS = {
    "hangs": (2, "timeout", KILLED.format(TRIAL_LIMIT_S)),
    "illegal access": (2, "crashed", r"illegal memory access"),
    "wrong": (2, "wrong", OFF),
    "nan": (2, "wrong", r"^[os] has values that are NaN or infinite; "),
    "by the clock": (1, "wrong", DIFFER),
    "by the order": (1, "wrong", DIFFER),
    "out of memory": (2, "oom", r"^out of memory: [\d.]+ \w+ more were needed"),
    "slow": (1, "ok", ""),
    "spoils inputs": (1, "ok", ""),
    "cheats": (1, "wrong", r"^in the finals: o (is off by|has)"),
    "dies": (1, "crashed", r"^the process was killed by SIGABRT$"),
    "compiler aborts": (1, "crashed", r"^the process was killed by SIGABRT: LLVM ERROR: planted$"),
    "compiler hangs": (1, "timeout", KILLED.format(COMPILE_LIMIT_S)),
    "ptxas fails": (1, "compile_error", r"^PTXASError: "),
    "too much shared memory": (1, "compile_error", r"^needs \d+ KiB of shared memory, sm_\d+ has \d+$"),
}


@pytest.fixture
def faults_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that tells the processes what is hostile."""
    path = tmp_path / "hostile.json"
    path.write_text("{}")
    monkeypatch.setenv("HOSTILE", str(path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    return path


@pytest.fixture
def tune(faults_file: Path) -> Iterator[Callable[[], Tuning]]:
    """A whole tuning, with compilers of its own: what one compiled, the next compiles again."""
    arch = local_arch()
    assert arch is not None
    gpu = Gpu(module="hostile_bench", trial_limit_s=TRIAL_LIMIT_S)

    def run() -> Tuning:
        with CompilePool(arch, limit_s=COMPILE_LIMIT_S, module="hostile_bench") as pool:
            (tuning,) = Tuner(gpu, pool, "exhaustive").tune([WORK])
        return tuning

    yield run
    gpu.close()


def winner(tuning: Tuning) -> Plan:
    assert tuning.winner is not None
    return Plan.from_dict(tuning.finalists[tuning.winner].plan)


def chosen_plants(clean: Tuning, capability: int) -> dict[Candidate, str]:
    """PLANTS in the place of candidates that ran and lost. Row blocks of 16 are left alone: their kernels are part of
    what all others are compared with. The cheat is an output pass with the largest row blocks, and no default: the
    search of who is to blame tries the other pass beside the default.
    """
    won = candidates_of(WORK, winner(clean), capability)
    ran = [Candidate.from_dict(trial.candidate) for trial in clean.trials if trial.status == "ok"]
    free = [one for one in ran if one not in won and one.variant.block_t > 16]
    cheat = next(
        one
        for one in free
        if one.step == "output"
        and one.variant.block_t == 64
        and one.tile != base_config(WORK, one.variant, capability).output
    )
    free.remove(cheat)
    kinds = [fault for fault, (count, _, _) in PLANTS.items() if fault != "cheats" for _ in range(count)]
    return {cheat: "cheats", **dict(zip(free[:: len(free) // len(kinds)], kinds, strict=False))}


@pytest.mark.gpu
@pytest.mark.timeout(540)
def test_twenty_hostile_candidates_change_nothing(tune: Callable[[], Tuning], faults_file: Path) -> None:
    arch = local_arch()
    assert arch is not None
    capability = int(arch.removeprefix("sm_"))
    clean = tune()
    hostile = chosen_plants(clean, capability)
    assert len(hostile) == 20
    assert set(hostile.values()) == set(PLANTS)
    faults_file.write_text(json.dumps({json.dumps(c.to_dict(), sort_keys=True): f for c, f in hostile.items()}))

    tuning = tune()

    assert tuning.stopped == "the strategy ended"
    assert len(tuning.trials) == tuning.feasible
    statuses = {Candidate.from_dict(trial.candidate): trial.status for trial in clean.trials}
    problems = []
    for trial in tuning.trials:
        candidate = Candidate.from_dict(trial.candidate)
        fault = hostile.get(candidate)
        if fault is None and statuses[candidate] != "ok":
            continue  # the compiler itself gets some of the others wrong, in one way or another
        status, reason = ("ok", "") if fault is None else PLANTS[fault][1:]
        if trial.status != status or not re.search(reason, trial.reason or ""):
            problems.append(f"{candidate}: {fault}: {trial.status}, {trial.reason}; expected {status}, {reason}")
        elif fault == "slow" and median(trial.samples_ms) < 1:
            problems.append(f"{candidate}: {fault}: {trial.samples_ms} ms")
    assert not problems, "\n".join(problems)

    faults_file.write_text("{}")
    best, found = winner(clean), winner(tuning)
    if found != best:  # a tie that noise decided
        gpu = Gpu()
        answer = gpu.final(WORK, [best, found], SAMPLES)
        gpu.close()
        assert answer["status"] == "ok", answer["reason"]
        first, second = map(median, answer["samples_ms"])
        assert second <= SAME * first
    assert not set(candidates_of(WORK, found, capability)) & set(hostile)


def test_the_plants_are_twenty_of_every_kind(plant: object, here_gpu, here_compiler) -> None:
    """With made-up times: what is planted, and that a tuning survives the choice."""
    (clean,) = Tuner(here_gpu(), here_compiler(), "exhaustive").tune([WORK])
    hostile = chosen_plants(clean, 90)
    counts = {fault: list(hostile.values()).count(fault) for fault in PLANTS}
    assert counts == {fault: count for fault, (count, _, _) in PLANTS.items()}
    assert not set(candidates_of(WORK, winner(clean), 90)) & set(hostile)


@pytest.mark.skipif(not interpreting(), reason="runs on the CPU")
@pytest.mark.parametrize(
    ("step", "fault"),
    [(step, fault) for step in ("states", "output") for fault in ("wrong", "nan", "spoils inputs")]
    + [("output", "cheats")],
)
def test_a_plant_stands_in_for_a_real_kernel(step: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that need no GPU, through the screen as it is."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    hostile_kernels = importlib.import_module("hostile_kernels")
    real = Stage._launch_of

    def launch_planted(here: Stage, candidate: Candidate, reference: Pass) -> Launch:
        launch = real(here, candidate, reference)
        right = {name: reference.launch.args[name] for name in reference.outputs}
        return replace(launch, kernel=hostile_kernels.Hostile(fault, launch, reference.outputs, right))

    monkeypatch.setattr(Stage, "_launch_of", launch_planted)
    monkeypatch.setattr(stage, "make_inputs", lambda case, operator, device: make_inputs(case, operator, "cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    here = Stage(Workload("fwd", 1, 80, 1, 16, 16, "fp32"), 90)
    candidate = Candidate(Variant(Schedule(32), 32), step, Tile(16, 16, 4, 1))
    _, status, reason = PLANTS[fault]
    if status == "wrong" and fault != "cheats":
        with pytest.raises(WrongResult) as found:
            here.trial(candidate)
        assert re.search(reason, str(found.value))
        return
    call, keys = here.trial(candidate), here.inputs.k.clone()
    call()
    assert torch.equal(here.inputs.k, keys) == (fault == "cheats")


def test_compilers_that_are_hostile_are_told_apart(faults_file: Path) -> None:
    """The part that needs no GPU, with the compiler itself."""
    tuned = [Candidate.from_dict({**ONE, "tile": [64, 64, 4, stages]}) for stages in (1, 2)]
    kinds = ["ptxas fails", "too much shared memory"]
    plants = {json.dumps(c.to_dict(), sort_keys=True): fault for c, fault in zip(tuned, kinds, strict=True)}
    faults_file.write_text(json.dumps(plants))
    with CompilePool("sm_90", 1, module="hostile_bench") as pool:  # they take seconds to start
        answers = [pool.submit(WORK, one).result(timeout=120) for one in tuned]
    for fault, answer in zip(kinds, answers, strict=True):
        _, status, reason = PLANTS[fault]
        assert answer["status"] == status, answer["reason"]
        assert re.search(reason, answer["reason"]), answer["reason"]


ONE = {"schedule": {"chunk": 64, "sub_chunk": 64, "materialize": True}, "block_t": 64, "step": "output"}
