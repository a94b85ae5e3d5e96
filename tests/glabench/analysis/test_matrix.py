"""The matrix by hand: what stands where, beside what, and who ties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from glabench.analysis.frame import frame
from glabench.analysis.matrix import Matrix, View, beside, leaders, matrices
from glabench.analysis.spread import said
from glabench.spec.case import Case
from glabench.store import Row

AT: dict[str, Any] = {"B": 4, "T": 2048, "H": 16, "K": 128, "V": 128, "mode": "fwd"}


def row(system: str, ms: float, width: float = 0.001, **case: Any) -> Row:
    """A row whose median is ``ms``, and whose interval reaches so far on either side, as a share."""
    asked = Case(system, **{**AT, **case})
    samples = [ms * (1 - width)] * 4 + [ms] + [ms * (1 + width)] * 4
    time = {"clock": "cuda_events_cold_l2", "samples_ms": samples}
    environment = {"device": "GPU", "kind": "cuda"}
    return Row(asked.id, "test", asked.to_dict(), "ok", time=time, environment=environment)


def matrix(rows: Sequence[Row]) -> Matrix:
    (found,) = matrices(frame(rows))
    return found


def ratios(found: Matrix, view: View, baseline: str) -> list[dict[str, float]]:
    """Of each line, its columns' ratios to a baseline."""
    (base,) = (one for one in found.baselines if one.key == baseline)
    lines = []
    for line in view.lines:
        against = base.at(line)
        pairs = {key: beside(entry, against) for key, entry in line.entries.items()}
        lines.append({key: round(pair.ratio, 6) for key, pair in pairs.items() if pair})
    return lines


def test_a_cell_is_how_many_times_as_fast_as_the_baseline() -> None:
    found = matrix([row("gla", 1.0), row("fla", 4.0), row("fa2", 2.0, gate_strength=None)])
    assert [key for key, _ in found.columns] == ["gla", "fla", "fa2"]
    assert [one.key for one in found.baselines] == ["fla", "fa2", "gla", "fastest"]
    (view,) = found.views
    assert ratios(found, view, "fla") == [{"gla": 4.0, "fla": 1.0, "fa2": 2.0}]
    assert ratios(found, view, "fa2") == [{"gla": 2.0, "fla": 0.5, "fa2": 1.0}]
    assert ratios(found, view, "fastest") == [{"gla": 1.0, "fla": 0.25, "fa2": 0.5}]


def test_ours_of_one_gate_a_head_stand_beside_ours_of_every_feature_and_before_rivals() -> None:
    found = matrix(
        [row(system, 1.0) for system in ("retention", "fa2", "simple_gla", "gla_recurrent", "fla_simple", "gla")]
    )
    assert [key for key, _ in found.columns] == ["gla", "simple_gla", "fla_simple", "fa2", "gla_recurrent", "retention"]


def test_fla_is_whichever_of_its_kernels_answers_a_question() -> None:
    rows = [row("gla", 1.0), row("fla", 3.0), row("gla", 1.0, gate_strength=None),
            row("fla_linear", 2.0, gate_strength=None)]  # fmt: skip
    found = matrix(rows)
    assert found.baselines[0].title == "FLA"
    (view,) = found.views
    assert ratios(found, view, "fla") == [{"gla": 2.0, "fla_linear": 1.0}, {"gla": 3.0, "fla": 1.0, "fla_linear": 1.5}]


def test_what_does_less_than_was_asked_is_no_baseline_and_leads_nothing() -> None:
    found = matrix([row("gla", 2.0), row("fla", 4.0), row("fla_linear", 1.0, gate_strength=None)])
    (view,) = found.views
    (line,) = view.lines
    base = found.baselines[0].at(line)
    assert base is line.entries["fla"]
    assert leaders(line) == [line.entries["gla"]]
    assert not line.entries["fla_linear"].competes


def test_the_mode_that_does_most_comes_first() -> None:
    found = matrix([row("gla", 1.0, mode=mode) for mode in ("step", "fwd", "fwdbwd", "bwd")])
    assert [view.mode for view in found.views] == ["fwdbwd", "bwd", "fwd", "step"]


@pytest.mark.parametrize(
    ("ratio", "low", "high", "clock", "verdict"),
    [
        (1.10, 1.08, 1.12, "cuda_events_cold_l2", "faster"),
        (0.90, 0.88, 0.92, "cuda_events_cold_l2", "slower"),
        (1.10, 0.99, 1.20, "cuda_events_cold_l2", "tie"),  # the intervals meet
        (1.007, 1.006, 1.008, "cuda_events_cold_l2", "tie"),  # two runs of one code lie as far apart
        (1.10, 1.08, 1.12, "cpu_wall", "tie"),  # and on a CPU farther
        (1.30, math.nan, math.nan, "cuda_events_cold_l2", "unsure"),
    ],
)
def test_noise_is_a_tie(ratio: float, low: float, high: float, clock: str, verdict: str) -> None:
    assert said(ratio, low, high, clock) == verdict


def test_systems_within_noise_lead_together_and_schedules_do_not_compete() -> None:
    rows = [row("gla", 1.0), row("gla", 1.002, chunk=64, materialize=True), row("fla", 1.003), row("fa2", 2.0)]
    (view,) = matrix(rows).views
    (line,) = view.lines
    assert [entry.line["variant"] for entry in leaders(line)] == ["gla", "gla:w", "fla"]
    (alone,) = matrix(rows[:2]).views
    assert leaders(alone.lines[0]) == []


