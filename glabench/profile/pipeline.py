"""The order of things for one profile: gate -> ceilings -> model -> time -> kernels -> energy -> trace -> parts ->
memory -> counters -> Row. Without a GPU: ceilings, model and compiled kernels of the GPU that the settings name.

The row's ``profile``, each part None where it could not be had, with the reason among the notes:
    target      {"name", "arch", "sms", "here"}: the GPU that model and ceilings are of; here: it was measured on
    ceilings    see hardware.ceilings.Ceilings
    samples_ms  the whole call as a sweep times it; span_ms: by the profiler, from first start to last end
    kernels     see profile.kernels.kernel; work is gla_kernels.cost.work.profile_of, compiled an entry of
                hardware.crosscompile, counters those of profile.counters
    ncu         {"version", "refused"}, None when it was not asked for
    parts       {"intra_ms", "inter_ms"}: see run.forward_parts
    energy      {"joules", "idle_w", "mean_w", "seconds", "calls", "tokens"}: see profile.energy
    memory      {"peak_bytes", "kinds", "model"}: see profile.memory
    trace       name of the Chrome trace's file
    notes       what is missing, and why
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from gla_kernels import machine_of
from glabench import failures
from glabench.errors import UserError
from glabench.failures import NotMeasured
from glabench.hardware.ceilings import Ceilings, ceilings_of, kept
from glabench.hardware.datasheet import datasheet_for
from glabench.hardware.environment import environment
from glabench.profile import counters, energy, kernels, launches, memory
from glabench.run import forward_parts, measure
from glabench.run.cold import Call
from glabench.run.pipeline import Draft, can_run, compile_kernels, passes_gate, release, row_of
from glabench.run.rotation import rotated_inputs
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.store import Row
from glabench.systems.base import System


def run_case(case: Case, sweep: str, settings: Settings, system: System | None = None) -> Row:
    """Profile one case, and say what it came to. Whatever the case does, a Row comes back.

    ``system`` replaces the one that the catalog names; for tests.
    """
    return row_of(_run, case, sweep, settings, system)


def _run(draft: Draft, case: Case, settings: Settings, system: System) -> None:
    if not can_run(draft, case, settings, system):
        return
    if case.unplanned:
        draft.fail("unsupported", f"the model of a profile knows no {case.unplanned[0]}")
        return
    if settings.device == "cpu":
        _predict(draft, case, settings, system)
    elif settings.part == "compile":
        compile_kernels(draft, case, settings, system)
    elif passes_gate(draft, case, settings, system):
        release(settings)
        with draft.phases("samples"):
            _Profiler(draft, case, settings, system).run()


def _empty() -> dict[str, Any]:
    profile: dict[str, Any] = dict.fromkeys(
        ("target", "ceilings", "samples_ms", "span_ms", "kernels", "ncu", "parts", "energy", "memory", "trace")
    )
    return profile | {"notes": []}


def _predict(draft: Draft, case: Case, settings: Settings, system: System) -> None:
    """What can be said of a GPU that is not here."""
    if not system.info.triton:
        draft.fail("unsupported", f"{system.name} has no model; only a GPU can profile it")
        return
    try:
        ceilings, sheet = ceilings_of(settings.profile.target), datasheet_for(settings.profile.target)
    except UserError as error:
        draft.fail("unsupported", str(error))
        return
    profile = _empty()
    profile["target"] = {"name": ceilings.device, "arch": sheet.arch, "sms": sheet.sms, "here": False}
    profile["ceilings"] = ceilings.to_dict()
    found, notes = kernels.modelled(system, case, sheet.arch, ceilings.l2_bytes, sheet.sms)
    profile["kernels"], profile["notes"] = found, notes
    draft.found["profile"] = profile
    if sheet.arch != f"sm_{machine_of().capability}":
        draft.found["implementation"] = None  # it names the plans of another GPU
    draft.found["compiled"] = kernels.add_compiled(found, system, case, sheet.arch)
    broken = next((entry for entry in draft.found["compiled"] if entry["error"]), None)
    if broken is not None:
        draft.fail("compile_error", f"{broken['kernel']} on {broken['arch']}: {broken['error']}")


class _Profiler:
    """One case on the GPU that is here."""

    def __init__(self, draft: Draft, case: Case, settings: Settings, system: System) -> None:
        self.draft, self.case, self.settings, self.system = draft, case, settings, system
        self.profile = _empty()
        self.notes: list[str] = self.profile["notes"]
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.arch = f"sm_{properties.major}{properties.minor}"
        self.l2_bytes, self.sms = properties.L2_cache_size, properties.multi_processor_count

    def run(self) -> None:
        """Part after part. Ceilings and the call's own time are the row's to fail with; what else fails is a note."""
        facts = environment("cuda")
        self.profile["target"] = {"name": facts["device"], "arch": self.arch, "sms": self.sms, "here": True}
        ceilings: Ceilings = kept(facts)
        self.profile["ceilings"] = ceilings.to_dict()
        model = self._model()
        self._while_inputs_are_there(model)
        release(self.settings)
        self.profile["parts"] = self._attempt("parts", lambda: forward_parts.measure(self.system, self.case))
        release(self.settings)
        self.profile["memory"] = self._attempt("memory", lambda: memory.breakdown(self.system, self.case, self.arch))
        release(self.settings)
        if self.settings.profile.ncu:
            self._count()
        self.draft.found["profile"] = self.profile

    def _attempt(self, what: str, get: Callable[[], Any]) -> Any | None:
        """What ``get`` gives, or None and a note that says why not."""
        try:
            return get()
        except NotMeasured as error:
            self.notes.append(f"{what}: {error}")
        except Exception as error:
            torch.cuda.synchronize()  # raises what the GPU does not recover from: that is the row's
            self.notes.append(f"{what}: {failures.reason(error)}")
        return None

    def _model(self) -> list[kernels.Kernel]:
        """Our kernels, modelled and compiled; none for what is not ours."""
        system, case = self.system, self.case
        found = self._attempt("model", lambda: kernels.modelled(system, case, self.arch, self.l2_bytes, self.sms))
        if found is None:
            return []
        model, notes = found
        self.notes.extend(notes)
        self.draft.found["compiled"] = self._attempt(
            "compiled", lambda: kernels.add_compiled(model, system, case, self.arch)
        )
        return model

    def _while_inputs_are_there(self, model: Sequence[kernels.Kernel]) -> None:
        """The call's time, its kernels, its trace and its energy, on the same rotating inputs."""
        run = measure.calls(self.system, self.case, rotated_inputs(self.case, self.settings, self.system))
        timing = measure.measure(run, self.settings)
        self.profile["samples_ms"], self.draft.found["clocks"] = timing.time["samples_ms"], timing.clocks
        if timing.time["launch_bound"]:
            self.notes.append("time: Python queues the call more slowly than the GPU runs it, which is in the time")
        self.profile["kernels"] = self._attempt("kernels", lambda: self._launched(model, run))
        self.profile["energy"] = self._attempt("energy", lambda: energy.measure(run, self._tokens()))
        if self.settings.profile.traces is not None:
            self.profile["trace"] = self._attempt("trace", lambda: self._trace(run[0]))

    def _tokens(self) -> int:
        return self.case.B * (1 if self.case.mode == "step" else self.case.T)

    def _launched(self, model: Sequence[kernels.Kernel], run: Sequence[Call]) -> list[kernels.Kernel]:
        """The call's kernels by the profiler, joined with the model."""
        calls, count = launches.profile_calls(run)
        same = launches.alike(calls)
        if not same:
            raise NotMeasured("the profiler saw no kernel of the call")
        if len(same) < count:
            self.notes.append(f"kernels: {len(same)} of {count} calls are used; the others were cut or launched others")
        overlap = max(call.overlap_us for call in same)
        if overlap > 1:
            self.notes.append(f"kernels: some ran side by side, for up to {overlap:.0f} us a call")
        self.profile["span_ms"] = [call.span_us / 1000 for call in same]
        found, notes = kernels.joined(model, same)
        self.notes.extend(notes)
        return found

    def _trace(self, call: Call) -> str:
        assert self.settings.profile.traces is not None  # asked for only then
        name = f"{self.case.id}.json.gz"
        launches.write_trace(call, Path(self.settings.profile.traces) / name)
        return name

    def _count(self) -> None:
        found = counters.count(self.case)
        self.profile["ncu"] = {"version": found.version, "refused": found.refused}
        if found.refused is not None:
            self.notes.append(f"ncu: {found.refused}")
        elif self.profile["kernels"] is not None:
            self.notes.extend(kernels.add_counters(self.profile["kernels"], found.launches))
