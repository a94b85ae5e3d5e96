"""The process in which the cases of a sweep run: a child that may die, and a row whatever becomes of it."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from glabench import store
from glabench.run.child import Child, ChildDied, ChildTimeout
from glabench.run.settings import Settings
from glabench.spec.case import Case
from glabench.store import Row

PIPELINE = "glabench.run.pipeline"


@dataclass
class Worker:
    """A child process that runs cases one after another. Used by one thread at a time, but for ``close``.

    env: changes to this process's environment, such as TRITON_INTERPRET=1 or the number of threads; None removes.
    environment: what goes into the rows of a child that died before it could say anything itself.
    pipeline: the module whose ``run_case`` the child calls.
    """

    env: dict[str, str | None] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    pipeline: str = PIPELINE
    _child: Child = field(init=False, repr=False)
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._child = Child("glabench.run.worker", self.env)

    @property
    def pid(self) -> int | None:
        """The running child's process id."""
        return self._child.pid

    def run(self, case: Case, sweep: str, settings: Settings, limit_s: float) -> Row:
        """One row, whatever happens: the child's own, or status crashed or timeout (after ``limit_s`` seconds)."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        clock = time.monotonic()
        request = {
            "pipeline": self.pipeline,
            "case": case.to_dict(),
            "sweep": sweep,
            "settings": settings.to_dict(),
        }
        detail = None
        try:
            row = store.from_json(self._child.ask(request, limit_s)["row"])
        except ChildTimeout as error:
            status, reason = "timeout", str(error)
        except ChildDied as error:
            status, reason, detail = "crashed", error.reason, error.detail
        else:
            self._known = row.environment or self._known
            if row.status == "crashed":
                self._child.stop()  # an error on the device poisons every later call of its process
            return row
        return Row(
            case_id=case.id,
            sweep=sweep,
            case=case.to_dict(),
            status=status,
            reason=reason,
            detail=detail,
            environment=self._known or self.environment,
            started=started,
            wall_s=time.monotonic() - clock,
        )

    def close(self) -> None:
        """Kill the child for good. Safe to call from another thread: a ``run`` under way there ends as crashed."""
        self._child.close()


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """The child's side: run the case, and answer {"row": its row as JSON}."""
    run_case = importlib.import_module(request["pipeline"]).run_case
    settings = Settings.from_dict(request["settings"])
    row: Row = run_case(Case.from_dict(request["case"]), request["sweep"], settings)
    return {"row": store.to_json(row)}
