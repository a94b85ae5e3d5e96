"""What the tests of the layer share: its sizes, inputs for it, and what rounding alone allows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS = 48, 2
FLOOR = 128 * torch.finfo(torch.float32).eps
WRONG: Any = "wrong"


def near(found: Tensor, right: Tensor) -> bool:
    """Whether rounding alone, in float32, is between the two."""
    return bool((found - right).norm() <= FLOOR * right.norm())


def drawn(layer: nn.Module, *lead: int) -> Tensor:
    """x [.., WIDTH] on the device and in the dtype of the layer."""
    weight = next(layer.parameters())
    return torch.randn(*lead, WIDTH, device=weight.device).to(weight.dtype)
