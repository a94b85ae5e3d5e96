"""The measuring process, seen from the tuner: every request gets an answer, whatever becomes of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gla_kernels import Plan, Workload
from glabench.run.child import Child, ChildDied, ChildTimeout
from glabench.run.gpus import counted_as_by_nvml
from glabench.tune.candidate import Candidate

MODULE = "glabench.tune.bench"
START_LIMIT_S = 120.0  # a new process, or another workload: imports, the CUDA context, inputs
TRIAL_LIMIT_S = 15.0
WHOLE_LIMIT_S = 120.0  # finals and gates run whole plans, and the float64 reference

Answer = dict[str, Any]


class Gpu:
    """One process that measures.

    trial_limit_s: a candidate that takes longer hangs, and is killed. env: changes to the process's environment.
    """

    def __init__(
        self, module: str = MODULE, trial_limit_s: float = TRIAL_LIMIT_S, env: Mapping[str, str | None] | None = None
    ) -> None:
        self.child = Child(module, {"TRITON_INTERPRET": None, **counted_as_by_nvml(), **(env or {})})
        self.trial_limit_s = trial_limit_s
        self.restarts = 0
        self._ready: set[Workload | None] = set()  # what the running process has made inputs for

    def start(self) -> None:
        """Start the process, so that it imports while the caller goes on."""
        self.child.start()

    def trial(self, work: Workload, candidate: Candidate, samples: int, enough_ms: float | None) -> Answer:
        """{"status", "reason", "samples_ms"} of one kernel; a few samples only when it takes over ``enough_ms``."""
        request = {"do": "trial", "candidate": candidate.to_dict(), "samples": samples, "enough_ms": enough_ms}
        return self._ask(work, request, self.trial_limit_s)

    def final(self, work: Workload, plans: Sequence[Plan], samples: int, forward: Plan | None = None) -> Answer:
        """{"status", "reason", "samples_ms": one list a plan} of whole plans, timed in turns; backward ones after
        ``forward``, by default each after a forward pass like it."""
        request = {"do": "final", "plans": [plan.to_dict() for plan in plans], "samples": samples}
        request["forward"] = None if forward is None else forward.to_dict()
        return self._ask(work, request, WHOLE_LIMIT_S)

    def gate(self, work: Workload, plans: dict[str, Plan]) -> Answer:
        """{"status", "reason"}: the workload's direction run with these plans (by direction), against float64."""
        request = {"do": "gate", "plans": {name: plan.to_dict() for name, plan in plans.items()}}
        return self._ask(work, request, WHOLE_LIMIT_S)

    def environment(self) -> dict[str, Any]:
        """What goes into records: see glabench.hardware.environment. Empty when the process cannot say."""
        return self._ask(None, {"do": "environment"}, WHOLE_LIMIT_S).get("environment", {})

    def close(self) -> None:
        """Kill the process for good."""
        self.child.close()

    def _ask(self, work: Workload | None, request: Answer, limit_s: float) -> Answer:
        """The answer to a request. What a new process has to do first is none of a candidate's time."""
        sent = {} if work is None else {"workload": work.to_dict()}
        if work not in self._ready or self.child.pid is None:
            answer = self._tell({"do": "ready"} | sent, START_LIMIT_S)
            if answer["status"] != "ok":
                return answer
            self._ready.add(work)
        return self._tell(request | sent, limit_s)

    def _tell(self, request: Answer, limit_s: float) -> Answer:
        try:
            answer = self.child.ask(request, limit_s)
        except ChildTimeout:
            answer = {"status": "timeout", "reason": f"no result after {limit_s:g} s; the process was killed"}
        except ChildDied as death:
            answer = {"status": "crashed", "reason": death.reason}
        if answer["status"] in ("crashed", "timeout"):
            self.child.stop()  # an error on the device poisons every later call of its process
            self.restarts += 1
            self._ready.clear()
            self.child.start()
        return answer
