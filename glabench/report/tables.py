"""The tables of the page: every row, accuracy by system, compiled kernels, failures, environments."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import by
from glabench.analysis.frame import label, share
from glabench.hardware.datasheet import DATASHEET
from glabench.report import text
from glabench.report.parts import conditions, implementation
from glabench.spec.axes import BLANKS, FURTHER
from glabench.spec.work import floor_ms
from glabench.store import Row

SIZES = ("B", "T", "H", "K", "V")
SEVERITY = ("wrong", "crashed", "compile_error", "oom", "timeout", "unsupported")
# What a call costs beside its kernels' time: columns of the table, which rows of a CPU and older rows lack.
BESIDE = {"host_ms": "queued in, ms", "wall_ms": "wall, eager, ms", "kept_mib": "kept, MiB"}
OUTPUTS = ("o", "final_state", "state", "dq", "dk", "dv", "dg", "dinitial_state")


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and the number it sorts by (text when None)."""

    text: str
    value: float | None = None
    # "bad": how the cell is coloured, never the only sign; "wrap": its text may take several lines; "prose": it does
    flag: str = ""

    @property
    def sorted_by(self) -> str:
        """``value`` as JavaScript reads it, which knows no "inf"; empty where there is none."""
        return "" if self.value is None else f"{self.value:.6g}".replace("inf", "Infinity")


@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    groups: tuple[tuple[str, int], ...] = ()  # headings over several columns: (title, columns)


def measurements(table: pd.DataFrame) -> Table:
    """Every row with its question, its time and what follows from it."""
    many = table["device"].nunique() > 1
    beside = [name for name in BESIDE if table[name].notna().any()]
    further = [name for name in FURTHER if (table[name] != BLANKS[name]).any()]
    said = [column for name in further for column in ([name, "padding %"] if name == "lengths" else [name])]
    columns = ["system", "B", "T", "H", "K", "V", *said, "dtype", "mode",
               "gate", "status", "time, ms", "± %", "n", *(BESIDE[name] for name in beside), "tokens/s", "MiB",
               "× floor", "error %", "implementation",
               ]  # fmt: skip
    timed_first = table.sort_values("ms", key=lambda ms: ms.isna(), kind="stable")
    rows = [_measurement(row, many, further, beside) for row in timed_first.to_dict("records")]
    shown = (["device"] if many else []) + columns
    words = {"device", "system", *FURTHER, "dtype", "mode", "gate", "status", "implementation"}
    return Table(tuple(shown), tuple(column not in words for column in shown), tuple(rows))


def _size(row: dict[Any, Any], name: str) -> str:
    """One of B, T, H, K and V, with what axes say of it."""
    return text.length(row[name]) if name == "T" else f"{row[name]}{text.beside(row, name)}"


def _further(row: dict[Any, Any], name: str) -> tuple[Cell, ...]:
    """What an axis says of a row's shape, and of packed sequences their padding."""
    cell = Cell(str(row[name] or "–"), flag="wrap")
    return (cell, number_cell(100 * row["padding"], 2)) if name == "lengths" else (cell,)


def _measurement(
    row: dict[Any, Any], with_device: bool, further: Sequence[str], beside: Sequence[str]
) -> tuple[Cell, ...]:
    width = (row["ms_hi"] - row["ms_lo"]) / 2 / row["ms"] * 100
    over_floor = row["over_floor"] if row["family"] != "attention" else math.nan
    status = row["status"]
    interpreted = row["gated"] == "interpreter" and status == "ok"
    return (
        *([Cell(row["device"])] if with_device else []),
        Cell(row["label"]),
        *(Cell(_size(row, name), row[name]) for name in SIZES),
        *(cell for name in further for cell in _further(row, name)),
        Cell(row["dtype"]), Cell(row["mode"]), Cell(row["gate"] + (" + state" if row["initial_state"] else "")),
        Cell(status, flag="" if status == "ok" else "bad"),
        Cell("not timed") if interpreted else number_cell(row["ms"]), number_cell(width, 2),
        Cell(f"{row['samples']:.0f}", row["samples"]) if row["samples"] else Cell("–"),
        *(number_cell(row[name]) for name in beside),
        Cell(text.rate(row["tokens_per_s"]), _or_none(row["tokens_per_s"])),
        number_cell(row["beyond_mib"]), number_cell(over_floor), number_cell(100 * row["error_share"], 2),
        Cell(" ".join(implementation(row)) or "–", flag="wrap"),
    )  # fmt: skip


