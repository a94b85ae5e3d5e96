"""Figures over shapes: head dimension, shapes that stand alone, and how far each is from the hardware's floor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import by, competes, curves
from glabench.analysis.statistics import geometric_mean
from glabench.report import text
from glabench.report.lengths import baselines, challengers, speedup_tip
from glabench.report.model import Figure, Panel
from glabench.report.parts import MS, by_mode, conditions, dots, modes, most_telling, on_scale, slug, time_tip


def head_dimension(best: pd.DataFrame) -> tuple[Figure, ...]:
    """Time over the head dimension at constant width (H*V), or else at constant H."""
    found = []
    held = ["device", "B", "T", "dtype", "gate", "initial_state"]
    wide = best.assign(width=best["H"] * best["V"])
    for key, group in by(wide, held):
        used: set[Any] = set()
        for column in ("width", "H"):
            for (value,), rows in by(group[~group.index.isin(used)], [column]):
                if rows["K"].nunique() < 2:
                    continue
                used |= set(rows.index)
                found.append(_head_figure(key, column, int(value), rows))
    return most_telling(found)


def _head_figure(key: tuple[Any, ...], column: str, value: int, rows: pd.DataFrame) -> Figure:
    row = rows.iloc[0]
    held = f"width {value:,}" if column == "width" else text.count(value, "head")
    where = f"B{row['B']} T{text.length(row['T'])}, {held}, {conditions(row)}"
    # One V for each K keeps the curves single-valued; the widest stands for the rest, which are in the table.
    single = rows.sort_values("V").drop_duplicates(["variant", "mode", "K"], keep="last")
    panels = by_mode(single, "ms", _k, time_tip, "head dimension K, features", MS)
    caption = (
        "Lower is better. The same width split over fewer, larger heads." if column == "width" else "Lower is better."
    )
    return Figure(slug("head", *key, column, value), f"Time over head dimension: {where}", caption, panels)


def _k(row: Mapping[str, Any]) -> float:
    return float(row["K"])


def alone(best: pd.DataFrame) -> pd.DataFrame:
    """Rows of the questions that belong to no curve over T."""
    on_curves = [curve.table.index for curve in curves(best)]
    return best.drop(index=[i for index in on_curves for i in index])


def every_shape(best: pd.DataFrame) -> tuple[Figure, ...]:
    """Time at shapes that no curve over T shows, a panel a mode."""
    found = []
    for (device,), rows in by(alone(best), ["device"]):
        shown, left_out = on_scale(rows, "ms")
        panels = [dots(part, "ms", time_tip, MS, text.mode(mode)) for mode, part in modes(shown)]
        caption = "Lower is better. One line a shape: B batch, T tokens, H heads, then the head dimension (K, or K×V)."
        caption += left_out
        drawn = tuple(panel for panel in panels if panel)
        found.append(Figure(slug("shapes", device), "Time at single shapes", caption, drawn))
    return tuple(figure for figure in found if figure.panels)


def speed_up(best: pd.DataFrame) -> tuple[Figure, ...]:
    """Speed-up over each baseline at the shapes that no curve shows."""
    found = []
    for baseline in baselines(best):
        pairs = alone(challengers(best, baseline))
        title = labels.title(baseline)
        for (device,), rows in by(pairs, ["device"]):
            panels = [_ratio_panel(mode, part, title) for mode, part in modes(rows)]
            drawn = tuple(panel for panel in panels if panel)
            caption = f"Right of the line is faster than {title}, at the same question."
            found.append(
                Figure(slug("speedup", baseline, device), f"Speed-up over {title}, single shapes", caption, drawn)
            )
    return tuple(figure for figure in found if figure.panels)


def _ratio_panel(mode: str, rows: pd.DataFrame, title: str) -> Panel | None:
    label = f"speed-up over {title}, ×"
    return dots(
        rows, "speedup", lambda row: speedup_tip(row, title), label, text.mode(mode), (1.0, f"as fast as {title}")
    )


def floor(best: pd.DataFrame) -> tuple[Figure, ...]:
    """Time over the HBM floor of linear attention: compulsory bytes at the copy bandwidth measured on that GPU."""
    found = []
    known = best[(best["family"] != "attention") & (best["over_floor"] > 0)]
    for (device,), rows in by(known, ["device"]):
        shown, left_out = on_scale(rows, "over_floor")
        panels = [
            dots(part, "over_floor", time_tip, "time / HBM floor, ×", text.mode(mode), (1.0, "HBM floor"))
            for mode, part in modes(shown)
        ]
        drawn = tuple(panel for panel in panels if panel)
        caption = f"{_floor_caption(rows)}{left_out}"
        found.append(Figure(slug("floor", device), "Distance from the HBM floor", caption, drawn))
    return tuple(found)


def _floor_caption(rows: pd.DataFrame) -> str:
    asked = rows[competes(rows)]  # what does less has less to move, and is named only where it is alone
    means = []
    for mode, group in modes(asked if len(asked) else rows):
        ranked = sorted((geometric_mean(list(g["over_floor"])), key) for (key,), g in by(group, ["variant"]))
        means.append(f"{text.mode(mode)} {labels.title(ranked[0][1])} {text.times(ranked[0][0])}")
    return (
        "1 is the time that moving q, k, v, g and o through HBM takes, nothing materialized; the bandwidth is that "
        f"of a copy measured in the same run. Nearest on the geometric mean: {'; '.join(means)}."
    )
