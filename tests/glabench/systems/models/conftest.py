"""A stand-in for the package mamba_ssm."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from torch import nn


@pytest.fixture
def stand_in_mamba(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package mamba_ssm whose layers do nothing."""
    module = ModuleType("mamba_ssm")
    module.__spec__ = ModuleSpec("mamba_ssm", None)
    module.Mamba = module.Mamba2 = nn.Identity  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mamba_ssm", module)
