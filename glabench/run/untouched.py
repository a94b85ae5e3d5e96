"""What measuring stands on, as it was before any system was loaded: a system is not to change the clock it is timed by.

Python lets a module replace what another one calls. Nobody does so by accident to these, so it is told and the case has
no time. What takes its own away again before it is looked at is not seen.
"""

from __future__ import annotations

import ctypes
import time
from functools import cache
from typing import Any

import torch

from glabench.run import cold, eager, errors, gate, measure, memory, oracle, sm_clock

PERSISTING_L2 = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE, bytes that a flush does not reach

LOOKED_AT: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in ("perf_counter", "perf_counter_ns", "monotonic", "time", "sleep")),
    *((torch.cuda, name) for name in ("synchronize", "_sleep", "current_stream", "Event", "memory_allocated")),
    *((torch.cuda.Event, name) for name in ("record", "elapsed_time", "synchronize")),
    *((torch.Tensor, name) for name in ("zero_", "copy_", "clone")),
    *((torch, name) for name in ("equal", "isfinite", "empty", "randn")),
    *((cold.ColdSampler, name) for name in ("batch", "cold")),
    *((measure, name) for name in ("measure", "take")),
    *((gate, name) for name in ("check", "scored", "worst", "allowed")),
    (eager, "measure"),
    (errors, "distance"),
    (memory, "measure"),
    (oracle, "answer"),
    (sm_clock, "Notes"),
)


def _name(owner: Any, name: str) -> str:
    return f"{getattr(owner, '__module__', None) or ''}.{owner.__name__}.{name}".lstrip(".")


class Untouched:
    """What is looked at, as it is now."""

    def __init__(self) -> None:
        self._before = [(owner, name, getattr(owner, name)) for owner, name in LOOKED_AT]
        self._persisting: int | None = None

    def begin(self) -> None:
        """The GPU is in use, and no system was called on it yet, if it is the first time."""
        if self._persisting is None:
            self._persisting = persisting_l2()

    def changed(self) -> str | None:
        """What is another now, in one line, or None."""
        for owner, name, before in self._before:
            if getattr(owner, name) is not before:
                return f"replaced {_name(owner, name)} while it was measured"
        if self._persisting is not None and persisting_l2() != self._persisting:
            return f"set {persisting_l2()} bytes of L2 aside, which are not flushed"
        if torch.cuda.is_initialized() and torch.cuda.current_stream() != torch.cuda.default_stream():
            return "left another stream of the GPU as the current one"
        return None


def persisting_l2() -> int | None:
    """Bytes of L2 that this process's context sets aside for what is to stay there; None without a GPU in use."""
    if not torch.cuda.is_initialized():
        return None
    driver, value = _driver(), ctypes.c_size_t()
    if driver is None or driver.cuCtxGetLimit(ctypes.byref(value), PERSISTING_L2) != 0:
        return None
    return value.value


@cache
def _driver() -> Any | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
