"""Which part of packed sequences a rank has: all of it worked out where cu_seqlens lies, so that nothing waits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .ranks import Ranks


@dataclass(frozen=True)
class Sequences:
    """Of each of N packed sequences, on this rank.

    cu_seqlens: where they begin and end among the rank's own tokens; most are empty there. begins, ends [N]: whether
    the sequence begins, and ends, on this rank. enters, leaves [N]: whether it goes on from the rank before, and on the
    rank after; one does at most. through: whether that is the same one, which then decays the state all the way.
    """

    cu_seqlens: Tensor
    begins: Tensor
    ends: Tensor
    enters: Tensor
    leaves: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor, tokens: int, ranks: Ranks) -> Sequences:
        """Of a rank with so many tokens; asks the others how many they have."""
        counts = ranks.gathered(torch.full((1,), tokens, dtype=torch.int64, device=cu_seqlens.device))
        low = counts[: ranks.rank].sum()
        high = low + tokens
        first, end = cu_seqlens[:-1], cu_seqlens[1:]
        # an empty sequence is where it begins, and at the very end on the last rank
        here = (first >= low) & (first < high) | ((first >= high) & ranks.last)
        ends = torch.where(first == end, here, (end > low) & (end <= high))
        local = (cu_seqlens - low).clamp(0, tokens).to(cu_seqlens.dtype)
        return cls(local, here, ends, (first < low) & (end > low), (first < high) & (end > high))

    @property
    def through(self) -> Tensor:
        return (self.enters & self.leaves).any()


def of_these(states: Tensor, which: Tensor) -> Tensor:
    """The states [N, ..] of some sequences, and zeros for the others, whatever is in their place."""
    return torch.where(which.view(-1, *[1] * (states.dim() - 1)), states, 0.0)
