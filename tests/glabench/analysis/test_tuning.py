"""What tunings come to: sums of passes, gains, correlations, and two tunings of one workload beside each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gla_kernels import Schedule, Workload
from gla_kernels.schedule import PASSES as KERNEL_PASSES
from gla_kernels.schedule import Direction, steps_of
from glabench.analysis import retuned
from glabench.analysis.load import load_tunings, tuning_files
from glabench.analysis.retuned import across_code, agreement, pair, searched
from glabench.analysis.tuning import (
    PASSES,
    Sums,
    Variant,
    descent,
    gain,
    gains,
    progress,
    rank_correlation,
    runs,
    table,
    variants,
    work_key,
)
from glabench.errors import UserError
from glabench.store import to_json as row_to_json
from glabench.tuning_store import Finalist, Trial, Tuning, from_json, to_json

MakeTrial = Callable[..., Trial]
MakePlan = Callable[..., dict[str, Any]]
MakeTuning = Callable[..., Tuning]

A = Variant(64, 16, True, 16)
B = Variant(64, 64, True, 16)
C = Variant(128, 16, False, 16)
DIRECTIONS: tuple[Direction, ...] = ("fwd", "bwd")
SMALL, LARGE = [32, 64, 4, 1], [64, 64, 4, 1]


@pytest.fixture
def trials(make_trial: MakeTrial) -> list[Trial]:
    """The states of A and B are one kernel; C has no states. Best: A 1 + 3, B 1 + 2, C 3.5."""
    return [
        make_trial(A, "states", LARGE, [2.0, 2.0, 2.0], 2.0, shared=(B,)),
        make_trial(A, "output", SMALL, [3.0, 3.1, 2.9], 1.0),
        make_trial(C, "output", SMALL, [3.5], 3.0),
        make_trial(A, "states", SMALL, [1.0, 5.0, 0.9], 2.5, shared=(B,)),
        make_trial(B, "output", SMALL, [2.0], 4.0),
        make_trial(B, "output", LARGE, None, 0.1, status="wrong", reason="o: error 2"),
    ]


def tuned(
    tuning: Tuning, trials: list[Trial], plans: list[tuple[dict[str, Any], float]], started: str = "", **changes: Any
) -> Tuning:
    """The tuning with these trials and these whole plans and their ms, of which the first won."""
    finalists = tuple(Finalist(p, "candidate", "search", "ok", None, (ms,)) for p, ms in plans)
    return replace(tuning, trials=tuple(trials), finalists=finalists, winner=0, started=started, **changes)


def test_passes_are_those_of_the_kernels() -> None:
    assert set(PASSES) - {"grad_q", "grad_k"} == set(KERNEL_PASSES)  # but for older records'
    assert len(PASSES) == len(set(PASSES))
    for direction, schedule, walks in product(DIRECTIONS, (Schedule(64), Schedule(64, 64, True, 4)), (False, True)):
        steps = steps_of(Workload(direction, 1, 4096, 1, 64, 64), schedule, walks)  # in the order in which they run
        assert tuple(step for step in PASSES if step in steps) == steps


def test_a_shared_kernel_counts_for_each_of_its_variants(trials: list[Trial]) -> None:
    sums = Sums(trials)
    assert (sums.total(A), sums.total(B), sums.total(C)) == (4.0, 3.0, 3.5)
    assert sums.ranking() == [B, C, A]


def test_a_variant_says_how_long_its_segments_are(make_trial: MakeTrial) -> None:
    cut = Variant(64, 64, True, 16, 32)
    assert (str(B), str(cut)) == ("64/64 w/ m., rows of 16", "64/64 w/ m., seg 32, rows of 16")
    trial = make_trial(A, "states", LARGE, [1.0], 1.0, shared=(cut,))
    assert variants(trial) == [A, cut]
    older = replace(trial, shared=((64, 64, True, 16),))  # a record from before there were segments
    assert variants(older) == [A, B]
    schedule = {"chunk": 64, "sub_chunk": 64, "materialize": True}
    assert Variant.of({"schedule": schedule | {"states_every": 32}, "block_t": 16}) == cut
    assert Variant.of({"schedule": schedule | {"states_every": None}, "block_t": 16}) == B
    assert Variant.of({"schedule": schedule, "block_t": 16}) == B


def test_a_variant_without_a_time_for_a_pass_has_no_sum(trials: list[Trial]) -> None:
    outputs = [trial for trial in trials if trial.candidate["step"] == "output"]
    assert Sums(outputs).total(B) == 2.0  # nothing says that there are states
    with_states = Sums([*outputs, replace(trials[0], shared=())])
    assert with_states.total(B) == math.inf
    assert with_states.ranking() == [C, A]


def test_states_that_were_given_are_no_part_of_a_backward_plan(make_trial: MakeTrial, make_tuning: MakeTuning) -> None:
    kept, again = (make_trial(v, "states", LARGE, [2.0]) for v in (A, C))
    others = [make_trial(v, step, LARGE, [3.0]) for v in (A, C) for step in ("grad_states", "grad_qk")]
    sums = Sums([kept, again, *others], given=True)
    assert (sums.total(A), sums.total(C)) == (6.0, 8.0)
    assert sums.steps(A) == ("grad_states", "grad_qk")
    assert Sums([kept, *others]).total(A) == 8.0
    tuning = make_tuning("bwd")
    assert work_key(tuning) != work_key(replace(tuning, states_given=True))


def test_passes_of_a_plan(trials: list[Trial], make_plan: MakePlan) -> None:
    sums = Sums(trials)
    assert sums.passes(make_plan(B, {"states": LARGE, "output": SMALL})) == {"states": 2.0, "output": 2.0}
    assert sums.passes(make_plan(C, {"output": SMALL})) == {"output": 3.5}
    wrong = sums.passes(make_plan(B, {"states": SMALL, "output": LARGE}))
    assert wrong["states"] == 1.0
    assert math.isnan(wrong["output"])


def test_a_plan_of_slices_takes_its_launches_several_times(
    trials: list[Trial], make_plan: MakePlan, make_tuning: MakeTuning
) -> None:
    times = ((astuple(C), "output", 4.0), (astuple(B), "states", 1.5))
    tuning = replace(make_tuning(), trials=tuple(trials), times=times)
    sums = Sums.of(tuning)
    assert [sums.total(one) for one in (A, B, C)] == [4.0, 3.5, 14.0]
    assert sums.ranking() == [B, A, C]
    assert sums.passes(make_plan(C, {"output": SMALL})) == {"output": 14.0}
    assert min(ms for _, ms in descent(tuning)) == 3.5


def test_an_older_record_does_not_compare_slices_with_whole_sequences(
    trials: list[Trial], make_plan: MakePlan, make_tuning: MakeTuning
) -> None:
    tuning = replace(make_tuning(), trials=tuple(trials), times=None)
    sums = Sums.of(tuning)
    assert sums.ranking() == [B, A]
    assert math.isnan(sums.passes(make_plan(C, {"output": SMALL}))["output"])
    (alone,) = (one for one in trials if Variant.of(one.candidate) == C)
    assert Sums.of(replace(tuning, trials=(alone,))).ranking() == [C]  # nothing to confuse it with


def test_tiles_that_do_not_run_make_no_difference(trials: list[Trial], make_plan: MakePlan) -> None:
    sums = Sums(trials)
    assert sums.same(make_plan(C, {"output": SMALL}), make_plan(C, {"output": SMALL, "states": SMALL}))
    assert not sums.same(make_plan(A, {"output": SMALL}), make_plan(A, {"output": SMALL, "states": SMALL}))


def test_the_best_plan_falls_as_candidates_are_measured(trials: list[Trial], make_tuning: MakeTuning) -> None:
    tuning = replace(make_tuning(), trials=tuple(trials))
    # A is whole after two; C is better; A's states get better, but not enough; B is whole after five.
    assert list(descent(tuning)) == [(2, 5.0), (3, 3.5), (4, 3.5), (5, 3.0)]


def test_progress_of_several_searches(trials: list[Trial], make_tuning: MakeTuning) -> None:
    slow = replace(make_tuning(), trials=tuple(trials))
    quick = replace(slow, trials=tuple(reversed(trials)))  # B's output, then the states: 3 ms after two
    found = {one.count: (one.typical, one.worst) for one in progress([slow, quick])}
    assert found[2] == pytest.approx(((5 / 3 + 1) / 2, 5 / 3))
    assert found[5] == (1.0, 1.0)
    assert found[1] == (math.inf, math.inf)


def test_rank_correlation_is_within_passes(make_trial: MakeTrial) -> None:
    # Each pass is predicted perfectly but for its unit: over all passes together that would look worse.
    perfect = [make_trial(A, "states", [i, 16, 4, 1], [float(i)], i * 100.0) for i in range(1, 7)]
    perfect += [make_trial(A, "output", [i, 16, 4, 1], [float(i)], i**3 / 100) for i in range(1, 7)]
    assert rank_correlation(perfect) == pytest.approx(1.0)
    reverse = [replace(t, predicted_ms=-t.predicted_ms) for t in perfect if t.candidate["step"] == "states"]
    assert rank_correlation(reverse) == pytest.approx(-1.0)
    assert rank_correlation([*perfect[6:], *reverse]) == pytest.approx(0.0)
    assert math.isnan(rank_correlation(perfect[:4]))
    assert math.isnan(rank_correlation([replace(t, predicted_ms=1.0) for t in perfect]))


def test_gain_is_incumbent_over_winner(make_tuning: MakeTuning, make_plan: MakePlan) -> None:
    new = Finalist(make_plan(A, {}), "candidate", "search", "ok", None, (1.0, 2.0, 3.0))
    old = Finalist(make_plan(B, {}), "incumbent", "by size", "ok", None, (3.0, 3.0, 9.0))
    one = replace(make_tuning(), finalists=(new, old), winner=0)
    assert gain(one) == 1.5
    assert gain(replace(one, winner=1)) == 1.0
    assert math.isnan(gain(replace(one, winner=None)))
    assert math.isnan(gain(replace(one, finalists=(new,))))
    assert math.isnan(gain(replace(one, finalists=(new, replace(old, status="wrong")))))
    twice = replace(one, finalists=(new, replace(old, samples_ms=(12.0,))))
    near = replace(one, finalists=(new, replace(old, origin="shipped for X, tuned at B=1 T=2 H=3, nearby")))
    own = replace(one, finalists=(new, replace(old, origin="tuned here at B=1 T=2 H=3", samples_ms=(2.0,))))
    found = gains([one, near, twice, own, replace(one, winner=None)])
    assert list(found) == ["tuned for their class", "tuned for a class nearby", "not tuned"]
    assert found["not tuned"].mean == pytest.approx(3.0)
    assert (found["not tuned"].worst, found["not tuned"].worst_of, found["not tuned"].count) == (6.0, twice, 2)
    assert found["tuned for a class nearby"].worst == 1.5
    assert found["tuned for their class"].worst == 1.0
    assert gains([replace(one, winner=None)]) == {}


def test_both_directions_of_a_shape_are_one_run(make_tuning: MakeTuning) -> None:
    both = [replace(make_tuning(direction), states_given=direction == "bwd") for direction in DIRECTIONS]
    assert len(runs([*both, make_tuning("fwd", T=1024)])) == 2


def test_the_table_has_a_line_a_tuning(tunings: list[Tuning]) -> None:
    found = table(tunings)
    assert len(found) == len(tunings)
    exhaustive = found[found["strategy"] == "exhaustive"]
    assert (exhaustive["measured"] == exhaustive["feasible"]).all()
    assert (exhaustive["failed"] > 0).any()
    assert (found["share"] == found["measured"] / found["feasible"]).all()
    lost = found.iloc[-1]
    assert lost["plan"] == ""
    assert math.isnan(lost["ms"])
    assert (found["sum_ms"] > 0).all()


def test_two_tunings_with_one_plan_agree(make_tuning: MakeTuning, trials: list[Trial], make_plan: MakePlan) -> None:
    plan = make_plan(C, {"output": SMALL})
    same = make_plan(C, {"output": SMALL, "states": LARGE, "grad_qk": LARGE})
    first, second = (tuned(make_tuning(), trials, [(p, ms)]) for p, ms in ((plan, 1.0), (same, 2.0)))
    found = pair(first, second)
    assert (found.ratio, found.basis, found.agrees) == (1.0, retuned.SAME_PLAN, True)


@pytest.mark.parametrize(("ms", "agrees"), [(0.98, False), (0.995, True), (1.005, True), (1.02, False)])
def test_winners_timed_in_turns(
    make_tuning: MakeTuning, trials: list[Trial], make_plan: MakePlan, ms: float, agrees: bool
) -> None:
    a, b = make_plan(A, {"output": SMALL}), make_plan(C, {"output": SMALL})
    first = tuned(make_tuning(), trials, [(a, 7.0)])  # of another run: what it says of the time does not count
    second = tuned(make_tuning(), trials, [(b, ms), (a, 1.0)])
    found = pair(first, second)
    assert (found.ratio, found.basis, found.agrees) == (ms, retuned.SAME_RUN, agrees)
    assert pair(second, first).ratio == pytest.approx(1 / ms)


def test_winners_by_sums_and_by_two_runs(
    make_tuning: MakeTuning, trials: list[Trial], make_plan: MakePlan, make_trial: MakeTrial
) -> None:
    a = make_plan(B, {"states": SMALL, "output": SMALL})
    b = make_plan(A, {"states": SMALL, "output": SMALL})
    first, second = tuned(make_tuning(), trials, [(a, 1.0)]), tuned(make_tuning(), trials[:1], [(b, 3.0)])
    assert pair(first, second).basis == retuned.SUMS
    assert pair(first, second).ratio == pytest.approx(4 / 3)
    unknown = tuned(make_tuning(), trials, [(make_plan(A, {"states": [16, 16, 4, 1], "output": SMALL}), 3.0)])
    assert pair(first, unknown).basis == retuned.TWO_RUNS
    assert pair(first, unknown).ratio == 3.0
    lost = pair(first, replace(second, winner=None))
    assert math.isnan(lost.ratio)
    assert not lost.agrees


def test_which_tunings_are_compared(make_tuning: MakeTuning) -> None:
    early, late = (make_tuning(seed=i, started=f"2026-11-2{i}") for i in (1, 2))
    whole = make_tuning(strategy="exhaustive", started="2026-11-20")
    others = [make_tuning("bwd"), make_tuning(T=1024), make_tuning(strategy="halving")]
    other_gpu = replace(early, environment={"device": "NVIDIA A100"}, started="2026-11-25")
    asks = {"chunk": 64, "sub_chunk": 16, "materialize": True}
    everything = [late, whole, *others, other_gpu, early, make_tuning(schedule=asks)]
    assert [(p.first, p.second) for p in agreement(everything)] == [(early, late)]
    assert across_code(everything) == []
    new = replace(late, environment=late.environment | {"commit": "f" * 40}, started="2026-11-23")
    assert [(p.first, p.second) for p in agreement([*everything, new])] == [(early, late)]
    assert [(p.first, p.second) for p in across_code([*everything, new])] == [(late, new)]
    found = searched(everything)
    assert {(p.first.strategy, p.second.strategy) for p in found} == {
        ("exhaustive", "model"),
        ("exhaustive", "halving"),
    }
    assert late.started in [p.second.started for p in found]
    assert len({work_key(t) for t in everything}) == 5


def test_a_search_is_judged_by_what_it_found_and_against_all_there_is(
    make_tuning: MakeTuning, trials: list[Trial], make_plan: MakePlan
) -> None:
    a, b, c = (make_plan(variant, {"output": SMALL, "states": SMALL}) for variant in (A, B, C))
    whole = tuned(make_tuning(strategy="exhaustive"), trials, [(a, 1.0)])
    whole = replace(whole, feasible=whole.measured)
    search = tuned(make_tuning(), trials, [(a, 1.0), (c, 1.3), (b, 1.2)])
    in_use, *others = search.finalists
    search = replace(search, finalists=(replace(in_use, role="incumbent"), *others))
    (found,) = searched([whole, search])
    assert (found.ratio, found.basis) == (1.2, retuned.SAME_RUN)
    assert searched([replace(whole, feasible=whole.measured + 1), search]) == []
    (nothing,) = searched([whole, replace(search, finalists=search.finalists[:1])])
    assert math.isnan(nothing.ratio)


def test_records_come_back_as_they_were(tunings: list[Tuning], tmp_path: Path) -> None:
    path = tmp_path / "tune.jsonl"
    path.write_text("".join(f"{to_json(tuning)}\n" for tuning in tunings) + to_json(tunings[0])[:99])
    told: list[str] = []
    assert load_tunings([path], told.append) == tunings
    assert f"tune.jsonl:{len(tunings) + 1}: not a tuning" in told[0]
    assert from_json(to_json(tunings[0])).trials[0].shared == tunings[0].trials[0].shared


def test_files_of_tunings_are_told_from_rows(make_row: Any, tunings: list[Tuning], tmp_path: Path) -> None:
    rows, found = tmp_path / "quick.jsonl", tmp_path / "tune.jsonl"
    rows.write_text(row_to_json(make_row("gla", [1.0])) + "\n")
    found.write_text("\n" + to_json(tunings[0]) + "\n")
    assert tuning_files([rows]) == []
    assert tuning_files([found]) == [found]
    with pytest.raises(UserError, match=r"tune\.jsonl holds tunings and .*quick\.jsonl does not; render them apart"):
        tuning_files([tmp_path])


@pytest.mark.parametrize(
    ("line", "said"),
    [('{"kind": "tuning", "schema": 99}', "schema 99"), ('{"kind": "tuning", "schema": 1}', "not a tuning")],
)
def test_a_file_without_a_tuning_that_can_be_read(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "tune.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UserError, match=said):
        load_tunings(tuning_files([path]))
