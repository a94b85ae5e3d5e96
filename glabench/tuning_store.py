"""What a tuning came to: one JSON object a line, like the rows of a sweep but of another kind (``"kind": "tuning"``).

Schema history
  1  first version
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from glabench.errors import in_one_line

SCHEMA = 1
VARIANT = 6  # values of a variant in a record: see `Trial.shared`


@dataclass(frozen=True)
class Trial:
    """One candidate that was looked at. ``status`` is one of a row's (glabench.store.STATUSES)."""

    candidate: dict[str, Any]  # Candidate.to_dict(): schedule, block_t, step, tile
    predicted_ms: float  # by the cost model, before anything was compiled
    status: str
    reason: str | None = None  # one line, when status is not ok
    samples_ms: tuple[float, ...] = ()  # cold-L2 samples of this one kernel
    # registers, spill_bytes, shared_bytes, programs_per_sm, tensor_core, compile_s ...: see hardware/crosscompile.py
    compiled: dict[str, Any] | None = None
    # the other variants whose pass is this very launch: (chunk, sub_chunk, materialize, block_t) of each, and, unless
    # the record is older, states_every, 0 for None, and walks
    shared: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True)
class Finalist:
    """A whole plan, timed in turns with the other finalists of its workload.

    role: "candidate", or "incumbent" for the plan that gla() used before this tuning. origin: where the plan came
    from: "search" or, for the incumbent, what the API says ("tuned for ...", "by size").
    """

    plan: dict[str, Any]  # Plan.to_dict()
    role: str
    origin: str
    status: str  # of its gate: "ok", "wrong" ... as a row's
    reason: str | None
    samples_ms: tuple[float, ...]


@dataclass(frozen=True)
class Tuning:
    """One workload tuned once."""

    workload: dict[str, Any]  # Workload.to_dict()
    strategy: str
    budget_s: float | None
    feasible: int  # different launches of the space that can run
    trials: tuple[Trial, ...]
    finalists: tuple[Finalist, ...]
    winner: int | None  # index into finalists; None when nothing ran. See `decided`
    stopped: str  # why the search ended
    environment: dict[str, Any]
    started: str  # ISO 8601, UTC
    # All of it since its turn came: processes started, compiled, measured, gated. In a run of several shapes the first
    # kernels of the next one compile beside this one's measurements, and are not in its time.
    wall_s: float
    spent_s: dict[str, float] = field(default_factory=dict)  # parts of wall_s by name
    header: dict[str, Any] = field(
        default_factory=dict
    )  # of tables that the winner goes into: gla_kernels.plan.table.Header
    # whether backward plans were timed, and judged, after a forward pass that leaves its states; older ones were not
    states_given: bool = False
    # How many times what was measured of a pass a plan takes of it, by the cost model, where that is not once: a
    # variant as in `Trial.shared`, the pass, the factor. Of slices and of segments' first walks one launch is measured.
    # None in older records.
    times: tuple[tuple[Any, ...], ...] | None = None
    kind: str = "tuning"
    schema: int = SCHEMA

    @property
    def measured(self) -> int:
        """Candidates that were tried, those that failed included."""
        return len(self.trials)

    @property
    def decided(self) -> bool:
        """Whether there is a winner, and a plan of the search was in the finals with it. If not, the budget, or what
        failed, left none, and the plan in use won unopposed: that says nothing of it."""
        return self.winner is not None and any(one.role == "candidate" for one in self.finalists)

    @property
    def failed(self) -> Counter[str]:
        """How many of them gave no time, by status."""
        return Counter(trial.status for trial in self.trials if trial.status != "ok")


def to_json(tuning: Tuning) -> str:
    """One line of strict JSON, without the line's end."""
    return json.dumps(asdict(tuning), allow_nan=False)


def from_json(text: str) -> Tuning:
    """The inverse of ``to_json``. ValueError when the text is no tuning of this schema."""
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(values, dict) or values.get("kind") != "tuning":
        raise ValueError("expected a JSON object of kind tuning")
    if values.get("schema") != SCHEMA:
        raise ValueError(f"tuning of schema {str(values.get('schema'))[:20]}, this glabench reads {SCHEMA}")
    try:
        trials = tuple(Trial(**{**trial, **_tuples(trial)}) for trial in values["trials"])
        finalists = tuple(Finalist(**{**one, "samples_ms": tuple(one["samples_ms"])}) for one in values["finalists"])
        return Tuning(**{**values, "trials": trials, "finalists": finalists, "times": _times(values.get("times"))})
    except (TypeError, LookupError, AttributeError, ValueError) as error:
        raise ValueError(in_one_line(f"not a tuning: {error}")) from None


def _times(found: Any) -> tuple[tuple[Any, ...], ...] | None:
    """`Tuning.times` from JSON. ValueError when it is none."""
    if found is None:
        return None
    times = tuple((tuple(variant), step, factor) for variant, step, factor in found)
    if not all(len(variant) == VARIANT and type(factor) in (int, float) for variant, _, factor in times):
        raise ValueError(f"times: expected {VARIANT} values of a variant, a pass and a factor of each")
    return times


def _tuples(trial: dict[str, Any]) -> dict[str, Any]:
    """The fields of a trial that JSON has as lists."""
    return {"samples_ms": tuple(trial["samples_ms"]), "shared": tuple(map(tuple, trial.get("shared", ())))}
