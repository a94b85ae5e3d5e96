"""What the GPU can do at most: what was measured, under which conditions, beside its datasheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glabench.analysis.bounds import number, ratio
from glabench.analysis.profile import Call
from glabench.hardware.datasheet import Datasheet, find_datasheet
from glabench.report import text
from glabench.report.tables import Cell, Table, number_cell

# A line of the table: what it is called, its unit and scale, where ceilings and datasheets have it.
RATES = (
    ("HBM copy", "TB/s", 1e12, "hbm_copy_bytes_per_s", "hbm_bytes_per_s"),
    ("HBM read", "TB/s", 1e12, "hbm_read_bytes_per_s", "hbm_bytes_per_s"),
    ("L2 read", "TB/s", 1e12, "l2_read_bytes_per_s", None),
    ("L2 size", "MiB", 2**20, "l2_bytes", "l2_bytes"),
    ("bf16 products", "TFLOP/s", 1e12, "bf16_flops", "bf16_flops"),
    ("fp16 products", "TFLOP/s", 1e12, "fp16_flops", "fp16_flops"),
    ("tf32 products", "TFLOP/s", 1e12, "tf32_flops", "tf32_flops"),
    ("fp32 on CUDA cores", "TFLOP/s", 1e12, "fp32_flops", "fp32_flops"),
    ("exponentials", "T/s", 1e12, "exps_per_s", "exps_per_s"),
    ("gap between launches", "µs", 1e-6, "launch_gap_s", None),
    ("a launch on the host", "µs", 1e-6, "launch_host_s", None),
)


@dataclass(frozen=True)
class Ceilings:
    """The ceilings that were used for one GPU."""

    title: str
    table: Table
    conditions: tuple[tuple[str, str], ...]
    sources: tuple[str, ...]  # addresses of what the datasheet's figures are from


def ceilings(found: Sequence[Call]) -> list[Ceilings]:
    """One for each GPU and way of knowing, of the last row that has them."""
    last = {(call.target, str(call.ceilings["source"])): call for call in found if call.ceilings.get("source")}
    return [_ceilings(call, target, source) for (target, source), call in last.items()]


def _ceilings(call: Call, target: str, source: str) -> Ceilings:
    values, sheet = call.ceilings, find_datasheet(target)
    used = "measured" if source == "measured" else "used here"
    rows = [_line(name, unit, scale, values.get(key), _printed(sheet, of)) for name, unit, scale, key, of in RATES]
    table = Table(("what", used, "datasheet", "of it %"), (False, True, True, True), tuple(rows))
    title = f"{target}, {'measured' if source == 'measured' else 'by its datasheet'}"
    said = tuple((str(key).replace("_", " "), _fact(value)) for key, value in (values.get("conditions") or {}).items())
    sources = dict.fromkeys(filter(None, [*(sheet.sources.values() if sheet else ()), values.get("url")]))
    return Ceilings(title, table, said, tuple(map(str, sources)))


def _printed(sheet: Datasheet | None, name: str | None) -> float:
    return number(getattr(sheet, name)) if sheet and name else math.nan


def _line(name: str, unit: str, scale: float, value: Any, printed: float) -> tuple[Cell, ...]:
    ours = number(value)
    share = 100 * ratio(ours, printed)
    return Cell(f"{name}, {unit}"), number_cell(ours / scale), number_cell(printed / scale), number_cell(share)


def _fact(value: Any) -> str:
    return text.number(value, 4) if isinstance(value, float) else str(value)
