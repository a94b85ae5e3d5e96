"""The process in which the cases of a sweep run: a child that may die, and a row whatever becomes of it."""

from __future__ import annotations

import contextlib
import gc
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from glabench import store
from glabench.counting import LACKS
from glabench.errors import UserError
from glabench.hardware.environment import tried_again
from glabench.phases import Spent, spent_of
from glabench.run.child import Child, ChildDied, ChildTimeout
from glabench.run.forks import Forks
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.store import Row

MODULE = "glabench.run.worker"
PIPELINE = "glabench.run.pipeline"


@dataclass
class Worker:
    """A child process that runs cases one after another. Used by one thread at a time, but for ``close``.

    env: changes to this process's environment, such as TRITON_INTERPRET=1 or the number of threads; None removes.
    environment: what goes into the rows of a child that died before it could say anything itself.
    pipeline: the module whose ``run_case`` the child calls.
    imports: what else the child imports before its first case.
    told: is given what the child tells while it runs a case; see `glabench.run.quiet`.
    forks: what the child is forked from, where that is there.
    """

    env: dict[str, str | None] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    pipeline: str = PIPELINE
    imports: tuple[str, ...] = ()
    told: Callable[[dict[str, Any]], None] | None = None
    forks: Forks | None = None
    _child: Child = field(init=False, repr=False)
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._child = Child(MODULE, self.env, (self.pipeline, *self.imports), self.told, self.forks)

    @property
    def pid(self) -> int | None:
        """The running child's process id."""
        return self._child.pid

    def start(self) -> None:
        """Start the child, so that its imports are done when the first case comes. One that cannot be started is the
        first case's to tell of."""
        with contextlib.suppress(OSError):
            self._child.start()

    def run(self, case: Case, sweep: str, settings: Settings, limit_s: float) -> Row:
        """One row, whatever happens: the child's own, or status crashed or timeout (after ``limit_s`` seconds).

        ``deaths`` of the row says how the child died, if it did so by itself.
        """
        started, began = datetime.now(UTC).isoformat(timespec="seconds"), time.time()
        clock = time.monotonic()
        request = {
            "pipeline": self.pipeline,
            "case": case.to_dict(),
            "sweep": sweep,
            "settings": settings.to_dict(),
        }
        try:
            row = _row_of(self._child.ask(request, limit_s), case)
        except ChildTimeout as error:
            row = self.row_without(case, sweep, "timeout", str(error))
        except ChildDied as error:
            row = self.row_without(case, sweep, "crashed", error.reason, detail=error.detail, deaths=[error.reason])
            if error.unborn:
                row = replace(row, environment=tried_again(row.environment))
        except ValueError as error:
            self._child.stop()  # whatever wrote that is not to be trusted with the next case
            row = self.row_without(case, sweep, "crashed", f"the process answered what is no row of this case: {error}")
        else:
            if "fingerprint" in row.environment:
                self._known = {key: value for key, value in row.environment.items() if key != LACKS}
            if row.status == "crashed":
                self._child.stop()  # an error on the device poisons every later call of its process
            return _with_start(row, time.monotonic() - clock)
        took = time.monotonic() - clock
        died = Spent(settings.part, round(began, 3), {"died": round(took, 3)})
        return replace(row, started=started, wall_s=took, spent=[died.to_dict()])

    def prepare(self, case: Case, settings: Settings, limit_s: float) -> list[dict[str, Any]]:
        """What the case needs and can have before its kernels are compiled: see `pipeline.prepare`. What that took, as
        a row has it; nothing where it came to nothing, which the case itself will tell of."""
        request = {"pipeline": self.pipeline, "case": case.to_dict(), "settings": settings.to_dict(), "ahead": True}
        try:
            return list(self._child.ask(request, limit_s)["spent"])
        except (ChildTimeout, ChildDied, LookupError, TypeError, ValueError):
            self._child.stop()
            return []

    def row_without(self, case: Case, sweep: str, status: str, reason: str, **more: Any) -> Row:
        """The row of a case whose process did not say what it came to."""
        facts = self._known or self.environment
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Row(case.id, sweep, case.to_dict(), status, reason, environment=facts, started=now, **more)

    def close(self) -> None:
        """Kill the child for good. Safe to call from another thread: a ``run`` under way there ends as crashed."""
        self._child.close()


def _row_of(answer: dict[str, Any], case: Case) -> Row:
    """The row that a child answered. ValueError when it is none, or another case's."""
    try:
        row = store.from_json(answer["row"])
        spent_of(row)
    except (LookupError, AttributeError, TypeError, UserError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if row.case_id != case.id:
        raise ValueError(f"case {row.case_id}")
    return row


def _with_start(row: Row, took_s: float) -> Row:
    """The row of a case that took that long from its request to its answer: what the child did not see is its start."""
    if not row.spent:
        return row
    first, *more = spent_of(row)
    unseen = took_s - sum(one.total_s for one in (first, *more))
    return replace(row, spent=[one.to_dict() for one in (first.starting(max(unseen, 0.0)), *more)])


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """The child's side: run the case, and answer {"row": its row as JSON}; or get ready for it, and answer {"spent":
    what that took}."""
    pipeline = importlib.import_module(request["pipeline"])
    case, settings = Case.from_dict(request["case"]), Settings.from_dict(request["settings"])
    if request.get("ahead"):
        return {"spent": pipeline.prepare(case, settings)}
    row: Row = pipeline.run_case(case, request["sweep"], settings)
    gc.freeze()  # what outlives a case stays: the next one's collections need not look at torch's 200,000 objects again
    return {"row": store.to_json(row)}
