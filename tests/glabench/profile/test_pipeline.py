"""A profile as a row: without a GPU, with stand-ins for one, and on one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glabench import store
from glabench.failures import NotMeasured
from glabench.hardware.ceilings import ceilings_of
from glabench.profile import counters, energy, kernels, launches, memory, pipeline
from glabench.profile.launches import Launched
from glabench.run import forward_parts, measure
from glabench.run.gpu_events import Event
from glabench.run.pipeline import Draft
from glabench.spec.case import Case
from glabench.spec.settings import Profile, Settings
from glabench.systems.base import load

CASE = Case("gla", 1, 256, 2, 32, 32, "bf16", "fwd", chunk=64, sub_chunk=64, materialize=True)
KEYS = {
    "target", "ceilings", "samples_ms", "span_ms", "kernels", "ncu", "parts", "energy", "memory", "trace", "notes"
}  # fmt: skip
MEASURED = ("samples_ms", "span_ms", "ncu", "parts", "energy", "memory", "trace")

PREDICT = """
from dataclasses import replace
from glabench import store
from glabench.profile.pipeline import run_case
from glabench.spec.settings import Profile, Settings
from glabench.spec.case import Case
case = Case(**{case!r})
for target in {targets!r}:
    print(store.to_json(run_case(case, "tests", replace(Settings.for_device("cpu"), profile=Profile(target=target)))))
