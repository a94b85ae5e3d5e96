"""The tables of a profile's page: sums, traffic, energy, memory, ceilings, kernels; and the notes of its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glabench.analysis import labels
from glabench.analysis.bounds import number, ratio
from glabench.analysis.load import Profiled
from glabench.analysis.profile import Call, Kernel, groups, middle
from glabench.analysis.traffic import AGREES, Traffic, traffic
from glabench.report import profile_text, text
from glabench.report.profile_answers import ADDS_UP
from glabench.report.profile_figures import MEMORY
from glabench.report.tables import Cell, Failure, Table, number_cell

MIB = profile_text.MIB
STALLS = 2  # of a kernel, the longest
WORDS = ("case", "mode", "GPU")

# A column of the table of kernels: its cell from the call and the kernel.
Column = Callable[[Call, Kernel], Cell]


def _table(
    columns: Sequence[str], words: Sequence[str], rows: Sequence[tuple[Cell, ...]],
    spans: tuple[tuple[str, int], ...] = (),
) -> Table:  # fmt: skip
    return Table(tuple(columns), tuple(column not in words for column in columns), tuple(rows), spans)


def _case_columns(found: Sequence[Call]) -> list[str]:
    return ["case", "mode", *(["GPU"] if len(groups(found)) > 1 else [])]


def _case_cells(found: Sequence[Call]) -> Callable[[Call], tuple[Cell, ...]]:
    """The first cells of a call's line: the case, its mode, and its GPU where there are several."""
    many = len(groups(found)) > 1
    return lambda call: (
        Cell(profile_text.case(call.case)),
        Cell(text.mode(call.case["mode"])),
        *((Cell(profile_text.group(call.group)),) if many else ()),
    )


def _percent(value: float, digits: int = 3) -> Cell:
    return number_cell(100 * value, digits)


def sums(found: Sequence[Call]) -> Table:
    """How the kernels of each case add up to its measured time."""
    head = _case_cells(found)
    columns = [*_case_columns(found), "measured, ms", "± %", "kernels, ms", "kernels %", "gaps, µs",
               "before and after, µs", "launches"]  # fmt: skip
    rows = []
    for call in found:
        if call.predicted:
            continue
        time = call.measured
        off = abs(1 - call.covered) > ADDS_UP
        rows.append((
            *head(call), number_cell(time.median), _percent((time.high - time.low) / 2 / time.median, 2),
            number_cell(call.kernels_ms),
            Cell(text.number(100 * call.covered, 4), _or_none(call.covered), "bad" if off else ""),
            number_cell(1e3 * call.gaps_ms), _signed(1e3 * (time.median - call.span_ms)),
            Cell(str(sum(k.count for k in call.kernels)), sum(k.count for k in call.kernels)),
        ))  # fmt: skip
    return _table(columns, WORDS, rows)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _signed(value: float) -> Cell:
    sign = "" if math.isnan(value) or value >= 0 else "-"
    return Cell(f"{sign}{text.number(abs(value))}", _or_none(value))


def traffic_table(found: Sequence[Call]) -> Table:
    """What the model expects each kernel to move, and what ncu counted, where it did."""
    lines, many = traffic(found), len(groups(found)) > 1
    counted = any(not math.isnan(one.difference) for one in lines)
    head = ["case", "kernel", "direction", *(["GPU"] if many else [])]
    told = ["difference %", "what explains it"] if counted else []
    columns = [*head, *told, "compulsory", "read", "written", "asked of L2"]
    spans = [("", len(head) + len(told)), ("model, MiB", 4)]
    if counted:
        columns += ["read", "written", "at L2", "L2 hits %"]
        spans.append(("counted by ncu, MiB", 4))
    rows = [
        (
            Cell(profile_text.case(one.call.case)), Cell(profile_text.kernel(one.kernel)),
            Cell(text.mode(one.kernel.direction)), *((Cell(profile_text.group(one.call.group)),) if many else ()),
            *(_difference(one) if counted else ()),
            *(number_cell(x / MIB) for x in (one.compulsory, one.expected_read, one.expected_write, one.requested)),
            *((*(number_cell(x / MIB) for x in (one.read, one.write, one.l2)), _percent(one.hits)) if counted else ()),
        )
        for one in lines
    ]  # fmt: skip
    return _table(columns, (*head, "what explains it"), rows, tuple(spans))


