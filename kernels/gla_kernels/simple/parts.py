"""What a backward pass fills: gradients, and parts of those that are sums over several programs' work."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..copies import summed
from ..launch import Launcher


@dataclass(frozen=True)
class Gradients:
    """Buffers that backward passes fill: of q, k and v, and of g, [B, T, H], if it is asked for."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None


class Sum:
    """A gradient, or what its ``parts`` are, that are to be added up."""

    def __init__(self, into: Tensor, parts: int, dtype: torch.dtype = torch.float32) -> None:
        self.into, self.parts, (B, *rows) = into, parts, into.shape
        self.added = into if parts == 1 else into.new_empty(parts * B, *rows, dtype=dtype)

    def end(self, launch: Launcher) -> None:
        if self.parts > 1:
            launch(summed(self.added, self.into, self.parts))
