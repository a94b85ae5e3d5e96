"""Write the table that comes with the package from tuning records: ``python -m glabench.tune.ship RECORDS...``.

The winners of the records become ``gla_kernels/plan/tuned/<gpu>.json``, the newest of each workload, but for those of a
search that had no walk over time where one runs by now. No GPU: what is shipped can be made again from what is
committed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gla_kernels.plan.choose import with_walks
from gla_kernels.plan.files import ship
from gla_kernels.plan.limits import why_not
from gla_kernels.plan.table import Header, TableError, first_of_line, kernels_hash, space_hash
from gla_kernels.schedule import WALK_OF
from glabench.analysis.load import files, load_tunings
from glabench.errors import UserError
from glabench.tune.session import entry_of
from glabench.tuning_store import Tuning


def table_of(tunings: Sequence[Tuning]) -> Path:
    """Ship the winners; the file's path. UserError when there are none, or when they do not belong together or to the
    sources that are here."""
    won = sorted((one for one in tunings if one.decided and _had_walks(one)), key=lambda one: one.started)
    if not won:
        raise UserError("no tuning in these records has a winner of a search")
    headers = [Header(**one.header | {"kernels": first_of_line(one.header["kernels"])}) for one in won]
    if len(set(headers)) > 1:
        raise UserError("these records are of several GPUs, versions of Triton, kernels or spaces: ship those of one")
    if (headers[0].kernels, headers[0].space) != (kernels_hash(), space_hash()):
        raise UserError("these records are of other kernels or another search space than those here: tune again")
    try:
        return ship([entry_of(one) for one in won], headers[0])
    except TableError as error:
        raise UserError(str(error)) from None


def _had_walks(one: Tuning) -> bool:
    """Whether the search measured walks, or none could run with its winner's schedule."""
    entry, capability = entry_of(one), one.header["capability"]
    work, plan = entry.work, entry.plan
    walking = replace(plan, config=with_walks(plan.config, work, capability))
    could = walking.walks(work.direction) and why_not(walking, work, capability) is None
    return not could or any(trial.candidate["step"] == WALK_OF[work.direction] for trial in one.trials)


def main(arguments: list[str] | None = None) -> None:
    """Read the records, write the table, say where."""
    parser = argparse.ArgumentParser(prog="python -m glabench.tune.ship", description="Ship tuned plans.")
    parser.add_argument("records", nargs="+", type=Path, help="files of tuning records, or folders")
    try:
        print(table_of(load_tunings(files(parser.parse_args(arguments).records))))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
