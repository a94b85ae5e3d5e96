"""The figure of packed sequences: tokens a second by how long these are, and what padding would have come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from glabench.analysis.compare import by
from glabench.report import text
from glabench.report.model import Figure, Panel
from glabench.report.parts import conditions, modes, most_telling, series, slug, time_tip
from glabench.spec.lengths import short

HELD = ["device", "B", "T", "H", "K", "V", "dtype", "gate", "initial_state", "training"]
ONE = (1.0, 0.0, "")
CAPTION = (
    "Higher is better. None of the tokens is padding. Were the same sequences padded to the longest one, the share of "
    "tokens that each line names would be: that is what packing saves."
)


def packed(best: pd.DataFrame) -> tuple[Figure, ...]:
    """Tokens a second at each way to cut the same tokens into sequences, a panel a mode."""
    found = []
    for key, rows in by(best[best["tokens_per_s"] > 0], HELD):
        if (rows["lengths"] != "").any():
            ways = sorted({_way(row) for row in rows.to_dict("records")})
            panels = tuple(_panel(mode, part, ways) for mode, part in modes(rows))
            row = rows.iloc[0]
            where = f"{text.length(row['T'])} tokens, {text.heads(row)}, {conditions(row)}"
            found.append(Figure(slug("packed", *key), f"Packed sequences: {where}", CAPTION, panels))
    return most_telling(found)


Way = tuple[float, float, str]  # sequences, the share that would be padding, lengths


def _way(row: Mapping[str, Any]) -> Way:
    return (row["sequences"], row["padding"], row["lengths"]) if row["lengths"] else ONE


def _named(way: Way) -> str:
    _, padding, lengths = way
    return f"{short(lengths)}\n{padding:.0%} padding if padded" if lengths else "one sequence"


def _panel(mode: str, rows: pd.DataFrame, ways: list[Way]) -> Panel:
    drawn = series(rows, "tokens_per_s", lambda row: ways.index(_way(row)), time_tip)
    return Panel(text.mode(mode), "", "tokens/s", drawn, categories=tuple(map(_named, ways)))
