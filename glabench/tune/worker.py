"""The child's side of tuning on several GPUs: one shape a request, on the one GPU that this process sees."""

from __future__ import annotations

from functools import cache
from typing import Any

from gla_kernels import Workload
from glabench import tuning_store
from glabench.errors import UserError
from glabench.tune.session import Session


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Tune {"works", "following", "strategy", "budget_s", "jobs"}. Answers {"error": one line or None, "tunings":
    their records}."""
    works, following = ([Workload.from_dict(one) for one in request[name]] for name in ("works", "following"))
    try:
        tunings = _session(request["strategy"], request["budget_s"], request["jobs"]).tune(works, following)
    except UserError as error:
        return {"error": str(error), "tunings": []}
    return {"error": None, "tunings": [tuning_store.to_json(tuning) for tuning in tunings]}


@cache
def _session(strategy: str, budget_s: float | None, jobs: int) -> Session:
    return Session(strategy, budget_s, quiet=True, keep=False, jobs=jobs)
