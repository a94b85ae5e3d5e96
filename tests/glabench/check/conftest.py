"""Rows with made-up samples, as a GPU would give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glabench.spec.case import Case
from glabench.store import Row

MakeRun = Callable[..., Row]
GPU: dict[str, Any] = {
    "device": "NVIDIA H200", "kind": "cuda", "device_slug": "nvidia-h200", "memory_bytes": 150 * 10**9,
    "driver": "580.159.04", "cuda": "13.0", "torch": "2.11.0+cu130", "triton": "3.6.0", "commit": "c0ffee",
    "dirty": False, "fingerprint": "aaaa",
}  # fmt: skip
FULL = {"sm_mhz": 1980.0, "sm_mhz_max": 1980.0, "throttle": []}


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    """``make_run(T=512, ms=1.02, seed=3)``: one run of a case, 60 samples around ``ms`` that scatter by 0.5 %; any
    field of the row, or of its environment, can be given."""

    def make(T: int = 1024, ms: float = 1.0, seed: int = 0, environment: dict[str, Any] | None = None,
             **fields: Any) -> Row:  # fmt: skip
        case = Case("gla", 4, T, 16, 128, 128, mode="fwd")
        samples = ms * np.exp(np.random.default_rng(seed).normal(0, 0.005, 60))
        row = Row(
            case.id, "board", case.to_dict(), "ok", clocks=FULL, environment=GPU | (environment or {}),
            time={"clock": "cuda_events_cold_l2", "samples_ms": samples.tolist()}, started=f"2026-11-22T{seed:08}",
            memory={"peak_bytes": 3 << 20, "inputs_bytes": 1 << 20, "beyond_inputs_bytes": 200 << 20},
        )  # fmt: skip
        return replace(row, **fields)

    return make
