"""Ratios of two systems in two runs, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from glabench.analysis.ratios import HELD_BACK, LAUNCH_BOUND, ratios, share_within, shares_by_system
from glabench.errors import UserError
from glabench.spec.case import Case
from glabench.store import Row


def row(system: str, ms: float, T: int = 1024, **more: Any) -> Row:
    heads: dict[str, Any] = (
        {"attn_heads": 4, "attn_dim": 64, "gate_strength": None} if system in ("fa2", "cudnn") else {}
    )
    case = Case(system, 2, T, 4, 64, 64, **heads, **more)
    time = {"clock": "cuda_events_cold_l2", "samples_ms": [ms] * 10, "launch_bound": system == "chunkwise_torch"}
    return Row(case.id, "s", case.to_dict(), "ok", time=time, environment={"device": "NVIDIA H200"}, started="2026")


def test_a_ratio_is_that_of_medians_and_the_least_alike_come_first() -> None:
    before = [row("gla", 1.0), row("fa2", 2.0), row("cudnn", 4.0)]
    after = [row("gla", 1.1), row("fa2", 2.2), row("cudnn", 4.0)]  # a slower machine, but for cuDNN
    found = ratios(before, after)
    assert [(ratio.one, ratio.other) for ratio in found[2:]] == [("GLA, default schedule", "FlashAttention-2")]
    assert (found[2].before, found[2].after) == pytest.approx((0.5, 0.5))
    assert [ratio.change for ratio in found] == pytest.approx([0.1, 0.1, 0.0])
    assert share_within(found, 0.015) == pytest.approx(1 / 3)
    shares = list(shares_by_system(found, 0.015).items())
    assert shares[0] == ("cuDNN attention", 0.0)
    assert [share for _, share in shares[1:]] == [0.5, 0.5]
    assert "(2, 1024, 4, 64, 64) bf16 fwdbwd" in str(found[0])
    assert "10.0% apart" in str(found[0])


def test_what_waits_for_its_launches_or_was_held_back_is_told_apart() -> None:
    rows = [row("gla", 1.0), row("fa2", 2.0), row("chunkwise_torch", 9.0)]
    hot = [*rows[:1], replace(rows[1], clocks={"sm_mhz": 1750.0, "throttle": ["power cap"]}), *rows[2:]]
    found = {frozenset((one.one, one.other)): one.disturbed for one in ratios(rows, hot)}
    gla, fa2, plain = "GLA, default schedule", "FlashAttention-2", "PyTorch chunkwise"
    assert found == {
        frozenset((gla, fa2)): {HELD_BACK},
        frozenset((gla, plain)): {LAUNCH_BOUND},
        frozenset((fa2, plain)): {HELD_BACK, LAUNCH_BOUND},
    }
    assert not any(one.disturbed for one in ratios(rows[:2], rows[:2]))


def test_ratios_of_eager_calls_stand_beside_those_of_kernels() -> None:
    def called(row: Row, wall_ms: float) -> Row:
        return replace(row, time={**(row.time or {}), "eager": {"host_ms": [0.1], "wall_ms": [wall_ms] * 3}})

    before = [called(row("gla", 1.0), 1.2), called(row("fa2", 2.0), 2.4), row("cudnn", 4.0)]
    after = [called(row("gla", 1.0), 1.8), called(row("fa2", 2.0), 2.4), row("cudnn", 4.0)]  # a slower CPU
    found = {ratio.other: ratio for ratio in ratios(before, after) if ratio.one == "GLA, default schedule"}
    assert found["FlashAttention-2"].calls == pytest.approx((0.5, 0.75))
    assert found["FlashAttention-2"].change_in_calls == pytest.approx(0.5)
    assert found["FlashAttention-2"].change == 0
    assert math.isnan(found["cuDNN attention"].change_in_calls)


def test_where_the_clock_was_the_cause_the_ratio_of_cycles_stays() -> None:
    def at(row: Row, mhz: float) -> Row:
        return replace(row, clocks={"sm_mhz": 1980.0, "sm_mhz_counted": mhz})

    before = [at(row("gla", 1.0), 1980.0), at(row("cudnn", 3.0), 1600.0), row("fa2", 2.0)]
    after = [at(row("gla", 1.0), 1980.0), at(row("cudnn", 3.2), 1500.0), row("fa2", 2.0)]  # a chip that falls further
    found = {ratio.other: ratio for ratio in ratios(before, after) if ratio.one == "GLA, default schedule"}
    assert found["cuDNN attention"].change == pytest.approx(3.2 / 3 - 1)
    assert found["cuDNN attention"].change_in_cycles == pytest.approx(0, abs=1e-9)
    assert math.isnan(found["FlashAttention-2"].change_in_cycles)


def test_it_is_the_same_change_whichever_run_came_first() -> None:
    before, after = [row("gla", 1.0), row("fa2", 2.0)], [row("gla", 1.0), row("fa2", 2.2)]
    assert ratios(before, after)[0].change == pytest.approx(ratios(after, before)[0].change)


def test_only_what_both_runs_timed_is_compared_and_no_two_schedules() -> None:
    before = [row("gla", 1.0), row("gla", 1.5, chunk=64), row("fa2", 2.0), row("fa2", 8.0, T=4096)]
    after = [row("gla", 1.0), row("gla", 1.5, chunk=64), row("fa2", 2.0), row("gla", 3.0, T=4096)]
    assert sorted(ratio.before for ratio in ratios(before, after)) == pytest.approx([0.5, 0.75])


def test_runs_without_a_common_ratio_are_a_clear_error() -> None:
    with pytest.raises(UserError, match="no two systems"):
        ratios([row("gla", 1.0), row("fa2", 1.0)], [row("gla", 1.0)])
