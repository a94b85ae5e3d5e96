"""Every way that a case can end becomes a row."""

from __future__ import annotations

import errno
import io
import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glabench import store
from glabench.hardware.environment import tried_again
from glabench.phases import spent_of
from glabench.run import oracle, parent
from glabench.run.parts import merge, parts
from glabench.run.pipeline import prepare, run_case
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Device, Part, Settings
from glabench.systems.base import System, Unavailable, load
from glabench.systems.chunkwise_torch import ChunkwiseTorch
from glabench.systems.fa3 import FlashAttention3
from glabench.systems.inputs import Inputs

SETTINGS = replace(Settings.for_device("cpu"), warmup_s=0.0, min_time_s=0.0, max_time_s=0.01, gate_tokens_cpu=64)
CASE = Case("chunkwise_torch", 1, 100, 2, 8, 8, "fp32", "fwdbwd")


class Failing(System):
    """Raises what it is given when it is run."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__(CATALOG["chunkwise_torch"])
        self.error = error

    def implementation(self, case: Case) -> str:
        return "a system of the tests"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.error is not None:
            raise self.error
        return torch.zeros_like(inputs.v) * inputs.q.sum() * inputs.k.sum(), None


class CompilationError(Exception):
    """Named as Triton's."""


class OutOfResources(Exception):
    """Named as Triton's."""


CUDA_OOM = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 34.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 12.11 GiB is "
    "free. Including non-PyTorch memory, this process has 127 GiB memory in use."
)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (CUDA_OOM, "oom", "out of memory: 34.00 GiB more were needed of 139.80 GiB, 12.11 GiB free"),
        (MemoryError(), "oom", "MemoryError"),
        (
            CompilationError("at 2:11:\ndef kernel():\n    ^\narange's range must be a power of 2"),
            "compile_error",
            "CompilationError: at 2:11: arange's range must be a power of 2",
        ),
        (OutOfResources("out of resource: shared memory"), "compile_error", "OutOfResources: out of resource: shared"),
        (RuntimeError("PassManager::run failed"), "compile_error", "RuntimeError: PassManager::run failed"),
        (NotImplementedError("no chunk_gla for this"), "unsupported", "NotImplementedError: no chunk_gla for this"),
        (RuntimeError("No available kernel. Aborting execution."), "unsupported", "RuntimeError: No available kernel"),
        (RuntimeError("CUDA error: an illegal memory access"), "crashed", "RuntimeError: CUDA error: an illegal"),
        (ZeroDivisionError("division by zero"), "crashed", "ZeroDivisionError: division by zero"),
    ],
)
def test_an_error_becomes_a_status_with_a_reason(error: BaseException, status: str, reason: str) -> None:
    row = run_case(CASE, "tests", SETTINGS, Failing(error))
    assert row.status == status
    assert row.reason is not None
    assert row.reason.startswith(reason)
    assert "\n" not in row.reason
    assert row.detail is not None
    assert row.time is None
    assert row.work is not None
    assert row.environment["device"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EBUSY, errno.ESTALE, errno.EOPNOTSUPP])
def test_what_the_machine_did_is_no_verdict_on_the_kernel(number: int) -> None:
    at_fault = OSError(number, os.strerror(number), "/home/somebody/.triton/cache/a.cubin")
    wrapped = CompilationError("at 2:11")
    wrapped.__cause__ = at_fault
    for error in (at_fault, wrapped):
        row = run_case(CASE, "tests", SETTINGS, Failing(error))
        assert row.status == "crashed"
        assert "fingerprint" not in row.environment  # so that the same sweep tries it again
        assert row.environment["device_slug"]
    assert "fingerprint" in run_case(CASE, "tests", SETTINGS, Failing(CompilationError("no"))).environment


def test_an_allocation_beyond_the_memory_is_oom() -> None:
    class Greedy(Failing):
        def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
            return torch.ones(2**50, dtype=torch.int8), None

    row = run_case(CASE, "tests", SETTINGS, Greedy())
    assert row.status == "oom"
    assert row.reason is not None
    assert "out of memory" in row.reason
    torch.ones(2**20)  # the limit went with the case


def test_a_wrong_system_has_no_time() -> None:
    row = run_case(replace(CASE, mode="fwd"), "tests", SETTINGS, Failing())
    assert row.status == "wrong"
    assert row.reason is not None
    assert row.reason.startswith("o is off by")
    assert row.time is None
    assert row.accuracy is not None
    assert row.accuracy["passed"] is False


def test_what_cannot_run_here_says_why() -> None:
    class Absent(Failing):
        def unavailable(self, device: Device) -> Unavailable | None:
            return Unavailable("the package absent is not installed", "pip install absent")

    row = run_case(CASE, "tests", SETTINGS, Absent())
    assert (row.status, row.reason) == ("unsupported", "the package absent is not installed; pip install absent")
    assert row.environment["lacks"] == "the package absent is not installed"

    class Picky(Failing):
        def unsupported(self, case: Case, device: Device) -> str | None:
            return f"K={case.K} is too small"

    refused = run_case(CASE, "tests", SETTINGS, Picky())
    assert refused.reason == "K=8 is too small"
    assert "lacks" not in refused.environment


