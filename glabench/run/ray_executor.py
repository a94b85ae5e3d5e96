"""The same sweep on the machines of a Ray cluster: each case is a task with one GPU, and one row comes back.

Where a task runs, and that it runs again when its machine is lost, is Ray's (https://docs.ray.io). What a case does to
its process is ours, as on one machine: a task runs its case in a child that may die (``glabench.run.worker``). Rows
travel as JSON text and are appended by the process that started the sweep, so that it goes on where it stopped.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from glabench import store
from glabench.errors import UserError, in_one_line
from glabench.hardware.environment import tried_again
from glabench.run.attempts import Attempts
from glabench.run.driver import Driver, Outcome, known_environment, run_environment
from glabench.run.order import longest_first
from glabench.run.parts import merge
from glabench.run.processes import worker_env
from glabench.run.worker import Worker
from glabench.spec.case import Case
from glabench.spec.settings import Device, Part, Settings
from glabench.store import Row

MAX_RETRIES = 3  # of a task whose machine or Ray process was lost; Ray's own default
KNOCK_S = 10.0

# In a process of Ray's: the workers that wait for its next task, by part and by the GPU that they see.
_workers: dict[tuple[Part, str | None], Worker] = {}


def connect(address: str | None) -> None:
    """Join the cluster at ``address`` ("auto", "head:6379"), or start Ray on this machine for None.

    Raises UserError when Ray is not installed or nothing answers there.
    """
    try:
        import ray
    except ImportError:
        raise UserError("--executor ray needs Ray: pip install 'glabench[ray]'") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _knock(address)
        ray.init(address=address or "local", log_to_driver=False, ignore_reinit_error=True)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise UserError(f"--address {address}: no Ray cluster answers: {error}") from None


def _knock(address: str | None) -> None:
    """OSError, or ValueError for a port that is none, where nothing listens at HOST:PORT: Ray would try for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if colon and "/" not in host:
        socket.create_connection((host, int(port)), timeout=KNOCK_S).close()


def environment_there(device: Device) -> dict[str, Any]:
    """``driver.run_environment`` of a machine of the cluster that has such a device. Waits until there is one."""
    import ray

    found: dict[str, Any] = ray.get(ray.remote(run_environment).options(**_resources(device)).remote(device))
    return found


@dataclass
class RayDriver(Driver):
    """A driver whose cases run as tasks of the cluster that ``connect`` joined, as many at once as it has GPUs.

    there: what is known of the cluster's machines, as ``environment_there`` has it.
    """

    there: dict[str, Any] = field(default_factory=dict)

    def run(self, cases: Sequence[Case]) -> Outcome:
        """Run the cases; Ctrl-C cancels the tasks and comes back with ``interrupted``, every finished row kept."""
        import ray

        task = ray.remote(run_whole).options(max_retries=MAX_RETRIES, **_resources(self.device))
        pending = {task.remote(self._request(case)): case for case in longest_first(cases)}
        try:
            while pending:
                (done,), _ = ray.wait(list(pending), num_returns=1)
                self._write(self._row(done, pending.pop(done)))
        except KeyboardInterrupt:
            self._outcome.interrupted = True
        finally:
            for left in pending:
                ray.cancel(left, force=True)
        return self._outcome

    def _request(self, case: Case) -> dict[str, Any]:
        return {
            "case": case.to_dict(),
            "sweep": self.sweep,
            "settings": self.settings.to_dict(),
            "limit_s": self.limit_s,
            "parts": list(self._parts(case)),
            "pipeline": self.pipeline,
        }

    def _row(self, task: Any, case: Case) -> Row:
        """The row that a task came back with, or the one of a task that was lost for good."""
        import ray

        try:
            return store.from_json(ray.get(task))
        except (ray.exceptions.RayError, ValueError) as error:
            reason = in_one_line(f"Ray lost the task {MAX_RETRIES + 1} times: {type(error).__name__}: {error}")
            where = {key: value for key, value in self.there.items() if key in ("kind", "device", "device_slug")}
            now = datetime.now(UTC).isoformat(timespec="seconds")
            facts = tried_again(where)
            return Row(case.id, self.sweep, case.to_dict(), "crashed", reason, environment=facts, started=now)


def run_whole(request: dict[str, Any]) -> str:
    """The task: all parts of one case, on the machine and the GPU that Ray chose; its row as JSON."""
    settings, case = Settings.from_dict(request["settings"]), Case.from_dict(request["case"])
    attempts = Attempts()
    rows: dict[Part, Row] = {}
    for part in request["parts"]:
        worker = _worker(part, settings.device, request["pipeline"])
        rows[part] = attempts.run(worker, case, request["sweep"], settings.with_part(part), request["limit_s"])
    compiled = rows.pop("compile", None)
    row = next(iter(rows.values()), compiled)
    if row is None:
        raise ValueError("a case without parts")
    return store.to_json(row if compiled is None or row is compiled else merge(row, compiled))


def _worker(part: Part, device: Device, pipeline: str) -> Worker:
    """The worker of this process for that part, kept from task to task as long as Ray gives it the same GPU."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    for key in [key for key in _workers if key[1] != gpu]:
        _workers.pop(key).close()
    if (part, gpu) not in _workers:
        _workers[part, gpu] = Worker(worker_env(part), known_environment(device), pipeline)
    return _workers[part, gpu]


def _resources(device: Device) -> dict[str, Any]:
    return {"num_cpus": 1, "num_gpus": int(device == "cuda")}
