"""The median and its interval, by hand and against simulated samples."""

from __future__ import annotations

import math
import random

import pytest

from glabench.analysis.statistics import estimate, geometric_mean, interval_rank, log_log_crossing


def test_median_of_odd_and_even_numbers_of_samples() -> None:
    assert estimate([3.0, 1.0, 2.0]).median == 2.0
    assert estimate([4.0, 1.0, 2.0, 3.0]).median == 2.5


def test_six_samples_are_the_fewest_that_reach_95_percent() -> None:
    # The range of n samples misses the median with probability 2 / 2^n: 6.25 % for five, 3.1 % for six.
    assert interval_rank(5) is None
    assert interval_rank(6) == 1
    few, enough = estimate([1, 2, 3, 4, 5]), estimate([1, 2, 3, 4, 5, 6])
    assert (few.low, few.high, few.kind) == (1, 5, "range")
    assert (enough.low, enough.high, enough.kind) == (1, 6, "95 %")


def test_rank_agrees_with_the_usual_table() -> None:
    # Order statistics for a 95 % interval of the median (Conover, Practical Nonparametric Statistics).
    assert {n: interval_rank(n) for n in (9, 10, 20, 30, 50, 100)} == {9: 2, 10: 2, 20: 6, 30: 10, 50: 18, 100: 40}


def test_interval_of_ten_samples_by_hand() -> None:
    found = estimate([10, 9, 8, 7, 6, 5, 4, 3, 2, 1])
    assert (found.median, found.low, found.high, found.samples) == (5.5, 2, 9, 10)


def test_one_sample_has_a_median_and_no_interval() -> None:
    found = estimate([1.5])
    assert found.median == 1.5
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert found.kind == "none"


def test_no_sample_and_samples_that_are_not_finite() -> None:
    assert math.isnan(estimate([]).median)
    found = estimate([math.nan, 2.0, math.inf])
    assert (found.median, found.samples) == (2.0, 1)


def test_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = random.Random(3)
    truth = math.exp(0.0)  # the median of a log-normal with mu = 0, a skewed distribution as timings have
    hits = 0
    for _ in range(2000):
        found = estimate([rng.lognormvariate(0, 0.5) for _ in range(15)])
        hits += found.low <= truth <= found.high
    assert hits / 2000 > 0.945  # 96.5 % in theory for 15 samples


def test_geometric_mean_leaves_out_what_has_no_logarithm() -> None:
    assert geometric_mean([1.0, 4.0, 16.0]) == pytest.approx(4.0)
    assert geometric_mean([2.0, math.nan, 0.0, math.inf, 8.0]) == pytest.approx(4.0)
    assert math.isnan(geometric_mean([]))


def test_crossing_is_straight_in_log_log() -> None:
    # The ratio goes from 1/2 to 2 between 1024 and 4096: it is 1 at the geometric middle.
    assert log_log_crossing(1024, 4096, 0.5, 2.0) == pytest.approx(2048)
    # From 1/2 to 8 it passes a quarter of the way: 1024 * 4^(1/4).
    assert log_log_crossing(1024, 4096, 0.5, 8.0) == pytest.approx(1024 * 4**0.25)
    assert log_log_crossing(1024, 4096, 1.5, 2.0) is None
