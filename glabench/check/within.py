"""What a run's own samples leave open of its median."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

RESAMPLES = 400
BLOCKS = 20  # a run's samples are resampled in so many blocks, or one by one where there are fewer


def bootstrap_error(samples: Sequence[float]) -> float:
    """Standard error of log(median) of a run's samples, by a block bootstrap with a fixed seed; 0 for one sample."""
    return _bootstrap_error(tuple(samples))


@lru_cache(maxsize=2048)
def _bootstrap_error(samples: tuple[float, ...]) -> float:
    values = np.log(np.asarray(samples, dtype=float))
    length = max(1, len(values) // BLOCKS)
    blocks = math.ceil(len(values) / length)
    random = np.random.default_rng(0)
    starts = random.integers(0, len(values) - length + 1, size=(RESAMPLES, blocks, 1))
    picked: Any = values[(starts + np.arange(length)).reshape(RESAMPLES, -1)]
    return float(np.median(picked, axis=1).std())
