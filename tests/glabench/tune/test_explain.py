"""Why candidates lost, in words."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from glabench.analysis.tuning import Variant
from glabench.tune.explain import explain
from glabench.tune.why import Explanation, Row, explanation
from glabench.tuning_store import Finalist, Trial, Tuning

MakeTrial = Callable[..., Trial]
MakePlan = Callable[..., dict[str, Any]]

WON = Variant(64, 64, True, 32)
FINAL = Variant(64, 16, True, 16)
SLOW = Variant(128, 64, True, 32)
WALK = Variant(128, 128, False, 64)
HALF = Variant(256, 64, True, 32)
BEST, NEAR, FAR, OTHER = [64, 64, 4, 1], [64, 64, 8, 1], [32, 64, 4, 2], [128, 64, 4, 1]


def plain(variant: Variant, step: str, tile: list[int]) -> tuple[str, str, str]:
    block_k, block_v, warps, stages = tile
    return step, str(variant), f"{block_k}x{block_v}, {warps} warps, {stages} stage{'s' if stages > 1 else ''}"


@pytest.fixture
def tuning(make_tuning: Callable[..., Tuning], make_trial: MakeTrial, make_plan: MakePlan) -> Tuning:
    """One of everything: the winner takes 1 + 2 ms."""

    def steady(ms: float, count: int = 5) -> list[float]:
        return [ms] * count

    trials = (
        make_trial(WON, "states", BEST, steady(1.0), 1.0, shared=(FINAL,)),
        make_trial(WON, "states", NEAR, steady(0.995), 1.1),
        make_trial(WON, "states", FAR, steady(1.23), 1.2),
        make_trial(WON, "output", BEST, steady(2.0), 2.0),
        make_trial(WON, "output", FAR, steady(7.0, 2), 2.2),
        make_trial(WON, "output", OTHER, None, 9.0),
        make_trial(FINAL, "output", BEST, steady(2.02), 2.0),
        make_trial(SLOW, "states", BEST, steady(0.5), 1.0),
        make_trial(SLOW, "output", BEST, steady(4.0), 2.0),
        make_trial(WALK, "output", BEST, steady(3.3), 2.0),
        make_trial(HALF, "output", BEST, steady(1.5), 2.0),
        make_trial(SLOW, "output", OTHER, None, 2.0, status="wrong", reason="o: error 1.8 exceeds 0.005"),
        make_trial(SLOW, "output", FAR, None, 2.0, status="compile_error", reason="needs 260 KiB of shared memory"),
        make_trial(HALF, "states", FAR, None, 1.0, status="timeout", reason="no result after 15 s"),
    )
    best = make_plan(WON, {"states": BEST, "output": BEST})
    second = make_plan(FINAL, {"states": BEST, "output": BEST})
    finalists = (
        Finalist(best, "candidate", "search", "ok", None, tuple(steady(3.0, 25))),
        Finalist(second, "candidate", "search", "ok", None, tuple(steady(3.06, 25))),
        Finalist(best, "incumbent", "by size", "ok", None, tuple(steady(3.003, 25))),
    )
    return replace(make_tuning(), trials=trials, finalists=finalists, winner=0, feasible=228)


def row(told: Explanation, variant: Variant, step: str, tile: list[int]) -> Row:
    shape = plain(variant, step, tile)
    (found,) = [r for r in told.rows[step] if (r.step, r.variant.removesuffix(" (+1)"), r.tile) == shape]
    return found


@pytest.mark.parametrize(
    ("variant", "step", "tile", "why"),
    [
        (WON, "states", BEST, "in the winner"),
        (WON, "states", NEAR, "within noise of 64x64, 4 warps, 1 stage (0.995x), lost the tie-break"),
        (WON, "states", FAR, "1.23x slower than the best of its pass, 64x64, 4 warps, 1 stage"),
        (
            WON, "output", FAR,
            "dropped after 2 samples: 3.50x slower than the best of its pass, 64x64, 4 warps, 1 stage",
        ),
        (WON, "output", OTHER, "predicted too slow, not measured (4.50x the best predicted)"),
        (FINAL, "output", BEST, "best of its variant, whose plan lost the final: 1.020x the winner"),
        (
            SLOW, "states", BEST,
            "its variant's other passes cost more: 128/64 w/ m., rows of 32 needs 4.50 ms in all, the best 3.00",
        ),
        (
            SLOW, "output", BEST,
            "best of its variant, which is slower: 128/64 w/ m., rows of 32 needs 4.50 ms in all, the best 3.00",
        ),
        (
            WALK, "output", BEST,
            "best of its variant, which is slower: 128/128 w/o m., rows of 64 needs 3.30 ms in all, the best 3.00",
        ),
        (HALF, "output", BEST, "its variant has no time for states"),
        (SLOW, "output", OTHER, "wrong: o: error 1.8 exceeds 0.005"),
        (SLOW, "output", FAR, "compile error: needs 260 KiB of shared memory"),
        (HALF, "states", FAR, "ran out of time: no result after 15 s"),
    ],
)  # fmt: skip
def test_why_each_lost(tuning: Tuning, variant: Variant, step: str, tile: list[int], why: str) -> None:
    assert row(explanation(tuning), variant, step, tile).why == why


def test_rows_come_best_first_and_failures_last(tuning: Tuning) -> None:
    states = explanation(tuning).rows["states"]
    assert [r.time.median for r in states[:4]] == [1.0, 0.5, 0.995, 1.23]
    assert states[0].won
    assert states[-1].why.startswith("ran out of time")
    assert states[0].compiled["registers"] == 168


def test_where_the_winner_spends_its_time(tuning: Tuning) -> None:
    told = explanation(tuning)
    assert [(one.step, one.ms) for one in told.passes] == [("states", 1.0), ("output", 2.0)]
    assert "14 of 228 feasible candidates measured (6.1%)" in told.facts[0]
    assert any("214 candidates were never looked at" in fact for fact in told.facts)


def test_what_became_of_whole_plans(tuning: Tuning) -> None:
    said = [(source, verdict) for _, source, _, verdict in explanation(tuning).plans]
    assert said == [
        ("search", "won"),
        ("search", "lost the final: 1.020x the winner"),
        ("in use: by size", "is the winner's own plan, at 1.001x of its time"),
    ]
    refused = replace(tuning.finalists[1], status="wrong", reason="dg: error 2")
    told = explanation(replace(tuning, finalists=(tuning.finalists[0], refused)))
    assert told.plans[1][3] == "was refused, wrong: dg: error 2"
    assert "whose plan was refused, wrong: dg: error 2" in row(told, FINAL, "output", BEST).why


def test_candidates_are_judged_without_a_winner(tuning: Tuning) -> None:
    refused = tuple(replace(one, status="wrong", reason="o: error 2") for one in tuning.finalists)
    told = explanation(replace(tuning, winner=None, finalists=refused))
    assert told.passes == ()
    assert "no plan won: none ran and was right" in told.facts
    assert not any(r.won for rows in told.rows.values() for r in rows)
    assert "1.24x slower" in row(told, WON, "states", FAR).why


def test_the_plan_in_use_may_stay(tuning: Tuning) -> None:
    assert "the plan in use stays: nothing faster was found" in explanation(replace(tuning, winner=2)).facts


def printed(tunings: list[Tuning], top: int | None = 20) -> str:
    out = Console(file=io.StringIO(), width=400, highlight=False, markup=False)
    explain(tunings, "tuned here for B=4", top, out)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_newest_is_printed_with_what_runs_now(tuning: Tuning) -> None:
    old = replace(tuning, started="2020-01-01T00:00:00", strategy="halving")
    said = printed([tuning, old])
    assert "gla() runs: tuned here for B=4" in said
    assert "strategy model" in said
    assert "halving" not in said
    assert "the newest of 2 tunings" in said
    assert "within noise of" in said


def test_what_is_left_out_is_counted(tuning: Tuning) -> None:
    said = printed([tuning], top=2)
    assert "7 more (4 slower, 1 wrong, 1 compile error, 1 predicted too slow, not measured)" in said
    assert "--all shows them" not in printed([tuning], top=None)
    assert "needs 260 KiB" in printed([tuning], top=None)


def test_every_made_up_tuning_can_be_explained(tunings: list[Tuning]) -> None:
    for tuning in tunings:
        rows = explanation(tuning).rows
        assert sum(map(len, rows.values())) == len(tuning.trials)
        assert all(r.why for found in rows.values() for r in found)


def test_nothing_to_explain() -> None:
    with pytest.raises(ValueError, match="at least one"):
        explain([], "by size")
