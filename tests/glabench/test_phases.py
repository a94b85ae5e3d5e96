"""Every moment of a case belongs to one phase, and rows bring back what they say of it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from glabench import store
from glabench.phases import NEEDED, PHASES, Phases, Spent, spent_of
from glabench.spec.case import Case
from glabench.store import Row


class Ticks:
    """A clock that says what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: 1000.0 + self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    return Ticks(monkeypatch)


def test_each_moment_is_of_the_innermost_phase(ticks: Ticks) -> None:
    phases = Phases()
    ticks.wait(1)
    with phases("compile"):
        ticks.wait(2)
        with phases("facts"):
            ticks.wait(4)
        ticks.wait(8)
    with phases("compile"):
        ticks.wait(16)
    found = phases.spent("compile")
    assert found == Spent("compile", 1100.0, {"compile": 26.0, "facts": 4.0, "rest": 1.0})
    assert (found.total_s, found.needed_s) == (31, 26)


def test_an_error_ends_its_phase(ticks: Ticks) -> None:
    phases = Phases()

    def fail() -> None:
        with phases("gate"), phases("inputs"):
            ticks.wait(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    ticks.wait(2)
    assert phases.spent("all").seconds == {"inputs": 1.0, "gate": 0.0, "rest": 2.0}


def test_a_phase_has_a_name_that_is_known() -> None:
    assert set(NEEDED) < set(PHASES)
    with pytest.raises(KeyError), Phases()("lunch"):
        pass


def test_what_was_not_seen_comes_before() -> None:
    assert Spent("all", 10.0, {"gate": 1.0}).starting(2.5) == Spent("all", 7.5, {"start": 2.5, "gate": 1.0})


def row(spent: object) -> Row:
    case = Case("gla", 1, 64, 1, 16, 16).to_dict()
    return Row("id", "tiny", case, "ok", spent=spent)  # type: ignore[arg-type]  # odd ones are the test


def test_a_row_brings_it_back_and_an_older_one_says_nothing() -> None:
    spent = Spent("all", 7.5, {"start": 2.5, "gate": 1.0})
    back = store.from_json(store.to_json(row([spent.to_dict()])))
    assert spent_of(back) == (spent,)
    assert spent_of(replace(back, spent=None)) == ()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("long", "TypeError"),
        ({"part": "all", "began": 1.0}, "KeyError"),
        ({"part": "all", "began": 1.0, "seconds": {"gate": "long"}}, "ValueError"),
        ({"part": "all", "began": 1.0, "seconds": {"lunch": 1.0}}, "'lunch' is no phase"),
        ({"part": "all", "began": 1.0, "seconds": {"gate": -1.0}}, "a time that is none"),
        ({"part": "all", "began": 1.0, "seconds": {"gate": "NaN"}}, "a time that is none"),
    ],
)
def test_what_cannot_be_is_refused(values: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        spent_of(row([values]))
