"""Fit the cost model to what tunings measured: ``python -m glabench.tune.calibrate RECORDS...``.

Writes ``gla_kernels/cost/model.json`` and says how well each pass is predicted. The more head dimensions and shapes the
records hold, the better; exhaustive ones are best. Records of another search space, whose passes may be others, are
left out, and of other kernels what was measured over a slice, which may have been longer or shorter than slices are
now.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from gla_kernels import Workload
from gla_kernels.cost import model
from gla_kernels.plan.table import kernels_hash, space_hash
from gla_kernels.schedule import PASSES
from glabench.analysis.load import files, load_tunings
from glabench.errors import UserError
from glabench.tune.candidate import Candidate, launch_of
from glabench.tuning_store import Tuning

RIDGE = 1e-2  # keeps effects near zero that the records say little about


@dataclass(frozen=True)
class Sample:
    """One measured kernel: its features and its median time."""

    base: list[float]
    effects: list[float]
    ms: float


def samples_of(tunings: Iterable[Tuning], passes: Collection[str] = PASSES) -> dict[str, list[Sample]]:
    """The trials of these passes that were measured in tunings of today's space, by pass. UserError when there are
    none."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for tuning in (one for one in tunings if one.header.get("space") == space_hash()):
        work, capability = Workload.from_dict(tuning.workload), _capability(tuning)
        same_slices = tuning.header.get("kernels") == kernels_hash()
        for trial in tuning.trials:
            candidate = Candidate.from_dict(trial.candidate)
            if candidate.step not in passes:
                continue
            whole = candidate.variant.schedule.materialize
            # a fused scan stored all states when these were measured; where nobody keeps them it does no more
            comparable = whole or (same_slices and candidate.step != "walk")
            if trial.status == "ok" and trial.samples_ms and comparable:
                base, effects = model.features(launch_of(work, candidate, capability, few=False), capability)
                found[candidate.step].append(Sample(base, effects, median(trial.samples_ms)))
    if not found:
        raise UserError("none of these records is of the search space that is here: tune again")
    return found


def _capability(tuning: Tuning) -> int:
    major, minor = tuning.environment["capability"].split(".")
    return 10 * int(major) + int(minor)


def fit(samples: list[Sample]) -> tuple[list[float], list[float], list[float]]:
    """(base costs, effects, the log of predicted over measured for each sample) of one pass.

    Base costs by non-negative least squares of relative errors; effects by ridge regression of what is left of the
    logarithm, the fast kernels weighing more: they are what a search is after.
    """
    ms = np.array([one.ms for one in samples])
    base = np.array([one.base for one in samples])
    scale = np.maximum(np.abs(base).max(axis=0), 1e-30)
    costs = nnls(base / scale / ms[:, None], np.ones(len(samples)))[0] / scale
    rough = np.log(np.maximum(base @ costs, 1e-4))
    effects = np.array([one.effects for one in samples])
    weighted = effects * np.sqrt(ms.min() / ms)[:, None]
    left = weighted.T @ effects + RIDGE * np.eye(effects.shape[1])
    correction = np.linalg.solve(left, weighted.T @ (np.log(ms) - rough))
    return costs.tolist(), correction.tolist(), (rough + effects @ correction - np.log(ms)).tolist()


def main(arguments: list[str] | None = None) -> None:
    """Read records, fit, write the model's file."""
    parser = argparse.ArgumentParser(prog="python -m glabench.tune.calibrate", description="Fit the cost model.")
    parser.add_argument("records", nargs="+", type=Path, help="files of tuning records, or folders")
    parser.add_argument("--out", type=Path, default=model.FILE, help="file to write")
    options = parser.parse_args(arguments)
    try:
        found = samples_of(load_tunings(files(options.records)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    passes: dict[str, Any] = {}
    for step, samples in sorted(found.items()):
        base, effects, errors = fit(samples)
        passes[step] = {"base": [_short(x) for x in base], "effects": [_short(x) for x in effects]}
        ms = np.array([one.ms for one in samples])
        ranks = pd.DataFrame({"predicted": ms * np.exp(errors), "measured": ms}).rank()
        order = float(ranks["predicted"].corr(ranks["measured"]))
        print(f"{step}: {len(samples)} kernels, off by {np.std(errors):.0%}, rank correlation {order:.3f}")
    values = {"base": model.BASE, "effects": model.EFFECTS, "passes": passes}
    options.out.write_text(json.dumps(values, indent=1) + "\n")
    print(options.out)


def _short(x: float) -> float:
    return float(f"{x:.5g}")


if __name__ == "__main__":
    main()
