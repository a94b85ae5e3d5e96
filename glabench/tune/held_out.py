"""What plans cost at shapes that were never tuned: ``python -m glabench.tune.held_out RECORDS...``.

Each tuning in turn is held out, with all others of its shape class: what gla() would run there by the rest, of tuned
plans and by the cost model, is looked up among the kernels that the tuning measured. Needs no GPU. Shapes lie a factor
of two apart in heads where a grid was tuned, so that this is a harder question than a shape between them puts; and the
cost model, if it was fitted to these records, knows their kernels' times.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gla_kernels import Workload
from gla_kernels.choose import choice_of
from gla_kernels.table import Entry, Header, Table
from glabench.analysis.load import load_tunings
from glabench.analysis.statistics import geometric_mean
from glabench.analysis.tuning import Sums
from glabench.errors import UserError
from glabench.tune.session import describe, entry_of
from glabench.tuning_store import Tuning


@dataclass(frozen=True)
class Held:
    """A workload that was held out. ratio: the time of the plan chosen for it without its tuning over that of its own,
    both as sums of passes; NaN where a pass of it was not measured. origin: where that plan comes from."""

    work: Workload
    ratio: float
    origin: str


def held_out(tunings: Sequence[Tuning]) -> list[Held]:
    """Of each tuning in which the schedule was open, the latest of a workload. UserError when none has a winner, or
    when they are of several GPUs or kernels."""
    won = [one for one in tunings if one.winner is not None and one.workload["schedule"] is None]
    headers = {Header(**one.header) for one in won}
    if len(headers) != 1:
        raise UserError(f"expected tunings of one GPU, Triton, kernels and space, found {len(headers)} such")
    (header,) = headers
    latest = {entry_of(one).work: one for one in sorted(won, key=lambda one: one.started)}
    entries = {work: entry_of(one) for work, one in latest.items()}
    return [_held(tuning, entries[work], list(entries.values()), header) for work, tuning in latest.items()]


def _held(tuning: Tuning, own: Entry, entries: Sequence[Entry], header: Header) -> Held:
    choice = choice_of(own.work, Table(header, tuple(one for one in entries if one.key != own.key)))
    sums = Sums.of(tuning)
    ms, own_ms = (sum(sums.passes(plan.to_dict()).values()) for plan in (choice.plan, own.plan))
    return Held(own.work, ms / own_ms if ms else math.nan, choice.origin)


def main(arguments: list[str] | None = None) -> None:
    """Read the records, print a line for each workload, the worst last, and what that comes to."""
    parser = argparse.ArgumentParser(
        prog="python -m glabench.tune.held_out", description="What plans cost at shapes that were never tuned."
    )
    parser.add_argument("records", nargs="+", type=Path, help="files of tuning records")
    try:
        found = held_out(load_tunings(parser.parse_args(arguments).records))
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
