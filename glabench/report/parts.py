"""What all figures are made of: series from a table, hover text, and the words for what is held constant."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import QUESTION, by, variants
from glabench.report import text
from glabench.report.model import Figure, Panel, Point, Series
from glabench.spec.axes import BESIDE, FURTHER

MOST_FIGURES = 6  # of one kind; the table has the rest
MOST_CATEGORIES = 24
MOST_IN_ONE = 5  # categories of a panel that stands alone
OFF_SCALE = 30.0  # times slower than the fastest of a question

MS = "median time, ms"
US = "median time, µs"
MIB = "peak memory beyond inputs, MiB"


def devices(table: pd.DataFrame) -> list[str]:
    """The devices in a table, GPUs first."""
    return list(dict.fromkeys(table.sort_values("kind", ascending=False, kind="stable")["device"]))


def modes(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The table split by mode, in the order forward, backward, both, step."""
    present = [mode for mode in labels.MODE_ORDER if (table["mode"] == mode).any()]
    return [(mode, table[table["mode"] == mode]) for mode in present]


def series(
    table: pd.DataFrame, value: str, at: Callable[[Mapping[str, Any]], float], tip: Callable[[Mapping[str, Any]], str]
) -> tuple[Series, ...]:
    """One series a variant: ``value`` (with value_lo and value_hi where the table has them) over ``at``.

    Values that are not positive cannot stand on a log axis and are left out.
    """
    rows = table[table[value] > 0].to_dict("records")  # at once: one row takes as long as a hundred
    found = []
    for key in variants(table):
        points = [_point(row, value, at, tip) for row in rows if row["variant"] == key]
        if points:
            found.append(Series(key, labels.title(key), tuple(sorted(points, key=lambda p: p.at))))
    return tuple(found)


def _point(
    row: dict[Any, Any],
    value: str,
    at: Callable[[Mapping[str, Any]], float],
    tip: Callable[[Mapping[str, Any]], str],
) -> Point:
    low, high = row.get(f"{value}_lo", math.nan), row.get(f"{value}_hi", math.nan)
    return Point(float(at(row)), float(row[value]), float(low), float(high), tip(row))


def time_tip(row: Mapping[str, Any]) -> str:
    """The system and schedule, the shape, the time with its interval, and what follows from it."""
    lines = [
        row["label"],
        f"{text.shape(row)}, {text.mode(row['mode'])}",
        f"{text.number(row['ms'])} ms{interval(row)}",
    ]
    facts = [f"{text.rate(row['tokens_per_s'])} tokens/s"]
    if row["lengths"]:
        facts.append(f"padded to the longest {row['padding']:.0%} would be padding")
    if not math.isnan(row["over_floor"]) and row["family"] != "attention":
        facts.append(f"{text.times(row['over_floor'])} HBM floor")
    lines.append(", ".join(facts))
    return "\n".join([*lines, *implementation(row)])


def memory_tip(row: Mapping[str, Any]) -> str:
    lines = [row["label"], f"{text.shape(row)}, {text.mode(row['mode'])}"]
    lines.append(f"{text.number(row['beyond_mib'])} MiB beyond inputs, {text.number(row['peak_mib'])} MiB peak")
    return "\n".join([*lines, *implementation(row)])


def interval(row: Mapping[str, Any]) -> str:
    """ " (95 %: 1.21 to 1.25, 30 samples)"; without an interval, the number of samples."""
    samples = text.count(int(row["samples"]), "sample")
    if math.isnan(row["ms_lo"]):
        return f" ({samples})"
    return f" ({row['interval']}: {text.number(row['ms_lo'])} to {text.number(row['ms_hi'])}, {samples})"


def implementation(row: Mapping[str, Any]) -> list[str]:
    name = row["implementation"]
    return [name] if isinstance(name, str) and name else []


def length_of(row: Mapping[str, Any]) -> float:
    return float(row["T"])


def conditions(row: Mapping[str, Any]) -> str:
    """dtype, gates and state in words, the usual ones left out: "bf16", "fp32, gate strength 8, initial state".

    A strength of 1 is the usual one, but beside others it is named: without it there seem to be no gates.
    """
    words = [str(row["dtype"])]
    if row["training"]:
        return f"{row['dtype']}, {row['training']}"
    words += labels.gating(row["gate"], bool(row["gates_vary"]))
    if row["initial_state"]:
        words.append("initial state")
    return ", ".join(words)


def by_mode(
    table: pd.DataFrame, value: str, at: Callable[[Mapping[str, Any]], float], tip: Callable[[Mapping[str, Any]], str],
    at_label: str, value_label: str, reference: tuple[float, str] | None = None,
) -> tuple[Panel, ...]:  # fmt: skip
    """A panel a mode, of lines over ``at``; modes without a value are left out."""
    panels = [
        Panel(text.mode(mode), at_label, value_label, series(rows, value, at, tip), reference=reference)
        for mode, rows in modes(table)
    ]
    return tuple(panel for panel in panels if panel.series)


