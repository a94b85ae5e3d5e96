"""Occupancy worked out by hand, and where two limits meet."""

from __future__ import annotations

import pytest

from gla_kernels.schedule import SHARED_BYTES
from glabench.hardware.occupancy import SHARED_RESERVED, SMS, occupancy


@pytest.mark.parametrize(
    ("capability", "registers", "shared", "warps", "expected"),
    [
        (90, 255, 0, 4, (2, "registers")),  # a warp takes 8,192: two in each quarter
        (90, 128, 0, 4, (4, "registers")),
        (90, 64, 0, 4, (8, "registers")),
        (90, 129, 0, 4, (3, "registers")),  # 4,352 a warp: three in each quarter
        (90, 255, 114688, 4, (2, "registers")),  # shared memory alone would allow two as well
        (80, 255, 114688, 4, (1, "shared memory")),
        (90, 32, 227 * 1024, 4, (1, "shared memory")),
        (90, 32, 227 * 1024 + 1, 4, (0, "shared memory")),
        (90, 16, 0, 8, (8, "warps")),
        (86, 16, 0, 8, (6, "warps")),
        (90, 16, 0, 1, (32, "programs")),
        (86, 16, 0, 1, (16, "programs")),
        (90, 255, 0, 16, (0, "registers")),  # eight warps fit
    ],
)
def test_what_limits(capability: int, registers: int, shared: int, warps: int, expected: tuple[int, str]) -> None:
    assert occupancy(capability, registers, shared, warps) == expected


def test_tensor_memory_limits_where_it_is_used() -> None:
    assert occupancy(100, 64, 0, 4, tensor_columns=256) == (2, "tensor memory")
    assert occupancy(100, 64, 0, 4, tensor_columns=512) == (1, "tensor memory")
    assert occupancy(100, 64, 0, 4) == (8, "registers")


def test_an_unknown_gpu_has_no_answer() -> None:
    assert occupancy(70, 64, 0, 4) is None


@pytest.mark.parametrize("capability", SMS)
def test_one_program_may_take_all_but_what_the_system_keeps(capability: int) -> None:
    assert SMS[capability].shared_bytes - SHARED_RESERVED == SHARED_BYTES[capability]
    assert set(SMS) == set(SHARED_BYTES)
