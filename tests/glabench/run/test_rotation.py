"""Rotation: no call finds its inputs in a cache, and no GPU runs out of memory for that."""

from __future__ import annotations

from dataclasses import replace

import torch

from glabench.run.rotation import rotated_inputs, set_count
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems import load

CASE = Case("gla", 1, 8, 1, 16, 16)


def test_enough_sets_to_leave_the_cache() -> None:
    assert set_count(nbytes=10, cache_bytes=50, free_bytes=10**9, most=100) == 10
    assert set_count(nbytes=10, cache_bytes=50, free_bytes=10**9) == 8
    assert set_count(nbytes=1000, cache_bytes=50, free_bytes=10**9) == 2
    assert set_count(nbytes=1000, cache_bytes=50, free_bytes=9000) == 1  # an eighth of the memory and no more


def test_every_set_has_numbers_of_its_own_and_a_backward_alone_keeps_two() -> None:
    system, settings = load("gla"), Settings.for_device("cpu")
    both = rotated_inputs(replace(CASE, mode="fwdbwd"), settings, system)
    assert len(both) == 8
    assert not any(torch.equal(both[0].q, other.q) for other in both[1:])
    assert len(rotated_inputs(replace(CASE, mode="bwd"), settings, system)) == 2
