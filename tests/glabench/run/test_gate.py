"""The gate must catch what is wrong, and pass what is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from glabench.run import gate, oracle
from glabench.run.errors import Distance
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Settings
from glabench.systems.base import System
from glabench.systems.inputs import Inputs

Result = tuple[torch.Tensor, torch.Tensor | None]
Change = Callable[[torch.Tensor], torch.Tensor]

SETTINGS = Settings.for_device("cpu")
CASE = Case("chunkwise_torch", 2, 150, 2, 16, 24, "bf16", "fwdbwd", initial_state=True)


class Planted(System):
    """The plain chunkwise form with a fault: ``forward_fault`` on o, ``backward_fault`` on the gradient of k."""

    def __init__(
        self, o: Change | None = None, dk: Change | None = None, ours: bool = False, state: bool = True
    ) -> None:
        super().__init__(replace(CATALOG["chunkwise_torch"], triton=ours))
        self.o, self.dk, self.state = o, dk, state

    def implementation(self, case: Case) -> str:
        return "a planted fault"

    def forward(self, inputs: Inputs, case: Case) -> Result:
        from gla_kernels import reference

        k = _Fault.apply(inputs.k, self.dk) if self.dk is not None else inputs.k
        o, state = reference.chunkwise(inputs.q, k, inputs.v, inputs.g, initial_state=inputs.initial_state)
        return (self.o(o) if self.o is not None else o), state if self.state else None


class _Fault(torch.autograd.Function):
    """Passes k on; its gradient comes back changed."""

    @staticmethod
    def forward(ctx: Any, k: torch.Tensor, change: Change) -> torch.Tensor:
        ctx.change = change
        return k.view_as(k)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.change(grads[0]), None


def verdict(system: System, case: Case = CASE) -> gate.Verdict:
    return gate.check(system, case, SETTINGS, "cpu")


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_sound_form_passes(dtype: Any) -> None:
    found = verdict(Planted(), replace(CASE, dtype=dtype))
    assert found.passed, found.reason
    assert set(found.accuracy["outputs"]) == {"o", "final_state", "dq", "dk", "dv", "dg", "dinitial_state"}
    assert found.accuracy["pairs"] == 4
    assert found.accuracy["deterministic"]
    for score in found.accuracy["outputs"].values():
        assert 0 < score["error"] <= score["tolerance"]


def test_a_gradient_that_is_off_by_two_percent_is_caught() -> None:
    found = verdict(Planted(dk=lambda dk: dk * 1.02))
    assert not found.passed
    assert found.reason is not None
    assert found.reason.startswith("dk is off by")
    assert found.accuracy["outputs"]["dk"]["error"] == pytest.approx(0.02, rel=0.2)


def test_a_plain_form_that_overflowed_allows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def overflowed(question: oracle.Question) -> oracle.Answer:
        return replace(right, baseline=dict.fromkeys(right.baseline, Distance(math.inf, math.inf)))

    right = oracle.answer(oracle.ask(CASE, "cpu", SETTINGS.gate_pairs))
    monkeypatch.setattr(oracle, "answer", overflowed)
    found = verdict(Planted(dk=lambda dk: dk * 2))
    assert found.reason is not None
    assert found.reason.startswith("dk is off by")


def test_one_wrong_row_among_many_is_caught() -> None:
    def last_row(o: torch.Tensor) -> torch.Tensor:
        changed = torch.ones_like(o)
        changed[:, -1] = 1.25
        return o * changed

    case = replace(CASE, T=901, mode="fwd", initial_state=False, B=1)
    found = verdict(Planted(o=last_row), case)
    assert not found.passed
    assert found.reason is not None
    assert "in a block of 16 rows" in found.reason
    assert found.accuracy["outputs"]["o"]["error"] < found.accuracy["outputs"]["o"]["tolerance"]


def test_one_nan_is_caught() -> None:
    def poke(o: torch.Tensor) -> torch.Tensor:
        changed = torch.ones_like(o)
        changed[0, 7, 0, 3] = float("nan")
        return o * changed

    found = verdict(Planted(o=poke), replace(CASE, mode="fwd"))
    assert found.reason == "o has 1 values that are NaN or infinite"


def test_a_nan_in_a_gradient_is_caught() -> None:
    assert not verdict(Planted(dk=lambda dk: dk * float("nan"))).passed


def test_an_output_that_is_not_returned_is_caught() -> None:
    found = verdict(Planted(state=False), replace(CASE, mode="fwd"))
    assert found.reason == "final_state was not returned"


class Wobble:
    """Changes the last bits of what passes through it, differently at each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, o: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return o * (1 + 0.004 * (self.calls % 2))


def test_a_second_run_that_differs_fails_our_kernels_and_is_recorded_for_others() -> None:
    case = replace(CASE, mode="fwd")
    ours = verdict(Planted(o=Wobble(), ours=True), case)
    assert ours.reason == "two runs of the same inputs differ"
    others = verdict(Planted(o=Wobble()), case)
    assert others.passed
    assert others.accuracy["deterministic"] is False


@pytest.mark.parametrize("strength", [None, 0.0, 30.0, 1e4])
def test_gates_of_any_strength_can_be_judged(strength: float | None) -> None:
    found = verdict(Planted(), replace(CASE, gate_strength=strength, T=70))
    assert found.passed, found.reason
    assert ("dg" in found.accuracy["outputs"]) == (strength is not None)


def test_gates_read_the_wrong_way_round_are_caught() -> None:
    class Reversed(Planted):
        def forward(self, inputs: Inputs, case: Case) -> Result:
            assert inputs.g is not None
            return super().forward(replace(inputs, g=inputs.g.flip(1)), case)

    assert not verdict(Reversed()).passed


def test_attention_is_judged_by_attention() -> None:
    from glabench.systems.base import load

    case = Case("sdpa", 1, 700, 2, 16, 16, "bf16", "fwdbwd", gate_strength=None, attn_heads=2, attn_dim=32)
    found = verdict(load("sdpa"), case)
    assert found.passed, found.reason
    assert set(found.accuracy["outputs"]) == {"o", "dq", "dk", "dv"}
    assert found.accuracy["reference"] == "float64 softmax attention"


def test_attention_that_looks_ahead_is_caught() -> None:
    class Peeking(System):
        def implementation(self, case: Case) -> str:
            return "attention without its mask"

        def forward(self, inputs: Inputs, case: Case) -> Result:
            q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2), None

    case = Case("sdpa", 1, 64, 2, 16, 16, "fp32", "fwd", gate_strength=None)
    assert not verdict(Peeking(CATALOG["sdpa"]), case).passed


def test_a_reduced_case_keeps_its_schedule_and_is_ragged() -> None:
    from glabench.systems.base import load

    case = Case("gla", 8, 4096, 16, 128, 256, chunk=128, sub_chunk=32, materialize=False)
    small = gate.reduced(case, load("gla"), SETTINGS, interpreter=True)
    assert (small.B, small.H, small.K, small.V) == (1, 2, 64, 64)
    assert 2 * 128 < small.T < 3 * 128
    assert small.T % 16
    assert (small.chunk, small.sub_chunk, small.materialize) == (128, 32, False)
    plain = gate.reduced(replace(case, system="chunkwise_torch"), load("chunkwise_torch"), SETTINGS, interpreter=False)
    assert (plain.B, plain.H, plain.K, plain.V) == (1, 2, 128, 256)
    assert SETTINGS.gate_tokens_cpu >= plain.T
