"""How often the gate is wrong: ``python -m glabench.check.power ROWS...`` plants slow-downs in real samples and counts.

Each round makes runs before and after from the samples of a case's row: blocks of them drawn anew, times a factor for
the run, log-normal with the spread given. That spread is an assumption, unless ROWS hold several runs of a case: then
it is theirs. With no slow-down planted it is an A/A comparison, and every call is a false one.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glabench.analysis.clocks import throttled
from glabench.check.noise import noise
from glabench.check.pairs import pairs
from glabench.check.verdict import check
from glabench.check.within import BLOCKS
from glabench.errors import UserError
from glabench.store import Row

SPREADS = (0.001, 0.003, 0.005, 0.01)
PLANTED = (1.0, 1.01, 1.02, 1.03, 1.05)


@dataclass(frozen=True)
class Calls:
    """Shares of cases called slower, faster and ambiguous, over all rounds, and of rounds in which any was called."""

    slower: float
    faster: float
    ambiguous: float
    rounds: float


def simulate(
    rows: Sequence[Row],
    factor: float,
    spread: float | Sequence[float],
    runs: int = 3,
    rounds: int = 20,
    threshold: float = 0.03,
    seed: int = 0,
) -> Calls:
    """Checks of ``runs`` runs a side of every row, with times after multiplied by ``factor``.

    spread: standard deviation of log(run median) from run to run, one for all rows or one for each.
    """
    random = np.random.default_rng(seed)
    spreads = [spread] * len(rows) if isinstance(spread, float) else spread
    verdicts: list[str] = []
    failed = 0
    for _ in range(rounds):
        before, after = (
            [drawn(row, by, own, random) for row, own in zip(rows, spreads, strict=True) for _ in range(runs)]
            for by in (1.0, factor)
        )
        found = [case.time.verdict for case in check(before, after, threshold).cases if case.time]
        failed += "slower" in found or "faster" in found
        verdicts += found
    slower, faster, ambiguous = (verdicts.count(name) / len(verdicts) for name in ("slower", "faster", "ambiguous"))
    return Calls(slower, faster, ambiguous, failed / rounds)


def drawn(row: Row, factor: float, spread: float, random: np.random.Generator) -> Row:
    """Another run of the row's case: its samples in blocks drawn with replacement, times what a run is off by."""
    assert row.time is not None
    samples = np.asarray(row.time["samples_ms"])
    length = max(1, len(samples) // BLOCKS)
    starts = random.integers(0, len(samples) - length + 1, size=(math.ceil(len(samples) / length), 1))
    values = samples[(starts + np.arange(length)).ravel()] * factor * math.exp(random.normal(0.0, spread))
    return replace(row, time={**row.time, "samples_ms": values.tolist()}, clocks=None)


def timed(rows: Sequence[Row]) -> list[Row]:
    """The rows whose times the gate would compare."""
    return [row for row in rows if row.time and throttled(row) is None]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of rates."""
    from glabench.analysis.load import located, only_rows

    parser = argparse.ArgumentParser(
        prog="glabench.check.power", description="How often the gate calls what it should."
    )
    parser.add_argument("rows", type=Path, nargs="+", help="files of rows with samples")
    parser.add_argument("--runs", type=int, default=3, help="runs a side (3)")
    parser.add_argument("--rounds", type=int, default=20, help="checks for each line (20)")
    parser.add_argument("--only", action="append", default=[], metavar="SYSTEM", help="this system's cases only")
    options = parser.parse_args(arguments)
    if min(options.runs, options.rounds) < 1:
        raise UserError(f"--runs {options.runs} --rounds {options.rounds}: expected 1 or more of each")
    rows = [row for _, row in located(only_rows(options.rows))]
    cases = pairs((), timed([row for row in rows if not options.only or row.case["system"] in options.only]))
    if not cases:
        raise UserError(f"{options.rows[0]}: no row with times at full clock, whose samples could be drawn from")
    measured = noise((pair.case_id, pair.after) for pair in cases).pooled
    print(f"{len(cases)} cases, {options.runs} runs a side, {options.rounds} checks a line")
    print(f"{'spread of runs':>16} {'planted':>8} {'slower':>8} {'faster':>8} {'ambiguous':>10} {'checks':>8}")
    for spread in SPREADS if measured is None else (measured,):
        for factor in PLANTED:
            calls = simulate([pair.after[-1] for pair in cases], factor, spread, options.runs, options.rounds)
            shares = f"{calls.slower:8.1%} {calls.faster:8.1%} {calls.ambiguous:10.1%} {calls.rounds:8.1%}"
            print(f"{spread:16.2%} {factor - 1:8.0%} {shares}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
