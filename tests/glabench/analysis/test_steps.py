"""Change points of made-up series: steps are found where they are, and noise, drifts and single nights are none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glabench.analysis.steps import Change, levels, own_noise, typical_noise

NOISE = 0.003


def series(nights: int, seed: int, noise: float = NOISE) -> np.ndarray:
    """Logarithms of times that only noise moves."""
    return np.random.default_rng(seed).normal(0, noise, nights)


def changes(logs: np.ndarray, noise: float = NOISE) -> tuple[Change, ...]:
    return levels(np.exp(logs).tolist(), noise).changes


def test_noise_has_no_change() -> None:
    """At 1 %, for at 0.3 % LEAST_STEP alone would hide what is wrong. Of 1000 series of 30 nights 3 are called, and at
    most 5 may be."""
    called = [seed for seed in range(1000) if changes(series(30, seed, 0.01), 0.01)]
    assert 0 < len(called) <= 5


@pytest.mark.parametrize("at", [2, 7, 20, 38])
@pytest.mark.parametrize("size", [0.03, -0.03])
def test_a_step_of_three_percent_is_found_within_a_night(at: int, size: float) -> None:
    for seed in range(20):
        logs = series(40, seed)
        logs[at:] += math.log1p(size)
        (found,) = changes(logs)
        assert abs(found.at - at) <= 1
        assert not found.drift
        assert found.since == found.at - 1
        assert found.low < found.ratio < found.high
        assert found.ratio == pytest.approx(1 + size, abs=5 * NOISE / math.sqrt(min(at, 40 - at)))


def test_a_step_of_one_night_waits_for_the_next() -> None:
    logs = series(40, 1)
    logs[39:] += 0.05
    assert changes(logs) == ()


@pytest.mark.parametrize("at", [0, 1, 20, 38, 39])
def test_a_night_alone_is_no_change(at: int) -> None:
    for size in (0.3, -0.3):
        logs = series(40, 2)
        logs[at] += size
        assert changes(logs) == ()


@pytest.mark.parametrize("total", [0.02, 0.05, 0.3])
def test_a_drift_is_no_step(total: float) -> None:
    for seed in range(20):
        found = changes(series(60, seed) + np.linspace(0, total, 60))
        assert found
        assert all(change.drift for change in found)
        assert math.prod(change.ratio for change in found) == pytest.approx(math.exp(total), rel=4 * NOISE)


def test_two_steps_are_two_and_a_small_one_is_none() -> None:
    logs = series(60, 4)
    logs[20:] += 0.04
    logs[40:] -= 0.04
    assert [(change.at, change.ratio > 1) for change in changes(logs)] == [(20, True), (40, False)]
    assert changes(np.repeat([0.0, 0.008], 30) + series(60, 4, 0.0003)) == ()


def test_noise_is_that_of_neighbours_and_leans_on_other_cases_where_nights_are_few() -> None:
    steps = np.exp(series(200, 5) + np.repeat([0.0, 0.5, 0.1, 0.9], 50)).tolist()
    assert own_noise(steps) == pytest.approx(NOISE, rel=0.2)
    assert typical_noise([[1.0], []], 0.02) == 0.02
    assert typical_noise([steps, [1.0, 1.5]], 0.001) == pytest.approx(
        np.median([NOISE, own_noise([1.0, 1.5])]), rel=0.2
    )
    calm, few = levels([1.0, 1.0, 1.0], 0.02), levels([1.0, 1.05, 1.0, 1.05], 0.02)
    assert 0.01 < calm.noise < 0.02
    assert few.changes == ()


def test_short_series_have_a_level_and_no_change() -> None:
    assert levels([], NOISE).stretches == ()
    for ms in ([2.0], [2.0, 3.0], [2.0, 3.0, 3.0]):
        found = levels(ms, NOISE)
        assert found.changes == ()
        assert [(one.start, one.end) for one in found.stretches] == [(0, len(ms))]
