"""Who stands where at a question, from rows with times that are known by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

from glabench.analysis import labels
from glabench.analysis.standings import baselines, standings
from glabench.store import Row

MakeRow = Callable[..., Row]
RIGHT = {"passed": True, "where": "cuda", "shape": {"B": 1, "T": 1024, "H": 4, "K": 128, "V": 256}, "outputs": {}}


def sampled(ms: float) -> list[float]:
    return [ms * (1 + 0.001 * i) for i in range(11)]


def test_the_fastest_first_and_ratios_to_the_baseline(make_row: MakeRow) -> None:
    rows = [
        make_row("fla", sampled(2.0), accuracy=RIGHT),
        make_row("gla", sampled(1.0), accuracy=RIGHT),
        make_row("helion", None, status="oom", reason="out of memory"),
        make_row("fa2", sampled(1.5), accuracy=RIGHT),
    ]
    assert baselines(rows) == ("fla",)
    (found,) = standings(rows, ("fla", "helion"))
    assert [line.system for line in found.lines] == ["gla", "fa2", "fla", "helion"]
    times = {line.system: {base: over.times for base, over in line.over.items()} for line in found.lines}
    assert times == {"gla": {"fla": 2.0}, "fa2": {"fla": 2.0 / 1.5}, "fla": {"fla": 1.0}, "helion": {}}
    assert [line.over["fla"].verdict for line in found.lines[:3]] == ["faster", "faster", "ambiguous"]
    last = found.lines[-1]
    assert (last.status, last.reason, last.right) == ("oom", "out of memory", None)
    assert math.isnan(last.kernels_ms)
    assert all(math.isnan(line.over_floor) for line in found.lines if line.system == "fa2")


def test_of_several_schedules_the_fastest_and_every_one_that_is_wrong(make_row: MakeRow) -> None:
    wrong = {**RIGHT, "passed": False}
    rows = [
        make_row("gla", sampled(1.0), materialize=True, chunk=64, sub_chunk=16),
        make_row("gla", sampled(0.5), materialize=True, chunk=128, sub_chunk=16),
        make_row("gla", None, materialize=True, chunk=256, sub_chunk=16, status="wrong", accuracy=wrong),
        make_row("gla", None, materialize=True, chunk=32, sub_chunk=16, status="oom"),
    ]
    (found,) = standings(rows, ())
    assert [(line.label, line.right, line.tried) for line in found.lines] == [
        (f"{labels.title('gla:w')} C128/16", None, 4),
        (f"{labels.title('gla:w')} C256/16", False, 1),
    ]


def test_a_shape_is_told_only_where_another_was_checked(make_row: MakeRow) -> None:
    smaller = {**RIGHT, "where": "interpreter", "shape": {"B": 1, "T": 165, "H": 2, "K": 64, "V": 64}}
    rows = [make_row("gla", None, accuracy=smaller), make_row("fla", sampled(1.0), accuracy=RIGHT)]
    (found,) = standings(rows, baselines(rows))
    assert {line.system: line.checked for line in found.lines} == {"gla": smaller["shape"], "fla": None}
    assert all(line.right for line in found.lines)


def test_too_few_samples_make_no_claim(make_row: MakeRow) -> None:
    rows = [make_row("fla", [2.0]), make_row("gla", [1.0])]
    (found,) = standings(rows, ("fla",))
    assert found.lines[0].over["fla"].verdict == "ambiguous"


def test_no_rows_no_questions_and_no_baseline(make_row: MakeRow) -> None:
    assert standings([], ()) == []
    assert baselines([make_row("gla", [1.0])]) == ()
