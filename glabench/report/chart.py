"""The one chart of the page: speed beside a baseline, or the times themselves, at every shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import QUESTION, Curve, answers, competes, crossover, curves, eager, speedups, variants
from glabench.analysis.matrix import FASTEST, Baseline, matrices
from glabench.report import lengths, text
from glabench.report.model import Figure, Panel
from glabench.report.parts import by_mode, dots, length_of, modes, off_scale, side_by_side, slug
from glabench.report.shapes import alone, every_shape

MOST_CURVES = 2  # settings in which T varies; the matrix has the rest
TIMES = "ms"  # the key of the choice without a baseline


@dataclass(frozen=True)
class Choice:
    """The chart beside one baseline: its key in the matrix, what the selector calls it, and the figure."""

    key: str
    title: str
    figure: Figure


def choices(table: pd.DataFrame) -> list[tuple[str, list[Choice]]]:
    """(device, what its chart can show) from the table of ``frame``, the baseline that the matrix begins with first."""
    operators = table[table["mode"] != "train"]
    return [(one.device, _choices(operators[operators["device"] == one.device], one.baselines))
            for one in matrices(operators)]  # fmt: skip


def _choices(table: pd.DataFrame, baselines: Sequence[Baseline]) -> list[Choice]:
    best, called = answers(table), answers(eager(table))
    found = [Choice(one.key, one.title, figure) for one in baselines if (figure := beside(best, one))]
    if figure := times(best):
        found.append(Choice(TIMES, "none: the times", figure))
    for one in baselines:
        if figure := beside(called, one):
            found.append(Choice(f"{one.key}, eager", f"{one.title}, eager calls", figure))
    return found


def beside(best: pd.DataFrame, baseline: Baseline) -> Figure | None:
    """How many times as fast as the baseline everything is, from ``compare.answers``: over T where that varies, and at
    the other shapes. None where nothing stands beside it."""
    pairs = over(best, baseline)
    if pairs.empty:
        return None
    pairs, left_out = off_scale(pairs, "speedup", least=True)
    timed = text.timed(pairs["clock"].iloc[0])
    said = [f"Above the line, and right of it, {timed} are faster than those of {baseline.title} at the same question."]
    panels: list[Panel] = []
    found = curves(pairs)[:MOST_CURVES]
    tip, line = partial(_tip, over=baseline.title), (1.0, f"as fast as {baseline.title}")
    for curve in found:
        drawn = by_mode(curve.table, "speedup", length_of, tip, lengths.T_LABEL, f"× {baseline.title}", reference=line)
        panels += _named(drawn, curve, found)
        said.append(_overtakes(curve.table))
    rest = [dots(part, "speedup", tip, f"× {baseline.title}", text.mode(mode), line) for mode, part in modes(alone(pairs))]
    panels += side_by_side([panel for panel in rest if panel])
    name = slug("speedup", *(["eager"] if timed == "eager calls" else []), baseline.key, best["device"].iloc[0])
    caption = " ".join(filter(None, said)) + left_out
    return Figure(name, f"Speed beside {baseline.title}, {timed}", caption, tuple(panels))


def times(best: pd.DataFrame) -> Figure | None:
    """The times themselves, at the same places."""
    found = lengths.speed(best)[:MOST_CURVES]
    rest = every_shape(best)
    if not (found or rest):
        return None
    panels = [panel for figure in found for panel in (_of(figure) if len(found) > 1 else figure.panels)]
    panels += [panel for figure in rest for panel in figure.panels]
    caption = " ".join(figure.caption for figure in (found or rest)[:1])
    return Figure(slug("times", best["device"].iloc[0]), "Times", caption, tuple(panels))


def _of(figure: Figure) -> list[Panel]:
    where = figure.title.partition(": ")[2]
    return [replace(panel, title=f"{panel.title}: {where}") for panel in figure.panels]


def _named(panels: Sequence[Panel], curve: Curve, found: Sequence[Curve]) -> list[Panel]:
    """Panels that say what their curve holds, where there are several."""
    return [replace(p, title=f"{p.title}: {lengths.held(curve)}") for p in panels] if len(found) > 1 else list(panels)


def over(best: pd.DataFrame, baseline: Baseline) -> pd.DataFrame:
    """``compare.speedups`` over what stands for a baseline at each question, of all that do what was asked but itself."""
    asked = best[competes(best)]
    column = asked["variant"].map(labels.of_system)
    rank = column.map({key: i for i, key in enumerate(baseline.columns)}) if baseline.columns else column.map(lambda _: 0)
    base = asked.assign(rank=rank)[rank.notna()].sort_values(["rank", "ms"], kind="stable").drop_duplicates(QUESTION)
    own = f"baseline {baseline.key}"
    pairs = speedups(pd.concat([asked, base.assign(variant=own)[asked.columns]]), own)
    itself = base[[*QUESTION, "variant"]].assign(itself=True)
    pairs = pairs.merge(itself, on=[*QUESTION, "variant"], how="left")
    return pairs[pairs["itself"].isna() | (baseline.key == FASTEST)]


def _tip(row: Mapping[str, Any], over: str) -> str:
    return lengths.speedup_tip(row, over)


def _overtakes(pairs: pd.DataFrame) -> str:
    """One clause a curve that crosses the line for good: where, by straight lines in log-log."""
    said = []
    for key in variants(pairs[pairs["family"] == "gla"]):
        for mode, group in modes(pairs[pairs["variant"] == key]):
            found = crossover(group)
            if found.crossing and found.wins_from:
                said.append(
                    f"{labels.title(key)} overtakes at T ≈ {text.number(found.crossing, 2)} ({text.mode(mode)})"
                )
    return text.sentence("; ".join(said[:4])) if said else ""
