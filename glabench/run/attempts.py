"""How often a case is tried: once more after its process died, which may be another's fault, and then no more; and not
at all once its system was found not to be here."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from glabench.counting import LACKS
from glabench.phases import Spent
from glabench.run.worker import Worker
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Part, Settings
from glabench.spec.work import work
from glabench.store import Row

MOST_DEATHS = 2
Kind = tuple[Any, ...]


@dataclass
class Attempts:
    """The processes that cases have killed so far, whichever part of a case it was, and the first row of each kind of
    case whose system is not here. Used by many threads."""

    _deaths: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list), init=False)
    _absent: dict[Kind, Row] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def run(self, worker: Worker, case: Case, sweep: str, settings: Settings, limit_s: float) -> Row:
        """The case's row. Where its process died it is tried once more, in a new one; what two processes died of is
        "crashed" and not tried a third time, nor are its other parts. To compile a rival's kernels ahead is apart:
        the case can do without.

        ``deaths`` of the row says how they died that tried this part of it. A timeout is not tried again: it was the
        sweep that killed that process, and it would take as long once more.

        A case of a kind whose system is not here, or cannot be imported, has the same row without being tried: an
        import that fails takes a new process each time, and the answer that the case is compared with.
        """
        kind = _kind(case, settings.part)
        with self._lock:
            failed = self._absent.get(kind)
        if failed is not None:
            return _same(failed, worker, case, sweep, settings.part)
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
        row = replace(row, environment=row.environment | _asked(worker, settings, limit_s))
        if LACKS in row.environment and row.accuracy is None:  # else another case may not come as far
            with self._lock:
                self._absent.setdefault(kind, row)
        return row

    def _may_try(self, tried: str) -> bool:
        with self._lock:
            return len(self._deaths[tried]) < MOST_DEATHS


def _kind(case: Case, part: Part) -> Kind:
    """What of a case and its part decides which packages its system imports: all but its numbers."""
    values = case.to_dict().items()
    return (part, *((name, "a number" if type(value) in (int, float) else value) for name, value in values))


def _same(failed: Row, worker: Worker, case: Case, sweep: str, part: Part) -> Row:
    """The row of a case that fails as another of its kind did, in no time."""
    facts = {"detail": failed.detail, "implementation": failed.implementation, "work": work(case.to_dict())}
    row = worker.row_without(case, sweep, failed.status, failed.reason or "", **facts)
    return replace(row, environment=failed.environment, spent=[Spent(part, round(time.time(), 3), {}).to_dict()])


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
