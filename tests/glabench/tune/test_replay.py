"""The search against the truth: replayed on tunings that measured everything, it measures little and misses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gla_kernels import Workload
from gla_kernels.plan.table import space_hash
from gla_kernels.tiles import operands
from glabench.analysis.load import load_tunings
from glabench.tune.candidate import Candidate, key, launch_of
from glabench.tune.history import History
from glabench.tune.space import space_of
from glabench.tune.strategies import SAMPLES, model
from glabench.tuning_store import Tuning

ROOT = Path(__file__).parents[3]
MOST_MEASURED = 0.15
MOST_LOST = 1.03


def exhaustive() -> list[Tuning]:
    """The committed tunings that measured the whole of today's space to the end, whatever kernels it was of: their
    times are what the search has to find its way in."""
    files = sorted((ROOT / "results").glob("*/tune-exhaustive/*.jsonl*"))
    found = load_tunings(files) if files else []
    whole = (one for one in found if one.strategy == "exhaustive" and one.measured == one.feasible)
    return [one for one in whole if one.header["space"] == space_hash()]


def name(tuning: Tuning) -> str:
    work = Workload.from_dict(tuning.workload)
    return f"{work.direction}-{work.B}x{work.T}x{work.H}x{work.K}x{work.V}"


FOUND = exhaustive()
FIRST = {name(one) for one in [one for one in FOUND if one.workload["direction"] == "fwd"][:1]}  # by day, one alone


@pytest.mark.exhaustive(tuning=[one for one in FOUND if name(one) not in FIRST])
@pytest.mark.parametrize("tuning", FOUND, ids=name)
def test_the_model_finds_the_best_plan_among_few(tuning: Tuning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "interpreting", lambda: False)  # launches as on a GPU
    work = Workload.from_dict(tuning.workload)
    space = space_of(work, 90)
    known = {key(launch_of(work, Candidate.from_dict(one.candidate), 90, few=False)): one for one in tuning.trials}
    assert set(space.candidates) <= set(known)
    truth, searched = History(space), History(space)
    for one in space.candidates:
        truth.add(one, known[one].status, known[one].reason, known[one].samples_ms)
    for batch in model(searched):
        for request in batch:
            trial = known[request.key]
            searched.add(request.key, trial.status, trial.reason, trial.samples_ms[:SAMPLES])
    assert len(searched.results) <= MOST_MEASURED * len(space.candidates)
    variant = searched.ranking()[0]
    chosen = {searched.best(variant, step) for step in space.menus[variant]}
    assert space.total(variant, truth.ms, chosen) <= MOST_LOST * truth.total(truth.ranking()[0])
