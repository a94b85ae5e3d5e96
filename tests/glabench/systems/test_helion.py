"""Helion's example, played by a module that computes the same with plain PyTorch and remembers what it was given."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from glabench.hardware.environment import HELION_EXAMPLES, folder_digest
from glabench.run import gate
from glabench.run.rotation import rotated_inputs
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems import Unavailable, helion, load
from glabench.systems.inputs import Inputs, make_inputs

CASE = Case("helion", B=2, T=100, H=3, K=16, V=32, dtype="fp32", mode="fwdbwd")
VARIABLES = (HELION_EXAMPLES, helion.EFFORT, helion.CACHE, "HELION_AUTOTUNER", "HELION_AOT_DATA_DIR")
STUB = """
import os
from enum import Enum
from gla_kernels import reference

CACHE_AT_IMPORT = os.environ.get("HELION_AUTOTUNE_CACHE")
given = []

class LinearAttentionVariant(Enum):
    FULL_GLA = "full_gla"

def get_helion_fwd_kernel(variant):
    assert variant is LinearAttentionVariant.FULL_GLA
    return kernel

def kernel(q, k, v, g, beta, *, C, scale, initial_state=None, return_final_state=False):
    assert beta is None
    heads_first = all(x.is_contiguous() for x in (q, k, v, g))
    given.append({"shape": tuple(q.shape), "C": C, "scale": scale, "heads_first": heads_first})
    given_back = given[-1]
    q, k, v, g = (x.transpose(1, 2) for x in (q, k, v, g))
    q = q * (scale * q.shape[-1] ** 0.5)  # the reference scales by K^-1/2 itself
    o, state = reference.recurrent(q, k, v, g, initial_state=initial_state)
    o = o.transpose(1, 2).contiguous()
    if o.requires_grad:
        o.register_hook(lambda up: given_back.update(up=up.is_contiguous()))
    return (o, state) if return_final_state else o
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing of Helion's is set or imported, before and after."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    monkeypatch.setenv("GLABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    helion.engine.cache_clear()
    yield
    helion.engine.cache_clear()
    sys.modules.pop(helion.ENGINE, None)


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of examples with the made-up kernels and pretuned configs for two GPUs."""
    folder = tmp_path / "examples" / "linear"
    folder.mkdir(parents=True)
    (folder / f"{helion.ENGINE}.py").write_text(STUB)
    for arch in (90, 100):
        (folder / f"_helion_aot_{helion.ENGINE}_cuda_sm{arch}.py").write_text("")
    monkeypatch.setenv(HELION_EXAMPLES, str(folder.parent))
    return folder


@pytest.mark.skipif(importlib.util.find_spec("helion") is not None, reason="Helion is installed")
def test_without_the_package_it_says_how_to_get_it() -> None:
    assert str(load("helion").unavailable("cuda")) == "the package helion is not installed; pip install helion"


def test_without_the_examples_it_says_which_variable_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helion, "missing_package", lambda package, remedy: None)
    remedy = "set GLABENCH_HELION_EXAMPLES to the folder examples of a checkout of https://github.com/pytorch/helion"
    assert load("helion").unavailable("cuda") == Unavailable("Helion's package does not bring its examples", remedy)
    monkeypatch.setenv(HELION_EXAMPLES, str(tmp_path))
    reason = "GLABENCH_HELION_EXAMPLES names a folder without linear/linear_attention_engine.py"
    assert load("helion").unavailable("cuda") == Unavailable(reason, remedy)


def test_with_both_it_needs_a_gpu(examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helion, "missing_package", lambda package, remedy: None)
    assert load("helion").unavailable("cuda") is None
    missing = load("helion").unavailable("cpu")
    assert missing is not None
    assert missing.reason == "it needs an NVIDIA GPU"


def test_a_version_that_cannot_be_imported_is_not_there(examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helion, "missing_package", lambda package, remedy: None)
    (examples / f"{helion.ENGINE}.py").write_text("from glabench import what_is_not_there")
    missing = load("helion").unavailable("cuda")
    assert missing is not None
    assert "cannot be imported beside torch" in missing.reason
    assert "cannot import name 'what_is_not_there'" in missing.reason


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"gate_strength": None}, "gates"), ({"initial_state": True}, "gradients of its states")],
)
def test_cases_that_it_cannot_run_are_refused(examples: Path, changes: dict[str, Any], word: str) -> None:
    reason = load("helion").unsupported(replace(CASE, **changes), "cuda")
    assert reason is not None
    assert word in reason


def test_a_gpu_without_pretuned_configs_is_refused_unless_tuning_is_asked_for(
    examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helion, "capability", lambda: 80)
    reason = load("helion").unsupported(CASE, "cuda")
    assert reason is not None
    assert "no configs for sm_80" in reason
    assert "HELION_AUTOTUNE_EFFORT=quick" in reason
    monkeypatch.setenv(helion.EFFORT, "quick")
    assert load("helion").unsupported(CASE, "cuda") is None
    monkeypatch.delenv(helion.EFFORT)
    monkeypatch.setattr(helion, "capability", lambda: 90)
    assert load("helion").unsupported(CASE, "cuda") is None


@pytest.mark.parametrize(
    ("here", "variables", "words"),
    [
        (90, {}, "pretuned configs for sm_90"),
        (None, {}, "pretuned configs"),
        (120, {}, "pretuned configs for sm_100"),
        (90, {helion.EFFORT: "none"}, "not tuned (effort none)"),
        (90, {helion.EFFORT: "quick"}, "tuned by itself, effort quick"),
        (90, {helion.CACHE: "LocalAutotuneCache"}, "tuned by itself, effort full"),
        (90, {helion.EFFORT: "full", helion.CACHE: helion.PRETUNED}, "pretuned configs for sm_90"),
    ],
)
def test_the_row_says_what_ran_and_how_it_was_tuned(
    examples: Path, monkeypatch: pytest.MonkeyPatch, here: int | None, variables: dict[str, str], words: str
) -> None:
    monkeypatch.setattr(helion, "capability", lambda: here)
    monkeypatch.setattr(helion, "package_version", lambda name: f"1.5.1 of {name}")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    digest = folder_digest(HELION_EXAMPLES)
    found = load("helion").implementation(CASE)
    assert found == f"helion 1.5.1 of helion full GLA of examples {digest}, chunks of 64, {words}"


def test_inputs_are_laid_out_heads_first_before_anything_runs(examples: Path) -> None:
    system = load("helion")
    rotated = rotated_inputs(CASE, Settings.for_device("cpu"), system)[0]
    for salt, laid in enumerate((system.draw_inputs(CASE, "cpu"), rotated)):
        plain = make_inputs(CASE, "gla", "cpu", salt)
        for name, x in laid.tensors():
            assert torch.equal(x, getattr(plain, name))
            assert x.transpose(1, 2).is_contiguous()
        assert laid.with_grad().q.stride() == laid.q.stride()
        assert laid.nbytes == plain.nbytes


def test_states_keep_their_layout(examples: Path) -> None:
    laid = load("helion").draw_inputs(replace(CASE, mode="fwd", initial_state=True), "cpu")
    assert laid.initial_state is not None
    assert laid.initial_state.is_contiguous()


@pytest.mark.parametrize("changes", [{}, {"mode": "fwd"}, {"mode": "fwd", "initial_state": True}])
def test_it_is_given_what_the_operator_is_defined_by(examples: Path, changes: dict[str, Any]) -> None:
    case = replace(CASE, **changes)
    verdict = gate.check(load("helion"), case, Settings.for_device("cpu"), "cpu")
    assert verdict.passed, verdict.reason
    assert ("final_state" in verdict.accuracy["outputs"]) == case.initial_state
    given = helion.engine().given
    assert len(given) == 2  # the gate runs it twice
    for call in given:
        assert call["shape"] == (2, 3, 100, 16)
        assert (call["C"], call["scale"], call["heads_first"]) == (64, 0.25, True)
        assert call.get("up", True)  # and the gradient of the output as it lies in memory, too


def test_inputs_in_another_layout_are_right_too(examples: Path) -> None:
    system, inputs = load("helion"), make_inputs(CASE, "gla", "cpu")
    assert isinstance(inputs, Inputs)
    plain, _ = system.forward(inputs, CASE)
    laid, _ = system.forward(system.lay_out(inputs), CASE)
    assert torch.equal(plain, laid)
    assert [call["heads_first"] for call in helion.engine().given] == [False, True]


def test_pretuned_configs_are_asked_for_before_the_kernels_are_imported(
    examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(helion.CACHE, "")  # set, but to nothing
    module = helion.engine()
    assert module.CACHE_AT_IMPORT == helion.PRETUNED
    assert os.environ["HELION_AUTOTUNER"] == "PatternSearch"
    assert os.environ["HELION_AOT_DATA_DIR"] == str(Path(os.environ["GLABENCH_CACHE"]) / "helion")
    assert helion.effort() == "pretuned"


def test_tuning_that_is_asked_for_is_helion_s_own(examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(helion.EFFORT, "quick")
    assert helion.engine().CACHE_AT_IMPORT is None
    assert "HELION_AUTOTUNER" not in os.environ
    assert helion.effort() == "quick"
