"""The verdict on time: what is found, what is not called, and at which rates."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glabench.analysis.spread import DEFAULT_SPREAD
from glabench.check.noise import LEAST_SPREAD, Noise, noise, noise_of_turns
from glabench.check.power import simulate
from glabench.check.timing import judge_time
from glabench.check.verdict import check
from glabench.check.within import bootstrap_error

from .conftest import MakeRun

QUIET = Noise(0.002, 8)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1.0, "same"), (1.005, "same"), (0.995, "same"), (1.04, "slower"), (0.96, "faster")],
)
def test_a_ratio_is_called_by_what_it_is(make_run: MakeRun, ratio: float, expected: str) -> None:
    before = [make_run(seed=seed) for seed in (1, 2, 3)]
    after = [make_run(ms=ratio, seed=seed) for seed in (4, 5, 6)]
    found = judge_time(before[0].case_id, before, after, QUIET, 0.03, cases=20)
    assert found is not None
    assert found.verdict == expected
    assert found.low < found.ratio < found.high
    assert found.ratio == pytest.approx(ratio, rel=0.003)


def test_noise_makes_the_same_ratio_ambiguous(make_run: MakeRun) -> None:
    found = judge_time("x", [make_run()], [make_run(ms=1.04, seed=1)], Noise(0.02, 8), 0.03, cases=20)
    assert found is not None
    assert found.verdict == "ambiguous"
    assert found.needed > 1.04


def test_two_runs_that_lie_far_apart_leave_a_floor_that_can_be_read(make_run: MakeRun) -> None:
    """One run before and two after, of cases that are not alike: a degree of freedom for each."""
    sizes = range(1024, 1024 + 40)
    after = [make_run(T=T, seed=1) for T in sizes] + [
        make_run(T=T, ms=(1.0003, 1.05, 1.3, 3)[T % 4], seed=2) for T in sizes
    ]
    found = check([make_run(T=T) for T in sizes], after, 0.03)
    assert found.counts == {"ambiguous": 40}
    assert max(case.time.floor for case in found.cases if case.time) == pytest.approx(100)
    lost = judge_time("x", [make_run()], [make_run(ms=101.0, seed=1)], Noise(5.0, 20), 0.03, cases=100)
    assert lost is not None
    assert lost.verdict == "slower"


def test_more_cases_ask_for_more_certainty(make_run: MakeRun) -> None:
    runs = [make_run()], [make_run(ms=1.02, seed=1)]
    one, many = (judge_time("x", *runs, QUIET, 0.03, cases) for cases in (1, 1000))
    assert one is not None
    assert many is not None
    assert many.floor > one.floor
    assert many.high - many.low > one.high - one.low


def test_without_a_time_there_is_no_verdict(make_run: MakeRun) -> None:
    assert judge_time("x", [make_run()], [make_run(time=None)], QUIET, 0.03, 1) is None


def test_the_bootstrap_knows_the_error_of_a_median() -> None:
    """Of n normal samples it is sqrt(pi / 2n) times their standard deviation."""
    spread = 0.01
    samples = np.exp(np.random.default_rng(0).normal(0, spread, 2000)).tolist()
    assert bootstrap_error(samples) == pytest.approx(spread * math.sqrt(math.pi / 2 / 2000), rel=0.25)


def test_the_bootstrap_sees_that_neighbours_are_alike() -> None:
    drifting = np.exp(np.repeat(np.random.default_rng(0).normal(0, 0.01, 20), 50)).tolist()
    shuffled = np.random.default_rng(1).permutation(drifting).tolist()
    assert bootstrap_error(drifting) > 2 * bootstrap_error(shuffled)


def test_the_spread_of_runs_is_found(make_run: MakeRun) -> None:
    offsets = (0.98, 1.0, 1.02)
    groups = [(str(i), [make_run(ms=x, seed=7) for x in offsets]) for i in range(6)]
    found = noise(groups)
    assert found.pooled == pytest.approx(0.02, rel=0.02)
    assert found.repeats == 12
    assert found.spread("0", "cuda_events_cold_l2") == pytest.approx(0.02, rel=0.02)


def test_few_repeats_that_agree_by_chance_do_not_make_a_quiet_machine() -> None:
    few, many = (Noise(0.0, repeats).spread("x", "cuda_events_cold_l2") for repeats in (2, 50))
    assert few > 0.8 * DEFAULT_SPREAD["cuda_events_cold_l2"] > many


def test_what_drifts_from_turn_to_turn_cancels(make_run: MakeRun) -> None:
    drift = (1.0, 1.1, 1.2, 1.3)
    before, after = ([make_run(ms=ms * x, seed=7) for x in drift] for ms in (1.0, 1.05))
    assert noise_of_turns([("x", before, after)]).pooled == pytest.approx(0, abs=1e-9)
    assert noise([("x", before), ("x", after)]).pooled == pytest.approx(0.11, rel=0.1)
    # two values that differ by s sqrt(2) each are of runs that spread by s
    apart = [make_run(ms=x, seed=7) for x in (1.0, 1.0, 1.04)], [make_run(ms=x, seed=7) for x in (1.04, 1.0, 1.0)]
    assert noise_of_turns([("x", *apart)]).pooled == pytest.approx(math.log(1.04) / math.sqrt(2), rel=1e-6)


def test_a_restless_case_has_its_own_spread_and_does_not_hide_the_others(make_run: MakeRun) -> None:
    quiet = [(str(i), [make_run(ms=x, seed=7) for x in (1.0, 1.002)]) for i in range(9)]
    loud = ("loud", [make_run(ms=x, seed=7) for x in (0.9, 1.0, 1.1)])
    found = noise([*quiet, loud])
    assert found.spread("0", "cuda_events_cold_l2") < 0.005
    assert found.spread("loud", "cuda_events_cold_l2") > 0.05


def test_without_repeats_the_default_of_the_clock_holds(make_run: MakeRun) -> None:
    found = noise([("x", [make_run()])])
    assert found.pooled is None
    for clock, spread in DEFAULT_SPREAD.items():
        assert found.spread("x", clock) == pytest.approx(spread)
    assert Noise(0.0, 50).spread("x", "cuda_events_cold_l2") == LEAST_SPREAD


def test_a_case_among_others_that_are_not_alike_leans_on_its_own_runs(make_run: MakeRun) -> None:
    """A quantile of an estimate from four degrees of freedom is larger than a normal one, where nothing is lent."""
    clock, tail = "cuda_events_cold_l2", 1e-4
    alike, mixed = (
        noise([(str(i), [make_run(ms=1 + (spread if j == 1 else 0), seed=7) for j in range(5)]) for i, spread in given])
        for given in (enumerate([0.01] * 20), enumerate([0.003] * 10 + [0.03] * 10))
    )
    assert alike.alike > 8 > 2 >= mixed.alike
    normal, four = 3.72, 13.04
    assert normal < alike.reach("19", clock, tail) / alike.spread("19", clock) < 5.0
    assert 9.0 < mixed.reach("19", clock, tail) / mixed.spread("19", clock) <= four


def test_a_case_alone_has_nothing_but_its_own_runs(make_run: MakeRun) -> None:
    found = noise([("x", [make_run(ms=ms, seed=7) for ms in (0.97, 1.0, 1.03)])])
    assert found.spread("x", "cuda_events_cold_l2") == pytest.approx(0.03, rel=0.01)
    assert found.reach("x", "cuda_events_cold_l2", 0.005) == pytest.approx(9.925 * 0.03, rel=0.01)


def test_few_cases_stand_beside_those_of_another_comparison(make_run: MakeRun) -> None:
    quiet = noise([(str(i), [make_run(ms=ms, seed=7) for ms in (1.0, 1.002, 1.004)]) for i in range(20)])
    few = noise([("0", [make_run(ms=ms, seed=7) for ms in (1.0, 1.004)])]).beside(quiet)
    assert few.repeats == 19 * 2 + 1
    assert few.cases["0"][1] == 1


# Spread of 0.3 % from run to run, three runs a side: the rates that the gate must keep.
def test_a_a_comparisons_are_not_called(make_run: MakeRun) -> None:
    calls = simulate([make_run(T=64 * i) for i in range(1, 11)], 1.0, 0.003, rounds=10)
    assert calls.slower + calls.faster <= 0.01


def test_restless_cases_among_quiet_ones_do_not_fail_checks(make_run: MakeRun) -> None:
    """With quantiles of the normal distribution it was a tenth of them."""
    rows = [make_run(T=64 * i, time={"clock": "cuda_events_cold_l2", "samples_ms": [1.0]}) for i in range(1, 17)]
    calls = simulate(rows, 1.0, [0.003] * 12 + [0.02] * 4, rounds=20)
    assert calls.rounds <= 0.05


@pytest.mark.parametrize(("factor", "least"), [(1.03, 0.90), (1.05, 0.99)])
def test_planted_slow_downs_are_found(make_run: MakeRun, factor: float, least: float) -> None:
    calls = simulate([make_run(T=64 * i) for i in range(1, 11)], factor, 0.003, rounds=10)
    assert calls.slower >= least
    assert calls.faster == 0


def test_a_planted_speed_up_is_no_slow_down(make_run: MakeRun) -> None:
    calls = simulate([make_run(T=64 * i) for i in range(1, 6)], 1 / 1.05, 0.003, rounds=5)
    assert calls.faster >= 0.99
    assert calls.slower == 0
