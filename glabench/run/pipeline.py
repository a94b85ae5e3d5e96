"""The order of things for one case: available? supported? -> inputs -> gate -> measure -> memory -> compiled -> Row."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import torch

from glabench import failures
from glabench.claims import Claims
from glabench.counting import LACKS
from glabench.hardware.environment import environment, tried_again
from glabench.phases import Phases
from glabench.run import audit, eager, forward_parts, gate, measure, memory, oracle
from glabench.run.fresh import renewal
from glabench.run.parts import merge, parts
from glabench.run.quiet import quiet
from glabench.run.rotation import rotated_inputs
from glabench.run.untouched import Untouched
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.spec.work import work
from glabench.store import Row
from glabench.systems.base import System, load
from glabench.systems.language_model import LanguageModelSystem

__all__ = ["merge", "run_case"]

UNTOUCHED = Untouched()  # before any system is loaded


@dataclass
class Draft:
    """The row in the making: what a failing stage leaves behind is kept."""

    status: str = "ok"
    found: dict[str, Any] = field(default_factory=dict)
    lacks: dict[str, str] = field(default_factory=dict)  # of the row's environment, where the system is not here
    phases: Phases = field(default_factory=Phases)

    def fail(self, status: str, reason: str, detail: str | None = None) -> None:
        self.status = status
        self.found |= {"reason": reason, "detail": detail}


Stages = Callable[[Draft, Case, Settings, System], None]


def run_case(case: Case, sweep: str, settings: Settings, system: System | None = None) -> Row:
    """Run one case, or the settings' part of it, and say what it came to. Whatever the case does, a Row comes back.

    ``system`` replaces the one that the catalog names; for tests.
    """
    return row_of(_run, case, sweep, settings, system)


def prepare(case: Case, settings: Settings) -> list[dict[str, Any]]:
    """All that the case needs in its process before its kernels are there: what this machine is, the right answer, and
    its package, all of which the process keeps. What it took, as a row has it. An error is left to the case itself."""
    draft = Draft()
    with suppress(Exception):
        with draft.phases("machine"):
            environment(settings.device)
        system = _load(draft, case)
        if can_run(draft, case, settings, system) and case.mode != "train":
            with draft.phases("reference"):
                oracle.answer(oracle.ask(_asked(case, settings, system), settings.device, settings.gate_pairs))
            with draft.phases("system"):
                for name in system.imports:
                    importlib.import_module(name)
    return [draft.phases.spent(settings.part).to_dict()]


def row_of(stages: Stages, case: Case, sweep: str, settings: Settings, system: System | None) -> Row:
    """The row of what ``stages`` do with the case; an error in them is the row's status and reason."""
    started, began = datetime.now(UTC), time.perf_counter()
    draft = Draft()
    facts: dict[str, Any] = {}
    try:
        with draft.phases("machine"):
            facts = environment(settings.device, bandwidth=settings.part != "compile")
        with _surroundings(draft, case, settings):
            stages(draft, case, settings, system or _load(draft, case))
    except Exception as error:
        draft.fail(failures.classify(error), failures.reason(error), failures.detail(error))
        if failures.of_import(error):
            draft.lacks = {LACKS: failures.one_line(error)}
        if failures.of_machine(error):
            facts = tried_again(facts)
    with draft.phases("release"):
        release(settings)
    return Row(
        case_id=case.id,
        sweep=sweep,
        case=case.to_dict(),
        status=draft.status,
        work=work(case.to_dict()),
        environment=facts | draft.lacks,
        started=started.isoformat(timespec="seconds"),
        wall_s=round(time.perf_counter() - began, 3),
        spent=[draft.phases.spent(settings.part).to_dict()],
        **draft.found,
    )


@contextmanager
def _surroundings(draft: Draft, case: Case, settings: Settings) -> Iterator[None]:
    """On a CPU a limit of memory. On a GPU kernels that tune themselves do so at this shape; the row has what they
    chose."""
    if settings.device != "cuda":
        with memory.cpu_memory_limit():
            yield
        return
    from glabench.run.autotuned import at_its_shape  # imports triton

    UNTOUCHED.begin()
    with at_its_shape(case) as chosen:
        yield
        if "time" in draft.found and (tuned := chosen()):
            draft.found["time"]["tuned"] = tuned


def _load(draft: Draft, case: Case) -> System:
    with draft.phases("system"):
        return load(case.system)


def _run(draft: Draft, case: Case, settings: Settings, system: System) -> None:
    part = settings.part
    if part == "all" and "all" not in parts(case, settings.device):
        draft.fail("unsupported", f"{system.name} on a CPU is run in two parts, gate and compile")
        return
    # Triton's interpreter and its compiler both stand in for the GPU that a system would otherwise need.
    if not can_run(draft, case, settings, system):
        return
    if part == "compile" and system.autotuned:
        _compile_ahead(draft, case, system)
        return
    if part == "compile":
        compile_kernels(draft, case, settings, system)
        return
    if case.mode == "train":
        _train(draft, case, settings, system)
        return
    if not passes_gate(draft, case, settings, system) or part == "gate":
        return
    if not _measure(draft, case, settings, system):
        return
    with draft.phases("memory"):
        draft.found["memory"] = memory.measure(system, case, settings)


