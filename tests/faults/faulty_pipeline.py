"""A pipeline whose cases fail as the plan in $FAULTS says: the file plan.json, from case id to kind of fault.

On a CPU it imports no torch, so that the processes that die by the dozen start fast. With FAULTS_DEVICE=cuda a GPU does
the sums and has the faults that it can have (``on_gpu``). Each call adds a line to the file "calls".
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from glabench import failures
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.store import Row

FOLDER = Path(os.environ["FAULTS"])
PLAN: dict[str, str] = json.loads((FOLDER / "plan.json").read_text())
FLOOD_LINES = 100_000

on_gpu = importlib.import_module("on_gpu") if os.environ.get("FAULTS_DEVICE") == "cuda" else None


class CompilationError(Exception):
    """Named as Triton's own."""


class Odd(Exception):
    """One that cannot even be printed."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def __str__(self) -> str:
        raise RuntimeError("no text")


def run_case(case: Case, sweep: str, settings: Settings) -> Row:
    """The sum of some numbers, which is wrong where the plan says so, or never comes."""
    with (FOLDER / "calls").open("a") as file:
        print(case.id, file=file)
    facts = {"fingerprint": os.environ["FINGERPRINT"], "device_slug": os.environ["SLUG"]}
    try:
        found = _compute(case, PLAN.get(case.id))
    except Exception as error:
        status, reason = failures.classify(error), failures.reason(error)
        return Row(case.id, sweep, case.to_dict(), status, reason, environment=facts)
    right = sum(range(case.seed + 1))
    passed = found == right
    accuracy = {"passed": passed, "outputs": {"o": {"error": abs(found - right), "tolerance": 0.0}}}
    return Row(case.id, sweep, case.to_dict(), "ok" if passed else "wrong", accuracy=accuracy, environment=facts)


def _compute(case: Case, fault: str | None) -> float:
    if fault in ("segv", "abort"):
        os.kill(os.getpid(), signal.SIGSEGV if fault == "segv" else signal.SIGABRT)
    if fault == "kill":
        _die_once(FOLDER / f"killed-{case.id}-{os.getppid()}")
    if fault == "flood":
        for _ in range(FLOOD_LINES):
            sys.stdout.write('{"case_id": "not a row", "status": "ok"}\n')
    if fault == "odd":
        raise Odd
    return _on_cpu(case.seed + 1, fault) if on_gpu is None else on_gpu.total(case.seed + 1, fault)


def _on_cpu(n: int, fault: str | None) -> float:
    """The sum of 0 .. n - 1, as ``on_gpu.total``."""
    if fault == "hang":
        time.sleep(3600)
    errors: dict[str | None, Any] = {"oom": MemoryError("out of memory"), "compile": CompilationError("at 2:11: no")}
    if fault in errors:
        raise errors[fault]
    right = float(sum(range(n)))
    return {"wrong": right + 1, "nan": math.nan}.get(fault or "", right)


def _die_once(mark: Path) -> None:
    """As the kernel kills whoever has the most memory: the next time it is another's turn. Once for each process of the
    sweep: one that went down has forgotten of whom it had heard."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return
