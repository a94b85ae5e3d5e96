"""Figures of the papers page: each figure and table of the papers that is about speed or memory, then ours.

What a paper prints is drawn beside what was measured, in a style of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from glabench.analysis import labels, printed
from glabench.analysis.claims import BIG_LAYER, LAYER, LAYER_FORWARD, OUT_OF_MEMORY, TABLE, UNGATED, both_sides
from glabench.analysis.compare import variants
from glabench.analysis.evidence import OURS, Evidence, Line, Place, Quantity, ratio, speed_up
from glabench.report import papers_ours, text
from glabench.report.model import Figure, Panel, Point, Section, Series
from glabench.report.parts import MS, memory_tip, slug, time_tip

Tip = Callable[[Mapping[str, Any]], str]

T_LABEL = "sequence length T, tokens"
CHUNK_LABEL = "chunk size, tokens"
PEAK = "peak memory, MiB"
DECAYING = ("scalar", "ssm")  # families that have no form without a decay
SWEEP = "`glabench sweep papers` on a GPU measures it."


def sections(name: str, evidence: Evidence) -> list[Section]:
    """Every section of figures of the device ``name``; without data, a section of words."""
    V1, V2 = (f"{paper.short}, " for paper in (printed.V2023, printed.V2024))

    def made(figure: Figure | None) -> tuple[Figure, ...]:
        return (figure,) if figure else ()

    return [
        Section("lengths", "2023 Fig. 2 left", f"{V1}Figure 2, left: GLA against FlashAttention-2",
                made(lengths(name, evidence)), f"No layer of width 1024 was timed over several lengths. {SWEEP}"),
        Section("chunks", "2023 Fig. 2 right", f"{V1}Figure 2, right: inside chunks and between them",
                made(chunks(name, evidence)),
                "The forward pass was not taken apart by chunk size. `glabench profile profile` does, on a GPU: give "
                "its file to `glabench report` beside the sweep's."),
        Section("recurrent", "2023 Table 3", f"{V1}Table 3: GLA against the recurrent form with states in HBM",
                made(recurrent(name, evidence)),
                f"No shape has GLA and the recurrent form with states in HBM. {SWEEP}"),
        Section("ungated", "2024 Fig. 2", f"{V2}Figure 2: linear attention without gates",
                made(ungated(name, evidence)), f"No length has linear attention without gates. {SWEEP}"),
        Section("layer", "2024 Fig. 6", f"{V2}Figure 6, of one layer: throughput and memory at 16,384 tokens a batch",
                made(layer(name, evidence)), f"No length has one layer of the 1.3B model. {SWEEP}"),
        *papers_ours.sections(name, evidence),
    ]  # fmt: skip


def lengths(name: str, evidence: Evidence) -> Figure | None:
    """Time over T, and the speed-up over FlashAttention-2, with the printed ones."""
    keys = [key for key in _keys(evidence) if key in ("gla", "gla:w", "gla:wo", "fa2", "cudnn", "helion")]
    ours = over(evidence, keys, LAYER, "ms", "ms", time_tip)
    twin = papers_ours.twin({one.key: {point.at: point.value for point in one.points} for one in ours})
    if twin:
        keys = [key for key in keys if key != "gla"]
        ours = tuple(one for one in ours if one.key != "gla")
    if len({point.at for one in ours for point in one.points}) < 2:
        return None
    faster = {T: printed.FA2_MS[T] / printed.GLA_MS[T] for T in printed.LENGTHS}
    panels = [
        Panel(text.mode("fwdbwd"), T_LABEL, MS, (
            *ours,
            as_printed("gla", "GLA", printed.V2023, printed.GLA_MS, "ms"),
            as_printed("fa2", "FlashAttention-2", printed.V2023, printed.FA2_MS, "ms"),
        )),
        Panel("Speed-up over FlashAttention-2, kernels", T_LABEL, "speed-up, ×", (
            *_speed_ups(evidence, [key for key in keys if key != "fa2"], "fa2", LAYER),
            as_printed("gla", "GLA", printed.V2023, faster, "×"),
        ), reference=(1.0, "as fast")),
    ]  # fmt: skip
    caption = (
        "Batch 32, width 1024, bf16: GLA in 4 heads of 128×256, attention in 16 heads of 64. The printed milliseconds "
        f"are of another GPU ({printed.V2023.gpu}); the ratio is what compares."
    )
    caption += papers_ours.not_drawn(twin) + _not_tuned(evidence, keys, LAYER.values())
    return Figure(slug("papers-lengths", name), "Time over sequence length", caption, tuple(panels))


def _keys(evidence: Evidence) -> list[str]:
    """The variants of a table in the order of a legend: attention once, as places and captions tell its heads."""
    return list(dict.fromkeys(labels.of_system(key) for key in variants(evidence.table)))


def chunks(name: str, evidence: Evidence) -> Figure | None:
    """Time between chunks and inside them, with the printed ones, and their ratio."""
    if len(evidence.split) < 2:
        return None
    titles = {"inter": "between chunks", "intra": "inside chunks"}
    parts = {key: {c: getattr(both, key).median for c, both in evidence.split.items()} for key in titles}
    shown = {"inter": printed.INTER_MS, "intra": printed.INTRA_MS}
    measured = [
        Series(key, titles[key], tuple(Point(c, ms, tip=f"{titles[key]}\nchunk {c}, forward\n{text.number(ms)} ms")
                                       for c, ms in parts[key].items()))
        for key in titles
    ]  # fmt: skip
    whole = evidence.by_chunk("gla:w", LAYER_FORWARD)
    if whole and not evidence.split_commits:  # of other kernels the parts may well be more than the whole
        points = tuple(_point(row, c, "ms", time_tip) for c, row in whole.items())
        measured.append(Series("whole", f"all of {labels.title('gla:w')}", points))
    papers = [as_printed(key, titles[key], printed.V2023, shown[key], "ms") for key in titles]
    own = {c: both.intra.median / both.inter.median for c, both in evidence.split.items()}
    words = "inside over between"
    theirs = {c: printed.INTRA_MS[c] / printed.INTER_MS[c] for c in printed.CHUNKS}
    ratios = (
        Series("gla", words, tuple(
            Point(c, value, tip=f"{words}\nchunk {c}, forward\n{text.times(value)}") for c, value in own.items()
        )),
        as_printed("ratio", words, printed.V2023, theirs, "×"),
    )  # fmt: skip
    panels = (
        Panel("Forward", CHUNK_LABEL, MS, (*measured, *papers)),
        Panel("Inside chunks over between them", CHUNK_LABEL, "ratio of times, ×", ratios, reference=(1.0, "equal")),
    )
    caption = (
        "Batch 32, 2048 tokens, 4 heads of 128×256, states materialized. Between chunks: the pass that makes the "
        "states, and what the output takes longer for using them. The printed curve that falls is taken for the work "
        "between chunks, by the paper's text: the legend of its figure has the two the other way round. Printed times "
        f"are of another GPU ({printed.V2023.gpu})."
    )
    if evidence.split_commits:
        commits = ", ".join(evidence.split_commits)
        caption += f" The parts are of a profile of other kernels (commit {commits}) than the rows of this page."
    loose = [str(c) for c, both in evidence.split.items() if not both.tuned]
    caption += f" Not tuned: chunks of {text.listing(loose)}." if loose else ""
    return Figure(slug("papers-chunks", name), "Inside chunks and between them, by chunk size", caption, panels)


def recurrent(name: str, evidence: Evidence) -> Figure | None:
    """Speed-up and share of memory over the recurrent form with states in HBM, with the printed ones."""
    places = (*TABLE, OUT_OF_MEMORY)
    names = tuple(place.at for place in places)
    speed = tuple(line.speed_up for line in printed.TABLE_3)
    memory = tuple(line.memory for line in printed.TABLE_3)
    kinds: tuple[tuple[str, str, Quantity, tuple[float, ...]], ...] = (
        ("Speed-up, kernels", "speed-up over the recurrent form, ×", "ms", speed),
        ("Memory", "share of the recurrent form's peak memory, ×", "peak_mib", memory),
    )
    panels = []
    for title, label, quantity, theirs in kinds:
        points = [_over(evidence, OURS, "recurrent_hbm", own, i, quantity, place)
                  for i, (own, place) in enumerate(zip(both_sides(places), places, strict=True))]  # fmt: skip
        ours = Series("gla", labels.system_title("gla"), tuple(point for point in points if point))
        paper = as_printed("gla", "GLA", printed.V2023, dict(enumerate(theirs)), "×", names)
        if ours.points:
            panels.append(Panel(title, "", label, (ours, paper), names, reference=(1.0, "equal")))
    if not panels:
        return None
    caption = (
        "Forward and backward, batch 32, width 1024, GLA with gates on both sides as in the table. The paper compares "
        "with a CUDA implementation, here it is one in Triton, with gates on the key side alone. It prints no number "
        f"for {OUT_OF_MEMORY.at}, where that one ran out of memory."
    )
    caption += _not_tuned(evidence, (OURS,), both_sides(places)) + _not_tuned(evidence, ("recurrent_hbm",), places)
    title = "GLA over the recurrent form with states in HBM"
    return Figure(slug("papers-recurrent", name), title, caption, tuple(panels))


def ungated(name: str, evidence: Evidence) -> Figure | None:
    keys = [key for key in _keys(evidence) if key != "gla"]
    caption = (
        "Batch 32, 16 heads of 64, chunks of 64, no gates, forward and backward. The paper draws these curves, of one "
        "H100, and prints no values."
    )
    found = _time_and_memory(slug("papers-ungated", name), "Time and memory over sequence length", evidence, keys,
                             UNGATED, "ms", MS, caption)  # fmt: skip
    decaying = [title for key, title in found.keys if labels.family(key) in DECAYING] if found else []
    if found and decaying:
        found = replace(found, caption=f"{caption} With a decay all the same: {text.sentence(text.listing(decaying))}")
    return replace(found, caption=found.caption + _not_tuned(evidence, keys, UNGATED.values())) if found else None


def layer(name: str, evidence: Evidence) -> Figure | None:
    keys = [key for key in _keys(evidence) if key != "gla"]
    caption = (
        "Forward and backward of one layer's operator at the width of the 1.3B model: GLA in 4 heads of 256×512, "
        "attention in 32 heads of 64, Mamba's scan over twice the width. Higher is better on the left. The paper draws "
        "whole models in training on one H100, and prints no values: its claims are judged by steps of training, and "
        "not by this."
    )
    caption += _not_tuned(evidence, keys, BIG_LAYER.values())
    return _time_and_memory(slug("papers-layer", name), "Throughput and memory over sequence length", evidence, keys,
                            BIG_LAYER, "tokens_per_s", "tokens per second, millions", caption, 1e6)  # fmt: skip


def _time_and_memory(
    name: str, title: str, evidence: Evidence, keys: Sequence[str], places: Mapping[int, Place], column: str,
    label: str, caption: str, unit: float = 1.0,
) -> Figure | None:  # fmt: skip
    speed = over(evidence, keys, places, "ms", column, time_tip, unit)
    memory = over(evidence, keys, places, "peak_mib", "peak_mib", memory_tip)
    kinds = ((text.mode("fwdbwd"), label, speed), ("Memory", PEAK, memory))
    # What was asked at one of these shapes belongs to another figure.
    curves = [(head, axis, tuple(one for one in found if len(one.points) > 1)) for head, axis, found in kinds]
    panels = tuple(Panel(head, T_LABEL, axis, found) for head, axis, found in curves if found)
    return Figure(name, title, caption, panels) if panels else None


def over(
    evidence: Evidence, keys: Iterable[str], places: Mapping[int, Place], quantity: Quantity, column: str, tip: Tip,
    unit: float = 1.0,
) -> tuple[Series, ...]:  # fmt: skip
    """A series a variant: ``column``, in units of ``unit``, of its row with the least of ``quantity`` at each place."""
    found = []
    for key in keys:
        rows = [(T, row) for T, place in places.items() if (row := evidence.row(key, place, quantity))]
        if rows:
            found.append(Series(key, labels.title(key), tuple(_point(row, T, column, tip, unit) for T, row in rows)))
    return tuple(found)


def _point(row: Line, at: float, column: str, tip: Tip, unit: float = 1.0) -> Point:
    low, high = (row["ms_lo"], row["ms_hi"]) if column == "ms" else (math.nan, math.nan)
    return Point(float(at), float(row[column]) / unit, low, high, tip(row))


def _not_tuned(evidence: Evidence, keys: Iterable[str], places: Iterable[Place]) -> str:
    """`papers_ours.not_tuned` of the rows that curves of these variants are drawn by."""
    rows = (evidence.row(key, place) for key, place in product(keys, places))
    return papers_ours.not_tuned(row for row in rows if row)


def _speed_ups(evidence: Evidence, keys: Iterable[str], base: str, places: Mapping[int, Place]) -> tuple[Series, ...]:
    found = []
    for key in keys:
        points = [_over(evidence, key, base, place, T, "ms") for T, place in places.items()]
        if any(points):
            found.append(Series(key, labels.title(key), tuple(point for point in points if point)))
    return tuple(found)


def _over(
    evidence: Evidence, key: str, base: str, place: Place, at: float, quantity: Quantity, base_at: Place | None = None
) -> Point | None:  # fmt: skip
    """The speed-up over a baseline, which stands beside it or at another place, or the share of its memory, with both
    numbers on hover; None without both."""
    own, rival = evidence.row(key, place, quantity), evidence.row(base, base_at or place, quantity)
    if own is None or rival is None:
        return None
    one = speed_up(own, rival, place.at) if quantity == "ms" else ratio(own, rival, quantity, place.at)
    unit = "ms" if quantity == "ms" else "MiB"
    both = f"{text.number(own[quantity])} {unit} against {text.number(rival[quantity])} {unit}"
    tip = f"{own['label']}\n{place.at}\n{text.times(one.value)} {labels.title(base)}: {both}"
    return Point(at, one.value, one.low, one.high, tip)


def as_printed(
    key: str, title: str, paper: printed.Paper, values: Mapping[int, float], unit: str, names: Sequence[str] = ()
) -> Series:
    """Numbers of a paper as a series, its GPU on hover; ``names`` are those of categories. Captions name it too."""
    said = f"{paper.short} paper: {title}"
    points = []
    for at, value in values.items():
        number = f"{value:g} ms" if unit == "ms" else text.times(value)
        where = names[at] if names else text.length(at)
        points.append(Point(float(at), value, tip="\n".join([said, where, number, paper.gpu])))
    return Series(f"printed:{key}", said, tuple(points))
