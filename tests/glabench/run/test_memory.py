"""The peak of one call is that call's own, whatever garbage there is, and never less than what it gave back."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch

from glabench.run import memory
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Settings
from glabench.systems.base import System
from glabench.systems.inputs import Inputs, make_inputs

CASE = Case("chunkwise_torch", 1, 64, 2, 8, 8, "fp32", "fwd")
OUTPUT_BYTES = 4 * 64 * 2 * 8
GARBAGE_BYTES = 10 * OUTPUT_BYTES


class Allocator:
    """Counts tensors as CUDA's allocator does, with the functions that peak_memory asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live = self.peak = 0
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: self.live)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)

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


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Littering:
    return Littering(Allocator(monkeypatch))


def test_garbage_of_an_earlier_call_is_not_taken_off_the_peak(system: Littering) -> None:
    found = memory.peak_memory(system, CASE, Settings())
    inputs = 5 * OUTPUT_BYTES  # q, k, v, g and do
    assert found == {"peak_bytes": inputs + OUTPUT_BYTES, "inputs_bytes": inputs, "beyond_inputs_bytes": OUTPUT_BYTES}
    assert gc.isenabled()
    assert system.calls == 2


def test_a_peak_below_what_the_call_gave_back_is_refused(system: Littering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_no_collection", nullcontext)
    found = memory.peak_memory(system, CASE, Settings())
    why = f"a peak of 0 bytes beyond the inputs cannot be: the call gave back {OUTPUT_BYTES}"
    assert found == {"refused": why}


def test_what_shares_memory_with_the_inputs_was_not_allocated_for_them() -> None:
    inputs = make_inputs(CASE, "gla", "cpu")
    twice = torch.zeros(2 * 64)
    found = {"o": twice[:64], "dq": twice[64:], "dk": inputs.k.detach(), "dg": torch.zeros(1).expand(1000)}
    assert memory._given_back(found, inputs) == 4 * (2 * 64 + 1)
