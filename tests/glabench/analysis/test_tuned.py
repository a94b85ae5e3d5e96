"""Whether rows tell what is tuned, in the words in which systems say what they ran."""

from __future__ import annotations

from typing import Any

import pytest

from glabench.analysis.tuned import WORDS, state, untuned
from glabench.spec.case import Case
from glabench.systems import load

LAYER: dict[str, Any] = {"B": 32, "T": 2048, "H": 4, "K": 128, "V": 256}


@pytest.mark.parametrize(
    ("system", "given", "said"),
    [
        ("gla", {"chunk": 256, "sub_chunk": 16, "dtype": "fp32"}, "untuned"),  # which no table has
        ("gla", {"chunk": 256, "sub_chunk": 16, "dtype": "bf16"}, "elsewhere"),
        ("gla", {"value_gate": True}, "untuned"),
        ("gla_recurrent", {}, "untuned"),
        ("simple_gla", {"chunk": 64}, "untuned"),
        ("recurrent_hbm", {}, "untuned"),
        ("chunkwise_direct", {"chunk": 16}, "untuned"),
        ("lightning2", {"gate_strength": None}, "untuned"),
        ("chunkwise_torch", {}, "fixed"),
        ("cudnn", {"gate_strength": None}, "fixed"),
    ],
)
def test_what_systems_say_of_themselves_is_understood(system: str, given: dict[str, Any], said: str) -> None:
    words = load(system).implementation(Case(system, **LAYER, **given))
    assert state({"implementation": words}) == said, words


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("NVIDIA H200", "tuned"),
        ("NVIDIA H100 80GB HBM3", "tuned"),
        ("NVIDIA H100 NVL", "elsewhere"),
        (None, "elsewhere"),
    ],
)
def test_shipped_plans_are_tuned(device: str | None, said: str) -> None:
    from gla_kernels import Machine, Workload, chosen

    origin = chosen(Workload("fwd", **LAYER, dtype="bf16", gated=True), Machine(90, device, 2**37)).origin
    assert state({"implementation": f"gla_kernels 0.1, triton 3.6.0; fwd and bwd 64/64 w/ m. {origin}"}) == said, origin


@pytest.mark.parametrize(
    ("directions", "said"),
    [
        (["tuned here at B=1 T=8 H=1", "shipped for NVIDIA H200, tuned at B=1 T=8 H=1, nearby"], "nearby"),
        (["shipped for NVIDIA H200, tuned at B=1 T=8 H=1, nearby", "by size"], "untuned"),
        (["tuned here at B=1 T=8 H=1", "by the cost model"], "untuned"),
        (["tuned here at B=1 T=8 H=1"], "tuned"),
    ],
)  # fmt: skip
def test_a_call_is_as_tuned_as_its_direction_that_is_the_least(directions: list[str], said: str) -> None:
    line = {"implementation": "; ".join(["gla_kernels 0.1, triton 3.6.0", *directions])}
    assert state(line) == said
    assert untuned(line) is (said == "untuned")
    assert said in WORDS


def test_a_row_that_does_not_say_is_taken_as_it_is() -> None:
    assert state({"implementation": None}) == state({}) == "fixed"
