"""What is asked of a group of ranks, as plain data that their processes are given. No torch."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from glabench.spec.axes import Dtype
from glabench.spec.case import Case, Mode
from glabench.spec.settings import Device

CHECKED = 2048  # tokens of a sequence that is judged: float64 walks over them one by one
MOST = 2**26  # tokens of a sequence that is tried
# How strong gates are there. A state that goes through a rank is gone behind gates as they are timed; behind those of a
# hundredth much of it arrives.
STRENGTHS = (1.0, 0.01)
WAYS = ("direct", "all-gather", "ring")  # that messages can go


@dataclass(frozen=True)
class Shape:
    """A whole sequence, over all ranks."""

    B: int
    T: int
    H: int
    K: int
    V: int

    def __str__(self) -> str:
        return ",".join(map(str, astuple(self)))


@dataclass(frozen=True)
class Question:
    """A shape, on so many ranks. samples: of a mode, each of so many calls one after another, behind warm_up calls.
    ways that messages go, in turns: of `WAYS`, None as the package has it."""

    shape: Shape
    ranks: int
    modes: tuple[Mode, ...]
    dtype: Dtype
    device: Device
    samples: int
    calls: int
    warm_up: int
    ways: tuple[str | None, ...] = (None,)

    def case(self, tokens: int, strength: float = 1.0, states: bool = False) -> Case:
        """What the harness draws inputs by, of so many tokens."""
        B, _, H, K, V = astuple(self.shape)
        return Case("gla", B, tokens, H, K, V, dtype=self.dtype, gate_strength=strength, initial_state=states)


Finding = dict[str, Any]  # what a rank says, as JSON
