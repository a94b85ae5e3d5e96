"""Figures about the schedule: chunk size, sub-chunk size, states materialized or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import QUESTION, by
from glabench.report import text
from glabench.report.lengths import lean
from glabench.report.model import Figure, Panel
from glabench.report.parts import (
    MIB,
    MS,
    conditions,
    dots,
    memory_tip,
    modes,
    most_telling,
    series,
    side_by_side,
    slug,
    time_tip,
)

# What a figure over chunk sizes holds constant: a question without its mode, which makes the panels.
POINT = [column for column in QUESTION if column != "mode"]
PAPER = ("gla:wo", "gla:w")


def timed(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of a chunked system that have a time and an explicit chunk."""
    return table[(table["status"] == "ok") & table["ms"].notna() & table["chunk"].notna()]


def chunk(table: pd.DataFrame) -> tuple[Figure, ...]:
    """Time over chunk size at one shape; of several sub-chunk sizes the fastest. Memory joins as a panel."""
    found = []
    for key, group in by(timed(table), POINT):
        if group["chunk"].nunique() < 2:
            continue
        fastest = group.sort_values("ms").drop_duplicates(["variant", "mode", "chunk"])
        panels = tuple(
            Panel(text.mode(mode), "chunk size, tokens", MS, series(rows, "ms", _chunk, time_tip))
            for mode, rows in modes(fastest)
            if rows["chunk"].nunique() > 1
        )
        if not panels:
            continue
        row = group.iloc[0]
        title = f"Time over chunk size: {text.shape(row)}, {conditions(row)}"
        found.append(Figure(slug("chunk", *key), title, _best(fastest, "chunk"), (*panels, *_chunk_memory(group))))
    return most_telling(found)


def _chunk_memory(group: pd.DataFrame) -> tuple[Panel, ...]:
    """Memory over chunk size for the mode that needs most of it."""
    known = group[group["beyond_mib"] > 0]
    if known.empty:
        return ()
    mode = known.loc[known["beyond_mib"].idxmax(), "mode"]
    leanest = known[known["mode"] == mode].sort_values("beyond_mib").drop_duplicates(["variant", "chunk"])
    title = f"memory, {text.mode(mode)}"
    return (Panel(title, "chunk size, tokens", MIB, series(leanest, "beyond_mib", _chunk, memory_tip)),)


def sub_chunk(table: pd.DataFrame) -> tuple[Figure, ...]:
    """Time over sub-chunk size, a panel a chunk size; a figure a mode and shape."""
    known = timed(table)
    found = []
    for key, group in by(known[known["sub_chunk"].notna()], QUESTION):
        drawn = [(size, rows) for (size,), rows in by(group, ["chunk"]) if rows["sub_chunk"].nunique() > 1]
        span = (
            min((r["ms"].min() for _, r in drawn), default=1.0),
            max((r["ms"].max() for _, r in drawn), default=1.0),
        )
        label = "sub-chunk size, tokens"
        panels = [
            Panel(f"chunk {int(size)}", label, MS, series(rows, "ms", _sub_chunk, time_tip), value_range=span)
            for size, rows in drawn
        ]
        row = group.iloc[0]
        if panels:
            title = f"Time over sub-chunk size, {text.mode(row['mode'])}: {text.shape(row)}, {conditions(row)}"
            found.append(Figure(slug("subchunk", *key), title, _best(group, "sub_chunk"), tuple(panels)))
    return most_telling(found)


def _best(rows: pd.DataFrame, axis: str) -> str:
    """The fastest schedule of each variant and mode, in words."""
    said = []
    for mode, group in modes(rows):
        fastest = group.sort_values("ms").drop_duplicates("variant")
        fastest = fastest.sort_values("variant", key=lambda keys: keys.map(labels.order))
        parts = [f"{labels.title(r['variant'])} at {text.number(r[axis], 1)}" for r in fastest.to_dict("records")]
        said.append(f"{text.mode(mode)}: {text.listing(parts)}")
    what = "chunk" if axis == "chunk" else "sub-chunk"
    return text.sentence(f"Lower is better. Fastest {what} size, {'; '.join(said)}")


def materialized(best: pd.DataFrame, table: pd.DataFrame) -> tuple[Figure, ...]:
    """Both of the paper's versions at every shape that has both: time in each mode, and memory."""
    found = []
    leanest = lean(table)
    for (device,), rows in by(best[best["variant"].isin(PAPER)], ["device"]):
        both = _both(rows)
        memory = _both(leanest[(leanest["device"] == device) & leanest["variant"].isin(PAPER)])
        panels = [dots(part, "ms", time_tip, MS, text.mode(mode)) for mode, part in modes(both)]
        panels += [
            dots(part, "beyond_mib", memory_tip, MIB, f"memory, {text.mode(mode)}") for mode, part in modes(memory)
        ]
        drawn = side_by_side([panel for panel in panels if panel])
        if drawn:
            title = "States materialized or not"
            found.append(Figure(slug("materialized", device), title, _materialized_caption(both), drawn))
    return tuple(found)


def _both(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the questions that have more than one of the paper's versions."""
    if rows.empty:
        return rows
    return rows[rows.groupby(QUESTION, dropna=False)["variant"].transform("nunique") > 1]


def _materialized_caption(both: pd.DataFrame) -> str:
    said = []
    for mode, rows in modes(both):
        fastest = rows.sort_values("ms").drop_duplicates(QUESTION)
        ahead = int((fastest["variant"] == "gla:w").sum())
        said.append(f"{ahead} of {text.count(len(fastest), 'shape')} ({text.mode(mode)})")
    if not said:
        return "Lower is better; each at its leanest schedule."
    return (
        f"Lower is better; each at its best schedule. With the states kept, kernels are faster at {text.listing(said)}."
    )


def _chunk(row: Mapping[str, Any]) -> float:
    return float(row["chunk"])


def _sub_chunk(row: Mapping[str, Any]) -> float:
    return float(row["sub_chunk"])
