"""The peak of one call is that call's own, whatever garbage there is, and never less than what it gave back; what a
forward call keeps is what it leaves allocated, whoever holds it."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from glabench.run import memory
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Settings
from glabench.systems.base import System, load
from glabench.systems.inputs import Inputs, make_inputs

CASE = Case("chunkwise_torch", 1, 64, 2, 8, 8, "fp32", "fwd")
OUTPUT_BYTES = 4 * 64 * 2 * 8
GARBAGE_BYTES = 10 * OUTPUT_BYTES


class Allocator:
    """Counts tensors as CUDA's allocator does, with the functions that are asked for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live = self.peak = 0
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: self.live)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"requested_bytes.all.current": self.live})

    def _reset(self) -> None:
        self.peak = self.live

    def tensor(self, nbytes: int) -> torch.Tensor:
        made = torch.zeros(nbytes // 4)
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        weakref.finalize(made, self._free, nbytes)
        return made

    def _free(self, nbytes: int) -> None:
        self.live -= nbytes


class Littering(System):
    """Leaves a tensor in a cycle of references at its first call; its later ones find Python collecting garbage."""

    def __init__(self, allocator: Allocator) -> None:
        super().__init__(CATALOG["chunkwise_torch"])
        self.allocator = allocator
        self.calls = 0

    def implementation(self, case: Case) -> str:
        return "a system of the tests"

    def draw_inputs(self, case: Case, device: str, salt: int = 0) -> Inputs:
        return make_inputs(case, "gla", "cpu", salt)

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.calls += 1
        if self.calls == 1:
            cycle: list[object] = [self.allocator.tensor(GARBAGE_BYTES)]
            cycle.append(cycle)
        elif gc.isenabled():  # it may happen at any time
            gc.collect()
        return self.allocator.tensor(OUTPUT_BYTES).view_as(inputs.v), None


class Kept(torch.autograd.Function):
    """Keeps a tensor where no hook for saved tensors sees it, and frees another before it returns."""

    @staticmethod
    def forward(ctx: Any, v: torch.Tensor, allocator: Allocator, nbytes: int, output: torch.Tensor) -> torch.Tensor:
        ctx.kept = allocator.tensor(nbytes)
        allocator.tensor(7 * nbytes)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return grads[0], None, None, None


class Keeping(Littering):
    """Keeps ``nbytes`` for its backward pass; its output is a tensor of its own, or the ``last`` part of one with
    something kept in front."""

    def __init__(self, allocator: Allocator, nbytes: int, in_front: int = 0) -> None:
        super().__init__(allocator)
        self.nbytes, self.in_front = nbytes, in_front

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        whole = self.allocator.tensor(self.in_front + OUTPUT_BYTES)
        output = whole[self.in_front // 4 :].view_as(inputs.v)
        o = Kept.apply(inputs.v, self.allocator, self.nbytes, output)
        o.whole = whole  # the fake allocator counts tensors, not storages
        return o, None


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Littering:
    return Littering(Allocator(monkeypatch))


def test_garbage_of_an_earlier_call_is_not_taken_off_the_peak(system: Littering) -> None:
    found = memory.measure(system, CASE, Settings())
    inputs = 5 * OUTPUT_BYTES  # q, k, v, g and do
    assert found == {"peak_bytes": inputs + OUTPUT_BYTES, "inputs_bytes": inputs, "beyond_inputs_bytes": OUTPUT_BYTES}
    assert gc.isenabled()
    assert system.calls == 2


def test_a_peak_below_what_the_call_gave_back_is_refused(system: Littering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "no_collection", nullcontext)
    found = memory.measure(system, CASE, Settings())
    why = f"a peak of 0 bytes beyond the inputs cannot be: the call gave back {OUTPUT_BYTES}"
    assert found == {"refused": why}


def test_what_shares_memory_with_the_inputs_was_not_allocated_for_them() -> None:
    inputs = make_inputs(CASE, "gla", "cpu")
    twice = torch.zeros(2 * 64)
    found = {"o": twice[:64], "dq": twice[64:], "dk": inputs.k.detach(), "dg": torch.zeros(1).expand(1000)}
    assert memory._given_back(found, inputs) == 4 * (2 * 64 + 1)


@pytest.mark.parametrize(("nbytes", "in_front"), [(0, 0), (4096, 0), (4096, 512)])
def test_what_a_forward_keeps_is_counted_wherever_it_is_kept_without_inputs_and_outputs(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, in_front: int
) -> None:
    keeping = Keeping(Allocator(monkeypatch), nbytes, in_front)
    inputs = make_inputs(replace(CASE, mode="fwdbwd"), "gla", "cpu")
    assert memory.kept_bytes(keeping, replace(CASE, mode="fwdbwd"), inputs) == nbytes + in_front


def test_an_input_that_is_given_back_was_not_allocated_as_an_output() -> None:
    inputs = make_inputs(CASE, "gla", "cpu")
    assert memory._own_bytes([inputs.v[:, :1], inputs.v], inputs) == 0
    assert memory._own_bytes([inputs.v + 1, torch.zeros(1).expand(1000)], inputs) == OUTPUT_BYTES + 4


def test_of_an_allocator_that_counts_no_bytes_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    keeping = Keeping(Allocator(monkeypatch), 4096)
    monkeypatch.setattr(torch.cuda, "memory_stats", dict)
    assert memory.kept_bytes(keeping, CASE, make_inputs(CASE, "gla", "cpu")) is None


@pytest.mark.parametrize(
    ("mode", "kept"), [("fwd", {}), ("bwd", {"kept_bytes": 4096}), ("fwdbwd", {"kept_bytes": 4096})]
)
def test_only_what_has_a_backward_pass_keeps_anything(monkeypatch: pytest.MonkeyPatch, mode: Any, kept: Any) -> None:
    keeping = Keeping(Allocator(monkeypatch), 4096)
    monkeypatch.setattr(memory, "_peak", lambda *given: {"peak_bytes": 1})
    assert memory.measure(keeping, replace(CASE, mode=mode), Settings()) == {"peak_bytes": 1, **kept}


def test_a_cpu_has_no_memory_to_say(system: Littering) -> None:
    assert memory.measure(system, CASE, Settings.for_device("cpu")) is None


@pytest.mark.gpu
@pytest.mark.parametrize("H", [1, 3])
def test_on_a_gpu_attention_keeps_its_logsumexp(H: int) -> None:
    """FlashAttention keeps its inputs, its output, one float32 a row and head, and a few words of its random state."""
    case = Case("fa2", 2, 1024, H, 64, 64, "bf16", "fwdbwd", gate_strength=None)
    found = memory.measure(load("fa2"), case, Settings())
    assert found is not None
    rows = 4 * case.B * case.T * case.H
    assert rows <= found["kept_bytes"] <= rows + 1024
