"""What plans cost at shapes that were never tuned: ``python -m glabench.tune.held_out RECORDS... [--at RECORDS...]``.

Each tuning in turn is held out, with all others of its shape class: what gla() would run there by the rest, of tuned
plans and by the cost model, is looked up in what the tuning measured: plans timed in turns with its winner, else sums
of the kernels of both. Needs no GPU. Shapes lie a factor of two apart in heads where a grid was tuned, so that this is
a harder question than a shape between them puts; and the cost model, if it was fitted to these records, knows their
kernels' times. With --at, the records there are looked up instead, and only the others stand for what was tuned: what
today's choice costs at shapes that are kept for judging it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gla_kernels import Workload
from gla_kernels.plan.choose import choice_of
from gla_kernels.plan.table import Header, Table, key_of
from glabench.analysis.load import files, load_tunings
from glabench.analysis.statistics import geometric_mean
from glabench.analysis.tuning import Sums, median_ms, winner
from glabench.errors import UserError
from glabench.tune.session import describe, entry_of
from glabench.tuning_store import Tuning


@dataclass(frozen=True)
class Held:
    """A workload that was held out. ratio: the time of the plan chosen for it without its tuning over that of its own;
    NaN where a pass of either was not measured. origin: where that plan comes from."""

    work: Workload
    ratio: float
    origin: str


def held_out(tunings: Sequence[Tuning], at: Sequence[Tuning] | None = None) -> list[Held]:
    """Of each tuning in which the schedule was open, the latest of a workload; or of each of ``at``, by the others.
    UserError when none has a winner, or when they are of several GPUs or kernels."""
    known, asked = _latest(tunings), _latest(tunings if at is None else at)
    headers = {Header(**one.header) for one in (*known.values(), *asked.values())}
    if len(headers) != 1 or not known or not asked:
        raise UserError(f"expected tunings of one GPU, Triton, kernels and space, found {len(headers)} such")
    (header,) = headers
    entries = [entry_of(one) for one in known.values()]
    found = []
    for work, tuning in asked.items():
        own = key_of(work) if at is None else None
        choice = choice_of(work, Table(header, tuple(one for one in entries if key_of(one.work) != own)))
        found.append(Held(work, cost_of(tuning, choice.plan.to_dict()), choice.origin))
    return found


def _latest(tunings: Sequence[Tuning]) -> dict[Workload, Tuning]:
    """Those in which the schedule was open and that have a winner, the latest of each workload."""
    won = [one for one in tunings if winner(one) is not None and one.workload["schedule"] is None]
    return {entry_of(one).work: one for one in sorted(won, key=lambda one: one.started)}


def cost_of(tuning: Tuning, plan: dict[str, Any]) -> float:
    """The plan's time over that of the tuning's winner."""
    own, sums = winner(tuning), Sums.of(tuning)
    assert own is not None
    for one in (own, *tuning.finalists):
        if one.samples_ms and sums.same(one.plan, plan):
            return median_ms(one.samples_ms) / median_ms(own.samples_ms)
    ms, own_ms = (sum(sums.passes(values).values()) for values in (plan, own.plan))
    return ms / own_ms if ms and own_ms else math.nan


def main(arguments: list[str] | None = None) -> None:
    """Read the records, print a line for each workload, the worst last, and what that comes to."""
    parser = argparse.ArgumentParser(
        prog="python -m glabench.tune.held_out", description="What plans cost at shapes that were never tuned."
    )
    parser.add_argument("records", nargs="+", type=Path, help="files of tuning records, or folders")
    parser.add_argument("--at", nargs="+", type=Path, help="files of others, to be looked up instead")
    options = parser.parse_args(arguments)
    try:
        records, at = (load_tunings(files(paths)) if paths else None for paths in (options.records, options.at))
        found = held_out(records or [], at)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    known = sorted((one for one in found if not math.isnan(one.ratio)), key=lambda one: one.ratio)
    for one in known:
        print(f"{one.ratio:.3f}  {describe(one.work)} {one.work.direction}: {one.origin}")
    left = len(found) - len(known)
    if known:
        ratios = [one.ratio for one in known]
        print(f"geometric mean {geometric_mean(ratios):.3f}, worst {ratios[-1]:.3f}, of {len(known)} held out")
    print(f"{left} more chose a plan of which a pass was not measured")


if __name__ == "__main__":
    main()
