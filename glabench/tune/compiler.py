"""Kernels compiled side by side in processes that may die: a compiler that aborts or hangs costs one candidate."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from gla_kernels import Plan, Workload
from gla_kernels.plan.apply import launches_of
from glabench.hardware.crosscompile import kernel_key
from glabench.run.child import Child, ChildDied, ChildTimeout
from glabench.run.processes import cores, worker_env
from glabench.tune.candidate import Candidate, Variant, launch_of
from glabench.tune.decay_walks import walks_of
from glabench.tune.space import Members, Space, joined, members_of

WORKER = "glabench.tune.compile_worker"

Answer = dict[str, Any]


class Closed(Exception):
    """The pool was closed meanwhile."""


class CompilePool:
    """Compiles for one architecture, "sm_90", in ``jobs`` processes: one core is left to the caller by default.

    Every future comes to {"status": "ok", "compile_error", "crashed", "timeout" or "oom"; "reason": one line, or None
    for ok; "compiled": the entry of glabench.hardware.crosscompile, where there is one}. What was submitted first
    begins first, and a kernel that was submitted before is the same future, unless that was forgotten. limit_s: what
    takes longer is killed. env: changes to the processes' environment.
    """

    def __init__(
        self, arch: str, jobs: int | None = None, limit_s: float = 120, module: str = WORKER,
        env: Mapping[str, str | None] | None = None,
    ) -> None:  # fmt: skip
        self.arch, self.limit_s = arch, limit_s
        self.jobs = jobs or max(1, cores() - 1)
        self._capability = int(arch.removeprefix("sm_"))
        self._children = [Child(module, {**worker_env("compile"), **(env or {})}) for _ in range(self.jobs)]
        self._idle = list(self._children)
        self._threads = ThreadPoolExecutor(self.jobs, thread_name_prefix=f"compile-{arch}")
        self._futures: dict[str, Future[Answer]] = {}
        self._wanted: Counter[Future[Answer]] = Counter()  # how often each was asked for, and not forgotten
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, work: Workload, candidate: Candidate) -> Future[Answer]:
        """Compile one candidate. Never raises for what cannot be compiled: that is an answer."""
        request = {"workload": work.to_dict(), "candidate": candidate.to_dict(), "arch": self.arch}
        try:
            key = kernel_key(launch_of(work, candidate, self._capability))
        except Exception:  # no launch comes of it: the child says why
            key = repr(request)
        return self._submit(key, request)

    def submit_plan(self, work: Workload, plan: Plan, initial_state: bool = False) -> dict[str, Future[Answer]]:
        """Compile all that a plan launches, by pass, and what comes after one that leaves strong gates undone."""
        launches = launches_of(work, plan, initial_state, few=True)
        shared = {"workload": work.to_dict(), "plan": plan.to_dict(), "initial_state": initial_state, "arch": self.arch}
        return {step: self._submit(kernel_key(launch), shared | {"step": step}) for step, launch in launches.items()}

    def submit_walks(self, work: Workload, mode: str, initial_state: bool = False) -> list[tuple[str, Future[Answer]]]:
        """Compile all that a call without a plan launches, by kernel: see `walks_of`. Nothing where a plan serves."""
        shared = {"workload": work.to_dict(), "mode": mode, "initial_state": initial_state, "arch": self.arch}
        return [
            (launch.name.removesuffix("_kernel"), self._submit(kernel_key(launch), shared | {"walk": place}))
            for place, launch in enumerate(walks_of(work, mode, initial_state, self._capability))
        ]

    def space_of(self, work: Workload) -> Space:
        """`glabench.tune.space.space_of`, a part of the variants by each process; what one does not answer is
        enumerated here. Raises Closed within seconds of ``close``, by whichever thread that was called."""
        parts = self._parts(work)

        def found(place: int, variant: Variant) -> Members | None:
            if self._closed:
                raise Closed
            part = parts[place % self.jobs]
            if part["status"] != "ok":
                return members_of(work, variant, self._capability)
            values = part["members"][place // self.jobs]
            return None if values is None else Members.from_dict(values)

        return joined(work, self._capability, found)

    def _parts(self, work: Workload) -> list[Answer]:
        """What each process answers; where there is one, it is not asked: it would come to that no sooner."""
        if self.jobs == 1:
            return [_failure("unsupported", "not asked")]
        shared = {"workload": work.to_dict(), "arch": self.arch}
        requests = [shared | {"part": [first, self.jobs]} for first in range(self.jobs)]
        try:
            asked = [self._threads.submit(self._compile, request) for request in requests]
            return [part.result() for part in asked]
        except (CancelledError, RuntimeError):
            if self._closed:
                raise Closed from None
            raise

    def forget(self, future: Future[Answer]) -> None:
        """One of those who submitted it does not wait for it any more; nobody's is cancelled, if it has not begun."""
        with self._lock:
            self._wanted[future] -= 1
            if self._wanted[future] <= 0:
                future.cancel()

    def close(self) -> None:
        """Cancel what has not begun and kill the processes; what is under way comes to "crashed", a space to Closed."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.close()
        self._threads.shutdown()

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _submit(self, key: str, request: dict[str, Any]) -> Future[Answer]:
        with self._lock:
            if key not in self._futures or self._futures[key].cancelled():
                self._futures[key] = self._threads.submit(self._compile, request)
            self._wanted[self._futures[key]] += 1
            return self._futures[key]

    def _compile(self, request: dict[str, Any]) -> Answer:
        child = self._idle.pop()  # there are as many as threads
        try:
            return child.ask(request, self.limit_s)
        except ChildTimeout as error:
            return _failure("timeout", str(error))
        except ChildDied as error:
            last_words = (error.detail or "").splitlines()[-1:]
            return _failure("crashed", ": ".join([error.reason, *last_words]))
        finally:
            self._idle.append(child)


def _failure(status: str, reason: str) -> Answer:
    return {"status": status, "reason": reason, "compiled": None}