BROKEN = {
    "needs what is not there": ("import not_there", "ModuleNotFoundError: No module named 'not_there'"),
    "lacks the function": ("", "ImportError: cannot import name 'flash_attn_func' from 'flash_attn_interface'"),
    "fails in the call": (
        "def flash_attn_func(*args, **named):\n    import not_there",
        "ModuleNotFoundError: No module named 'not_there'",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_package_that_cannot_be_imported_is_told_from_a_call_that_fails(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call may import by what it is given; the import of the package fails whatever the case is."""
    code, reason = BROKEN[how]
    (tmp_path / "flash_attn_interface.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn_interface", raising=False)
    monkeypatch.setattr(FlashAttention3, "unavailable", lambda self, device: None)
    row = run_case(replace(CASE, system="fa3", dtype="bf16", mode="fwd", gate_strength=None), "tests", SETTINGS)
    monkeypatch.delitem(sys.modules, "flash_attn_interface", raising=False)
    assert row.status == "crashed"
    assert str(row.reason).startswith(reason)
    assert ("lacks" in row.environment) == (how != "fails in the call")


@pytest.mark.parametrize("system", ["recurrent_torch", "chunkwise_torch", "parallel_torch", "sdpa"])
def test_a_sound_case_is_a_whole_row(system: str) -> None:
    gated = CATALOG[system].gated
    row = run_case(replace(CASE, system=system, gate_strength=1.0 if gated else None), "tests", SETTINGS)
    assert row.status == "ok", row.reason
    assert row.accuracy is not None
    assert row.accuracy["shape"] == {"B": 1, "T": 64, "H": 2, "K": 8, "V": 8}
    assert row.accuracy["where"] == "cpu"
    assert row.time is not None
    assert all(ms > 0 for ms in row.time["samples_ms"])
    assert row.implementation is not None
    assert "torch" in row.implementation
    assert store.from_json(store.to_json(row)) == row
    (spent,) = spent_of(row)
    assert {"reference", "compile", "gate", "samples", "inputs", "release"} <= set(spent.seconds)
    assert spent.total_s == pytest.approx(row.wall_s, abs=0.1)


def test_what_is_prepared_is_not_done_again() -> None:
    def worked_out(case: Case) -> int:
        """How many right answers a run of the case had to work out."""
        before = oracle.answer.cache_info().misses
        assert run_case(case, "test", SETTINGS).status == "ok"
        return oracle.answer.cache_info().misses - before

    alone, prepared = replace(CASE, seed=71), replace(CASE, seed=72)
    (spent,) = prepare(prepared, SETTINGS)
    assert {"machine", "reference"} <= spent["seconds"].keys()
    assert worked_out(prepared) == worked_out(alone) - 1


def test_what_a_package_imports_for_its_calls_is_imported_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "takes_seconds.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ChunkwiseTorch, "imports", ("takes_seconds",))
    assert "takes_seconds" not in sys.modules
    prepare(CASE, SETTINGS)
    assert sys.modules.pop("takes_seconds")


def test_a_case_that_cannot_run_is_prepared_for_nothing() -> None:
    (spent,) = prepare(replace(CASE, system="fla", chunk=None), SETTINGS)
    assert "reference" not in spent["seconds"]


def test_it_is_quiet_while_samples_are_taken_and_at_no_other_time(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, heard = io.StringIO(), queue.Queue[str]()
    for _ in range(2):
        heard.put("{}")
    monkeypatch.setattr(parent, "_line", (answers, heard))
    asked: list[int] = []  # how often the parent had been asked at each call

    class Watched(type(load(CASE.system))):  # type: ignore[misc]  # whichever class it is
        def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
            asked.append(answers.getvalue().count("quiet"))
            return super().forward(inputs, case)

    assert run_case(CASE, "test", SETTINGS, Watched(CATALOG[CASE.system])).status == "ok"
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"note": {"quiet": True}}, {"note": {"quiet": False}},
    ]  # fmt: skip
    assert asked == sorted(asked)
    assert asked.count(0) == 2  # the gate's calls
    assert asked.count(1) >= SETTINGS.min_samples
    assert asked.count(2) >= 1  # what is judged, and the peak of memory


def test_a_step_is_a_whole_row() -> None:
    row = run_case(replace(CASE, system="recurrent_torch", mode="step"), "tests", SETTINGS)
    assert row.status == "ok", row.reason
    assert row.accuracy is not None
    assert set(row.accuracy["outputs"]) == {"o", "final_state"}


@pytest.mark.parametrize(
    ("system", "part"),
    [
        ("gla", "compile"),
        ("gla", "gate"),
        ("recurrent_hbm", "compile"),
        ("recurrent_hbm", "gate"),
        ("chunkwise_torch", "all"),
    ],
)
def test_a_mode_that_a_system_lacks_is_unsupported(system: str, part: Part) -> None:
    row = run_case(replace(CASE, system=system, mode="step"), "test", Settings.for_device("cpu").with_part(part))
    assert (row.status, row.reason) == ("unsupported", f"{system} has no mode step")


def test_attention_decodes_a_token_with_its_cache() -> None:
    row = run_case(replace(CASE, system="sdpa", mode="step", gate_strength=None), "tests", SETTINGS)
    assert row.status == "ok", row.reason
    assert row.accuracy is not None
    assert set(row.accuracy["outputs"]) == {"o"}


def test_our_kernels_are_compiled_in_a_part_of_their_own() -> None:
    ours = replace(CASE, system="gla")
    assert parts(ours, "cpu") == ("gate", "compile")
    assert parts(ours, "cuda") == ("compile", "all")
    assert parts(CASE, "cpu") == parts(CASE, "cuda") == ("all",)
    row = run_case(ours, "tests", SETTINGS)
    assert row.status == "unsupported"
    assert row.reason is not None
    assert "two parts" in row.reason


PART = """
from glabench import store
from glabench.run.pipeline import run_case
from glabench.spec.settings import Settings
from glabench.spec.case import Case
print(store.to_json(run_case(Case(**{case!r}), "tests", Settings.for_device("cpu").with_part("{part}"))))
"""


PythonProcess = Callable[..., subprocess.CompletedProcess[str]]


def test_the_two_parts_of_a_kernel_make_one_row(
    python_process: PythonProcess, compiling_process: Callable[..., str], device: torch.device
) -> None:
    # two small kernels: those of a backward pass take ten times as long to compile
    case = Case("gla", 1, 64, 2, 16, 16, "bf16", "fwd", chunk=16, materialize=True)

    def run(part: Part) -> store.Row:
        if part == "gate" and device.type == "cpu":  # this process interprets kernels already
            return run_case(case, "tests", Settings.for_device("cpu").with_part(part))
        code = PART.format(case=case.to_dict(), part=part)
        if part == "gate":
            return store.from_json(python_process("-c", code, interpret=True).stdout.splitlines()[-1])
        return store.from_json(compiling_process("-c", code).splitlines()[-1])

    gate, compiled = run("gate"), run("compile")
    row = merge(gate, compiled)
    assert row.status == "ok", row.reason
    assert row.accuracy is not None
    assert row.accuracy["where"] == "interpreter"
    assert row.time is None
    assert row.compiled is not None
    assert {entry["arch"] for entry in row.compiled} == {"sm_80", "sm_90"}
    assert all(entry["registers"] > 0 and entry["error"] is None for entry in row.compiled)
    assert row.wall_s == pytest.approx(gate.wall_s + compiled.wall_s)
    assert [one.part for one in spent_of(row)] == ["compile", "gate"]
    assert spent_of(row)[0].seconds["compile"] > spent_of(row)[0].seconds["facts"] > 0

    wrong = replace(gate, status="wrong", reason="dk is off")
    assert (merge(wrong, compiled).status, merge(wrong, compiled).reason) == ("wrong", "dk is off")
    broken = replace(compiled, status="compile_error", reason="no")
    assert merge(gate, broken).status == "compile_error"
    unlucky = replace(compiled, status="crashed", environment=tried_again(compiled.environment))
    assert "fingerprint" not in merge(gate, unlucky).environment
    timed = replace(gate, time={"samples_ms": [1.0]})
    assert merge(timed, broken).status == "ok"  # what was timed has compiled
    assert merge(timed, unlucky).environment == gate.environment
    with pytest.raises(ValueError, match="two cases"):
        merge(gate, replace(compiled, case_id="another"))


def test_settings_travel_as_json() -> None:
    settings = Settings.for_device("cpu").with_part("gate")
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    with pytest.raises(TypeError, match="unknown settings: speed"):
        Settings.from_dict({"speed": 11})


@pytest.mark.gpu
@pytest.mark.parametrize("system", ["gla", "gla_recurrent", "fa2"])
def test_a_case_on_a_gpu_is_a_whole_row(system: str) -> None:
    gated = CATALOG[system].gated
    case = Case(system, 2, 300, 2, 64, 64, "bf16", "fwdbwd", gate_strength=1.0 if gated else None)
    settings = replace(Settings(), min_time_s=0.0, max_time_s=0.1)
    row = run_case(case, "tests", settings)
    if load(system).info.triton:
        row = merge(row, run_case(case, "tests", settings.with_part("compile")))
    assert row.status == "ok", row.reason
    assert row.time is not None
    assert row.time["clock"] == "cuda_events_cold_l2"
    assert row.memory is not None
    assert 0 <= row.memory["kept_bytes"] < row.memory["beyond_inputs_bytes"]
    assert len(row.time["eager"]["host_ms"]) >= 5
    assert min(row.time["eager"]["wall_ms"]) > 0
    assert row.environment["copy_bytes_per_s"] > 1e11
    if load(system).info.triton:
        assert row.compiled
        assert all(entry["error"] is None for entry in row.compiled)
