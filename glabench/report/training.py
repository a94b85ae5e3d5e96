"""Steps of training: tokens a second and memory of models by sequence length, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import by, variants
from glabench.hardware.datasheet import find_datasheet
from glabench.report import packing, text
from glabench.report.model import Figure, Panel, Point, Series
from glabench.report.parts import length_of, series, slug

T_LABEL = "sequence length T, tokens"
KEPT = ["device", "dtype", "training"]
GIB = 1024.0  # MiB
RIVALS = ("transformer_lm", "gla_lm_fla")
OURS = ("gla_lm", "gla_lm:w", "gla_lm:wo", "gla_lm:re")
OTHER = "other"
SHARE = "step:"  # before a group of kernels, in the key of its series
# Groups of kernels as `run.step_kernels` names them, from the left.
GROUPS = {
    "operator": "operator",
    "matrix products": "matrix products",
    "compiled, not products": "compiled, no products",
    "elementwise, reductions and copies": "elementwise, copies",
    "norms": "norms",
    "loss": "loss",
    "optimizer": "optimizer",
    OTHER: "other",
}


def steps_of(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of steps that were timed, with tokens a second and memory as they are drawn."""
    timed = table[(table["mode"] == "train") & (table["status"] == "ok") & table["ms"].notna()]
    per_ms = timed["B"] * timed["T"] * 1e3
    fast = {"rate": per_ms / timed["ms"], "rate_lo": per_ms / timed["ms_hi"], "rate_hi": per_ms / timed["ms_lo"]}
    return timed.assign(**fast, peak_gib=timed["peak_mib"] / GIB, kept_gib=timed["kept_mib"] / GIB)


def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
    """Of each model and way to execute it: tokens a second and memory over T, and the GPU's time by kind of kernel; and
    tokens a second by how documents are packed."""
    steps, found = steps_of(table), list[Figure]()
    for key, rows in by(steps, KEPT):
        model = f"{key[2]}, {key[1]}"
        if len(alone := rows[rows["lengths"] == ""]):
            found.append(Figure(slug("training", *key), f"Training: {model}", _caption(alone), _panels(alone)))
        if (bars := _shares(rows)) is not None:
            title = f"Where a step's time goes: {model}"
            found.append(Figure(slug("training-time", *key), title, SHARES, (bars,)))
    return (*found, *packing.packed(steps))


SHARES = (
    "The GPU's time of one step by kind of kernel, in milliseconds. What is missing to the time of a step is the GPU "
    "waiting for Python. The operator is what the systems differ in; compiled kernels that are no products are norms, "
    "activations and gates."
)


def _caption(rows: pd.DataFrame) -> str:
    batch = "; ".join(f"B {b} at T {text.length(t)}" for t, b in sorted(set(zip(rows["T"], rows["B"], strict=True))))
    return (
        f"A step is forward, backward and AdamW on one batch: {batch}. Tokens a second: higher is better. Peak memory \
holds weights, AdamW's moments and all that a step needs."
    )


def _panels(rows: pd.DataFrame) -> tuple[Panel, ...]:
    rate = Panel("tokens a second", T_LABEL, "tokens/s", series(rows, "rate", length_of, tip))
    memory = Panel("peak memory", T_LABEL, "GiB", series(rows, "peak_gib", length_of, tip))
    return (rate, memory) if memory.series else (rate,)


def _shares(rows: pd.DataFrame) -> Panel | None:
    """A bar a system and length, a piece a group of kernels; None where nothing was profiled."""
    profiled = [row for row in rows.sort_values(["T", "B"]).to_dict("records") if isinstance(row["kernel_ms"], dict)]
    if not profiled:
        return None
    order = variants(rows)
    profiled.sort(key=lambda row: (row["T"], row["lengths"], order.index(row["variant"])))
    names = tuple(f"{labels.title(row['variant'])}, T {text.length(row['T'])}{text.further(row)}" for row in profiled)
    drawn = []
    for group, title in GROUPS.items():
        points = tuple(
            Point(float(i), ms, tip=f"{names[i]}\n{title}: {text.number(ms)} ms, {ms / sum(grouped.values()):.0%}")
            for i, grouped in enumerate(_grouped(row["kernel_ms"]) for row in profiled)
            if (ms := grouped.get(group, 0.0)) > 0
        )
        if points:
            drawn.append(Series(f"{SHARE}{group}", title, points))
    return Panel("", "", "ms of a step", tuple(drawn), categories=names, stacked=True)


def _grouped(kernel_ms: Mapping[str, float]) -> dict[str, float]:
    """The groups that have a colour; what is in none is other."""
    found: dict[str, float] = {}
    for group, ms in kernel_ms.items():
        known = group if group in GROUPS else OTHER
        found[known] = found.get(known, 0.0) + ms
    return found


def tip(row: Mapping[str, Any]) -> str:
    """The system, tokens a second, the step's time, memory, and what share of the GPU's peak the step's FLOP are."""
    where = f"B{row['B']} T{text.length(row['T'])}{text.further(row)}"
    lines = [row["label"], f"{where}, {text.number(row['ms'])} ms a step"]
    lines.append(f"{text.rate(row['rate'])} tokens/s, queued in {text.number(row['host_ms'])} ms")
    if (share := mfu(row)) is not None:
        lines.append(f"{share:.0%} of the GPU's peak FLOP/s (MFU)")
    if row["peak_gib"] > 0:
        lines.append(f"{text.number(row['peak_gib'])} GiB peak, {text.number(row['kept_gib'])} GiB kept")
    return "\n".join(lines)


def mfu(row: Mapping[str, Any]) -> float | None:
    """The model's FLOP a second over the GPU's dense peak in 16 bits; None where that is not known."""
    sheet = None if row["kind"] == "cpu" else find_datasheet(row["device"])
    return None if sheet is None or not row["tflop_per_s"] > 0 else row["tflop_per_s"] * 1e12 / sheet.bf16_flops


@dataclass(frozen=True)
class Against:
    """A rival of ours in one model and way to execute it, of documents packed in one way: (T, how many times its tokens
    a second, how many times its peak memory). Of ours the fastest schedule counts at each length, and the leanest for
    memory."""

    training: str
    rival: str
    at: tuple[tuple[int, float, float], ...]


def against(table: pd.DataFrame) -> list[Against]:
    """Every rival that was measured with ours."""
    found = []
    for (_, _, training, lengths), rows in by(steps_of(table), [*KEPT, "lengths"]):
        where = f"{training},{text.further({'lengths': lengths})}".rstrip(",")
        for rival in variants(rows, RIVALS):
            compared = []
            for (_, t), here in by(rows, ["B", "T"]):
                own, other = here[here["variant"].isin(OURS)], here[here["variant"] == rival]
                if len(own) and len(other):
                    best, theirs = own.loc[own["rate"].idxmax()], other.iloc[0]
                    memory = own["peak_gib"].min() / theirs["peak_gib"]
                    compared.append((int(t), float(best["rate"] / theirs["rate"]), float(memory)))
            if compared:
                found.append(Against(where, rival, tuple(sorted(compared))))
    return found
