"""Cases whose heads of v share queries and keys, `qk_heads`: inputs, the gate, work and who takes them."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from gla_kernels import reference
from glabench.run import gate
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Settings
from glabench.spec.work import operator_work
from glabench.systems import load
from glabench.systems.base import System
from glabench.systems.inputs import Inputs, input_bytes, make_inputs

CUDA = torch.cuda.is_available()
SETTINGS = Settings.for_device("cuda" if CUDA else "cpu")
WHERE = "cuda" if CUDA else "interpreter"
CASE = Case("gla", 1, 21, 4, 16, 12, "fp32", chunk=16, sub_chunk=16, materialize=True, qk_heads=2)


@pytest.mark.parametrize(
    "changes",
    [
        {"initial_state": True, "value_gate": True},
        {"qk_heads": 1, "dtype": "bf16", "gate_strength": 16.0},
        {"gate_strength": None},
        {"lengths": "13,8", "initial_state": True},
        {"system": "gla_recurrent", "initial_state": True},
        {"system": "gla_recurrent", "mode": "step", "value_gate": True},
        {"system": "simple_gla", "initial_state": True},
        {"system": "simple_gla", "qk_heads": 1, "dtype": "bf16", "gate_strength": 16.0},
        {"system": "simple_gla", "lengths": "13,8"},
        {"system": "mamba2_ssd", "qk_heads": 1},
    ],
)
def test_the_gate_passes_what_is_right(changes: dict[str, Any]) -> None:
    case = replace(CASE, **changes)
    found = gate.check(load(case.system), case, SETTINGS, WHERE)
    assert found.passed, found.reason
    assert "dq" in found.accuracy["outputs"] or case.mode == "step"


class Shuffled(System):
    """The recurrence, with heads of q and k shared as they lie beside one another, or in turns."""

    def __init__(self, in_turns: bool) -> None:
        super().__init__(CATALOG["recurrent_torch"])
        self.in_turns = in_turns

    def implementation(self, case: Case) -> str:
        return "for all heads"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        def all_heads(x: torch.Tensor) -> torch.Tensor:
            return x.repeat(1, 1, case.group, 1) if self.in_turns else x.repeat_interleave(case.group, 2)

        assert inputs.g is not None
        q, k, g = (all_heads(x) for x in (inputs.q, inputs.k, inputs.g))
        return reference.recurrent(q, k, inputs.v, g, None, inputs.initial_state)


@pytest.mark.parametrize("in_turns", [False, True])
def test_the_gate_knows_which_heads_share(in_turns: bool) -> None:
    case = replace(CASE, B=2, H=6, initial_state=True)
    assert gate.check(Shuffled(in_turns), case, SETTINGS, "cpu").passed is not in_turns


@pytest.mark.parametrize("of_q", [2, 8])
def test_a_cpu_compares_two_heads_of_each_of_two(of_q: int) -> None:
    case = replace(CASE, H=32, qk_heads=of_q)
    small = gate.reduced(case, load("gla"), SETTINGS, interpreter=True)
    assert (small.H, small.qk_heads) == (4, 2)
    assert gate.reduced(replace(case, qk_heads=1), load("gla"), SETTINGS, interpreter=True).H == 2


@pytest.mark.parametrize("changes", [{}, {"system": "simple_gla"}, {"value_gate": True, "gate_dtype": "fp32"}])
@pytest.mark.parametrize("mode", ["fwdbwd", "step"])
def test_bytes_are_known_before_anything_is_made(mode: Any, changes: dict[str, Any]) -> None:
    case = replace(CASE, mode=mode, dtype="bf16", initial_state=True, **changes)
    x = make_inputs(case, CATALOG[case.system].operator, "cpu")
    assert input_bytes(case) == x.nbytes
    assert (x.q.shape[-2], x.k.shape[-2], x.v.shape[-2], x.do.shape[-2]) == (2, 2, 4, 4)
    assert x.g is not None
    assert x.g.shape[-2:] == ((4, 1) if case.system == "simple_gla" else (2, 16))


def test_work_counts_what_is_shared_once() -> None:
    def of(**changes: Any) -> dict[str, int]:
        return operator_work(replace(CASE, B=2, T=100, chunk=64, **changes).to_dict())

    # 200 tokens; q, k and g of 2 heads, v and o of 4: 6 * 16 + 8 * 12 elements of 4 bytes; scores of 64 rows
    flops = 200 * (4 * 4 * 16 * 12 + 64 * (2 * 16 + 4 * 12))
    assert of(mode="fwd") == {"flops": flops, "hbm_bytes": 200 * (6 * 16 + 8 * 12) * 4}
    # q, k, g, dq, dk, dg of 2; v, do, dv of 4
    flops = 200 * (10 * 4 * 16 * 12 + 64 * (3 * 2 * 16 + 2 * 4 * 12))
    assert of(mode="bwd") == {"flops": flops, "hbm_bytes": 200 * (12 * 16 + 12 * 12) * 4}
    # one gate for each head of v
    assert of(system="simple_gla", mode="fwd")["hbm_bytes"] == 200 * (4 * 16 + 8 * 12 + 4) * 4
    # and as a case that says so by itself
    ssd = {"H": 64, "K": 128, "V": 64, "qk_heads": 1, "dtype": "bf16"}
    assert of(system="simple_gla", **ssd) == of(system="mamba2_ssd", **ssd)


def test_fla_has_them_repeated_in_the_timed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def chunk_gla(q: Any, k: Any, v: Any, g: Any, **how: Any) -> Any:
        seen.update(q=q, k=k, v=v, g=g)
        return v, None

    package = ModuleType("fla.ops.gla")
    package.chunk_gla = chunk_gla  # type: ignore[attr-defined]
    for name, module in (("fla", ModuleType("fla")), ("fla.ops", ModuleType("fla.ops")), ("fla.ops.gla", package)):
        monkeypatch.setitem(sys.modules, name, module)
    system, case = load("fla"), replace(CASE, system="fla")
    x = make_inputs(case, "gla", "cpu")
    system.forward(x, case)
    assert seen["v"] is x.v
    for name in "qkg":
        assert torch.equal(seen[name], getattr(x, name).repeat_interleave(2, 2))
    assert "q and k repeated" in system.implementation(case)
    assert "repeated" not in system.implementation(replace(case, qk_heads=None))


def test_plans_are_those_of_one_wide_head() -> None:
    from glabench.systems.gla import Gla

    system = load("gla")
    assert isinstance(system, Gla)
    work = system.workload(replace(CASE, H=64, V=64, qk_heads=1))
    assert (work.H, work.V) == (8, 512)


@pytest.mark.parametrize("name", ["helion", "retention", "sdpa", "scan", "mamba_scan"])
def test_systems_that_do_not_share_say_so(name: str) -> None:
    case = replace(CASE, system=name)
    assert load(name).refusal_by_catalog(case) == f"{name} has no heads of q and k that several of v share"


def test_ssd_has_one_head_of_b_and_c() -> None:
    said = load("mamba2_ssd").unsupported(replace(CASE, system="mamba2_ssd", sub_chunk=None), "cuda")
    assert said == "qk_heads=2: SSD is measured with one head of B and C"
