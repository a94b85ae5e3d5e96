"""Errors by gate strength: whose, where, and which are no number."""

from __future__ import annotations

import math
from typing import Any

import pytest

from glabench.analysis.accuracy import by_strength


@pytest.fixture
def checked(make_row: Any) -> Any:
    """A row whose gate found these errors."""

    def make(system: str, strength: float | None, errors: dict[str, float | None], **given: Any) -> Any:
        outputs = {name: {"error": error, "tolerance": 5e-3} for name, error in errors.items()}
        passed = given.get("status", "ok") == "ok"
        return make_row(system, gate_strength=strength, accuracy={"passed": passed, "outputs": outputs}, **given)

    return make


def test_the_worst_gradient_stands_for_all(checked: Any) -> None:
    rows = [checked("gla", x, {"o": 1e-3, "dq": 2e-3, "dg": 3e-3}) for x in (16.0, 1.0)]
    assert [(one.strength, one.output, one.gradients) for one in by_strength(rows)] == [
        (1.0, 1e-3, 3e-3),
        (16.0, 1e-3, 3e-3),
    ]


def test_what_is_wrong_or_not_finite_is_among_them(checked: Any) -> None:
    rows = [checked("gla", x, {"o": 1e-3}) for x in (1.0, 16.0)]
    rows.append(checked("helion", 16.0, {"o": math.nan, "dg": None}, status="wrong"))
    lost = by_strength(rows)[-1]
    assert (lost.key, lost.output, lost.gradients, lost.passed) == ("helion", math.inf, math.inf, False)
    assert math.isnan(by_strength(rows)[0].gradients)


def test_one_shape_is_shown_and_what_has_no_gates_is_not(checked: Any) -> None:
    rows = [checked("gla", x, {"o": 1e-3}) for x in (1.0, 16.0)]
    rows += [checked("gla", x, {"o": 9.0}, T=2048) for x in (1.0,)]
    rows += [
        checked("fa2", None, {"o": 9.0}),
        checked("gla", None, {"o": 9.0}),
        checked("lightning2", None, {"o": 9.0}),
    ]
    assert {one.output for one in by_strength(rows)} == {1e-3}


def test_a_single_strength_is_no_axis(checked: Any) -> None:
    assert by_strength([checked("gla", 1.0, {"o": 1e-3}), checked("fla", 1.0, {"o": 1e-3})]) == []
    assert by_strength([]) == []