def can_run(draft: Draft, case: Case, settings: Settings, system: System) -> bool:
    """Whether the system runs here, and runs the case; the row says why not, or what it is that runs."""
    with draft.phases("system"):
        missing = system.unavailable(settings.device)
        refusal = missing or system.refusal_by_catalog(case) or system.unsupported(case, settings.device)
        if missing is not None:
            draft.lacks = {LACKS: missing.reason}
        if refusal is not None:
            draft.fail("unsupported", str(refusal))
            return False
        draft.found["implementation"] = system.implementation(case)
    return True


def passes_gate(draft: Draft, case: Case, settings: Settings, system: System) -> bool:
    """Whether the system computes the case right; the row has how nearly."""
    verdict = gate.check(system, _asked(case, settings, system), settings, _where(settings), draft.phases)
    draft.found["accuracy"] = verdict.accuracy
    if not verdict.passed:
        draft.fail("wrong", verdict.reason or "the gate failed")
    return verdict.passed


def _asked(case: Case, settings: Settings, system: System) -> Case:
    """What of the case the gate compares."""
    where = _where(settings)
    return case if where == "cuda" else gate.reduced(case, system, settings, interpreter=where == "interpreter")


def _measure(draft: Draft, case: Case, settings: Settings, system: System) -> bool:
    """Whether the case has a time: not where what was timed is not what the gate judged, for which the row is wrong."""
    with draft.phases("inputs"):
        sets = rotated_inputs(case, settings, system)
        renew = renewal(system, case, sets, settings)
    with quiet(), draft.phases("samples"):
        run = measure.calls(system, case, sets)
        timing = measure.measure(run, settings, renew)
        if settings.device == "cuda":
            timing.time["eager"] = eager.measure(run).to_dict()
    del renew
    with draft.phases("gate"):
        reason = UNTOUCHED.changed()
        try:
            reason = reason or audit.judge(system, case, _asked(case, settings, system), run, sets, settings)
            draft.found["accuracy"]["timed_calls"] = "judged"
        except torch.OutOfMemoryError:
            draft.found["accuracy"]["timed_calls"] = "not judged: the gate's numbers do not fit beside theirs"
        reason = reason or audit.remembers(timing.time["samples_ms"], timing.repeated_ms)
    if reason is not None:
        draft.found["accuracy"]["passed"] = False
        draft.fail("wrong", reason)
        return False
    draft.found |= {"time": timing.time, "clocks": timing.clocks}
    if settings.forward_parts and forward_parts.asked(case):
        del sets, run  # the parts have inputs of their own
        release(settings)
        with quiet(), draft.phases("samples"):
            timing.time["parts"] = _parts(case, settings, system)
    return True


def _train(draft: Draft, case: Case, settings: Settings, system: System) -> None:
    """The gate of a training step, then what one takes: of a language model, which alone has the mode."""
    from glabench.run import train_gate, training  # imports the models

    assert isinstance(system, LanguageModelSystem)
    verdict = train_gate.check(system, case, settings, _where(settings), draft.phases)
    draft.found["accuracy"] = verdict.accuracy
    if not verdict.passed:
        draft.fail("wrong", verdict.reason or "the gate failed")
    if not verdict.passed or settings.part == "gate":
        return
    release(settings)
    with quiet(), draft.phases("samples"):
        found = training.measure(system, case, settings)
    draft.found |= {"time": found.timing.time, "clocks": found.timing.clocks, "memory": found.memory}


def _where(settings: Settings) -> str:
    """Where the gate runs."""
    return "cuda" if settings.device == "cuda" else "interpreter" if settings.part == "gate" else "cpu"


def _parts(case: Case, settings: Settings, system: System) -> dict[str, Any]:
    """See `forward_parts.measure`; why there are none, where there are none: the case itself has been measured."""
    try:
        return dict(forward_parts.measure(system, case, settings.forward_parts))
    except failures.NotMeasured as error:
        return {"refused": str(error)}
    except Exception as error:
        torch.cuda.synchronize()  # raises what the GPU does not recover from: that is the row's
        return {"refused": failures.reason(error)}


def compile_kernels(draft: Draft, case: Case, settings: Settings, system: System) -> None:
    """Compile the case's kernels for this GPU, or for the settings' architectures; the row has what came of it."""
    from glabench.hardware.crosscompile import cross_compile, local_arch  # imports triton

    here = local_arch() if settings.device == "cuda" else None
    archs = settings.archs if here is None else (here,)
    claims = Claims.of_environment()
    with draft.phases("compile"):
        launches = {arch: system.launches(case, arch) for arch in archs}
        entries = [one for arch in archs for one in cross_compile(launches[arch], arch, draft.phases, claims)]
    draft.found["compiled"] = entries
    if claims.helps:
        return  # others' is the row
    failed = {arch: next((e for e in entries if e["arch"] == arch and e["error"]), None) for arch in archs}
    if settings.part == "compile" and all(failed.values()):
        entry = failed[archs[0]]
        assert entry is not None  # all of them failed
        draft.fail("compile_error", f"{entry['kernel']} on {entry['arch']}: {entry['error']}")


def _compile_ahead(draft: Draft, case: Case, system: System) -> None:
    from glabench.run.autotuned import compile_ahead  # imports triton

    with draft.phases("compile"):
        compile_ahead(system, case)


def release(settings: Settings) -> None:
    """Give back what the case held, so that the next one's memory is its own."""
    gc.collect()
    if settings.device == "cuda" and torch.cuda.is_available():
        try:
            torch.cuda.empty_cache()
        except RuntimeError:
            return  # a broken context cannot be cleaned; the row says what broke it
