"""The part of the gate that runs something: suspicious cases once more, in turns with the commit before if it is given.

A slow-down counts only if it holds. With ``--against REV`` the checkout of REV and this one run the cases in turns, AB
BA AB BA, each turn in a process of its own, so that a GPU that warms up or is shared slows both alike. Without it, this
checkout runs them some more times, and the baseline stays what it was.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import glabench
from glabench.analysis.clocks import throttled
from glabench.check.comparable import Compared, apart
from glabench.check.noise import floors
from glabench.check.timing import judge_time
from glabench.check.verdict import BROKEN, CaseVerdict, Check, judge_case, retimed, timed_runs, wording_of
from glabench.errors import UserError
from glabench.run.driver import known_environment
from glabench.run.processes import worker_env
from glabench.run.worker import PIPELINE, Worker
from glabench.spec.case import CASE_FIELDS, Case
from glabench.spec.settings import Device, Settings
from glabench.store import Row

TURNS = 4  # of each side
LIMIT_S = 900.0  # for one case, its compilation included, where its row does not say: what the board gives one


@dataclass(frozen=True)
class Tree:
    """Sources to run: a checkout, by its root and commit; None is the code of this process."""

    root: Path | None = None
    commit: str | None = None

    def env(self) -> dict[str, str | None]:
        """Makes a child process import this checkout, whatever is installed and wherever it is started."""
        if self.root is None:
            return {}
        return {"PYTHONPATH": f"{self.root}:{self.root / 'kernels'}", "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class Turns:
    """Runs cases on one device. ``asked``: the environments of rows by case, which say with which settings and limit
    their sweep ran them. ``pipeline``: the module whose ``run_case`` is called."""

    device: Device
    tell: Callable[[str], None]
    turns: int = TURNS
    pipeline: str = PIPELINE
    asked: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def run(self, cases: Sequence[Case], tree: Tree) -> list[Row]:
        """One turn: each case once, in a fresh process that imports ``tree``."""
        worker = Worker(worker_env("all") | tree.env(), known_environment(self.device), self.pipeline)
        try:
            return [worker.run(case, "check", *self.as_asked(case)) for case in cases]
        finally:
            worker.close()

    def as_asked(self, case: Case) -> tuple[Settings, float]:
        """The settings and the limit in seconds of the sweep that the case is from."""
        asked = self.asked.get(case.id, {})
        return Settings.of_row(self.device, asked), asked.get("limit_s") or LIMIT_S

    def interleaved(self, cases: Sequence[Case], before: Tree, after: Tree) -> tuple[list[Row], list[Row]]:
        """Rows of both trees, turn by turn, with the order changing: AB BA AB BA."""
        rows: tuple[list[Row], list[Row]] = ([], [])
        for turn in range(self.turns):
            self.tell(f"re-measuring {len(cases)} cases against the commit before, turn {turn + 1} of {self.turns}")
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                rows[side].extend(self.run(cases, (before, after)[side]))
        return rows

    def alone(self, cases: Sequence[Case]) -> list[Row]:
        """Rows of this process's code."""
        rows: list[Row] = []
        for turn in range(self.turns):
            self.tell(f"re-measuring {len(cases)} cases, turn {turn + 1} of {self.turns}")
            rows += self.run(cases, Tree())
        return rows


def settle(check: Check, turns: Turns, against: Tree | None) -> Check:
    """The check with its suspicious cases re-measured: those that are slower and, where there is a tree to run
    ``against``, those that are ambiguous or have no baseline to be compared with, whether they still run or not."""
    wanted = ("slower",) if against is None else ("slower", "ambiguous", "new")
    suspects = {case.pair.case_id: case for case in check.cases if _times_verdict(case) in wanted}
    if not suspects:
        return check
    turns = replace(turns, asked={case_id: suspect.pair.after[-1].environment for case_id, suspect in suspects.items()})
    if against is None:
        before = [run for case in suspects.values() for run in case.pair.before]
        after = turns.alone([case_of(suspect) for suspect in suspects.values()])
        how = f"{turns.turns} times more"
    else:
        before, after = _both(turns, against, suspects.values())
        how = f"in {turns.turns} turns with the commit before"
    rows = {case_id: (_of(case_id, before), _of(case_id, after)) for case_id in suspects}
    return _judged(check, rows, against.commit if against is not None else None, how)


def _both(turns: Turns, against: Tree, suspects: Iterable[CaseVerdict]) -> tuple[list[Row], list[Row]]:
    """Rows of the commit and of this code. What did not run now takes one turn: each may be a wait for a timeout."""
    rows: tuple[list[Row], list[Row]] = ([], [])
    timed: dict[bool, list[Case]] = {True: [], False: []}
    for suspect in suspects:
        timed[any(run.time for run in suspect.pair.after)].append(case_of(suspect))
    for cases, count in ((timed[True], turns.turns), (timed[False], 1)):
        if cases:
            before, after = replace(turns, turns=count).interleaved(cases, against, Tree())
            rows[0].extend(before)
            rows[1].extend(after)
    return rows