def number_cell(value: float, digits: int = 3) -> Cell:
    """A number that sorts as what it is, NaN after all others."""
    return Cell(text.number(value, digits), _or_none(value))


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def accuracy(rows: Sequence[Row]) -> Table:
    """The worst error of every output beside its tolerance, by system, schedule, dtype, gates and where it ran."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.accuracy and row.accuracy.get("outputs"):
            where = str(row.accuracy.get("where") or "")
            key = (
                label(row.case),
                row.case["dtype"],
                labels.gate(row.case),
                where,
            )
            groups.setdefault(key, []).append(row)
    names = sorted({name for group in groups.values() for row in group for name in _outputs(row)}, key=_output_order)
    columns = ("system", "dtype", "gate", "where", "passed", *names)
    lines = []
    for words, group in sorted(groups.items(), key=lambda item: _accuracy_order(item[0], item[1][0])):
        passed = sum(bool((row.accuracy or {}).get("passed")) for row in group)
        flag = "" if passed == len(group) else "bad"
        worst = [_worst([_outputs(row)[name] for row in group if name in _outputs(row)]) for name in names]
        lines.append((*map(Cell, words), Cell(f"{passed} of {len(group)}", passed / len(group), flag), *worst))
    return Table(columns, (False,) * 4 + (True,) * (1 + len(names)), tuple(lines))


def _accuracy_order(words: tuple[str, ...], row: Row) -> tuple[Any, ...]:
    name, dtype, gate, where = words
    return (labels.place(row.case), name, dtype, labels.strength(gate), gate, where)


def _outputs(row: Row) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = (row.accuracy or {}).get("outputs") or {}
    return found


def _output_order(name: str) -> tuple[int, str]:
    return (OUTPUTS.index(name) if name in OUTPUTS else len(OUTPUTS), name)


def _worst(outputs: list[dict[str, Any]]) -> Cell:
    """The output nearest to its tolerance or beyond it: "2.1e-3 of 8.4e-3"."""
    shares = [(share(output), output) for output in outputs]
    shares = [(value, output) for value, output in shares if not math.isnan(value)]
    if not shares:
        return Cell("–")
    value, output = max(shares, key=lambda pair: pair[0])
    block = share({"error": output.get("error"), "tolerance": output.get("tolerance")}) < value
    error, tolerance = (output.get(f"{'block_' if block else ''}{name}") for name in ("error", "tolerance"))
    written = "not finite" if error is None or not math.isfinite(error) else text.power(error)
    where = " in a block" if block else ""
    return Cell(f"{written} of {text.power(tolerance or 0.0)}{where}", value, "bad" if value > 1 else "")


@dataclass(frozen=True)
class Failure:
    """Cases of one system that gave no result, all for the same reason."""

    system: str
    status: str
    reason: str
    questions: tuple[str, ...]
    detail: str  # of the first


def failures(rows: Sequence[Row], table: pd.DataFrame) -> list[Failure]:
    """Every row that is not ok, by system and reason, the worst first: wrong results, crashes, then what cannot be."""
    many = table["device"].nunique() > 1
    groups: dict[tuple[str, str, str], list[tuple[Row, str]]] = {}
    for row, line in zip(rows, table.to_dict("records"), strict=True):
        if row.status != "ok":
            question = f"{text.shape(line)}, {conditions(line)}, {text.mode(line['mode'])}"
            where = f"{question}, {line['device']}" if many else question
            key = (row.status, line["label"], row.reason or "no reason was recorded")
            groups.setdefault(key, []).append((row, where))
    return [_failure(*key, group) for key, group in sorted(groups.items(), key=lambda item: _severity(item[0][0]))]


def _severity(status: str) -> int:
    return SEVERITY.index(status) if status in SEVERITY else len(SEVERITY)


def _failure(status: str, system: str, reason: str, group: list[tuple[Row, str]]) -> Failure:
    said = labels.STATUS_TITLES.get(status, status)
    return Failure(system, said, reason, tuple(question for _, question in group), group[0][0].detail or "")


def archs(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(arch, name) of the GPUs that kernels were compiled for, newest first."""
    names = {"sm_80": "A100 (sm_80)", "sm_90": "H100 and H200 (sm_90)", "sm_100": "B200 (sm_100)"}
    found = {str(fact["arch"]) for row in rows for fact in row.compiled or []}
    return [(arch, names.get(arch, arch)) for arch in sorted(found, key=_generation, reverse=True)]


def _generation(arch: str) -> int:
    """The number in an arch: 90 of "sm_90a", 100 of "sm_100f"; 0 where there is none."""
    found = re.search(r"\d+", arch)
    return int(found[0]) if found else 0


