"""What the gate makes of a folder of ``tests/gate/measure.py``: false calls, and planted slow-downs that it finds.

    python tests/gate/judge.py results/local/gate

needs no GPU. Runs are taken as the README says the gate is used: three a side, one after another. Every group of three
is compared with every other one of the same code (21 runs: 7 groups, 21 comparisons), and with those of three planted
runs, by ``glabench.check.verdict.check``, which the command calls. So comparisons share runs: rates are right on
average, but scatter more than as many independent ones would. With one run a side, the gate would not know the noise
of this GPU and take a default.

Not judged is the command's re-measurement of what is slower, which needs the GPU: it can only take calls back, false
ones and right ones.

Exit code: 0 the rates are as asked; 1 they are not, or there are too few comparisons; 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from statistics import median
from typing import Any

from glabench import store
from glabench.check import wording
from glabench.check.baseline import device_slug
from glabench.check.verdict import CaseVerdict, check
from glabench.errors import UserError
from glabench.store import Row

A_COMPARISONS = 20  # of the same code, at least
A_CALLED = 0.01  # of cases, at most
FOUND = {3: 0.90, 5: 0.99}  # by the slow-down in percent, at least
COLUMNS = ("slower", "faster", "ambiguous", "same", "not comparable")
PLANTED = re.compile(r"planted-(\d\d)-\d+\.rows")

Rows = Sequence[Row]


@dataclass(frozen=True)
class Tally:
    """What became of all cases in all comparisons of one kind."""

    percent: int  # that was planted; 0 for the same code
    comparisons: int
    verdicts: tuple[CaseVerdict, ...]

    @property
    def counts(self) -> Counter[str]:
        return Counter(case.verdict for case in self.verdicts)

    @property
    def share(self) -> float:
        """Of the same code: what was called, of what was compared. Of slow-downs: what was found, of all."""
        counts = self.counts
        if self.percent:
            return counts["slower"] / len(self.verdicts) if self.verdicts else math.nan
        compared = sum(case.time is not None for case in self.verdicts)
        return (counts["slower"] + counts["faster"]) / compared if compared else math.nan

    @property
    def asked(self) -> str:
        """In words, or nothing."""
        if not self.percent:
            return f"at most {A_CALLED:.0%} called, of {A_COMPARISONS} comparisons or more"
        return f"at least {FOUND[self.percent]:.0%} found" if self.percent in FOUND else ""

    @property
    def reached(self) -> bool:
        """Whether it is as asked; where nothing is asked, it is."""
        if not self.percent:
            return self.share <= A_CALLED and self.comparisons >= A_COMPARISONS
        return self.percent not in FOUND or self.share >= FOUND[self.percent]

    @property
    def mistakes(self) -> list[CaseVerdict]:
        """What should have come out otherwise."""
        if self.percent:
            return [case for case in self.verdicts if case.verdict != "slower"]
        return [case for case in self.verdicts if case.verdict in ("slower", "faster")]


def groups(runs: Sequence[Rows], size: int) -> list[list[Row]]:
    """Rows of ``size`` runs one after another each, no run twice; what is left over is left out."""
    return [[row for run in runs[at : at + size] for row in run] for at in range(0, len(runs) - size + 1, size)]


def tally(pairs: Iterable[tuple[Rows, Rows]], percent: int, threshold: float) -> Tally:
    """The verdicts of the gate on (before, after), on the cases that both sides have."""
    found: list[CaseVerdict] = []
    comparisons = 0
    for before, after in pairs:
        shared = {row.case_id for row in before} & {row.case_id for row in after}
        if not shared:
            continue
        old, new = ([row for row in side if row.case_id in shared] for side in (before, after))
        found += check(old, new, threshold).cases
        comparisons += 1
    return Tally(percent, comparisons, tuple(found))


def judged(same: Sequence[Rows], planted: dict[int, list[Rows]], size: int, threshold: float) -> list[Tally]:
    """The tally of the same code, then that of each slow-down in percent."""
    unchanged = groups(same, size)
    return [
        tally(combinations(unchanged, 2), 0, threshold),
        *(
            tally(product(unchanged, groups(runs, size)), percent, threshold)
            for percent, runs in sorted(planted.items())
        ),
    ]


def read(folder: Path) -> tuple[list[Rows], dict[int, list[Rows]]]:
    """Runs of the same code, and those of each slow-down, in the order in which they were made.

    UserError when there are none, or when they are of several machines or of other code.
    """
    same: list[Rows] = [list(store.read(path)) for path in sorted(folder.glob("a-*.rows*"))]
    planted: dict[int, list[Rows]] = {percent: [] for percent in FOUND}
    for path in sorted(folder.glob("planted-*.rows*")):
        if (named := PLANTED.fullmatch(store.unpacked_name(path))) is not None and (rows := list(store.read(path))):
            planted.setdefault(int(named[1]), []).append(rows)
    everything = [row for run in (*same, *(run for runs in planted.values() for run in runs)) for row in run]
    if not everything:
        raise UserError(f"{folder}: no rows there; `python tests/gate/measure.py {folder}` makes them")
    device_slug(everything)
    if len({row.environment.get("fingerprint") for row in everything}) > 1:
        raise UserError(f"{folder}: rows of several versions of the code, expected those of one")
    return same, planted


def read_calibration(path: Path) -> dict[str, Any]:
    """What ``measure.py`` found to plant, by case; nothing where there is no such file. UserError for another one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"{path}: not a calibration of tests/gate/measure.py: {error}") from None
    planted = [of_case.get("planted") for of_case in found.values()] if all_dicts(found) else [None]
    if not all(one is not None and all_dicts(one) for one in planted):
        raise UserError(f"{path}: not a calibration of tests/gate/measure.py")
    return dict(found)


