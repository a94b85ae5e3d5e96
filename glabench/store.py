"""Rows: what one case came to, one JSON object a line, appended as they come.

Schema history
  1  first version
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1

STATUSES = ("ok", "wrong", "compile_error", "oom", "timeout", "crashed", "unsupported")


@dataclass(frozen=True)
class Row:
    """What one case came to. The parts that a case did not reach are None; keys carry their units."""

    case_id: str
    sweep: str
    case: dict[str, Any]
    status: str  # one of STATUSES
    reason: str | None = None  # one line, when status is not ok
    detail: str | None = None  # the traceback's tail, when there is one
    implementation: str | None = None  # what really ran: "torch SDPA flash (FlashAttention-2)", "fla-core 0.6.0"
    # {"passed": bool, "where": "cuda|interpreter|cpu", "shape": {B,T,H,K,V}, "reference": str, "pairs": int,
    #  "outputs": {"o": {"error": f, "baseline": f, "tolerance": f}, "dq": ...}}; errors are ||x-ref||/||ref||
    accuracy: dict[str, Any] | None = None
    # {"clock": "cuda_events_cold_l2|cpu_wall", "samples_ms": [...], "dropped": int, "stopped": str, "warmup": int}
    time: dict[str, Any] | None = None
    # {"peak_bytes": int, "inputs_bytes": int, "beyond_inputs_bytes": int}
    memory: dict[str, Any] | None = None
    # [{"kernel": str, "arch": "sm_90", "registers": int, "spill_bytes": int, "shared_bytes": int, "num_warps": int,
    #   "num_stages": int, "tensor_core": "wgmma|mma|none", "error": str|None}]
    compiled: list[dict[str, Any]] | None = None
    # {"flops": int, "hbm_bytes": int}: ALGORITHM section 5's compulsory work of the case, from analysis/work.py
    work: dict[str, Any] | None = None
    # {"sm_mhz": f, "sm_mhz_max": f, "power_w": f, "temperature_c": f, "throttle": [str]}: read while timing
    clocks: dict[str, Any] | None = None
    # see hardware/environment.py: device, driver, versions, commit, dirty, fingerprint, copy_bytes_per_s ...
    environment: dict[str, Any] = field(default_factory=dict)
    started: str = ""  # ISO 8601, UTC
    wall_s: float = 0.0
    schema: int = SCHEMA