def _difference(one: Traffic) -> tuple[Cell, Cell]:
    share = 100 * one.difference
    if math.isnan(share):
        return number_cell(math.nan), Cell("not counted")
    off = abs(one.difference) > AGREES
    return Cell(f"{share:+.1f}", share, "bad" if off else ""), Cell(profile_text.explained(one) or "–", flag="wrap")


def parts(found: Sequence[Call]) -> Table:
    """The forward pass of each case taken apart: what happens inside chunks, and what between them."""
    head = _case_cells(found)
    columns = [*_case_columns(found), "chunk", "inside, ms", "between, ms", "between %"]
    rows = []
    for call in found:
        seen = call.profile.get("parts")
        if seen:
            inside, between, chunk = middle(seen.get("intra_ms")), middle(seen.get("inter_ms")), call.case.get("chunk")
            rows.append((
                *head(call), Cell(str(chunk or "its choice"), chunk), number_cell(inside), number_cell(between),
                _percent(ratio(between, inside + between)),
            ))  # fmt: skip
    return _table(columns, WORDS, rows)


def energy(found: Sequence[Call]) -> Table:
    """Energy of a call and of a token, the idle power taken off."""
    head = _case_cells(found)
    columns = [*_case_columns(found), "J a call", "mJ a token", "power, W", "idle, W", "calls", "over, s"]
    rows = []
    for call in found:
        seen = call.profile.get("energy")
        if seen:
            joules, tokens = number(seen.get("joules")), number(seen.get("tokens"))
            rows.append((
                *head(call), number_cell(joules), number_cell(1e3 * ratio(joules, tokens)),
                number_cell(number(seen.get("mean_w"))),
                number_cell(number(seen.get("idle_w"))),
                Cell(f"{number(seen.get('calls')):,.0f}", number(seen.get("calls"))),
                number_cell(number(seen.get("seconds"))),
            ))  # fmt: skip
    return _table(columns, WORDS, rows)


def memory(found: Sequence[Call]) -> Table:
    """The peak by what it is for, in MiB, measured beside the model's."""
    head = _case_cells(found)
    kinds = list(MEMORY.items())
    columns = [*_case_columns(found), *("measured", "model") * (1 + len(kinds))]
    rows = []
    for call in found:
        seen = call.profile.get("memory") or {}
        if seen.get("kinds"):
            sizes, model = seen["kinds"], seen.get("model") or {}
            cells = [(number(seen.get("peak_bytes")), _sum(model))]
            cells += [(number(sizes.get(kind)), number(model.get(kind))) for kind, _ in kinds]
            rows.append((
                *head(call), *(number_cell(size / MIB) for pair in cells for size in pair),
            ))  # fmt: skip
    spans = (("", len(_case_columns(found))), ("peak", 2), *((title, 2) for _, title in kinds))
    return _table(columns, WORDS, rows, spans)


def _sum(model: Mapping[str, Any]) -> float:
    return float(sum(model.values())) if model else math.nan


def kernels(found: Sequence[Call]) -> Table:
    """Every kernel of every case: time, bounds, rates, what the compiler made of it, and counters where there are."""
    shown, pairs = dict(_COLUMNS), [(call, one) for call in found for one in call.kernels]
    left_out: tuple[str, ...] = () if any(one.counters for _, one in pairs) else _COUNTERS
    left_out += () if len(groups(found)) > 1 else ("GPU",)
    columns = {name: column for name, column in shown.items() if name not in left_out}
    cells = [tuple(column(call, one) for column in columns.values()) for call, one in pairs]
    return _table(list(columns), _WORDS, cells)


def _time(call: Call, one: Kernel) -> Cell:
    """A time, or a prediction, which is said."""
    return Cell(f"{text.number(one.ms)}{' predicted' if one.predicted and one.ms > 0 else ''}", _or_none(one.ms))


def _width(call: Call, one: Kernel) -> Cell:
    return _percent((one.time.high - one.time.low) / 2 / one.time.median if one.time.samples else math.nan, 2)