"""


def predicted(compiling_process: Callable[..., str], case: Case, *targets: str) -> list[store.Row]:
    code = PREDICT.format(case=case.to_dict(), targets=targets)
    return [store.from_json(line) for line in compiling_process("-c", code).splitlines()[-len(targets) :]]


def test_a_machine_without_a_gpu_has_model_compiled_kernels_and_ceilings(compiling_process: Callable[..., str]) -> None:
    case = replace(CASE, T=64, K=16, V=16, chunk=16, sub_chunk=16)  # whose kernels compile soonest
    h200, a100, unknown = predicted(compiling_process, case, "H200", "NVIDIA A100 80GB SXM", "H300")
    for row, arch, sms in ((h200, "sm_90", 132), (a100, "sm_80", 108)):
        assert row.status == "ok", row.reason
        assert row.time is None
        assert row.profile is not None
        assert set(row.profile) == KEYS
        assert all(row.profile[key] is None for key in MEASURED)
        assert row.profile["target"]["arch"] == arch
        assert row.profile["target"]["sms"] == sms
        assert row.profile["target"]["here"] is False
        assert row.profile["ceilings"]["hbm_copy_bytes_per_s"] > 1e12
        assert [entry["step"] for entry in row.profile["kernels"]] == ["states", "output"]
        for entry in row.profile["kernels"]:
            assert entry["samples_ms"] is None
            assert entry["predicted_ms"] > 0
            assert entry["work"]["read_bytes"] > 0
            assert (entry["compiled"]["kernel"], entry["compiled"]["arch"]) == (entry["name"], arch)
            assert entry["compiled"]["registers"] > 0
        assert row.compiled == [entry["compiled"] for entry in row.profile["kernels"]]
    assert h200.implementation is not None
    assert a100.implementation is None  # the plan that runs here is not the one that an A100 gets
    assert unknown.status == "unsupported"
    assert unknown.reason is not None
    assert "a GPU without a ceiling" in unknown.reason
    assert unknown.profile is None


def test_what_has_no_model_needs_a_gpu() -> None:
    case = replace(CASE, system="chunkwise_torch", sub_chunk=None, materialize=None)
    row = pipeline.run_case(case, "tests", Settings.for_device("cpu"))
    assert (row.status, row.reason) == ("unsupported", "chunkwise_torch has no model; only a GPU can profile it")
    assert row.profile is None


def test_gates_on_the_value_side_have_no_profile() -> None:
    row = pipeline.run_case(replace(CASE, value_gate=True), "tests", Settings.for_device("cpu"))
    assert (row.status, row.reason) == ("unsupported", "the model of a profile knows no gates on the value side")


def test_packed_sequences_have_no_profile() -> None:
    row = pipeline.run_case(replace(CASE, B=1, lengths=str(CASE.T)), "tests", Settings.for_device("cpu"))
    assert (row.status, row.reason) == ("unsupported", "the model of a profile knows no packed sequences")


def test_gates_in_float32_are_more_bytes() -> None:
    rows = [
        pipeline.run_case(case, "tests", Settings.for_device("cpu"))
        for case in (CASE, replace(CASE, gate_dtype="fp32"))
    ]
    read = []
    for row in rows:
        assert row.profile is not None
        kernels = [
            kernel["work"]["tensors"]["g"]["read"]
            for kernel in row.profile["kernels"]
            if "g" in kernel["work"]["tensors"]
        ]
        read.append(sum(kernels))
    assert read[1] == 2 * read[0] > 0


def test_what_cannot_run_says_why() -> None:
    row = pipeline.run_case(replace(CASE, K=1024), "tests", Settings.for_device("cpu"))
    assert row.status == "unsupported"
    assert row.reason is not None
    assert row.reason.startswith("K=1024 is above")


def test_what_is_asked_for_travels_as_json() -> None:
    settings = replace(Settings(), profile=Profile(ncu=True, traces="out-traces", target="A100"))
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    with pytest.raises(TypeError, match="nsys"):
        Settings.from_dict({"profile": {"nsys": True}})


def launched(us: float) -> Launched:
    return Launched((Event("states_kernel", 0.0, us), Event("output_kernel", us + 2, 2 * us)))


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pipeline._Profiler:
    """A profiler of CASE on a GPU that is made up: every part answers at once."""
    chip = SimpleNamespace(major=9, minor=0, L2_cache_size=60 * 2**20, multi_processor_count=132)
    timing = measure.Timing({"samples_ms": [0.2, 0.21], "launch_bound": False}, {"sm_mhz": 1980.0})
    entries = [{"kernel": f"{step}_kernel", "arch": "sm_90"} for step in ("states", "output")]

    def compiled(model: list[kernels.Kernel], *_: object) -> list[dict[str, Any]]:
        for entry, made in zip(model, entries, strict=True):
            entry["compiled"] = made
        return entries

    stand_ins: list[tuple[Any, str, Any]] = [
        (torch.cuda, "get_device_properties", lambda _: chip),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "synchronize", lambda: None),
        (pipeline, "environment", lambda _: {"device": "NVIDIA H200"}),
        (pipeline, "kept", lambda _: ceilings_of("H200")),
        (pipeline, "rotated_inputs", lambda *_: []),
        (kernels, "add_compiled", compiled),
        (measure, "calls", lambda *_: [lambda: None]),
        (measure, "measure", lambda *_: timing),
        (launches, "profile_calls", lambda _: ([launched(50), launched(60), launched(55)], 3)),
        (launches, "write_trace", lambda _, path: path.write_bytes(b"")),
        (energy, "measure", lambda _, tokens: {"joules": 0.1, "tokens": tokens}),
        (forward_parts, "measure", lambda *_: {"intra_ms": [0.1], "inter_ms": [0.1]}),
        (memory, "breakdown", lambda *_: {"peak_bytes": 7, "kinds": {}, "model": None}),
        (counters, "count", lambda _: counters.Counted("2025.3", None, (("states_kernel", {"ms": 0.06}),))),
    ]
    for where, name, stand_in in stand_ins:
        monkeypatch.setattr(where, name, stand_in)
    settings = replace(Settings(), profile=Profile(ncu=True, traces=str(tmp_path)))
    return pipeline._Profiler(Draft(), CASE, settings, load("gla"))


def profile_of(profiler: pipeline._Profiler) -> dict[str, Any]:
    profiler.run()
    assert profiler.draft.status == "ok"
    profile: dict[str, Any] = profiler.draft.found["profile"]
    assert set(profile) == KEYS
    return profile


def test_all_parts_come_together(profiler: pipeline._Profiler, tmp_path: Path) -> None:
    profile = profile_of(profiler)
    assert profile["target"] == {"name": "NVIDIA H200", "arch": "sm_90", "sms": 132, "here": True}
    assert profile["samples_ms"] == [0.2, 0.21]
    assert profile["span_ms"] == pytest.approx([0.152, 0.182, 0.167])
    states, output = profile["kernels"]
    assert states["samples_ms"] == pytest.approx([0.05, 0.06, 0.055])
    assert output["samples_ms"] == pytest.approx([0.1, 0.12, 0.11])
    assert (states["step"], states["direction"], states["compiled"]["kernel"]) == ("states", "fwd", "states_kernel")
    assert states["work"]["write_bytes"] > 0
    assert states["counters"] == {"ms": 0.06}
    assert output["counters"] is None
    assert profile["energy"]["tokens"] == 256
    assert profile["memory"]["peak_bytes"] == 7
    assert profile["ncu"] == {"version": "2025.3", "refused": None}
    assert profile["trace"] == f"{CASE.id}.json.gz"
    assert (tmp_path / profile["trace"]).exists()
    assert profile["notes"] == ["ncu: no counters of output_kernel"]
    assert profiler.draft.found["clocks"] == {"sm_mhz": 1980.0}
    assert "time" not in profiler.draft.found


def test_a_part_that_fails_is_a_note(profiler: pipeline._Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: Exception) -> Callable[..., Any]:
        def raises(*_: object) -> Any:
            raise error

        return raises

    monkeypatch.setattr(energy, "measure", fails(NotMeasured("the GPU does not count its energy")))
    monkeypatch.setattr(memory, "breakdown", fails(torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")))
    monkeypatch.setattr(forward_parts, "measure", fails(ValueError("no such\nline")))
    monkeypatch.setattr(launches, "profile_calls", lambda _: ([], 3))
    monkeypatch.setattr(counters, "count", lambda _: counters.Counted(None, "ncu was not found"))
    profile = profile_of(profiler)
    assert profile["samples_ms"] == [0.2, 0.21]
    assert all(profile[key] is None for key in ("kernels", "span_ms", "energy", "memory", "parts"))
    assert profile["ncu"] == {"version": None, "refused": "ncu was not found"}
    assert profile["notes"] == [
        "kernels: the profiler saw no kernel of the call",
        "energy: the GPU does not count its energy",
        "parts: ValueError: no such",
        "memory: out of memory: 2.00 GiB more were needed",
        "ncu: ncu was not found",
    ]


def test_an_error_that_the_gpu_does_not_recover_from_ends_the_case(
    profiler: pipeline._Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(forward_parts, "measure", broken)
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        profiler.run()


def test_calls_that_differ_are_left_out_and_noted(
    profiler: pipeline._Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Launched((Event("states_kernel", 0.0, 50.0), Event("output_kernel", 20.0, 60.0)))
    other = Launched((Event("tuning_kernel", 0.0, 9.0),))
    monkeypatch.setattr(launches, "profile_calls", lambda _: ([other, side, side], 4))
    profile = profile_of(profiler)
    assert profile["span_ms"] == pytest.approx([0.08, 0.08])
    assert profile["notes"][:2] == [
        "kernels: 2 of 4 calls are used; the others were cut or launched others",
        "kernels: some ran side by side, for up to 30 us a call",
    ]


def test_nothing_is_asked_of_ncu_and_no_trace_is_written_by_default(profiler: pipeline._Profiler) -> None:
    profiler.settings = Settings()
    profile = profile_of(profiler)
    assert profile["ncu"] is None
    assert profile["trace"] is None
    assert profile["notes"] == []


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("system", "mode"), [("gla", "fwdbwd"), ("gla", "bwd"), ("gla_recurrent", "fwd"), ("sdpa", "fwd")]
)
def test_a_profile_on_a_gpu_is_a_whole_row(system: str, mode: str, tmp_path: Path) -> None:
    schedule = {"chunk": 64, "sub_chunk": 64, "materialize": True} if system == "gla" else {}
    gate = None if system == "sdpa" else 1.0
    case = Case(system, 2, 1024, 4, 64, 64, "bf16", mode, gate_strength=gate, **schedule)  # type: ignore[arg-type]
    settings = replace(Settings(), min_time_s=0.0, max_time_s=0.1, profile=Profile(ncu=True, traces=str(tmp_path)))
    row = pipeline.run_case(case, "tests", settings)
    assert row.status == "ok", row.reason
    assert row.time is None
    assert row.profile is not None
    assert store.from_json(store.to_json(row)) == row
    assert row.profile["target"]["here"] is True
    assert row.profile["samples_ms"]
    assert row.profile["ncu"] is not None
    assert (tmp_path / row.profile["trace"]).stat().st_size > 0
    assert all(min(entry["samples_ms"]) > 0 for entry in row.profile["kernels"])
    if system == "gla":
        expected = [launch.step for _, launch in kernels.launches_of(load(system), case, row.profile["target"]["arch"])]
        steps = [entry["step"] for entry in row.profile["kernels"] if entry["step"]]
        assert steps == expected
        assert {"grad_states", "grad_qk", *(() if mode == "bwd" else ("output",))} <= set(steps)
        assert row.profile["memory"]["kinds"] == row.profile["memory"]["model"]
        assert (row.profile["parts"] is None) == (mode == "bwd")