def all_dicts(found: Any) -> bool:
    """Whether it is an object of objects."""
    return isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())


def render(tallies: Sequence[Tally], runs: int) -> str:
    """The table, what is asked beside it."""
    head = f"{'':12} comparisons verdicts {' '.join(COLUMNS)} other   share  asked"
    lines = [f"{runs} runs a side", head]
    for one in tallies:
        counts = one.counts
        name = f"planted {one.percent} %" if one.percent else "same code"
        cells = [f"{name:12}", f"{one.comparisons:11}", f"{len(one.verdicts):8}"]
        cells += [f"{counts[column]:{len(column)}}" for column in COLUMNS]
        cells.append(f"{len(one.verdicts) - sum(counts[column] for column in COLUMNS):5}")
        cells.append("      -" if math.isnan(one.share) else f"{one.share:7.1%}")
        if one.asked:
            cells.append(f" {one.asked}: {'reached' if one.reached else 'NOT REACHED'}")
        lines.append(" ".join(cells))
    return "\n".join(lines)


def render_mistakes(one: Tally) -> list[str]:
    """What should have come out otherwise, a line a case: how often, and what the gate said of the last of them."""
    found: dict[str, list[CaseVerdict]] = {}
    for case in one.mistakes:
        found.setdefault(case.pair.case_id, []).append(case)
    what = f"{one.percent} % planted, not found" if one.percent else "same code, called"
    return [
        f"{what}: {len(cases)} of {one.comparisons} times {wording.name(cases[-1])}; "
        + "; ".join([cases[-1].verdict, *wording.details(cases[-1])[:1]])
        for cases in found.values()
    ]


def render_planted(one: Tally, calibration: dict[str, Any]) -> str:
    """What the slow-downs truly were: by calibration, and as medians of the comparisons have it."""
    known = [found["planted"].get(str(one.percent)) for found in calibration.values()]
    true = [found["percent"] for found in known if found is not None and found["possible"]]
    measured = [100 * (case.time.ratio - 1) for case in one.verdicts if case.time]
    if not measured and all(found is None for found in known):
        return f"{one.percent} %: not measured"
    words = f"{one.percent} %: "
    words += f"{min(true):.2f} to {max(true):.2f} % by calibration" if true else "no calibration"
    if measured:
        words += f", {min(measured):.2f} to {max(measured):.2f} % in the comparisons, median {median(measured):.2f} %"
    impossible = sum(found is not None and not found["possible"] for found in known)
    failed = sum(found is None for found in known)
    words += f"; cases left out, as even an empty launch is more: {impossible}" if impossible else ""
    return words + (f"; cases that were not calibrated: {failed}" if failed else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, print the table; the exit code."""
    parser = argparse.ArgumentParser(description="What the gate makes of rows of tests/gate/measure.py.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=3, help="runs a side (3)")
    parser.add_argument("--threshold", type=float, default=0.03, help="as glabench check has it (0.03)")
    options = parser.parse_args(arguments)
    same, planted = read(options.folder)
    calibration = read_calibration(options.folder / "calibration.json")
    tallies = judged(same, planted, max(1, options.runs), options.threshold)
    print(render(tallies, max(1, options.runs)))
    print("\nPlanted:", *(render_planted(one, calibration) for one in tallies[1:]), sep="\n  ")
    mistakes = [line for one in tallies if one.asked for line in render_mistakes(one)]
    if mistakes:
        print("\nOtherwise than they should be:", *mistakes, sep="\n  ")
    print("\nComparisons share runs. Without the re-measurement that `glabench check` makes of what is slower.")
    return 0 if all(one.reached for one in tallies) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
