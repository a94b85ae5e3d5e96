"""Slow-downs are measured again, in turns with the commit before; processes import the sources that they should."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import glabench
from glabench.check.remeasure import Tree, Turns, checkout, settle
from glabench.check.verdict import Check, check
from glabench.errors import UserError
from glabench.run.worker import Worker
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.store import Row

from .conftest import FULL, MakeRun

BEFORE = Tree(Path("before"), "c0ffee")


@dataclass(frozen=True)
class Fake(Turns):
    """Turns that take times from a table, by tree, instead of running anything."""

    make: MakeRun | None = None
    ms: dict[Path | None, float] = field(default_factory=dict)
    order: list[Path | None] = field(default_factory=list)
    fields: dict[Path | None, dict[str, Any]] = field(default_factory=dict)  # of the rows, by tree

    def run(self, cases: Sequence[Case], tree: Tree) -> list[Row]:
        assert self.make is not None
        self.order.append(tree.root)
        made = [self.make(T=case.T, ms=self.ms[tree.root], seed=len(self.order)) for case in cases]
        rows = [row if self.ms[tree.root] else replace(row, status="crashed", reason="SIGSEGV") for row in made]
        return [replace(row, **self.fields.get(tree.root, {})) for row in rows]


def fake(make_run: MakeRun, before: float, after: float, **now: Any) -> Fake:
    """``now``: fields of the rows of this code."""
    return Fake("cuda", lambda words: None, make=make_run, ms={BEFORE.root: before, None: after}, fields={None: now})


@pytest.fixture
def slower(make_run: MakeRun) -> Check:
    found = check([make_run(), make_run(T=64)], [make_run(ms=1.1), make_run(T=64)], 0.03)
    assert [case.verdict for case in found.cases] == ["slower", "same"]
    return found


@pytest.mark.parametrize(("now", "expected", "code"), [(1.1, "slower", 1), (1.0, "same", 0), (0.9, "ambiguous", 0)])
def test_a_slow_down_counts_if_it_holds(make_run: MakeRun, slower: Check, now: float, expected: str, code: int) -> None:
    turns = fake(make_run, 1.0, now)
    found = settle(slower, turns, BEFORE)
    assert [case.verdict for case in found.cases] == [expected, "same"]
    assert found.exit_code == code
    assert turns.order == [BEFORE.root, None, None, BEFORE.root] * 2  # AB BA


def test_a_case_slower_than_the_baseline_but_not_than_the_commit_before_passes(
    make_run: MakeRun, slower: Check
) -> None:
    found = settle(slower, fake(make_run, 1.1, 1.1), BEFORE)
    assert found.cases[0].verdict == "same"
    assert "did not hold" in str(found.cases[0].remeasured)


def test_cases_are_measured_again_as_their_sweep_asked(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, tuple[Settings, float]] = {}

    def run(worker: Worker, case: Case, sweep: str, settings: Settings, limit_s: float) -> Row:
        seen[case.id] = settings, limit_s
        return make_run(T=case.T)

    monkeypatch.setattr(Worker, "run", run)
    usual = Settings.for_device("cuda")
    own = replace(usual, gate_factor=8.0, min_samples=50)
    asked = [
        {"settings": own.digest, "settings_given": own.given, "limit_s": 2000.0},
        {"settings": usual.digest},
        {"settings": "of another version", "settings_given": {"min_samples": 3, "more": 1.0}},
    ]
    before = [make_run(T=T) for T in (64, 128, 256)]
    after = [make_run(T=T, ms=1.1, environment=env) for T, env in zip((64, 128, 256), asked, strict=True)]
    settle(check(before, after, 0.03), Turns("cuda", lambda words: None, turns=1), None)
    assert [seen[row.case_id] for row in after] == [(own, 2000.0), (usual, 900.0), (usual, 900.0)]


def test_without_a_commit_the_same_code_runs_again(make_run: MakeRun, slower: Check) -> None:
    turns = fake(make_run, 0, 1.0)
    found = settle(slower, turns, None)
    assert found.cases[0].verdict == "same"
    assert turns.order == [None] * 4


def test_a_commit_that_cannot_run_the_case_settles_nothing(make_run: MakeRun, slower: Check) -> None:
    found = settle(slower, fake(make_run, 0, 1.1), BEFORE)
    assert (found.cases[0].verdict, found.exit_code) == ("slower", 1)
    assert found.cases[0].remeasured == "could not be re-measured: before crashed, SIGSEGV"


def test_a_process_that_imported_other_sources_settles_nothing(make_run: MakeRun, slower: Check) -> None:
    found = settle(slower, fake(make_run, 1.0, 1.0), replace(BEFORE, commit="bad0"))
    assert found.cases[0].verdict == "slower"
    assert "imported other sources" in str(found.cases[0].remeasured)


def test_without_a_baseline_every_case_runs_in_turns(make_run: MakeRun) -> None:
    found = settle(check([], [make_run()], 0.03), fake(make_run, 1.0, 1.1), BEFORE)
    assert (found.cases[0].verdict, found.exit_code, found.compared) == ("slower", 1, 1)


@pytest.mark.parametrize("status", ["unsupported", "oom", "timeout"])
def test_a_case_that_no_longer_runs_is_run_by_the_commit_before(make_run: MakeRun, status: str) -> None:
    failed: dict[str, Any] = {"status": status, "reason": "why", "time": None}
    turns = fake(make_run, 1.0, 1.0, **failed)
    found = settle(check([], [make_run(**failed)], 0.03), turns, BEFORE)
    assert (found.cases[0].verdict, found.exit_code) == ("wrong", 1)
    assert found.cases[0].remeasured == f"measured again: {status} now, why"
    assert turns.order == [BEFORE.root, None]  # once will do
    turns.fields[BEFORE.root] = failed
    found = settle(check([], [make_run(**failed)], 0.03), turns, BEFORE)
    assert (found.cases[0].verdict, found.exit_code) == ("same", 0)


def test_without_a_baseline_memory_and_spills_are_those_of_the_commit_before(make_run: MakeRun) -> None:
    kernel = {"kernel": "k", "arch": "sm_90", "spill_bytes": 0, "error": None}
    now = {"memory": {"beyond_inputs_bytes": 300 << 20}, "compiled": [{**kernel, "spill_bytes": 512}]}
    turns = fake(make_run, 1.0, 1.0, **now)
    turns.fields[BEFORE.root] = {"compiled": [kernel]}
    found = settle(check([], [make_run(**now)], 0.03), turns, BEFORE)
    assert (found.cases[0].verdict, found.exit_code) == ("worse", 1)
    assert [finding.verdict for finding in found.cases[0].measures] == ["worse", "worse"]
    assert str(found.cases[0].remeasured).endswith("same")


def test_a_case_that_the_commit_before_cannot_run_is_new(make_run: MakeRun) -> None:
    found = settle(check([], [make_run()], 0.03), fake(make_run, 0, 1.0), BEFORE)
    assert (found.cases[0].verdict, found.cases[0].reason) == ("new", "crashed before, ok now")


@pytest.mark.parametrize("before", [[], [0.97, 1.0, 1.03]])
def test_what_is_wrong_when_measured_again_is_wrong(make_run: MakeRun, before: list[float]) -> None:
    rows = [make_run(ms=ms, seed=i) for i, ms in enumerate(before)]
    after = [make_run(ms=ms, seed=i + 5) for i, ms in enumerate((0.99, 1.02, 1.04))]
    found = settle(check(rows, after, 0.03), fake(make_run, 1.0, 1.0, status="wrong", reason="o is off"), BEFORE)
    assert (found.cases[0].verdict, found.exit_code) == ("wrong", 1)
    assert found.cases[0].remeasured == "measured again: wrong now, o is off"


@pytest.mark.parametrize("tree", [BEFORE, None])
def test_clocks_that_lie_apart_settle_nothing(make_run: MakeRun, slower: Check, tree: Tree | None) -> None:
    capped = {**FULL, "sm_mhz": 1700.0, "throttle": ["power cap"]}
    found = settle(slower, fake(make_run, 1.0, 1.0, clocks=capped), tree)
    assert (found.cases[0].verdict, found.exit_code) == ("slower", 1)
    assert "could not be re-measured: SM clock at 100.0%" in str(found.cases[0].remeasured)
    new = settle(check([], [make_run()], 0.03), fake(make_run, 1.0, 1.0, clocks=capped), BEFORE)
    assert (new.cases[0].verdict, new.exit_code) == ("not comparable", 3)


def test_a_bad_revision_is_one_line() -> None:
    with pytest.raises(UserError, match="--against nonsense: no such commit"), checkout("nonsense"):
        pass


def test_a_process_imports_the_commit_that_is_checked_out() -> None:
    root = Path(glabench.__file__).parent.parent
    if not (root / ".git").exists():
        pytest.skip("these sources are no git checkout")
    show = "import glabench; print(glabench.__file__)"
    with checkout("HEAD") as tree:
        env = {**os.environ, **{name: value or "" for name, value in tree.env().items()}}
        # from the root of this checkout, whose own glabench must not come first
        done = subprocess.run(
            [sys.executable, "-c", show], cwd=root, env=env, capture_output=True, text=True, check=True
        )
        assert tree.root is not None
        assert Path(done.stdout.strip()).is_relative_to(tree.root)
        head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        assert tree.commit == head.stdout.strip()
    assert not tree.root.exists()