def _judged(check: Check, rows: dict[str, tuple[list[Row], list[Row]]], commit: str | None, how: str) -> Check:
    """The check with the verdicts that ``rows``, by case before and after, give on the cases that they are of."""
    why = {case_id: _unusable(*sides, commit) for case_id, sides in rows.items()}
    usable = [(case_id, *sides) for case_id, sides in rows.items() if why[case_id] is None]
    floor = floors(usable, in_turns=commit is not None)
    # Few cases do not show how alike they are: those of the first comparison stand beside them.
    floor = floor.beside(check.noise)
    # Corrected for what is measured again only: in turns all runs are new, so that none of them picked the cases, and
    # against the baseline's own runs a call can only be taken back.
    count = len(usable)

    def judged(case: CaseVerdict) -> CaseVerdict:
        case_id = case.pair.case_id
        if case_id not in rows:
            return case
        old, new = rows[case_id]
        reason = why[case_id]
        runs = replace(case.pair, before=tuple(old), after=tuple(new))
        if (broken := _broken(old, new)) is not None:
            return replace(case, pair=runs, verdict="wrong", remeasured=f"measured again: {broken}")
        if case.time is None and old and new and not _of_others(old, commit):
            timed = Compared(runs, reason) if timed_runs(runs) is not None else None
            found = judge_case(runs, timed, floor, check.threshold, count)
            said = f": {wording_of(found.time)}" if found.time else ""
            return replace(found, remeasured=f"measured in turns with the commit before{said}")
        if reason is not None:
            verdict = "not comparable" if case.time is None else case.verdict
            return replace(case, verdict=verdict, remeasured=f"could not be re-measured: {reason}")
        time = judge_time(case_id, old, new, floor.of([*old, *new]), check.threshold, count)
        return case if time is None else retimed(case, time, how)

    cases = tuple(judged(case) for case in check.cases)
    return replace(check, cases=cases, compared=check.compared or count, noise=check.noise if check.compared else floor)


def case_of(verdict: CaseVerdict) -> Case:
    """The case to run. Fields that this version does not know are left out: its id would differ, so it is not found."""
    return Case.from_dict({name: value for name, value in verdict.pair.case.items() if name in CASE_FIELDS})


def _times_verdict(case: CaseVerdict) -> str:
    return case.time.verdict if case.time else case.verdict


def _of(case_id: str, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.case_id == case_id]


def _broken(before: Sequence[Row], after: Sequence[Row]) -> str | None:
    """How this code fails the case where it must not, in words: as no code may, or although ``before`` ran."""
    failed = [row for row in after if row.status != "ok"]
    bad = next((row for row in failed if row.status in BROKEN), None)
    if bad is None and before and all(row.status == "ok" for row in before):
        bad = next(iter(failed), None)
    return None if bad is None else f"{bad.status} now, {bad.reason or 'no reason given'}"


def _of_others(before: Sequence[Row], commit: str | None) -> bool:
    """Whether rows that ran are not of the commit that they should be of."""
    return commit is not None and any(row.environment.get("commit") != commit for row in before if row.status == "ok")


def _unusable(before: Sequence[Row], after: Sequence[Row], commit: str | None) -> str | None:
    """Why rows that were measured again say nothing about time; ``commit`` is what ``before`` must be of, if it ran."""
    if not before or not after:
        return "this version makes another case of it"
    if _of_others(before, commit):
        return f"the process for {str(commit)[:12]} imported other sources"
    for rows, which in ((before, "before"), (after, "now")):
        for row in rows:
            if row.status != "ok" or not row.time:
                return f"{which} {row.status}, {row.reason or 'no time'}"
            if (reason := throttled(row)) is not None:
                return f"{which} {reason}"
    here = after[-1]
    reasons = (apart(row, here) for row in (*before, *after))
    return next((reason for reason in reasons if reason is not None), None)


def code_here() -> Path:
    """The root of the checkout that this process runs. UserError when it runs from none."""
    root = Path(glabench.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        raise UserError(f"--against: {root} is no git checkout, so there is no commit to run against")
    return root


@contextmanager
def checkout(revision: str) -> Iterator[Tree]:
    """The sources of a commit in a temporary folder, for as long as the context lasts. UserError for a bad revision.

    There is nothing to build: kernels are compiled when they are first run.
    """
    root = code_here()
    found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if found is None:
        raise UserError(f"--against {revision}: no such commit in {root}; a shallow clone has only the newest ones")
    with tempfile.TemporaryDirectory(prefix="glabench-against-") as folder:
        place = Path(folder) / "tree"
        if _git(root, "worktree", "add", "--quiet", "--detach", str(place), found) is None:
            raise UserError(f"--against {revision}: git could not check it out into {place}")
        try:
            yield Tree(place, found)
        finally:
            _git(root, "worktree", "remove", "--force", str(place))


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints, or None when it fails."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