def _of_copy(call: Call, one: Kernel) -> Cell:
    return _percent(ratio(one.bytes_per_s, number(call.ceilings.get("hbm_copy_bytes_per_s"))))


def _compiled(name: str) -> Column:
    def cell(call: Call, one: Kernel) -> Cell:
        count = one.compiled.get(name)
        return Cell("–" if count is None else f"{count:,}", count)

    return cell


def _shared(call: Call, one: Kernel) -> Cell:
    return number_cell(number(one.compiled.get("shared_bytes")) / 1024)


def _spilled(call: Call, one: Kernel) -> Cell:
    spilled = one.compiled.get("spill_bytes")
    return Cell("–" if spilled is None else f"{spilled:,}", spilled, "bad" if spilled else "")


def _counted(name: str) -> Column:
    return lambda call, one: _percent(number(one.counters.get(name)))


def _stalls(call: Call, one: Kernel) -> Cell:
    found = sorted((one.counters.get("stalls") or {}).items(), key=lambda item: -number(item[1]))
    return Cell(", ".join(f"{name.replace('_', ' ')} {text.number(number(x), 2)}" for name, x in found[:STALLS]) or "–")


_COUNTERS = ("tensor pipe %", "occupancy %", "stalls")
_WORDS = ("case", "direction", "kernel", "GPU", "bound by", "products", "stalls")
_COLUMNS: dict[str, Column] = {
    "case": lambda call, one: Cell(profile_text.case(call.case)),
    "direction": lambda call, one: Cell(text.mode(one.direction)),
    "kernel": lambda call, one: Cell(profile_text.kernel(one)),
    "GPU": lambda call, one: Cell(profile_text.group(call.group)),
    "launches": lambda call, one: Cell(str(one.count), one.count),
    "time, ms": _time,
    "± %": _width,
    "model, ms": lambda call, one: number_cell(one.predicted_ms),
    "share %": lambda call, one: _percent(one.share),
    "bound by": lambda call, one: Cell(profile_text.RESOURCE[one.binding] if one.binding else "–"),
    "bound, ms": lambda call, one: number_cell(one.bound_ms),
    "slack, ms": lambda call, one: number_cell(one.slack_ms),
    "TB/s": lambda call, one: number_cell(one.bytes_per_s / 1e12),
    "of copy %": _of_copy,
    "TFLOP/s": lambda call, one: number_cell(one.flops_per_s / 1e12),
    "FLOP/byte": lambda call, one: number_cell(one.intensity),
    "registers": _compiled("registers"),
    "spilled, B": _spilled,
    "shared, KiB": _shared,
    "programs/SM": _compiled("programs_per_sm"),
    "products": lambda call, one: Cell(str(one.compiled.get("tensor_core") or "–")),
    "tensor pipe %": _counted("tensor_share"),
    "occupancy %": _counted("occupancy_share"),
    "stalls": _stalls,
}


def failures(profiled: Sequence[Profiled]) -> list[Failure]:
    """Cases without a profile, by reason."""
    by: dict[tuple[str, str, str], list[Profiled]] = {}
    for one in profiled:
        if one.row.status != "ok":
            row = one.row
            status = labels.STATUS_TITLES.get(row.status, row.status)
            name = labels.title(labels.variant(row.case))
            by.setdefault((name, status, row.reason or "no reason was recorded"), []).append(one)
    return [
        Failure(*key, tuple(f"{profile_text.case(p.row.case)}, {text.mode(p.row.case['mode'])}" for p in group),
                group[0].row.detail or "")
        for key, group in by.items()
    ]  # fmt: skip


def notes(found: Sequence[Call]) -> list[tuple[str, list[str]]]:
    """What could not be measured and why, with the cases of which that is said."""
    said: dict[str, list[str]] = {}
    for call in found:
        ncu = call.profile.get("ncu")
        told = [str(note) for note in call.profile.get("notes") or ()]
        refused = str(ncu["refused"]) if ncu and ncu.get("refused") else ""
        if refused and not any(refused in note for note in told):
            told.append(f"ncu: {refused}")
        for note in dict.fromkeys(told):
            said.setdefault(note, []).append(profile_text.asked(call))
    return list(said.items())
