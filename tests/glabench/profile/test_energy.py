"""Readings of an energy counter that moves every so often, as NVML's does."""

from __future__ import annotations

from itertools import count

import pytest

from glabench.failures import NotMeasured
from glabench.profile.energy import FEWEST_READINGS, Reading, Spent, per_call, readings_of, spent


def readings(watts: float, seconds: float, every_s: float, calls_per_s: float = 0.0) -> list[Reading]:
    """Looks every 5 ms at a counter that is written every ``every_s`` seconds, the first time after 13 ms."""
    found = []
    for step in range(int(seconds / 0.005)):
        now = step * 0.005
        written = int((now - 0.013) // every_s) * every_s + 0.013
        found.append(Reading(now, 1000.0 + watts * written, round(calls_per_s * now)))
    return found


@pytest.mark.parametrize("every_s", [0.02, 0.1])
def test_power_comes_out_right_though_the_counter_moves_rarely(every_s: float) -> None:
    found = spent(readings(600.0, 1.6, every_s, calls_per_s=1000))
    assert found.watts == pytest.approx(600.0, rel=0.01)
    assert found.calls == pytest.approx(1000 * found.seconds, abs=1)


@pytest.mark.parametrize("found", [[], [Reading(0, 5.0, 0)] * 9, readings(300.0, 0.3, 0.1)])
def test_a_counter_that_moves_too_rarely_measures_nothing(found: list[Reading]) -> None:
    with pytest.raises(NotMeasured, match="moves too rarely"):
        spent(found)


def test_a_call_is_charged_what_it_draws_beyond_rest() -> None:
    found = per_call(Spent(1.0, 120.0, 0), Spent(2.0, 1240.0, 500), tokens=8192)
    assert found["joules"] == pytest.approx((1240 - 2 * 120) / 500)
    assert (found["idle_w"], found["mean_w"]) == (120.0, 620.0)
    assert (found["seconds"], found["calls"], found["tokens"]) == (2.0, 500, 8192)


def test_calls_that_draw_no_more_than_rest_have_no_energy() -> None:
    with pytest.raises(NotMeasured, match=r"no more \(100 W\) than the GPU at rest \(120 W\)"):
        per_call(Spent(1.0, 120.0, 0), Spent(1.0, 100.0, 5), tokens=1)


def test_a_look_follows_each_piece_of_work() -> None:
    ticks = count()
    found = readings_of(lambda: 3, lambda: float(next(ticks)), 0.0)
    assert [(reading.joules, reading.calls) for reading in found] == [(float(i), 3 * i) for i in range(FEWEST_READINGS)]
    assert found == sorted(found, key=lambda reading: reading.seconds)
