"""Rows with times that are known by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from glabench.spec.case import Case
from glabench.store import Row

MakeRow = Callable[..., Row]
GPU = {"device": "NVIDIA H200", "kind": "cuda", "copy_bytes_per_s": 4e12, "commit": "abc", "dirty": False}
UNGATED = ("fa2", "cudnn", "sdpa", "fla_linear", "retention")


@pytest.fixture(scope="session")
def make_row() -> MakeRow:
    """``make_row("gla", [1.0, 1.1], T=2048, chunk=64, status="ok", environment={...})``: a row with these samples.

    Everything that is no field of Row is one of Case; a system without gates has gate strength None, as expansion
    writes it.
    """

    def make(system: str, samples: list[float] | None = None, **given: Any) -> Row:
        of_row = {key: given.pop(key) for key in list(given) if key in Row.__dataclass_fields__}
        at: dict[str, Any] = {"B": 1, "T": 1024, "H": 4, "K": 128, "V": 256, "mode": "fwd"}
        if system in UNGATED:
            at["gate_strength"] = None
        case = Case(system, **{**at, **given})
        values: dict[str, Any] = {"status": "ok", "environment": GPU, "started": "2026-11-21T09:00:00+00:00"}
        if samples is not None:
            values["time"] = {"clock": "cuda_events_cold_l2", "samples_ms": samples, "dropped": 0}
        return Row(case.id, "test", asdict(case), **{**values, **of_row})

    return make


@pytest.fixture
def attention(make_row: MakeRow) -> MakeRow:
    """``attention([1.0], T=8192)``: a row of FlashAttention-2 in the papers' setting, 16 heads of 64."""
    return lambda samples, **given: make_row("fa2", samples, attn_heads=16, attn_dim=64, **given)
