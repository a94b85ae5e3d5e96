"""Figures over the length of the sequence: time and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import QUESTION, Curve, aligned, competes, curves
from glabench.report import text
from glabench.report.model import Figure, Panel, Point, Series
from glabench.report.parts import (
    MIB,
    MS,
    US,
    by_mode,
    conditions,
    length_of,
    memory_tip,
    modes,
    most_telling,
    off_scale,
    series,
    slug,
    time_tip,
)
from glabench.spec.axes import FURTHER

T_LABEL = "sequence length T, tokens"
CONTEXT_LABEL = "tokens before it, T"


def speed(best: pd.DataFrame) -> tuple[Figure, ...]:
    """Time over T, a panel a mode, with the HBM floor as a dotted line; one figure a setting."""
    return most_telling([speed_of(curve) for curve in curves(best)])


def speed_of(curve: Curve) -> Figure:
    """The figure of one setting."""
    rows, left_out = off_scale(curve.table, "ms", lines=True)
    panels = tuple(_speed_panel(mode, part) for mode, part in modes(rows))
    title = f"Time over sequence length: {held(curve)}"
    return Figure(name("speed", curve), title, f"{_speed_caption(curve)}{left_out}", panels)


def _speed_panel(mode: str, rows: pd.DataFrame) -> Panel:
    """Steps stand over the tokens before them, and short ones in µs."""
    label = CONTEXT_LABEL if mode == "step" else T_LABEL
    unit, named = (1e3, US) if mode == "step" and rows["ms"].min() < 0.1 else (1.0, MS)
    scaled = rows.assign(**{f"time{end}": rows[f"ms{end}"] * unit for end in ("", "_lo", "_hi")})
    return Panel(text.mode(mode), label, named, (*series(scaled, "time", length_of, time_tip), *_floor(rows, unit)))


def _floor(rows: pd.DataFrame, unit: float) -> tuple[Series, ...]:
    known = rows[(rows["family"] == "gla") & rows["floor_ms"].notna()].drop_duplicates("T").sort_values("T")
    points = tuple(
        Point(
            float(t),
            float(ms) * unit,
            tip=f"HBM floor\nT {text.length(t)}\n{text.number(ms)} ms: compulsory bytes / copy bandwidth",
        )
        for t, ms in zip(known["T"], known["floor_ms"], strict=True)
    )
    return (Series("floor", "HBM floor", points),) if len(points) > 1 else ()


def _speed_caption(curve: Curve) -> str:
    """Who is ahead at the longest T of each mode, from the data."""
    intro = (
        "Lower is better. Where a system ran with several schedules, the fastest is drawn; hover or tap to see which."
    )
    ahead = [_ahead(mode, rows[rows["T"] == rows["T"].max()]) for mode, rows in modes(curve.table)]
    said = "; ".join(clause for clause in ahead if clause)
    return text.sentence(f"{intro} {said[0].upper()}{said[1:]}") if said else intro


def _ahead(mode: str, rows: pd.DataFrame) -> str:
    """ "forward at T = 8k: GLA with states first, its kernels 1.10× as fast as those of FLA chunk_gla"."""
    ranked = rows[competes(rows)].sort_values("ms")
    if len(ranked) < 2:
        return ""
    first, second = ranked.iloc[0], ranked.iloc[1]
    one, other = labels.title(first["variant"]), labels.title(second["variant"])
    where = f"{text.mode(mode)} at T = {text.length(first['T'])}"
    if not first["ms_hi"] < second["ms_lo"]:  # true also where an interval is missing
        return f"{where}: {one} and {other} too close to call"
    timed, ratio = text.timed(first["clock"]), text.times(second["ms"] / first["ms"])
    return f"{where}: {one} first, its {timed} {ratio} as fast as those of {other}"


def memory(table: pd.DataFrame) -> tuple[Figure, ...]:
    """Peak memory beyond the inputs over T: of several schedules of a variant, the leanest."""
    leanest = lean(table)
    found = []
    for curve in curves(leanest):
        panels = by_mode(curve.table, "beyond_mib", length_of, memory_tip, T_LABEL, MIB)
        if panels:
            caption = (
                "What a call needs on top of its inputs; lower is better. Of several schedules the leanest is drawn."
            )
            if (curve.table["family"] == "attention").any():
                caption += " FlashAttention and its kind keep no T×T matrix, so their memory is linear in T too."
            title = f"Memory over sequence length: {held(curve)}"
            found.append(Figure(name("memory", curve), title, caption, panels))
    return most_telling(found)


def lean(table: pd.DataFrame) -> pd.DataFrame:
    """Like ``compare.answers`` with memory for time: one row for each (question, variant), the one that needs least."""
    known = aligned(table[(table["status"] == "ok") & (table["beyond_mib"] > 0)])
    return known.sort_values("beyond_mib", kind="stable").drop_duplicates([*QUESTION, "variant"]).reset_index(drop=True)


def speedup_tip(row: Mapping[str, Any], over: str) -> str:
    """The ratio with its interval, and both times."""
    low, high = row["speedup_lo"], row["speedup_hi"]
    spread = "" if math.isnan(low) else f" ({text.number(low)} to {text.number(high)})"
    return "\n".join([
        row["label"],
        f"{text.shape(row)}, {text.mode(row['mode'])}",
        f"{text.times(row['speedup'])} {over}, {text.timed(row['clock'])}{spread}: {row['verdict']}",
        f"{text.number(row['ms'])} ms against {text.number(row['ms_base'])} ms",
    ])  # fmt: skip


def held(curve: Curve) -> str:
    """What the curve holds constant: "4 heads of 128×256, 32,768 tokens, bf16"."""
    row = curve.table.iloc[0]
    amount = f"batch {curve.value}" if curve.held == "B" else f"{curve.value:,} tokens in all"
    return f"{text.heads(row)}, {amount}{text.further(row)}, {conditions(row)}"


def name(kind: str, curve: Curve) -> str:
    row = curve.table.iloc[0]
    state = "state" if row["initial_state"] else ""
    parts = (
        kind,
        row["device"],
        f"h{row['H']}",
        f"k{row['K']}",
        f"v{row['V']}",
        f"{curve.held}{curve.value}",
        row["dtype"],
    )
    return slug(*parts, f"g{row['gate']}", state, *(row[name] for name in FURTHER))