def test_of_several_schedules_the_fastest_stands_in_the_cell() -> None:
    rows = [row("gla", 1.0 + chunk / 64, chunk=chunk, sub_chunk=16, materialize=True) for chunk in (64, 16, 128)]
    rows[0] = replace(rows[0], status="oom", reason="no memory", time=None)
    found = matrix([*rows, row("fa2", 1.0, gate_strength=None)])
    (view,) = found.views
    (line,) = view.lines
    own, rival = line.entries["gla:w"], line.entries["fa2"]
    assert (own.line["chunk"], own.tried, own.failed) == (16, 3, 1)
    assert (rival.tried, rival.failed) == (1, 0)
    assert found.baselines[0].key == "fa2"
    assert ratios(found, view, "fa2") == [{"gla:w": 0.8, "fa2": 1.0}]


def test_gates_of_one_system_go_across() -> None:
    rounded, exact = row("gla", 1.0), row("gla", 1.25, gate_dtype="fp32")
    found = matrix([rounded, exact])
    assert found.gates_across == ("1", "1 in fp32")
    assert found.columns == (("gla", "gates in the dtype of q"), ("gla:1 in fp32", "gates in fp32"))
    (view,) = found.views
    assert ratios(found, view, "gla") == [{"gla": 1.0, "gla:1 in fp32": 0.8}]
    assert not matrix([rounded, exact, row("fla", 2.0)]).gates_across


def test_what_reads_no_gates_stands_beside_each_kind_of_them_once() -> None:
    chosen = row("gla", 2.0, value_gate=True, chunk=64, sub_chunk=16, materialize=True)
    rows = [row("fa2", 4.0, gate_strength=None), chosen, row("gla", 1.6, value_gate=True), row("gla", 1.0)]
    found = matrix(rows)
    assert found.columns == (
        ("gla", "GLA, default schedule, gates on the key side"),
        ("gla:1 + value side", "GLA, default schedule, gates on both sides"),
        ("gla:w:1 + value side", "GLA with states, gates on both sides"),
        ("fa2", "FlashAttention-2"),
    )
    (view,) = found.views
    assert ratios(found, view, found.baselines[0].key) == [
        {"gla": 1.0, "gla:1 + value side": 0.625, "gla:w:1 + value side": 0.5, "fa2": 0.25}
    ]
    (line,) = view.lines
    assert line.entries["gla:w:1 + value side"].line["label"] == "GLA with states C64/16, gates on both sides"


def test_heads_of_a_width_go_from_narrow_to_wide_and_decoding_steps_by_batch() -> None:
    shapes = ((8, 256, 256), (16, 128, 128), (32, 64, 64))
    rows = [row("gla", 1.0, H=h, K=k, V=v) for h, k, v in shapes] + [row("gla", 1.0, qk_heads=n) for n in (4, 1)]
    (view,) = matrix(rows).views
    heads = [(line.at["K"], line.at["qk_heads"]) for line in view.lines]
    assert heads == [(64, 0), (128, 0), (256, 0), (128, 1), (128, 4)]
    (steps,) = matrix([row("gla_recurrent", 1.0, mode="step", B=b, T=t) for t in (1024, 4096) for b in (16, 1)]).views
    assert [(line.at["B"], line.at["T"]) for line in steps.lines] == [(1, 1024), (1, 4096), (16, 1024), (16, 4096)]


def test_a_time_comes_before_a_failure_and_a_failure_before_nothing() -> None:
    lost = row("gla", 1.0, chunk=16, materialize=True)
    lost = replace(lost, status="oom", reason="no memory", time=None)
    kept = row("gla", 1.0, mode="bwd", chunk=16, materialize=True)
    found = matrix([lost, row("fla", 2.0), kept])
    backward, forward = found.views
    assert backward.lines[0].entries["gla:w"].timed
    failed = forward.lines[0].entries["gla:w"]
    assert (failed.timed, failed.line["reason"], beside(failed, forward.lines[0].entries["fla"])) == (
        False, "no memory", None,
    )  # fmt: skip


def test_eager_calls_are_views_of_their_own() -> None:
    rows = [row("gla", 1.0), row("fla", 2.0)]
    called = [replace(one, time={**(one.time or {}), "eager": {"wall_ms": [3.0] * 9}}) for one in rows]
    found = matrix(called)
    kernels, calls = found.views
    assert (kernels.eager, calls.eager) == (False, True)
    assert ratios(found, kernels, "fla") == [{"gla": 2.0, "fla": 1.0}]
    assert ratios(found, calls, "fla") == [{"gla": 1.0, "fla": 1.0}]


def test_devices_have_a_matrix_each() -> None:
    here = row("gla", 1.0)
    there = replace(here, environment={"device": "another", "kind": "cuda"})
    assert [one.device for one in matrices(frame([here, there]))] == ["GPU", "another"]


def test_a_system_that_nobody_listed_is_a_baseline_too() -> None:
    found = matrix([row("gla", 1.0), row("scan", 3.0), row("mine", 6.0)])
    assert [one.key for one in found.baselines] == ["scan", "mine", "gla", "fastest"]
    assert ratios(found, found.views[0], "mine") == [{"gla": 6.0, "scan": 2.0, "mine": 1.0}]
