"""Whole tunings on a made-up GPU, in processes that may die: what the record says, and who wins."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gla_kernels import Choice, Plan, Schedule, Workload, default_config
from glabench import tuning_store
from glabench.tune import search, tuner
from glabench.tune.candidate import Candidate, candidates_of, variants
from glabench.tune.compiler import CompilePool
from glabench.tune.gpu import Gpu
from glabench.tune.history import History, Result
from glabench.tune.space import Space, space_of
from glabench.tune.stage import strong_work
from glabench.tune.tuner import Tuner, recorded_times
from glabench.tuning_store import Tuning

WORK = Workload("fwd", 4, 600, 4, 64, 64, schedule=Schedule(64, 64, True))
# Twenty, of every kind.
HOSTILE = {
    "compiler aborts": 2, "compiler hangs": 1, "does not compile": 3, "hangs": 1, "dies": 3, "corrupts": 2, "wrong": 3,
    "differs": 1, "oom": 2, "too good": 1, "dies in a plan": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fused scans: of those there are few candidates, and here are faults to be planted."""
    monkeypatch.setattr("glabench.tune.space.variants", lambda work: (one for one in variants(work) if not one.walks))


def winner(tuning: Tuning) -> dict[str, Any]:
    assert tuning.winner is not None
    return tuning.finalists[tuning.winner].plan


def parts(tuning: Tuning) -> list[Candidate]:
    """The passes of the winner."""
    return candidates_of(Workload.from_dict(tuning.workload), Plan.from_dict(winner(tuning)), 90)


