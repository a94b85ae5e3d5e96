"""Figures over shapes: head dimension, and shapes that stand alone; which form is nearest to the hardware's floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import by, curves
from glabench.analysis.statistics import geometric_mean
from glabench.report import text
from glabench.report.model import Figure
from glabench.report.parts import (
    MS,
    by_mode,
    conditions,
    dots,
    modes,
    most_telling,
    off_scale,
    side_by_side,
    slug,
    time_tip,
)
from glabench.spec.axes import BESIDE, FURTHER

K_LABEL = "head dimension K, features"
HELD = ["device", "B", "T", "dtype", "gate", "initial_state", *FURTHER]


def head_dimension(best: pd.DataFrame) -> tuple[Figure, ...]:
    """Time over the head dimension at constant width (H*V), or else at constant H."""
    found = []
    wide = _widths(best)
    for key, group in by(wide, HELD):
        used: set[Any] = set()
        for column in ("width", "H"):
            for (value,), rows in by(group[~group.index.isin(used)], [column]):
                if rows["K"].nunique() < 2:
                    continue
                used |= set(rows.index)
                found.append(_head_figure(key, column, int(value), rows))
    return most_telling(found)


def widths(rows: pd.DataFrame, least: int = 3) -> list[pd.DataFrame]:
    """Rows of one width in heads of at least so many dimensions."""
    wide = _widths(rows)
    return [group for _, group in by(wide, [*HELD, "width"]) if group["K"].nunique() >= least]


def _widths(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose width is H*V alike for q, k and v, with it as a column."""
    plain = (rows[[*BESIDE]] == 0).all(axis=1)
    return rows[plain].assign(width=rows["H"] * rows["V"])


def _head_figure(key: tuple[Any, ...], column: str, value: int, rows: pd.DataFrame) -> Figure:
    row = rows.iloc[0]
    held = f"width {value:,}" if column == "width" else text.count(value, "head")
    where = f"B{row['B']} T{text.length(row['T'])}{text.further(row)}, {held}, {conditions(row)}"
    # One V for each K keeps the curves single-valued; the widest stands for the rest, which are in the table.
    single = rows.sort_values("V").drop_duplicates(["variant", "mode", "K"], keep="last")
    panels = by_mode(single, "ms", head, time_tip, K_LABEL, MS)
    caption = (
        "Lower is better. The same width split over fewer, larger heads." if column == "width" else "Lower is better."
    )
    return Figure(slug("head", *key, column, value), f"Time over head dimension: {where}", caption, panels)


def head(row: Mapping[str, Any]) -> float:
    """Where a row stands along head dimensions."""
    return float(row["K"])


def alone(best: pd.DataFrame) -> pd.DataFrame:
    """Rows of the questions that belong to no curve over T."""
    on_curves = [curve.table.index for curve in curves(best)]
    return best.drop(index=[i for index in on_curves for i in index])


def every_shape(best: pd.DataFrame) -> tuple[Figure, ...]:
    """Time at shapes that no curve over T shows, a panel a mode."""
    found = []
    for (device,), rows in by(alone(best), ["device"]):
        shown, left_out = off_scale(rows, "ms")
        panels = [dots(part, "ms", time_tip, MS, text.mode(mode)) for mode, part in modes(shown)]
        caption = "Lower is better. One line a shape: B batch, T tokens, H heads, then the head dimension (K, or K×V)."
        caption += left_out
        drawn = side_by_side([panel for panel in panels if panel])
        found.append(Figure(slug("shapes", device), "Time at single shapes", caption, drawn))
    return tuple(figure for figure in found if figure.panels)


@dataclass(frozen=True)
class Nearest:
    """Of one mode: (geometric mean of time over floor, variant), the nearest first, and over how many questions."""

    mode: str
    questions: int
    ranked: tuple[tuple[float, str], ...]


def nearest_to_floor(best: pd.DataFrame) -> list[Nearest]:
    """How far gated forms are from the floor, by mode. A mean compares only those that answered the most questions:
    what fails at the slow ones would otherwise seem nearer."""
    gated = (best["family"] == "gla") & (best["gate"] != "none") & (best["mode"] != "step")
    found = []
    for mode, rows in modes(best[gated & (best["over_floor"] > 0)]):
        answered = {key: list(group["over_floor"]) for (key,), group in by(rows, ["variant"])}
        most = max(map(len, answered.values()))
        means = sorted((geometric_mean(values), key) for key, values in answered.items() if len(values) == most)
        found.append(Nearest(mode, most, tuple(means)))
    return found


def nearest_in_words(found: Sequence[Nearest], most: int = 1) -> str:
    """The ``most`` nearest of each mode as a sentence; empty where there is none."""
    if not found:
        return ""
    said = [
        f"{text.mode(one.mode)}, {text.count(one.questions, 'question')}: "
        + ", ".join(f"{labels.title(key)} {text.times(mean)}" for mean, key in one.ranked[:most])
        for one in found
    ]
    return f"Nearest by the geometric mean, with gates, of what answered the most questions: {'; '.join(said)}."
