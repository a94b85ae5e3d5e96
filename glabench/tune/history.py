"""What is known of a workload's candidates so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from glabench.tune.candidate import Variant
from glabench.tune.space import Space


@dataclass
class Result:
    """One candidate that was tried."""

    status: str = "ok"
    reason: str | None = None
    samples_ms: list[float] = field(default_factory=list)
    compiled: dict[str, Any] | None = None

    @property
    def ms(self) -> float:
        """The median sample; infinite for what failed."""
        return median(self.samples_ms) if self.status == "ok" and self.samples_ms else float("inf")


@dataclass
class History:
    """Results by key, and what they say of variants."""

    space: Space
    results: dict[str, Result] = field(default_factory=dict)
    fastest: dict[str, float] = field(default_factory=dict)  # ms of a pass, all its launches, whatever the variant

    def ms(self, key: str) -> float:
        result = self.results.get(key)
        return float("inf") if result is None else result.ms

    def best(self, variant: Variant, step: str) -> str:
        """The fastest tile of a pass so far (the first of the space where none has run)."""
        return min(self.space.menus[variant][step], key=self.ms)

    def total(self, variant: Variant) -> float:
        """ms of the variant's best plan so far; infinite while a pass has no result."""
        return self.space.total(variant, self.ms)

    def ranking(self) -> list[Variant]:
        """Variants that have a whole plan, fastest first."""
        totals = {variant: self.total(variant) for variant in self.space.menus}
        return sorted((v for v in totals if totals[v] < float("inf")), key=lambda v: totals[v])

    def add(self, key: str, status: str, reason: str | None, samples_ms: Sequence[float] = ()) -> None:
        """More samples of a candidate, or why it failed."""
        result = self.results.setdefault(key, Result())
        result.status, result.reason = status, reason
        result.samples_ms += samples_ms
        step = self.space.candidates[key].step
        self.fastest[step] = min(self.fastest.get(step, float("inf")), result.ms * self._times(key))

    def limit_ms(self, key: str, factor: float) -> float | None:
        """ms of the candidate's one launch at which its pass would take ``factor`` times as long as the fastest one;
        None while there is none. A launch over a slice of a long sequence is a part of its pass."""
        fastest = self.fastest.get(self.space.candidates[key].step)
        return None if fastest is None else factor * fastest / self._times(key)

    def _times(self, key: str) -> float:
        one = self.space.candidates[key]
        return self.space.times.get(one.variant, {}).get(one.step, 1.0)
