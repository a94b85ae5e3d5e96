"""Every system of the catalog: it loads, and says what it needs and what it cannot do."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from glabench.run.gate import check
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Settings
from glabench.systems import flex, load
from glabench.systems.inputs import make_inputs

CASE = Case("gla", 1, 64, 2, 16, 16)
MOST = 1  # graphs that Dynamo would make of one function


@pytest.mark.parametrize("name", CATALOG)
def test_every_system_loads_and_answers(name: str) -> None:
    system = load(name)
    assert system.name == name
    for device in ("cpu", "cuda"):
        missing = system.unavailable(device)
        assert missing is None or (missing.reason and missing.remedy)
    if system.unavailable("cuda") is None:
        assert system.implementation(replace(CASE, system=name))


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        load("flash_attention_9")


@pytest.mark.skipif(importlib.util.find_spec("fla") is not None, reason="FLA is installed")
@pytest.mark.parametrize("name", ["fla", "fla_linear", "fla_simple", "fla_retention", "fla_recurrent"])
def test_a_missing_package_comes_with_the_command_that_installs_it(name: str) -> None:
    assert str(load(name).unavailable("cuda")) == "the package fla is not installed; pip install fla-core einops"


@pytest.mark.parametrize("name", ["fa2", "cudnn", "flex"])
def test_gpu_systems_say_so_on_a_cpu(name: str) -> None:
    missing = load(name).unavailable("cpu")
    assert missing is not None
    assert missing.reason == "it needs an NVIDIA GPU"
    assert load(name).unavailable("cuda") is None


@pytest.mark.filterwarnings("ignore")
def test_every_length_of_flex_attention_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a compiler that is made up, past the number of shapes at which Dynamo gives up by itself."""
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    system = load("flex")
    flex.compiled.cache_clear()
    try:
        with torch._dynamo.config.patch(recompile_limit=MOST, accumulated_recompile_limit=MOST):  # and as before, after
            for T in range(128, 128 * (MOST + 3), 128):
                case = Case("flex", 1, T, 1, 16, 16, dtype="fp32")
                system.forward(make_inputs(case, "attention", "cpu"), case)
    finally:
        flex.compiled.cache_clear()
    assert len(graphs) == MOST + 2


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("gla", {"K": 513}, "K=513"),
        ("gla_recurrent", {"V": 1024}, "V=1024"),
        ("gla", {"chunk": 64, "sub_chunk": 48}, "sub_chunk"),
        ("fa2", {"dtype": "fp32"}, "fp32"),
        ("fa2", {"attn_dim": 512}, "512"),
        ("cudnn", {"dtype": "fp32"}, "fp32"),
        ("fa3", {"dtype": "fp32"}, "fp32"),
        ("fa3", {"attn_dim": 512}, "512"),
        ("fa4", {"dtype": "fp32"}, "fp32"),
        ("fa4", {"attn_dim": 512}, "512"),
        ("fa4", {"attn_dim": 60}, "multiples of 8"),
        ("fa4", {"initial_state": True}, "initial state"),
        ("jla", {"gate_strength": None}, "gates"),
        ("jla", {"dtype": "fp16", "K": 64}, "bf16, not fp16"),
        ("jla", {"K": 64, "V": 256}, "V=256"),
        ("jla", {"H": 3, "K": 64, "V": 64}, "multiples of 128"),
        ("jla_simple", {"dtype": "fp32"}, "bf16 and fp16, not fp32"),
        ("jla_simple", {"K": 32, "V": 64}, "K=32"),
        ("tileops", {"gate_strength": None}, "gates"),
        ("tileops", {"dtype": "fp32"}, "fp16 and bf16"),
        ("tileops", {"K": 64, "V": 128}, "V=128"),
        ("tileops", {"H": 3, "K": 64, "V": 64}, "H=3"),
        ("tileops", {"T": 100, "K": 64, "V": 64}, "T=100"),
        ("flex", {"initial_state": True}, "initial state"),
        ("sdpa", {"initial_state": True}, "initial state"),
        ("chunkwise_direct", {"chunk": 128}, "not 128"),
        ("parallel_triton", {"initial_state": True}, "state"),
        ("recurrent_hbm", {"K": 513}, "K=513"),
        ("lightning2", {}, "no gate"),
        ("lightning2", {"gate_strength": None, "V": 257}, "V=257"),
        ("mamba_scan", {"initial_state": True}, "no state"),
        ("mamba2_ssd", {"initial_state": True}, "initial state"),
        ("mamba2_ssd", {"gate_strength": None}, "decays"),
        ("mamba2_ssd", {"V": 512}, "V=512"),
        ("fla", {"gate_strength": None}, "gates"),
        ("fla_linear", {"gate_strength": 1.0}, "gate"),
        ("simple_gla", {"gate_strength": None}, "gates"),
        ("simple_gla", {"K": 257}, "K=257"),
        ("simple_gla", {"chunk": 256}, "not 256"),
        ("retention", {"gate_strength": None, "V": 300}, "V=300"),
        ("fla_simple", {"gate_strength": None}, "gates"),
        ("fla_retention", {"gate_strength": None, "K": 33}, "even"),
    ],
)
def test_a_case_that_cannot_be_run_is_refused_with_a_reason(name: str, changes: dict[str, Any], word: str) -> None:
    reason = load(name).unsupported(replace(CASE, system=name, **changes), "cuda")
    assert reason is not None
    assert word in reason
    assert "\n" not in reason


def test_systems_without_gates_on_the_value_side_say_so() -> None:
    case = replace(CASE, value_gate=True)
    can = {name for name, info in CATALOG.items() if load(name).refusal_by_catalog(replace(case, system=name)) is None}
    assert can == {"gla", "gla_recurrent", "recurrent_torch", "chunkwise_torch", "parallel_torch"}
    assert load("fla").refusal_by_catalog(case) == "fla has no gates on the value side"
    assert load("fla").refusal_by_catalog(CASE) is None
    refused = load("gla").unsupported(replace(case, chunk=128), "cuda")
    assert refused == "schedule: with gv expected a chunk of at most 64, got 128"


@pytest.mark.parametrize("name", ["recurrent_torch", "chunkwise_torch", "parallel_torch"])
def test_plain_forms_gate_both_sides(name: str) -> None:
    case = Case(name, 1, 40, 1, 8, 8, "fp32", value_gate=True, chunk=16 if name == "chunkwise_torch" else None)
    assert check(load(name), case, Settings.for_device("cpu"), "cpu").passed


def test_a_step_of_the_plain_recurrence_gates_both_sides() -> None:
    case = Case("recurrent_torch", 1, 40, 1, 8, 8, "fp32", "step", value_gate=True)
    assert check(load("recurrent_torch"), case, Settings.for_device("cpu"), "cpu").passed


def test_a_schedule_is_the_case_s_or_left_to_the_kernels() -> None:
    from glabench.systems.gla import Gla

    system = load("gla")
    assert isinstance(system, Gla)
    assert system.schedule(CASE) is None
    schedule = system.schedule(replace(CASE, chunk=128, materialize=False))
    assert schedule is not None
    assert (schedule.chunk, schedule.materialize) == (128, False)


def test_only_systems_with_the_mode_step_have_one() -> None:
    inputs = make_inputs(replace(CASE, mode="step"), "gla", "cpu")
    with pytest.raises(TypeError, match="chunkwise_torch has no mode step"):
        load("chunkwise_torch").step(inputs, CASE)
