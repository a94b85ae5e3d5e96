"""Our chunkwise kernels as a system: what it says that it runs is what runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gla_kernels
from gla_kernels import Entry, Machine, Plan, Schedule, Workload, default_config
from gla_kernels.launch import interpreting
from gla_kernels.ops import signature
from gla_kernels.ops.forms import Chunkwise, Simple
from gla_kernels.plan import choose, files, table
from gla_kernels.simple.hopper import simple_walk_hopper_kernel
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.systems.gla import Gla, PlannedGla, schedule_name
from glabench.systems.inputs import make_inputs

CASE = Case("gla", 1, 300, 2, 16, 16, "fp32")
FWD, BWD = Schedule(32, 32), Schedule(128, 16)


def plan(schedule: Schedule) -> Plan:
    return Plan(schedule, default_config(16, 16, 4, schedule))


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Nothing tuned but what is put into this folder, and no GPU here but some of capability 9.0."""
    for module in (gla_kernels, choose):
        monkeypatch.setattr(module, "machine_of", lambda device=None: Machine(90))
    by_model = choose.by_model
    monkeypatch.setattr(  # whatever the cost model is fitted to today
        choose,
        "by_model",
        lambda work, capability: by_model(replace(work, schedule=work.schedule or Schedule()), capability),
    )
    monkeypatch.setenv("GLABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "SHIPPED", tmp_path)
    choose.refresh()
    signature.forget()
    yield tmp_path
    choose.refresh()
    signature.forget()


def chunks(system: Gla, case: Case, arch: str = "sm_90") -> list[tuple[str, int]]:
    """The passes over chunks, with the chunk, that it would launch."""
    return [(x.step, chunk_of(x)) for x in system.launches(case, arch)]


def chunk_of(launch: Any) -> int:
    """The chunk of a launch, as its pass is told."""
    args = launch.args
    return int(launch.constexprs.get("CHUNK") or args.get("chunk") or args["every_rows"])


def test_it_says_which_plan_runs_and_why(shipped: Path) -> None:
    system = Gla(CATALOG["gla"])
    assert system.implementation(CASE).endswith("; fwd and bwd 64/64 w/ m. by the cost model")
    assert system.implementation(replace(CASE, mode="fwd")).endswith("; fwd 64/64 w/ m. by the cost model")
    asked = replace(CASE, chunk=128, sub_chunk=32, materialize=False)
    assert system.implementation(asked).endswith("; fwd and bwd 128/32 w/o m. by size")
    work = Workload("bwd", 1, 300, 2, 16, 16, "fp32")
    files.ship([Entry(work, plan(BWD), 1.0)], table.header_of(Machine(90, "NVIDIA H200")), shipped)
    choose.refresh()
    said = system.implementation(CASE)
    assert "; fwd 64/64 w/ m. by the cost model; bwd 128/16 w/ m. tuned on NVIDIA H200 at B=1 T=300 H=2" in said
    assert "\n" not in said


def test_a_schedule_in_a_few_words() -> None:
    assert schedule_name(Schedule(64, 16)) == "64/16 w/ m."
    assert schedule_name(Schedule(128, 64, False)) == "128/64 w/o m."
    assert schedule_name(Schedule(64, 64, True, 16)) == "64/64 w/ m., seg 16"


def test_what_is_compiled_is_what_would_run_on_that_gpu(shipped: Path) -> None:
    work = Workload("fwd", 1, 300, 2, 16, 16, "fp32")
    files.ship([Entry(work, plan(FWD), 1.0)], table.header_of(Machine(90, "NVIDIA H200")), shipped)
    choose.refresh()
    system, case = Gla(CATALOG["gla"]), replace(CASE, mode="fwd")
    assert chunks(system, case) == [("states", 32), ("output", 32)]
    assert chunks(system, case, "sm_80") == [("states", 64), ("output", 64)]


@pytest.mark.skipif(not interpreting(), reason="on a GPU launches are fired together")
def test_plans_that_are_given_run(monkeypatch: pytest.MonkeyPatch) -> None:
    system = PlannedGla(CATALOG["gla"], fwd=plan(FWD), bwd=plan(BWD))
    backward = [(step, 128) for step in ("states", "grad_states", "grad_qk", "grad_v")]
    expected = [("states", 32), ("output", 32), *backward]
    assert chunks(system, CASE) == expected
    assert system.implementation(CASE).endswith("; fwd 32/32 w/ m. as given; bwd 128/16 w/ m. as given")
    ran: list[tuple[str, int]] = []
    monkeypatch.setattr("gla_kernels.launch.record.execute", lambda launch: ran.append((launch.step, chunk_of(launch))))
    inputs = make_inputs(CASE, "gla", "cpu")
    for _, x in inputs.tensors():
        x.requires_grad_()
    o, _ = system.forward(inputs, CASE)
    o.backward(torch.ones_like(o))
    assert ran == expected


def test_a_direction_without_a_plan_is_left_to_gla() -> None:
    system = PlannedGla(CATALOG["gla"], bwd=plan(BWD))
    assert system.implementation(CASE).endswith("; fwd 64/64 w/ m. by the cost model; bwd 128/16 w/ m. as given")
    passes = chunks(system, CASE)
    assert passes[:2] == [("states", 64), ("output", 64)]
    assert passes[2:] == [(step, 128) for step in ("states", "grad_states", "grad_qk", "grad_v")]


@pytest.mark.skipif(simple_walk_hopper_kernel is None, reason="Triton's Gluon is another")
def test_without_gates_no_plan_is_named_where_none_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open schedule on a Hopper GPU that is here; elsewhere, and of a tuner's plans, plans run."""
    case = replace(CASE, B=4, H=16, K=128, V=128, dtype="bf16", gate_strength=None)
    system, tuner = Gla(CATALOG["gla"]), PlannedGla(CATALOG["gla"])
    monkeypatch.setattr("glabench.hardware.crosscompile.local_arch", lambda: None)
    assert "simple_gla" not in system.implementation(case)
    monkeypatch.setattr("glabench.hardware.crosscompile.local_arch", lambda: "sm_90")
    assert system.implementation(case).endswith("; by the walks of simple_gla, not tuned")
    for other in (replace(case, chunk=64), replace(case, dtype="fp32"), replace(case, gate_strength=1.0)):
        assert "simple_gla" not in system.implementation(other)
    assert "simple_gla" not in tuner.implementation(case)
    steps = [launch.step for launch in system.launches(case, "sm_90")]
    assert all(step.startswith("simple_") for step in steps)
    assert isinstance(system.form_of(case, "sm_90"), Simple)
    for one, arch in ((system, "sm_80"), (tuner, "sm_90")):
        assert not any(launch.step.startswith("simple_") for launch in one.launches(case, arch))
        assert isinstance(one.form_of(case, arch), Chunkwise)
