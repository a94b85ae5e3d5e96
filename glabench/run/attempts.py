"""How often a case is tried: once more after its process died, which may be another's fault, and then no more."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from glabench.run.worker import Worker
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.store import Row

MOST_DEATHS = 2


@dataclass
class Attempts:
    """The processes that cases have killed so far, whichever part of a case it was. Used by many threads."""

    _deaths: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list), init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def run(self, worker: Worker, case: Case, sweep: str, settings: Settings, limit_s: float) -> Row:
        """The case's row. Where its process died it is tried once more, in a new one; a case that two processes died of
        is "crashed" and not tried a third time, nor are its other parts.

        ``deaths`` of the row says how they died that tried this part of it. A timeout is not tried again: it was the
        sweep that killed that process, and it would take as long once more.
        """
        here: list[str] = []
        wall_s, spent = 0.0, list[dict[str, Any]]()
        row: Row | None = None
        while self._may_try(case):
            row = worker.run(case, sweep, settings, limit_s)
            wall_s += row.wall_s
            spent += row.spent or ()
            if not row.deaths:
                break
            here += row.deaths
            with self._lock:
                self._deaths[case.id] += row.deaths
        if row is None:
            last = self._deaths[case.id][-1]
            reason = f"not tried: another part of the case ended two processes; of the last: {last}"
            return worker.row_without(case, sweep, "crashed", reason)
        return replace(row, deaths=here or None, wall_s=wall_s, spent=spent or None)

    def _may_try(self, case: Case) -> bool:
        with self._lock:
            return len(self._deaths[case.id]) < MOST_DEATHS