def planted(clean: Tuning) -> dict[Candidate, str]:
    """HOSTILE in the place of candidates that did not win. What shows in whole plans only is put into the winner's own
    variant, in both passes; kernels of row blocks of 16 are left alone, for all others are compared with some of them,
    and so is the output by size, which others are blamed beside.
    """
    won = parts(clean)
    usual = default_config(WORK.K, WORK.V, WORK.operand_bytes, won[0].variant.schedule)
    losers = [Candidate.from_dict(trial.candidate) for trial in clean.trials]
    losers = [one for one in losers if one not in won and one.variant.block_t > 16]
    found = {}
    for fault, step in (("too good", "states"), ("dies in a plan", "output")):
        inside = (one for one in losers if one.step == step and one.variant == won[0].variant)
        one = next(one for one in inside if one.tile != getattr(usual, step))
        found[one] = fault
    free = [one for one in losers if one not in found and one.tile != usual.output]
    kinds = [fault for fault, count in HOSTILE.items() if fault not in found.values() for _ in range(count)]
    return found | dict(zip(free[:: len(free) // len(kinds)], kinds, strict=False))


def test_twenty_hostile_candidates_are_recorded_and_the_winner_is_the_same(
    gpu: Gpu, plant: Callable[[dict[Candidate, str]], None], fake: ModuleType
) -> None:
    def tune() -> Tuning:
        with CompilePool("sm_90", 2, limit_s=2, module="fake_gpu") as pool:
            (tuning,) = Tuner(gpu, pool, "exhaustive").tune([WORK])
        return tuning

    clean = tune()
    assert {trial.status for trial in clean.trials} == {"ok"}
    hostile = planted(clean)
    assert len(hostile) == 20
    assert set(hostile.values()) == set(fake.FAULTS)
    plant(hostile)
    tuning = tune()
    assert len(tuning.trials) == tuning.feasible == len(clean.trials)
    for trial in tuning.trials:
        fault = hostile.get(Candidate.from_dict(trial.candidate))
        status, reason = fake.FAULTS[fault] if fault else ("ok", "")
        assert trial.status == status, (fault, trial)
        assert re.search(reason, trial.reason or ""), (fault, trial.reason)
        assert "\n" not in (trial.reason or "")
        assert bool(trial.samples_ms) == (fault is None or fault in fake.TOO_GOOD)
    assert winner(tuning) == winner(clean)
    lost = [one for one in tuning.finalists if one.status != "ok"]
    assert [(one.role, one.status, one.reason) for one in lost] == [
        ("candidate", "crashed", "the process was killed by SIGABRT")
    ]


def test_a_tuning_says_what_it_did_and_another_one_agrees(
    gpu: Gpu, pool: CompilePool, fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few variants of several schedules: to enumerate all takes seconds."""
    few = [one for one in variants(replace(WORK, schedule=None)) if not one.walks and one.block_t == 32]
    monkeypatch.setattr("glabench.tune.space.variants", lambda work: iter(few))
    works = [replace(WORK, schedule=None), replace(WORK, schedule=None, direction="bwd")]
    tuned = Tuner(gpu, pool, "model", environment=lambda: {"device": "made up"})
    first, again = tuned.tune(works), tuned.tune(works)
    for work, one, other in zip(works, first, again, strict=True):
        space = space_of(work, 90)
        assert Workload.from_dict(one.workload) == work
        assert (one.strategy, one.budget_s, one.stopped) == ("model", None, "the strategy ended")
        assert one.environment == {"device": "made up"}
        assert one.feasible == len(space.candidates) > len(one.trials) == one.measured
        assert one.wall_s >= one.spent_s["search"] >= one.spent_s["measure"] >= 0
        assert all(trial.compiled is not None and trial.compiled["registers"] == 128 for trial in one.trials)
        assert winner(one) == winner(other)
        total = sum(fake.ms_of(part.to_dict()) for part in parts(one))
        assert one.finalists[one.winner or 0].samples_ms == pytest.approx([total] * 25)
    assert {trial.candidate["step"] for trial in first[1].trials} == {
        "states", "grad_states", "grad_qk", "grad_v"
    }  # fmt: skip


def test_a_trial_names_the_other_variants_that_run_its_kernel(gpu: Gpu, pool: CompilePool) -> None:
    work = replace(WORK, schedule=None, T=32)
    (tuning,) = Tuner(gpu, pool, "exhaustive").tune([work])
    menus = space_of(work, 90).menus
    seen = [
        ((v["chunk"], v["sub_chunk"], v["materialize"], trial.candidate["block_t"]), *trial.shared)
        for trial in tuning.trials
        for v in [trial.candidate["schedule"]]
    ]
    assert any(len(homes) > 1 for homes in seen)
    assert all(len(set(homes)) == len(homes) for homes in seen)
    assert sum(map(len, seen)) == sum(len(keys) for menu in menus.values() for keys in menu.values())


def test_a_record_says_how_often_plans_of_slices_run_a_kernel() -> None:
    space = space_of(Workload("fwd", 4, 8192, 96, 64, 64, "bf16", True, Schedule(64, 64, False)), 90)
    measured = next(iter(space.candidates))
    (home,) = space.homes[measured]
    slices = space.times[home]["output"]
    assert slices > 1
    found = {(variant, step): factor for variant, step, factor in recorded_times(History(space, {measured: Result()}))}
    assert found[(64, 64, False, home.block_t, 0, home.walks), "output"] == pytest.approx(slices, rel=1e-4)
    assert {variant for variant, _ in found} == {(64, 64, False, home.block_t, 0, home.walks)}
    assert not list(recorded_times(History(space)))


def test_a_record_survives_its_file(gpu: Gpu, pool: CompilePool, plant: Callable[[dict[Candidate, str]], None]) -> None:
    plant({next(iter(space_of(WORK, 90).candidates.values())): "oom"})
    (tuning,) = Tuner(gpu, pool, "halving").tune([WORK], budget_s=600)
    text = tuning_store.to_json(tuning)
    assert "\n" not in text
    assert tuning_store.from_json(text) == tuning


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[[64, 64, true], "states", 2.0]]', "times: expected 6 values of a variant"),
        ('[[[64, 64, true, 64, 0, true], "states", "2"]]', "times: expected 6 values of a variant"),
        ('[["states", 2.0]]', "not a tuning: .*unpack"),
        ("3", "not a tuning: .*not iterable"),
    ],
)
def test_times_that_are_none_are_refused(text: str, message: str) -> None:
    """What a variant or a factor lacks is found when the record is read, not where a report adds up."""
    record_of = f'{{"kind": "tuning", "schema": 1, "trials": [], "finalists": [], "times": {text}}}'
    with pytest.raises(ValueError, match=message):
        tuning_store.from_json(record_of)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "expected a JSON object of kind tuning"),
        ('{"kind": "row"}', "expected a JSON object of kind tuning"),
        ('{"kind": "tuning", "schema": 0}', "tuning of schema 0, this glabench reads 1"),
        ('{"kind": "tuning", "schema": 1, "trials": []}', "not a tuning: 'finalists'"),
        ('{"kind": "tuning", "schema": 1, "trials": [], "finalists": []}', "not a tuning: .*missing"),
        ("{", "Expecting"),
    ],
)
def test_what_is_no_record_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tuning_store.from_json(text)


# --- The plan in use before ------------------------------------------------------------------------------------------


USED = {"fwd": 32, "bwd": None}  # chunks between the states that are kept


def default_plan(schedule: Schedule) -> Plan:
    return Plan(schedule, default_config(64, 64, 2, schedule))


def test_the_plan_in_use_is_a_finalist_and_loses_to_a_better_one(here_gpu, here_compiler) -> None:
    before = Choice(default_plan(Schedule(64, 64, True)), "by size")
    (tuning,) = Tuner(here_gpu(), here_compiler(), "exhaustive", incumbent=lambda work: before).tune([WORK])
    (incumbent,) = (one for one in tuning.finalists if one.role == "incumbent")
    assert (incumbent.plan, incumbent.origin, incumbent.status) == (before.plan.to_dict(), "by size", "ok")
    assert len(incumbent.samples_ms) == 25
    won = tuning.finalists[tuning.winner or 0]
    assert (won.role, won.origin) == ("candidate", "search")
    assert won.samples_ms[0] < incumbent.samples_ms[0]


def test_what_the_gate_runs_after_a_plan_is_compiled_ahead(here_gpu, here_compiler) -> None:
    before, compiler = Choice(default_plan(Schedule(64, 64, True)), "by size"), here_compiler()
    Tuner(here_gpu(), compiler, incumbent=lambda work: before).tune([WORK])
    assert compiler.plans == [(WORK, before.plan), (strong_work(WORK), before.plan)]


def test_the_plan_in_use_stays_where_the_search_finds_nothing_better(here_gpu, here_compiler) -> None:
    (first,) = Tuner(here_gpu(), here_compiler(), "exhaustive").tune([WORK])
    best = Choice(Plan.from_dict(winner(first)), "tuned here")
    (tuning,) = Tuner(here_gpu(), here_compiler(), "exhaustive", incumbent=lambda work: best).tune([WORK])
    assert winner(tuning) == winner(first)
    (nothing,) = Tuner(here_gpu(), here_compiler(), "model", incumbent=lambda work: best).tune([WORK], 1e-9)
    assert [(one.role, one.status) for one in nothing.finalists] == [("incumbent", "ok")]
    assert winner(nothing) == winner(first)
    assert (nothing.trials, nothing.stopped) == ((), "the budget was spent")


def test_where_nothing_runs_there_is_no_winner(here_gpu, here_compiler, fake: ModuleType) -> None:
    broken = here_compiler(lambda request: {"status": "compile_error", "reason": "no compiler", "compiled": None})
    gpu = here_gpu()
    (tuning,) = Tuner(gpu, broken, "model").tune([WORK])
    assert (tuning.winner, tuning.finalists) == (None, ())
    assert {(trial.status, trial.reason) for trial in tuning.trials} == {("compile_error", "no compiler")}
    assert gpu.asked == []


def test_a_backward_plan_is_gated_beside_the_forward_plan_that_won(here_gpu, here_compiler) -> None:
    gpu = here_gpu()
    forward, backward = Tuner(gpu, here_compiler(), "model").tune([WORK, replace(WORK, direction="bwd")])
    gates = [request["plans"] for request in gpu.asked if request["do"] == "gate"]
    assert gates == [{"fwd": winner(forward)}, {"fwd": winner(forward), "bwd": winner(backward)}]


def test_a_backward_pass_alone_is_tuned_after_the_forward_plan_in_use(here_gpu, here_compiler) -> None:
    gpu, compiler, work = here_gpu(), here_compiler(), replace(WORK, direction="bwd")
    used = {name: Choice(default_plan(Schedule(64, 64, True, states)), "by size") for name, states in USED.items()}
    tuned = Tuner(gpu, compiler, incumbent=lambda work: used[work.direction])
    tuned.tune([work])
    forward = used["fwd"].plan
    assert {str(request["forward"]) for request in gpu.asked if request["do"] == "final"} == {str(forward.to_dict())}
    assert all(request["plans"]["fwd"] == forward.to_dict() for request in gpu.asked if request["do"] == "gate")
    assert (replace(work, direction="fwd"), forward) in compiler.plans
    gpu.asked.clear()
    (tuning, _) = tuned.tune([replace(work, direction="fwd"), work])
    finals = [request["forward"] for request in gpu.asked if request["do"] == "final"]
    assert finals == [None, winner(tuning)]


# --- Time ------------------------------------------------------------------------------------------------------------


def test_a_budget_that_ends_the_search_leaves_time_for_the_finals(here_gpu, here_compiler, fake, monkeypatch) -> None:
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(search, "time", clock)
    monkeypatch.setattr(tuner, "time", clock)

    def slow(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal now
        now += 1.0 if request["do"] == "trial" else 0.0
        answer: dict[str, Any] = fake.handle(request)
        return answer

    (tuning,) = Tuner(here_gpu(slow), here_compiler(), "exhaustive").tune([WORK], budget_s=tuner.FINALS_S + 50)
    assert tuning.stopped == "the budget was spent"
    assert tuning.budget_s == tuner.FINALS_S + 50
    assert len(tuning.trials) == 51  # the last begins as the time is up, to the second
    assert tuning.spent_s["measure"] == 51
    assert tuning.winner is not None
    tried = [Candidate.from_dict(trial.candidate) for trial in tuning.trials]
    assert all(one in tried for one in parts(tuning))


def test_a_budget_that_cuts_one_shape_off_leaves_the_next_its_kernels(
    gpu: Gpu, plant: Callable[[dict[Candidate, str]], None]
) -> None:
    """The next shape has asked for the same kernels by then."""
    longer = replace(WORK, T=316)
    hanging = next(iter(space_of(WORK, 90).candidates.values()))
    plant({hanging: "compiler hangs"})
    with CompilePool("sm_90", 1, limit_s=2, module="fake_gpu") as pool:
        tuned = Tuner(gpu, pool, "exhaustive")
        (first,) = tuned.tune([WORK], tuner.FINALS_S + 1, following=[longer])
        (second,) = tuned.tune([longer])
    assert first.stopped == "the budget was spent"
    assert second.stopped == "the strategy ended"
    assert second.winner is not None
    assert len(second.trials) == second.feasible


def test_what_a_budget_cuts_off_is_compiled_no_more(gpu: Gpu, plant: Callable[[dict[Candidate, str]], None]) -> None:
    plant(dict.fromkeys(space_of(WORK, 90).candidates.values(), "compiler hangs"))
    with CompilePool("sm_90", 1, limit_s=1, module="fake_gpu") as pool:
        (tuning,) = Tuner(gpu, pool, "exhaustive").tune([WORK], budget_s=tuner.FINALS_S + 1)
        assert tuning.stopped == "the budget was spent"
        plant({})
        (other,) = Tuner(gpu, pool, "halving").tune([replace(WORK, H=2, T=200)])
        assert other.winner is not None
        assert sum(future.cancelled() for future in pool._futures.values()) > len(tuning.trials)


def test_ctrl_c_waits_for_no_shape_to_come(here_gpu, here_compiler, fake) -> None:
    """Nor does the end of a tuning, whose records are to be written first."""
    longer, compiler, ready = replace(WORK, T=316), here_compiler(), threading.Event()

    def space(work: Workload) -> Space:
        assert work != longer or ready.wait(20)
        return space_of(work, 90)

    def stopped(request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "trial" and request["workload"] == WORK.to_dict():
            raise KeyboardInterrupt
        answer: dict[str, Any] = fake.handle(request)
        return answer

    compiler.space_of = space
    try:
        with pytest.raises(KeyboardInterrupt):
            Tuner(here_gpu(stopped), compiler).tune([WORK], following=[longer])
        tuned = Tuner(here_gpu(), compiler)
        (first,) = tuned.tune([WORK], following=[longer])
        assert not ready.is_set()
    finally:
        ready.set()
    (second,) = tuned.tune([longer])
    assert first.winner is not None
    assert second.winner is not None
