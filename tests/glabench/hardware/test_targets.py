"""Names of what kernels are compiled for."""

from __future__ import annotations

import pytest

from glabench.errors import UserError
from glabench.hardware.datasheet import DATASHEET
from glabench.hardware.targets import GPUS, capability_of


@pytest.mark.parametrize(
    ("target", "capability"), [("sm_90", 90), ("H100", 90), ("h100", 90), ("A100", 80), ("b200", 100)]
)
def test_architectures_and_gpus(target: str, capability: int) -> None:
    assert capability_of(target) == capability


def test_every_gpu_with_a_data_sheet_has_a_name() -> None:
    assert {name: f"sm_{GPUS[name]}" for name in DATASHEET} == {name: sheet.arch for name, sheet in DATASHEET.items()}


def test_another_architecture_is_no_misspelling() -> None:
    with pytest.raises(UserError, match=r"^--target sm_75: unknown architecture \(one of: sm_80, "):
        capability_of("sm_75")
    with pytest.raises(UserError, match=r"did you mean 'H100'"):
        capability_of("H10O")