def kernels(rows: Sequence[Row]) -> Table:
    """Every kernel of ours as it was compiled: a line a kernel and schedule, the GPUs side by side. A kernel that
    several shapes compiled anew shows the one that spills most, then the one with most registers."""
    targets = archs(rows)
    found: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: labels.place(row.case)):
        size = f"{row.case['K']}×{row.case['V']} {row.case['dtype']}"
        for fact in row.compiled or []:
            by_arch = found.setdefault((label(row.case), size, fact["kernel"]), {})
            by_arch[str(fact["arch"])] = max(by_arch.get(str(fact["arch"]), fact), fact, key=_pressure)
    facts = ("registers", "spilled, B", "shared, KiB", "tensor op")
    columns = ("system", "K×V", "kernel", "warps", *(facts * len(targets)))
    lines = [
        (
            *(Cell(word) for word in key),
            _warps(by_arch),
            *(cell for arch, _ in targets for cell in _facts(by_arch.get(arch))),
        )
        for key, by_arch in found.items()
    ]
    numeric = (False, False, False, True, *((True, True, True, False) * len(targets)))
    groups = (("", 4), *((name, len(facts)) for _, name in targets))
    return Table(columns, numeric, tuple(lines), groups)


def _pressure(fact: dict[str, Any]) -> tuple[bool, int, int]:
    """Sorts compiled kernels by trouble: those that failed last, then by spills, then by registers."""
    return (bool(fact.get("error")), fact.get("spill_bytes") or 0, fact.get("registers") or 0)


def _warps(by_arch: dict[str, dict[str, Any]]) -> Cell:
    counts = sorted({fact["num_warps"] for fact in by_arch.values() if fact.get("num_warps")})
    return Cell(" / ".join(map(str, counts)) or "–", counts[0] if counts else None)


def _facts(fact: dict[str, Any] | None) -> tuple[Cell, ...]:
    if fact is None:
        return (Cell("–"),) * 4
    if fact.get("error"):
        return (Cell(str(fact["error"])[:80], flag="bad"), Cell("–"), Cell("–"), Cell("–"))
    spilled = fact.get("spill_bytes")
    shared = fact.get("shared_bytes")
    return (
        Cell(str(fact.get("registers", "–")), fact.get("registers")),
        Cell("–" if spilled is None else f"{spilled:,}", spilled, "bad" if spilled else ""),
        number_cell(_float(shared) / 1024),
        Cell(str(fact.get("tensor_core") or "–")),
    )


def _float(value: float | None) -> float:
    return math.nan if value is None else float(value)


def floors(rows: Sequence[Row]) -> Table:
    """The compulsory bytes of each question of gated linear attention whose kernels were compiled, and their time at
    datasheet bandwidth. Which tensors there are depends on the gates, and on whether there is a state to begin with."""
    asked: dict[tuple[str, ...], int] = {}
    for row in rows:
        gla = labels.family(labels.variant(row.case)) == "gla"
        if gla and row.compiled and row.work and row.work.get("hbm_bytes"):
            key = (text.shape(row.case), row.case["dtype"], row.case["mode"], _tensors(row.case))
            asked[key] = int(row.work["hbm_bytes"])
    gpus = [DATASHEET[name] for name in ("H200", "H100", "A100")]
    columns = ("shape", "dtype", "mode", "gates", "compulsory, MiB", *(f"{gpu.name}, ms" for gpu in gpus))
    lines = [
        (
            *(Cell(word) for word in key),
            number_cell(size / 2**20),
            *(number_cell(floor_ms(size, gpu.hbm_bytes_per_s)) for gpu in gpus),
        )
        for key, size in asked.items()
    ]
    return Table(columns, (False,) * 4 + (True,) * (1 + len(gpus)), tuple(lines))


def _tensors(case: Mapping[str, Any]) -> str:
    """The gates of a case, and its state, as far as there is more or less to move."""
    gates = "none" if labels.gate(case).startswith("none") else "keys"
    if case.get("value_gate"):
        gates = "values" if gates == "none" else "keys and values"
    gates += f" in {case['gate_dtype']}" if case.get("gate_dtype") else ""
    return f"{gates}, initial state" if case.get("initial_state") else gates


def systems(table: pd.DataFrame) -> list[tuple[str, int, int]]:
    """(name, rows, rows with a time) of every variant, in legend order."""
    counted = [(key, len(rows), int(rows["ms"].notna().sum())) for (key,), rows in by(table, ["variant"])]
    ordered = sorted(counted, key=lambda item: labels.order(item[0]))
    return [(labels.title(key), total, timed) for key, total, timed in ordered]
