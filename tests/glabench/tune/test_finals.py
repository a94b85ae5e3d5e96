"""The finals: who gets there, who wins, and what becomes of plans that fail only there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from gla_kernels import Plan, Schedule, Workload, default_config
from glabench.tune import finals
from glabench.tune.candidate import Variant, candidates_of
from glabench.tune.finals import CLOSE, KERNEL_TIE, MOST, SAMPLES, TIE, best_plan, contenders, decide, play
from glabench.tune.history import History
from glabench.tune.space import Space, space_of

Json = dict[str, Any]
WORK = Workload("fwd", 4, 300, 4, 64, 64)
CHUNKS = (16, 32, 64, 128)
PLANS = [Plan(Schedule(chunk, 16), default_config(64, 64, 2, Schedule(chunk, 16))) for chunk in CHUNKS]
FINE = {"status": "ok", "reason": None}
WRONG = {"status": "wrong", "reason": "o is off"}
DEAD = {"status": "crashed", "reason": "the process was killed by SIGABRT"}
SHORT = {"status": "oom", "reason": "out of memory"}


@pytest.fixture(scope="module")
def space() -> Space:
    return without_walks(WORK)


def without_walks(work: Workload) -> Space:
    """The space without fused scans: of those there are few candidates."""
    whole = space_of(work, 90)
    return replace(whole, menus={variant: menu for variant, menu in whole.menus.items() if not variant.walks})


def scripted(times: dict[int, float], fails: dict[int, Json] | None = None, gates: dict[int, Json] | None = None):
    """What a GPU answers about plans by their chunk: ms of each, which break the finals, which fail the gate."""

    def handle(request: Json) -> Json:
        if request["do"] == "gate":
            return (gates or {}).get(request["plans"]["fwd"]["schedule"]["chunk"], FINE)
        chunks = [plan["schedule"]["chunk"] for plan in request["plans"]]
        for chunk in chunks:
            if chunk in (fails or {}):
                return (fails or {})[chunk]
        return {**FINE, "samples_ms": [[times[chunk]] * request["samples"] for chunk in chunks]}

    return handle


def asked(gpu: Any, what: str) -> list[Any]:
    """The chunks of the plans of each request."""
    return [
        [plan["schedule"]["chunk"] for plan in (r["plans"].values() if what == "gate" else r["plans"])]
        for r in gpu.asked
        if r["do"] == what
    ]


def test_a_backward_plan_is_timed_after_the_forward_one_that_won(here_gpu) -> None:
    gpu = here_gpu(scripted({16: 1.0}))
    for work, forward in ((replace(WORK, direction="bwd"), PLANS[1].to_dict()), (WORK, None)):
        play(gpu, work, PLANS[:1], None, {"fwd": PLANS[1]})
        assert [request["forward"] for request in gpu.asked if request["do"] == "final"][-1] == forward


def test_all_are_timed_in_turns_and_the_fastest_is_gated(here_gpu) -> None:
    gpu = here_gpu(scripted({16: 3.0, 32: 1.0, 64: 2.0}))
    final = play(gpu, WORK, PLANS[:2], (PLANS[2], "by size"), {})
    assert final.winner == 1
    assert asked(gpu, "final") == [[16, 32, 64]]
    assert asked(gpu, "gate") == [[32]]
    assert [(one.role, one.origin, one.status) for one in final.finalists] == [
        ("candidate", "search", "ok"), ("candidate", "search", "ok"), ("incumbent", "by size", "ok")
    ]  # fmt: skip
    assert [one.samples_ms for one in final.finalists] == [(3.0,) * SAMPLES, (1.0,) * SAMPLES, (2.0,) * SAMPLES]


@pytest.mark.parametrize(
    ("times", "winner"),
    [
        ({16: TIE - 1e-4, 32: 1.0, 64: 1.0}, 0),
        ({16: TIE + 1e-4, 32: 1.0, 64: 1.0}, 1),
        ({16: 1.0, 32: 1.0 / TIE + 1e-4, 64: 1.0}, 0),
    ],
)
def test_a_tie_goes_to_the_first(here_gpu, times, winner) -> None:
    assert play(here_gpu(scripted(times)), WORK, PLANS[:3], None, {}).winner == winner


def test_a_winner_that_is_wrong_hands_over_to_the_next(here_gpu) -> None:
    gpu = here_gpu(scripted({16: 3.0, 32: 1.0, 64: 2.0}, gates={32: WRONG, 64: WRONG}))
    final = play(gpu, WORK, PLANS[:3], None, {})
    assert final.winner == 0
    assert asked(gpu, "gate") == [[32], [64], [16]]
    assert [one.status for one in final.finalists] == ["ok", "wrong", "wrong"]
    assert final.finalists[1].reason == "o is off"
    assert [one.status for one in final.lost] == ["wrong", "wrong"]


def test_plans_that_break_the_finals_are_found_one_by_one(here_gpu) -> None:
    gpu = here_gpu(scripted({16: 3.0, 128: 2.0}, fails={32: DEAD, 64: SHORT}))
    final = play(gpu, WORK, PLANS, None, {})
    assert asked(gpu, "final") == [[16, 32, 64, 128], [16], [32], [64], [128], [16, 128]]
    assert final.winner == 3
    assert [(one.status, one.reason, len(one.samples_ms)) for one in final.finalists] == [
        ("ok", None, SAMPLES), (*DEAD.values(), 0), (*SHORT.values(), 0), ("ok", None, SAMPLES)
    ]  # fmt: skip


def test_where_every_plan_fails_nobody_wins(here_gpu) -> None:
    every = dict.fromkeys(CHUNKS, DEAD)
    assert play(here_gpu(scripted({}, fails=every)), WORK, PLANS, None, {}).winner is None
    wrong = dict.fromkeys(CHUNKS, WRONG)
    final = play(here_gpu(scripted(dict.fromkeys(CHUNKS, 1.0), gates=wrong)), WORK, PLANS, None, {})
    assert (final.winner, {one.status for one in final.finalists}) == (None, {"wrong"})
    gpu = here_gpu(scripted({}))
    assert play(gpu, WORK, [], None, {}) == finals.Final((), None)
    assert gpu.asked == []


# --- Who gets there --------------------------------------------------------------------------------------------------


def measured(space: Space, ms_of: Callable[[str], float]) -> History:
    history = History(space)
    for key in space.candidates:
        history.add(key, "ok", None, [ms_of(key)])
    return history


def level(space: Space) -> History:
    """All outputs take 10 ms, states next to nothing."""
    return measured(space, lambda key: 10.0 if space.candidates[key].step == "output" else 1e-6)


def test_the_fastest_variants_get_there_in_the_order_of_the_space(space: Space) -> None:
    history = level(space)
    order = [v for v in space.menus if v.schedule.rows == v.block_t]  # all with output kernels of their own
    fast = {order[9]: 1.00, order[2]: 1.01, order[5]: 1.04, order[7]: 1.02}
    for variant, ms in fast.items():
        history.results[space.menus[variant]["output"][0]].samples_ms = [ms]
    found = [Variant(plan.schedule, plan.config.block_t) for plan in contenders(history)]
    close = [v for v in space.menus if history.total(v) <= CLOSE]
    ranked = sorted(close, key=history.total)[:MOST]
    assert found == [v for v in space.menus if v in ranked]
    assert len(found) == MOST
    assert order[9] in found


def test_nobody_far_behind_gets_there(space: Space) -> None:
    history = level(space)
    best = next(iter(space.menus))
    history.results[space.menus[best]["output"][0]].samples_ms = [1.0]
    same = [v for v in space.menus if history.total(v) < 10.0]
    assert len(contenders(history)) == min(MOST, len(same)) < len(space.menus)
    assert contenders(History(space)) == []


@pytest.mark.parametrize(("second", "chosen"), [(KERNEL_TIE - 0.001, 0), (KERNEL_TIE + 0.001, 3)])
def test_a_tie_of_tiles_goes_to_the_first_of_the_space(space: Space, second: float, chosen: int) -> None:
    history = level(space)
    variant = list(space.menus)[-1]
    keys = space.menus[variant]["output"]
    history.results[keys[3]].samples_ms = [1.0]
    history.results[keys[0]].samples_ms = [second]
    plan = best_plan(history, variant)
    assert plan.config.output == space.member(variant, "output", keys[chosen]).tile
    assert (plan.schedule, plan.config.block_t) == (variant.schedule, variant.block_t)


# --- What fails only there -------------------------------------------------------------------------------------------


def tuned(fake: ModuleType, space: Space) -> History:
    return measured(space, lambda key: fake.ms_of(space.candidates[key].to_dict()))


@pytest.fixture
def small() -> Space:
    return without_walks(Workload("fwd", 4, 300, 4, 64, 64, schedule=Schedule(64, 64, True)))


def test_a_candidate_that_is_found_out_at_the_gate_does_not_take_its_plan_along(small, fake, here_gpu, plant) -> None:
    clean = decide(here_gpu(), tuned(fake, small), None, {})
    plan = Plan.from_dict(clean.finalists[clean.winner or 0].plan)
    won = candidates_of(small.work, plan, 90)
    bad = next(one for one in small.candidates.values() if one.variant == won[0].variant and one not in won)
    plant({bad: "too good"})
    history = tuned(fake, small)
    final = decide(here_gpu(), history, None, {})
    assert final.finalists[final.winner or 0].plan == plan.to_dict()
    assert [(one.status, one.role) for one in final.finalists] == [("ok", "candidate"), ("wrong", "candidate")]
    marked = {small.candidates[key]: result.reason for key, result in history.results.items() if result.status != "ok"}
    assert marked == {bad: "in the finals: o is off by 1.0e+00, 1.0e-02 is allowed (relative to float64)"}


def test_where_no_candidate_is_to_blame_the_plan_is_out_as_a_whole(small, fake, here_gpu) -> None:
    first, answers = None, 0

    def flaky(request: Json) -> Json:
        """The first plan that is gated is wrong that once."""
        nonlocal first, answers
        if request["do"] == "gate":
            answers += 1
            if answers == 1:
                first = request["plans"]["fwd"]
                return WRONG
        found: Json = fake.handle(request)
        return found

    history = tuned(fake, small)
    final = decide(here_gpu(flaky), history, (PLANS[3], "by size"), {})
    assert final.winner is not None
    assert final.finalists[final.winner].plan != first
    assert final.finalists[-1].plan == first
    out = {small.candidates[key].step for key, result in history.results.items() if result.status == "wrong"}
    assert out == {"states", "output"}


def test_the_finals_end_where_every_plan_of_the_search_fails(small, fake, here_gpu) -> None:
    incumbent = Plan(Schedule(128, 16), default_config(64, 64, 2, Schedule(128, 16)))

    def handle(request: Json) -> Json:
        if request["do"] == "gate" and request["plans"]["fwd"] != incumbent.to_dict():
            return WRONG
        found: Json = fake.handle(request)
        return found

    final = decide(here_gpu(handle), tuned(fake, small), (incumbent, "by size"), {})
    assert final.winner is not None
    assert final.finalists[final.winner].role == "incumbent"
    plans = [str(one.plan) for one in final.finalists]
    assert len(set(plans)) == len(plans) > finals.ROUNDS - 1
    assert {one.status for one in final.finalists if one.role == "candidate"} == {"wrong"}
