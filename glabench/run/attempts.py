"""How often a case is tried: once more after its process died, which may be another's fault, and then no more."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from glabench.run.worker import Worker
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Settings
from glabench.store import Row

MOST_DEATHS = 2


@dataclass
class Attempts:
    """The processes that cases have killed so far, whichever part of a case it was. Used by many threads."""

    _deaths: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list), init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def run(self, worker: Worker, case: Case, sweep: str, settings: Settings, limit_s: float) -> Row:
        """The case's row. Where its process died it is tried once more, in a new one; what two processes died of is
        "crashed" and not tried a third time, nor are its other parts. To compile a rival's kernels ahead is apart:
        the case can do without.

        ``deaths`` of the row says how they died that tried this part of it. A timeout is not tried again: it was the
        sweep that killed that process, and it would take as long once more.
        """
        here: list[str] = []
        wall_s, spent = 0.0, list[dict[str, Any]]()
        row: Row | None = None
        tried = f"{case.id} ahead" if settings.part == "compile" and CATALOG[case.system].autotuned else case.id
        while self._may_try(tried):
            row = worker.run(case, sweep, settings, limit_s)
            wall_s += row.wall_s
            spent += row.spent or ()
            if not row.deaths:
                break
            here += row.deaths
            with self._lock:
                self._deaths[tried] += row.deaths
        if row is None:
            last = self._deaths[tried][-1]
            reason = f"not tried: another part of the case ended two processes; of the last: {last}"
            row = worker.row_without(case, sweep, "crashed", reason)
        else:
            row = replace(row, deaths=here or None, wall_s=wall_s, spent=spent or None)
        return replace(row, environment=row.environment | _asked(worker, settings, limit_s))

    def _may_try(self, tried: str) -> bool:
        with self._lock:
            return len(self._deaths[tried]) < MOST_DEATHS


def _asked(worker: Worker, settings: Settings, limit_s: float) -> dict[str, Any]:
    """What rows say of how they were asked for, beside where they were made: a digest of the settings and those that
    are not the usual ones, the limit in seconds, and the threads of what is timed on a CPU."""
    asked: dict[str, Any] = {"settings": settings.digest, "limit_s": limit_s}
    if settings.given:
        asked["settings_given"] = settings.given
    if settings.device == "cpu" and settings.part == "all":
        asked["omp_num_threads"] = worker.env.get("OMP_NUM_THREADS")
    return asked


def still_holds(row: Row, settings: Settings, limit_s: float, threads: str | None) -> bool:
    """Whether the row would come out the same with these settings, this limit in seconds, and this number of threads of
    a case that is timed on a CPU. What a row does not say, as older ones, is no difference."""
    made = row.environment
    wanted = {"settings": settings.digest, "omp_num_threads": threads}
    if any(made.get(key, value) != value for key, value in wanted.items()):
        return False
    return row.status != "timeout" or (made.get("limit_s") or limit_s) >= limit_s
