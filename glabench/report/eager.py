"""Figures of what a call costs beside its kernels: queued in, an eager call, and what is kept for the backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import QUESTION, answers, by, variants
from glabench.report import text
from glabench.report.model import Figure, Panel
from glabench.report.parts import dots, implementation, modes, off_scale, side_by_side, slug

# What is drawn of a call, each a panel: the column, the panel's title, the label of its values.
TIMES = (
    ("ms", "Kernels", "median time of kernels, ms"),
    ("host_ms", "Queued in", "median time to queue, ms"),
    ("wall_ms", "Wall, eager", "median time of an eager call, ms"),
)
FULLEST = ("step", "fwd", "bwd", "fwdbwd")
KEPT = "kept for the backward pass, MiB"


def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
    """The three times of the cases that have that of an eager call, of the mode that does most; the matrix and the
    table have the rest. Of several schedules the fastest is drawn."""
    best = answers(table[table["wall_ms"].notna()])
    return costs(_fullest(best))


def _fullest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the mode that does most: forward and backward before backward before forward before a step."""
    return max(modes(table), key=lambda part: FULLEST.index(part[0]))[1] if len(table) else table


def costs(best: pd.DataFrame) -> tuple[Figure, ...]:
    """The kernels' time at every shape, what Python takes to queue them, and an eager call, on one scale; a figure a
    mode."""
    found = []
    for (device,), rows in by(best, ["device"]):
        for mode, part in modes(rows):
            shown, left_out = off_scale(part, "wall_ms")
            times = shown[[column for column, _, _ in TIMES]]
            ends = (float(times.min().min()), float(times.max().max()))
            panels = [dots(shown, column, call_tip, label, title) for column, title, label in TIMES]
            drawn = tuple(replace(panel, value_range=ends) for panel in panels if panel)
            caption = (
                "Lower is better. A model waits for the longer of the two: for the kernels, or for Python to queue "
                f"them.{left_out}"
            )
            heading = f"Kernels, queueing and an eager call: {text.mode(mode)}"
            found.append(Figure(slug("eager", device, mode), heading, caption, drawn))
    return tuple(figure for figure in found if figure.panels)


def kept(best: pd.DataFrame) -> tuple[Figure, ...]:
    """What a forward pass keeps for its backward pass at every shape. It is the same for a backward pass alone."""
    found = []
    known = best[best["kept_mib"].notna()].sort_values("mode", ascending=False, kind="stable")
    once = known.drop_duplicates([name for name in QUESTION if name != "mode"] + ["variant"])
    for (device,), rows in by(once, ["device"]):
        panel: Panel | None = dots(rows, "kept_mib", kept_tip, KEPT, "")
        nothing = [labels.title(key) for key in variants(rows[rows["kept_mib"] == 0])]
        caption = (
            "Lower is better. What is still allocated when the forward call has returned, beyond inputs and outputs; a "
            "model keeps it of every layer until the backward pass."
        )
        caption += f" Nothing, which is not drawn: {text.sentence(text.listing(nothing))}" if nothing else ""
        if panel:
            heading = "Kept for the backward pass"
            found.append(Figure(slug("kept", device), heading, caption, side_by_side([panel])))
    return tuple(found)


def call_tip(row: Mapping[str, Any]) -> str:
    """The system and schedule, the shape, and the three times of a call."""
    return "\n".join([
        row["label"],
        f"{text.shape(row)}, {text.mode(row['mode'])}",
        f"kernels {text.number(row['ms'])} ms, queued in {text.number(row['host_ms'])} ms",
        f"eager call {text.number(row['wall_ms'])} ms, {text.times(row['wall_over'])} its kernels",
        *implementation(row),
    ])  # fmt: skip


def kept_tip(row: Mapping[str, Any]) -> str:
    """The system and schedule, the shape, and what is kept of how much at the peak."""
    return "\n".join([
        row["label"],
        f"{text.shape(row)}, {text.mode(row['mode'])}",
        f"{text.number(row['kept_mib'])} MiB kept, {text.number(row['beyond_mib'])} MiB beyond inputs at the peak",
        *implementation(row),
    ])  # fmt: skip
