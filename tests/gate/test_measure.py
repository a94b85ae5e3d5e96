"""The campaign itself: what is planted, how much of it, in which order, and all of it once on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gla_kernels.launch import execute
from glabench import store
from glabench.errors import UserError
from glabench.run.child import Child
from glabench.spec.case import Case
from glabench.spec.expand import check, expand
from glabench.spec.settings import Settings
from glabench.spec.sweep import find, load

from . import planted
from .measure import HERE, Campaign, Run, amounts, main, plan

TINY = """
title: Tiny
defaults: {B: 1, T: 32, H: 1, K: 16, V: 16, dtype: fp32}
settings: {min_samples: 3, max_samples: 3, warmup_s: 0.01}
axes: {system: sdpa, mode: fwd}
"""


@pytest.mark.parametrize("n", [0, 1, 5])
def test_the_planted_kernel_takes_every_turn(device: torch.device, n: int) -> None:
    x = torch.empty(2 * planted.BLOCK, device=device)
    execute(planted.busy(x, n))
    expected = (torch.arange(2 * planted.BLOCK, device=device) - 2) / 2**n + 2  # exact in float32
    assert torch.equal(x, expected)


@pytest.mark.exhaustive
def test_the_planted_kernel_compiles_once_for_every_amount(
    compiling_process: Callable[..., str],
) -> None:
    code = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import planted
from glabench.hardware.crosscompile import cross_compile
x = torch.empty(planted.BLOCK, device="meta")
for arch in ("sm_80", "sm_90"):
    for entry in cross_compile([planted.busy(x, n) for n in (0, 1, 16, 12345)], arch):
        print(arch, entry["launches"], entry["error"], entry["spill_bytes"])
"""
    assert compiling_process("-c", code, str(HERE)).split("\n")[:-1] == ["sm_80 4 None 0", "sm_90 4 None 0"]


class Clock:
    """A machine that takes as long as it is told; it stands for the CPU's clock, and for what is planted."""

    ms = 0.0

    def __init__(self, plain_ms: float, least_ms: float, unit_ns: float) -> None:
        self.plain_ms, self.least_ms, self.unit_ns = plain_ms, least_ms, unit_ns

    def call(self) -> None:
        self.ms += self.plain_ms

    def plant(self, amount: int) -> None:
        self.ms += self.least_ms + amount * self.unit_ns * 1e-6

    def calibrated(self, monkeypatch: pytest.MonkeyPatch, percents: list[int]) -> dict[str, Any]:
        def sample(sampler: planted.WallSampler) -> float:
            before = self.ms
            sampler.run[sampler.turn % len(sampler.run)]()
            sampler.turn += 1
            return self.ms - before

        monkeypatch.setattr(planted, "planter", lambda device: self.plant)
        monkeypatch.setattr(planted.WallSampler, "_sample", sample)
        return planted.calibrate([self.call, self.call], "cpu", percents)


def test_calibration_finds_the_amounts_although_a_launch_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Clock(1.0, 0.015, 2.3).calibrated(monkeypatch, [2, 3, 10])
    assert found["least_percent"] == pytest.approx(1.5)
    for percent in (2, 3, 10):
        one = found["planted"][str(percent)]
        assert one["possible"]
        assert one["percent"] == pytest.approx(percent, abs=100 * planted.TOLERANCE)
        assert one["percent"] == pytest.approx(1.5 + 100 * one["amount"] * 2.3e-6)


def test_calibration_says_what_is_too_short_for_one_more_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Clock(0.04, 0.002, 2.0).calibrated(monkeypatch, [2, 3, 10])
    assert [found["planted"][str(percent)]["possible"] for percent in (2, 3, 10)] == [False, False, True]
    assert found["planted"]["2"]["percent"] == pytest.approx(5)
    assert found["planted"]["10"]["percent"] == pytest.approx(10, abs=0.2)


def test_more_slow_downs_leave_those_that_were_calibrated_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []

    def ask(child: Child, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        asked.append(request["percents"])
        one = {"amount": len(asked), "percent": 3.0, "possible": True}
        planted = {str(percent): one for percent in request["percents"]}
        return {"plain_ms": 1.0, "least_percent": 1.0, "planted": planted}

    monkeypatch.setattr(Child, "ask", ask)
    campaign = Campaign(tmp_path, "cpu", Settings.for_device("cpu"), 60, math.inf)
    case = Case("gla", 1, 64, 1, 16, 16)
    for percents in ([3, 5], [3, 10], [5]):
        found = campaign.calibrate([case], percents)
    assert asked == [[3, 5], [10]]
    assert {name: one["amount"] for name, one in found[case.id]["planted"].items()} == {"3": 1, "5": 1, "10": 2}


def test_planted_runs_are_spread_among_the_others() -> None:
    order = plan(21, 3, [3, 5])
    assert len({run.name for run in order}) == len(order) == 27
    assert [run for run in order if run.percent is None] == [Run(index) for index in range(21)]
    assert [sum(r.percent is None for r in order[: order.index(Run(turn, 3))]) for turn in range(3)] == [3, 10, 17]


def test_only_what_is_possible_is_planted() -> None:
    found = {"amount": 5, "percent": 3.0, "possible": True}
    calibration = {
        "right": {"planted": {"3": found}},
        "too short": {"planted": {"3": found | {"possible": False}}},
        "died": {"failed": "the process was killed by SIGSEGV", "planted": {}},
    }
    assert amounts(Run(0, 3), calibration) == {"right": 5}


def test_the_cases_are_of_the_board() -> None:
    mine, board = load(HERE / "cases.yaml"), load(find("board"))
    check(mine)
    ids = {case.id for case in expand(mine, "cuda").cases}
    assert ids <= {case.id for case in expand(board, "cuda").cases}
    assert len(ids) == 10


@pytest.mark.exhaustive  # half a minute of calibrating; its parts are above
def test_a_campaign_on_a_cpu_stops_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "tiny.yaml"
    sweep.write_text(TINY)
    rows = tmp_path / "rows"
    command = [str(rows), "--device", "cpu", "--sweep", str(sweep), "--runs", "1", "--planted-runs", "1"]
    command += ["--percents", "50"]
    assert main([*command, "--seconds", "0"]) == 3
    assert "time is up" in capsys.readouterr().out
    assert main(command) == 0
    assert "pipeline: " not in capsys.readouterr().out.replace("-- pipeline: ", "")  # not a second time

    (gated,) = store.read(rows / "pipeline.jsonl")
    (plain,) = store.read(rows / "a-00.rows")
    (slowed,) = store.read(rows / "planted-50-0.rows")
    assert gated.accuracy is not None
    assert {row.status for row in (gated, plain, slowed)} == {"ok"}
    assert plain.case_id == slowed.case_id == gated.case_id
    assert plain.time is not None
    assert slowed.time is not None
    # A planted row says so twice, and no other does.
    assert (plain.sweep, slowed.sweep) == ("gate", "gate, planted 50 %")
    assert "planted 50 %" in str(slowed.implementation)
    assert plain.implementation == gated.implementation

    foreign = store.to_json(plain).replace(plain.environment["fingerprint"], "f" * 12)
    (rows / "a-00.rows").write_text(
        foreign[: foreign.index(', "checksum"')].replace(f'"schema": {store.SCHEMA}', '"schema": 2') + "}\n"
    )
    with pytest.raises(UserError, match="rows of other code"):
        main(command)