def dots(
    table: pd.DataFrame, value: str, tip: Callable[[Mapping[str, Any]], str], value_label: str, title: str,
    reference: tuple[float, str] | None = None,
) -> Panel | None:  # fmt: skip
    """A dot plot with a line for each shape of the table (its first MOST_CATEGORIES); None without a value."""
    keys = ["T", "B", "H", "K", "V", "dtype", "gate", "initial_state", *FURTHER, "training", *BESIDE]
    found_shapes = [rows.iloc[0] for _, rows in by(table[table[value] > 0], keys)]
    in_order = sorted(found_shapes, key=lambda row: [*row[keys[:6]], labels.strength(row["gate"]), row["gate"]])
    shapes = in_order[:MOST_CATEGORIES]
    if len(in_order) > len(shapes):
        title = ", ".join([*filter(None, [title]), f"the first {len(shapes)} of {len(in_order)} shapes"])
    mixed = len({conditions(row) for row in shapes}) > 1 or bool(table["gates_vary"].any())
    # Conditions get a line of their own: beside the shape they would take the width from the data.
    names = [text.shape(row) + (f"\n{conditions(row)}" if mixed else "") for row in shapes]
    place = {tuple(row[key] for key in keys): i for i, row in enumerate(shapes)}
    inside = table[[tuple(row[key] for key in keys) in place for row in table[keys].to_dict("records")]]
    found = series(inside, value, lambda row: place[tuple(row[key] for key in keys)], tip)
    return Panel(title, "", value_label, found, categories=tuple(names), reference=reference) if found else None


def side_by_side(panels: Sequence[Panel]) -> tuple[Panel, ...]:
    """The panels as they are; but one that stands alone and has many categories becomes two of half as many, on one
    scale: it would be a narrow column in a card that is empty beside it."""
    if len(panels) != 1 or len(panels[0].categories) <= MOST_IN_ONE:
        return tuple(panels)
    (panel,) = panels
    half = math.ceil(len(panel.categories) / 2)
    shared = replace(panel, value_range=_reach(panel))
    return (_categories(shared, 0, half, "1 of 2"), _categories(shared, half, 2 * half, "2 of 2"))


def _categories(panel: Panel, start: int, end: int, which: str) -> Panel:
    """The panel with its categories from ``start`` to before ``end``. Series without a point there stay, so that each
    has the same place in both halves."""
    kept = tuple(
        replace(one, points=tuple(replace(p, at=p.at - start) for p in one.points if start <= p.at < end))
        for one in panel.series
    )
    title = f"{panel.title}, {which}" if panel.title else which
    return replace(panel, title=title, categories=panel.categories[start:end], series=kept)


def _reach(panel: Panel) -> tuple[float, float]:
    """From the least to the most of what the panel shows: values, intervals, and the line across."""
    ends = [end for one in panel.series for p in one.points for end in (p.value, p.low, p.high) if end > 0]  # not NaN
    ends += [panel.reference[0]] if panel.reference else []
    return min(ends), max(ends)


def most_telling(figures: Sequence[Figure]) -> tuple[Figure, ...]:
    """The MOST_FIGURES figures with the most points, in their own order."""

    def points(figure: Figure) -> int:
        return sum(len(s.points) for panel in figure.panels for s in panel.series)

    kept = sorted(figures, key=points, reverse=True)[:MOST_FIGURES]
    return tuple(figure for figure in figures if figure in kept)


def off_scale(
    rows: pd.DataFrame, value: str, least: bool = False, lines: bool = False
) -> tuple[pd.DataFrame, str]:  # fmt: skip
    """Rows without those that would squeeze all others into a corner: those whose value is more than OFF_SCALE times
    the least of their question, or, of values of which ``least`` is the worst, less than that share of the most. Of
    ``lines``, those all of whose points are so far off: what falls behind along a line is what it is drawn for. The
    sentence tells what is left out, if anything."""
    groups = rows.groupby(QUESTION, dropna=False)[value]
    off = groups.transform("max") / rows[value] if least else rows[value] / groups.transform("min")
    if lines:
        off = off.groupby([rows["variant"], rows["mode"]]).transform("min")
    gone = rows[off > OFF_SCALE]
    unit = " ms" if value.endswith("ms") else "×"
    said = []
    for key in variants(gone):
        ends = []
        for mode, part in modes(gone[gone["variant"] == key]):
            span = " to ".join(dict.fromkeys(text.number(part[value].agg(end)) for end in ("min", "max")))
            ends.append(f"{text.mode(mode)} {span}{unit}")
        said.append(f"{labels.title(key)}, {'; '.join(ends)}")
    return rows[~rows.index.isin(gone.index)], f" Off the scale: {'. '.join(said)}." if said else ""


def slug(*parts: object) -> str:
    """Parts as a file name: lower case, dashes."""
    raw = "-".join(str(part) for part in parts).lower()
    return "".join(c if c.isalnum() else "-" for c in raw).strip("-").replace("--", "-")
