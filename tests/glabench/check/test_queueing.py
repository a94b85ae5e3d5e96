"""How long Python takes to queue a case is said where it changed, and no verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest

from glabench.check import formats, wording
from glabench.check.verdict import check


def eager(make_run: Any, *host_ms: float, seed: int = 0) -> Any:
    """A run whose calls are queued in these times."""
    row = make_run(seed=seed)
    row.time["eager"] = {"host_ms": list(host_ms), "wall_ms": [5.0]}
    return row


@pytest.mark.parametrize(("now", "told"), [(1.05, False), (1.4, True), (0.5, True)])
def test_a_change_is_told_with_the_case_and_never_judged(make_run: Any, now: float, told: bool) -> None:
    before = [eager(make_run, 0.1, 1.0, 9.0, seed=seed) for seed in (0, 1)]
    found = check(before, [eager(make_run, now, seed=2)], 0.03)
    (case,) = found.cases
    assert (case.verdict, found.exit_code) == ("same", 0)
    assert any("queued in 1.00 ms before" in line for line in wording.details(case)) == told
    assert json.loads(formats.render_json(found))["cases"][0]["queued_ms"] == [1.0, now]


def test_what_takes_longer_is_counted_for_all_cases(make_run: Any) -> None:
    before, now = eager(make_run, 1.0), eager(make_run, 1.4, seed=1)
    said = wording.judged_by(check([before], [now], 0.03))
    assert "10 % longer or more to queue 1 of 1 case, at most 1.40× as long, which is not judged" in said
    assert "longer or more to queue" not in wording.judged_by(check([now], [before], 0.03))


def test_rows_that_do_not_say_are_not_compared(make_run: Any) -> None:
    found = check([make_run()], [eager(make_run, 1.4, seed=1)], 0.03)
    assert json.loads(formats.render_json(found))["cases"][0]["queued_ms"] is None
    assert not any("queued in" in line for line in wording.details(found.cases[0]))
