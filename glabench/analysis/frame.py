"""Rows -> one flat pandas table, with medians, intervals and ratios worked out from the raw samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.load import device
from glabench.analysis.statistics import Estimate, estimate
from glabench.spec.axes import BESIDE, BLANKS, FURTHER
from glabench.spec.lengths import padding, sequences
from glabench.store import Row

MIB = 2.0**20

CASE_COLUMNS = (
    "system", "B", "T", "H", "K", "V", "dtype", "mode", "chunk", "sub_chunk", "materialize", "gate_strength",
    "initial_state", "attn_heads", "attn_dim", "seed", "model",
)  # fmt: skip


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """One line a row, in the order of ``rows`` (the index is the position in ``rows``).

    Columns besides the case's own: variant, label, family, gate (text key of the gates), those of
    `axes.BLANKS` ("" or 0 where a case has the default), training (the model of a training step and how it is executed,
    "" for anything else), sequences (how many are packed), padding (the share of tokens that would be padding if they
    were padded to the longest), device, kind, status, ms with ms_lo and ms_hi (on a GPU of its work
    alone), samples and interval (how lo and hi came about), host_ms (what Python takes to queue a call), wall_ms with
    wall_ms_lo and wall_ms_hi (one of many eager calls), wall_over (wall_ms / ms), tokens_per_s, peak_mib, beyond_mib
    (peak memory beyond the inputs, MiB), kept_mib (what a forward pass keeps for its backward pass beyond inputs and
    outputs, MiB), floor_ms (compulsory HBM bytes over the copy bandwidth measured on that GPU), over_floor (ms /
    floor_ms), error_share (worst error / tolerance), clocks and versions, kernel_ms (of a training step, the GPU's
    milliseconds by group of kernels), and gates_vary (of all rows together: whether those that have gates differ in
    their strength or dtype). What a row does not have is NaN or None. Expects what ``load.latest`` returns: one row for
    each case and device.
    """
    table = pd.DataFrame([_line(row) for row in rows], columns=_columns())
    numbers = [name for name, kind in _KINDS.items() if kind == "number"]
    table[numbers] = table[numbers].apply(pd.to_numeric, errors="coerce").astype(float)
    return table.assign(gates_vary=len(set(table["gate"]) - {"none"}) > 1)


def label(case: dict[str, Any]) -> str:
    """The system with its schedule: "GLA without states C64/16"; of a training step with its model and execution."""
    words = f"{labels.title(labels.variant(case))} {labels.schedule(case)}".strip()
    return f"{words}, {training}" if (training := labels.training(case)) else words


def timing(row: Row) -> Estimate:
    """The estimate from a row's raw samples; nothing unless the row is ok and a clock that counts took them.

    What ran in the interpreter says nothing about speed, so a time beside such a gate is not read at all.
    """
    interpreted = (row.accuracy or {}).get("where") == "interpreter"
    samples = (row.time or {}).get("samples_ms") or []
    return estimate([] if interpreted or row.status != "ok" else samples)


def _axes(names: Sequence[str]) -> dict[str, str]:
    return {name: "text" if BLANKS[name] == "" else "number" for name in names}


_KINDS = {
    "case_id": "text", "sweep": "text", "device": "text", "kind": "text", "status": "text", "reason": "text",
    "implementation": "text", "variant": "text", "label": "text", "family": "text", "gate": "text",
    **_axes(FURTHER), "training": "text", **_axes(BESIDE), "sequences": "number", "padding": "number",
    "ms": "number", "ms_lo": "number", "ms_hi": "number", "samples": "number", "interval": "text", "clock": "text",
    "launch_bound": "text", "kernel_ms": "text",
    "host_ms": "number", "wall_ms": "number", "wall_ms_lo": "number", "wall_ms_hi": "number", "wall_over": "number",
    "tokens_per_s": "number", "peak_mib": "number", "beyond_mib": "number", "kept_mib": "number", "floor_ms": "number",
    "over_floor": "number", "tflop_per_s": "number", "error_share": "number", "gated": "text",
    "sm_mhz": "number", "sm_mhz_counted": "number", "power_w": "number", "temperature_c": "number", "throttle": "text",
    "commit": "text", "dirty": "text", "fingerprint": "text", "started": "text", "wall_s": "number",
}  # fmt: skip


def _columns() -> list[str]:
    return [*_KINDS, *CASE_COLUMNS]


def _line(row: Row) -> dict[str, Any]:
    case, environment = row.case, row.environment
    key = labels.variant(case)
    return {
        "case_id": row.case_id, "sweep": row.sweep, "device": device(row), "kind": environment.get("kind"),
        "status": row.status, "reason": row.reason, "implementation": row.implementation,
        "variant": key, "label": label(case), "family": labels.family(key),
        "gate": labels.gate(case), "training": labels.training(case),
        **{name: case.get(name) or blank for name, blank in BLANKS.items()}, **_packing(case),
        **_time(row), **_eager(row), **_memory(row), **_accuracy(row), **_clocks(row),
        "commit": environment.get("commit"), "dirty": environment.get("dirty"),
        "fingerprint": environment.get("fingerprint"), "started": row.started, "wall_s": row.wall_s,
        **{name: case.get(name) for name in CASE_COLUMNS}, "initial_state": bool(case.get("initial_state")),
    }  # fmt: skip


def _packing(case: dict[str, Any]) -> dict[str, Any]:
    text = case.get("lengths")
    if not text:
        return {"sequences": math.nan, "padding": math.nan}
    found = sequences(text, case["T"], case.get("seed") or 0)
    return {"sequences": len(found), "padding": padding(found)}


def _time(row: Row) -> dict[str, Any]:
    found = timing(row)
    case, work = row.case, row.work or {}
    tokens = case["B"] * (1 if case["mode"] == "step" else case["T"])
    bandwidth = row.environment.get("copy_bytes_per_s")
    floor = work["hbm_bytes"] / bandwidth * 1e3 if bandwidth and work.get("hbm_bytes") else math.nan
    return {
        "ms": found.median, "ms_lo": found.low, "ms_hi": found.high, "samples": found.samples,
        "interval": found.kind, "clock": (row.time or {}).get("clock") if found.samples else None,
        "launch_bound": bool((row.time or {}).get("launch_bound")),
        "kernel_ms": ((row.time or {}).get("training") or {}).get("kernel_ms"),
        "tokens_per_s": tokens / found.median * 1e3 if found.median > 0 else math.nan,
        "floor_ms": floor, "over_floor": found.median / floor,
        "tflop_per_s": (work.get("flops") or math.nan) / found.median / 1e9 if found.median > 0 else math.nan,
    }  # fmt: skip


def _eager(row: Row) -> dict[str, Any]:
    """What the host measured of a call beside its kernels. Rows before schema 5 have no wall time, and the least of
    four calls for how long Python takes to queue one."""
    time, ms = row.time or {}, timing(row).median
    eager = (time.get("eager") or {}) if not math.isnan(ms) else {}
    queued, wall = estimate(eager.get("host_ms") or []), estimate(eager.get("wall_ms") or [])
    least = time.get("host_ms") if not math.isnan(ms) else None
    return {
        "host_ms": queued.median if queued.samples else _over(least, 1.0),
        "wall_ms": wall.median, "wall_ms_lo": wall.low, "wall_ms_hi": wall.high, "wall_over": wall.median / ms,
    }  # fmt: skip


def _memory(row: Row) -> dict[str, Any]:
    memory = row.memory or {} if row.status == "ok" else {}
    return {
        "peak_mib": _over(memory.get("peak_bytes"), MIB),
        "beyond_mib": _over(memory.get("beyond_inputs_bytes"), MIB),
        "kept_mib": _over(memory.get("kept_bytes"), MIB),
    }


def _accuracy(row: Row) -> dict[str, Any]:
    accuracy = row.accuracy or {}
    shares = [share(output) for output in (accuracy.get("outputs") or {}).values()]
    known = [value for value in shares if not math.isnan(value)]  # of NaN and a number, max takes the first
    return {"error_share": max(known, default=math.nan), "gated": accuracy.get("where")}


def share(output: dict[str, Any]) -> float:
    """An output's error over its tolerance, of the whole or of its worst block: up to 1 passes. NaN without a
    tolerance; an error that is no number counts as infinitely wrong."""
    parts = [_share(output.get(f"{of}error"), output.get(f"{of}tolerance")) for of in ("", "block_")]
    known = [part for part in parts if not math.isnan(part)]
    return max(known, default=math.nan)


def _share(error: float | None, tolerance: float | None) -> float:
    if tolerance is None:
        return math.nan
    if error is None or not math.isfinite(error):
        return math.inf
    if tolerance == 0:
        return 0.0 if error == 0 else math.inf
    return float(error) / float(tolerance)


def _clocks(row: Row) -> dict[str, Any]:
    clocks = row.clocks or {}
    return {
        **{key: clocks.get(key) for key in ("sm_mhz", "sm_mhz_counted", "power_w", "temperature_c")},
        "throttle": ", ".join(clocks.get("throttle") or []) or None,
    }


def _over(value: float | None, unit: float) -> float:
    return math.nan if value is None else value / unit
