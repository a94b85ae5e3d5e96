"""What the GPU did, as torch.profiler saw it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.autograd import DeviceType  # type: ignore[attr-defined]  # it is not in __all__


@dataclass(frozen=True)
class Event:
    """One kernel, copy or fill on the GPU. Times are in microseconds, from any start."""

    name: str
    start_us: float
    dur_us: float

    @property
    def end_us(self) -> float:
        return self.start_us + self.dur_us


def gpu_events(events: Iterable[Any]) -> list[Event]:
    """torch's FunctionEvents of the GPU, without those that only repeat a name given on the CPU."""
    return [
        Event(event.name, event.time_range.start, event.time_range.end - event.time_range.start)
        for event in events
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    ]
