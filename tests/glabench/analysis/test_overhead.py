"""Seconds by phase and system, and the share of a sweep's wall time that its cases did not need."""

from __future__ import annotations

import pytest

from glabench.analysis.overhead import PAUSE_S, Line, Wall, account, wall
from glabench.errors import UserError
from glabench.phases import Spent
from glabench.store import Row


def part(began: float, **seconds: float) -> Spent:
    return Spent("all", began, seconds)


def row(system: str, *spent: Spent) -> Row:
    return Row("id", "tiny", {"system": system}, "ok", spent=[one.to_dict() for one in spent] or None)


def test_systems_are_sorted_by_what_all_their_processes_took() -> None:
    rows = [
        row("fa2", part(0, gate=1.0, inputs=1.0)),
        row("gla", part(2, compile=3.0), part(5, samples=2.0)),
        row("fa2", part(7, gate=2.0)),
        row("fla"),
    ]
    found = account([*rows, *rows[:2]])  # as of a file beside what it was merged into
    assert found.lines == (
        Line("gla", 1, {"compile": 3.0, "samples": 2.0}),
        Line("fa2", 2, {"inputs": 1.0, "gate": 3.0}),
    )
    assert found.without == 1
    assert found.wall == Wall(9.0, 8.0, 0.0)
    assert found.wall.overhead == pytest.approx(1 / 9)


@pytest.mark.parametrize(
    ("spent", "expected"),
    [
        # one after another, with a second between them
        ([part(10, start=1.0, compile=3.0), part(15, gate=1.0)], Wall(6.0, 4.0, 1.0)),
        # side by side: half of what one does is needed, and all of what the other does
        ([part(10, start=2.0, compile=2.0), part(10, compile=4.0)], Wall(4.0, 3.0, 0.0)),
        # one within the other
        ([part(10, compile=10.0), part(12, start=4.0)], Wall(10.0, 8.0, 0.0)),
        # stopped, and started again
        ([part(10, gate=1.0), part(11 + 2 * PAUSE_S, memory=1.0)], Wall(2.0, 1.0, 0.0)),
        ([part(10, rest=0.0)], Wall(0.0, 0.0, 0.0)),
    ],
)
def test_the_wall_time_counts_each_moment_once(spent: list[Spent], expected: Wall) -> None:
    found = wall(spent)
    assert (found.seconds, found.needed_s, found.idle_s) == pytest.approx(
        (expected.seconds, expected.needed_s, expected.idle_s)
    )


def test_nothing_needed_and_nothing_run_is_no_division_by_zero() -> None:
    assert wall([]).overhead == 0


def test_rows_that_say_nothing_or_nonsense_are_one_line() -> None:
    with pytest.raises(UserError, match="no row says where its time went"):
        account([row("gla")])
    with pytest.raises(UserError, match="row id: 'lunch' is no phase"):
        account([row("gla", part(0, lunch=1.0))])
