"""The least time that each resource of a GPU needs for a kernel's work, from its ceilings; and sums that bear gaps.

Work and ceilings are the dicts of a row's profile. What they do not say is NaN, and stays so in what is worked out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

# What can bound a kernel: memory's bandwidth, that of L2, tensor cores, CUDA cores, exponentials, and being launched.
RESOURCES = ("hbm", "l2", "tensor", "cuda", "exps", "launch")
TENSOR_TYPES = ("bf16", "fp16", "tf32")  # products of float32 operands as they are ("fp32") run on the CUDA cores


def bounds(done: Mapping[str, Any], ceilings: Mapping[str, Any], count: int = 1) -> dict[str, float]:
    """The least time in ms that each resource needs for a kernel's work, where work and rate are known.

    Bytes that are read and written in equal parts travel at the bandwidth of a copy, what is read beyond that at the
    bandwidth of reading.
    """
    if not ceilings:
        return {}
    read, written = number(done.get("hbm_read_bytes")), number(done.get("hbm_write_bytes"))
    copied = read + written - max(0.0, read - written)
    flops = done.get("tensor_flops") or {}
    tensor = [ratio(flops[name], rate(ceilings, f"{name}_flops")) for name in TENSOR_TYPES if flops.get(name)]
    seconds = {
        "hbm": ratio(copied, rate(ceilings, "hbm_copy_bytes_per_s"))
        + ratio(max(0.0, read - written), _reading(ceilings)),
        "l2": ratio(number(done.get("requested_bytes")), rate(ceilings, "l2_read_bytes_per_s")),
        "tensor": sum(tensor) if done else math.nan,
        "cuda": ratio(number(done.get("vector_flops")) + (flops.get("fp32") or 0.0), rate(ceilings, "fp32_flops")),
        "exps": ratio(number(done.get("exps")), rate(ceilings, "exps_per_s")),
        "launch": count * rate(ceilings, "launch_gap_s"),
    }
    return {name: 1e3 * value for name, value in seconds.items() if not math.isnan(value)}


def rate(ceilings: Mapping[str, Any], name: str) -> float:
    return number(ceilings.get(name))


def _reading(ceilings: Mapping[str, Any]) -> float:
    found = rate(ceilings, "hbm_read_bytes_per_s")
    return rate(ceilings, "hbm_copy_bytes_per_s") if math.isnan(found) else found


def tensor_flops(done: Mapping[str, Any]) -> float:
    """FLOP of products of tiles, whatever they are computed in."""
    return float(sum((done.get("tensor_flops") or {}).values())) if done else math.nan


def number(value: Any) -> float:
    """What a row says as a float; NaN where it says nothing."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def ratio(value: float, by: float) -> float:
    return value / by if by and math.isfinite(by) else math.nan


def total(values: Iterable[float]) -> float:
    """The sum of what is known; NaN where nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) if known else math.nan
