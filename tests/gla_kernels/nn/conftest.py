"""Layers of random weights, and graphs beside which nothing was compiled before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from gla_kernels.nn import GatedLinearAttention

from .layers import HEADS, WIDTH


@pytest.fixture
def afresh() -> Iterator[None]:
    """Without what other tests have compiled."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def made(device: torch.device) -> Callable[..., GatedLinearAttention]:
    def make(dtype: torch.dtype = torch.float32, **how: Any) -> GatedLinearAttention:
        layer = GatedLinearAttention(**{"hidden_size": WIDTH, "num_heads": HEADS, **how})
        for parameter in layer.parameters():  # the norm's weights, too, and gates that forget
            nn.init.normal_(parameter, std=1.0 if parameter.dim() == 1 else 0.3)
        return layer.to(device, dtype)

    return make
