"""Figures over shapes: head dimension, shapes that stand alone, and how far each is from the hardware's floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import by, curves
from glabench.analysis.statistics import geometric_mean
from glabench.report import text
from glabench.report.lengths import baselines, challengers, speedup_tip
from glabench.report.model import Figure, Panel
from glabench.report.parts import (
    MS,
    by_mode,
    conditions,
    dots,
    modes,
    most_telling,
    on_scale,
    side_by_side,
    slug,
    time_tip,
)

FLOOR = (
    "1 is the time of reading every input once and writing every output once through HBM, in each direction, at the "
    "bandwidth of a copy measured in the same run."
)


def head_dimension(best: pd.DataFrame) -> tuple[Figure, ...]:
    """Time over the head dimension at constant width (H*V), or else at constant H."""
    found = []
    held = ["device", "B", "T", "dtype", "gate", "initial_state", "lengths"]
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
    where = f"B{row['B']} T{text.length(row['T'])}{text.packed(row)}, {held}, {conditions(row)}"
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
        drawn = side_by_side([panel for panel in panels if panel])
        found.append(Figure(slug("shapes", device), "Time at single shapes", caption, drawn))
    return tuple(figure for figure in found if figure.panels)


def speed_up(best: pd.DataFrame, kind: str = "speedup") -> tuple[Figure, ...]:
    """Speed-up over each baseline at the shapes that no curve shows, in figures whose names begin with ``kind``."""
    found = []
    for baseline in baselines(best):
        pairs = alone(challengers(best, baseline))
        title = labels.title(baseline)
        for (device,), rows in by(pairs, ["device"]):
            panels = [_ratio_panel(mode, part, title) for mode, part in modes(rows)]
            drawn = side_by_side([panel for panel in panels if panel])
            timed = text.timed(rows["clock"].iloc[0])
            caption = f"Right of the line {timed} are faster than those of {title}, at the same question."
            heading = f"Speed-up over {title}, {timed}, single shapes"
            found.append(Figure(slug(kind, baseline, device), heading, caption, drawn))
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
        drawn = side_by_side([panel for panel in panels if panel])
        said = nearest_in_words(nearest_to_floor(best[best["device"] == device]))
        caption = " ".join(filter(None, (FLOOR, said))) + left_out
        found.append(Figure(slug("floor", device), "Distance from the HBM floor", caption, drawn))
    return tuple(found)


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
