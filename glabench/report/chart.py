"""The one chart of the page: speed beside a baseline, or the times themselves, at every shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.columns import in_columns
from glabench.analysis.compare import QUESTION, Curve, answers, competes, crossover, curves, eager, speedups, variants
from glabench.analysis.matrix import FASTEST, MODES, Baseline, Matrix, matrices
from glabench.report import lengths, text
from glabench.report.model import Figure, Panel
from glabench.report.parts import by_mode, conditions, dots, length_of, modes, off_scale, side_by_side, slug
from glabench.report.shapes import K_LABEL, alone, every_shape, head, widths

MOST_BASELINES = 6  # the matrix offers them all; a chart takes room
MOST_PANELS = 4  # of curves, in which T varies; the matrix has the rest
TIMES, EAGER = "ms", "eager"  # the keys of the choices without a baseline, and of eager calls beside the first one


@dataclass(frozen=True)
class Choice:
    """The chart beside one baseline: its key in the matrix, what the selector calls it, and the figure."""

    key: str
    title: str
    figure: Figure


def choices(table: pd.DataFrame) -> list[tuple[str, list[Choice]]]:
    """(device, what its chart can show) from the table of ``frame``, the baseline that the matrix begins with first."""
    operators = table[table["mode"] != "train"]
    both = {"fwd", "fwdbwd"} <= set(operators["mode"])  # then the backward pass alone is told by the matrix
    drawn = operators[operators["mode"] != "bwd"] if both else operators
    return [(one.device, _choices(drawn[drawn["device"] == one.device], one)) for one in matrices(table)]


def _choices(table: pd.DataFrame, matrix: Matrix) -> list[Choice]:
    best, called = (by_column(answers(rows), matrix) for rows in (table, eager(_fullest(table))))
    offered = [one for one in matrix.baselines if one.key != FASTEST or one is matrix.baselines[0]][:MOST_BASELINES]
    found = [(one.key, one.title, beside(best, one)) for one in offered]
    # What a token costs, in µs by its context, is what decoding asks first.
    found.insert(0 if set(best["mode"]) == {"step"} else len(found), (TIMES, "none: the times", times(best)))
    found += [(EAGER, f"{one.title}, eager calls", beside(called, one)) for one in offered[:1]]
    return [Choice(key, title, _titled(figure, matrix)) for key, title, figure in found if figure]


def _fullest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the mode that does most."""
    return table[table["mode"] == min(table["mode"], key=MODES.index)] if len(table) else table


def by_column(best: pd.DataFrame, matrix: Matrix) -> pd.DataFrame:
    """The rows of ``best`` with the columns of the matrix for variants: attention is one, whatever its heads; gates
    that go across are no part of the question."""
    named = in_columns(best, matrix.gates_across)
    merged = named.assign(variant=named["column"]).sort_values("ms", kind="stable")
    return merged.drop_duplicates([*QUESTION, "variant"])


def _titled(figure: Figure, matrix: Matrix) -> Figure:
    """The figure with the matrix's titles of its columns."""
    titles = dict(matrix.columns)
    panels = [replace(panel, series=tuple(replace(one, title=titles.get(one.key, one.title)) for one in panel.series))
              for panel in figure.panels]  # fmt: skip
    return replace(figure, panels=tuple(panels))


def beside(best: pd.DataFrame, baseline: Baseline) -> Figure | None:
    """How many times as fast as the baseline everything is, from ``compare.answers``: over T where that varies, and at
    the other shapes. None where nothing stands beside it."""
    pairs = over(best, baseline)
    if pairs.empty:
        return None
    timed = text.timed(pairs["clock"].iloc[0])
    said = [f"Above the line, and right of it, {timed} are faster than those of {baseline.title} at the same question."]
    panels: list[Panel] = []
    found = _curves(pairs)
    tip, line = partial(lengths.speedup_tip, over=baseline.title), (1.0, f"as fast as {baseline.title}")
    for curve in found:
        shown, left_out = off_scale(curve.table, "speedup", least=True, lines=True)
        label = lengths.CONTEXT_LABEL if set(shown["mode"]) == {"step"} else lengths.T_LABEL
        drawn = by_mode(shown, "speedup", length_of, tip, label, f"× {baseline.title}", reference=line)
        panels += _named(drawn, curve, found)
        said += [_overtakes(curve.table), left_out.strip()]
    others = alone(pairs)
    for wide in widths(others):
        drawn = by_mode(wide, "speedup", head, tip, K_LABEL, f"× {baseline.title}", reference=line)
        named = f", B{wide['B'].iloc[0]} T{text.length(wide['T'].iloc[0])} by head dimension" if panels else ""
        panels += [replace(panel, title=f"{panel.title}{named}") for panel in drawn]
        said.append(_overtakes(wide, "K"))
        others = others[~others.index.isin(wide.index)]
    others, left_out = off_scale(others, "speedup", least=True)
    rest = modes(others)
    dotted = [dots(part, "speedup", tip, f"× {baseline.title}", text.mode(mode), line) for mode, part in rest]
    panels += _others(side_by_side([panel for panel in dotted if panel]), bool(panels))
    name = slug("speedup", *(["eager"] if timed == "eager calls" else []), baseline.key, best["device"].iloc[0])
    caption = " ".join(filter(None, dict.fromkeys(said))) + left_out
    return Figure(name, f"Speed beside {baseline.title}, {timed}", caption, tuple(panels)) if panels else None


def _curves(best: pd.DataFrame) -> list[Curve]:
    """As many as there is room for, with a panel a mode."""
    return curves(best)[: max(2, MOST_PANELS // max(1, best["mode"].nunique()))]


def times(best: pd.DataFrame) -> Figure | None:
    """The times themselves, at the same places."""
    found, rest = _curves(best), every_shape(best)
    drawn = [lengths.speed_of(curve) for curve in found]
    if not (drawn or rest):
        return None
    curved = zip(found, drawn, strict=True)
    panels = [panel for curve, figure in curved for panel in _named(figure.panels, curve, found)]
    panels += _others([panel for figure in rest for panel in figure.panels], bool(found))
    caption = " ".join(figure.caption for figure in [*drawn, *rest][:1])
    return Figure(slug("times", best["device"].iloc[0]), "Times", caption, tuple(panels))


def _named(panels: Sequence[Panel], curve: Curve, found: Sequence[Curve]) -> list[Panel]:
    """Panels that say what their curve holds, as briefly as tells several apart."""
    row = curve.table.iloc[0]
    alike = len({(one.held, one.value) for one in found}) == 1
    batch = [] if alike else [f"B{curve.value}" if curve.held == "B" else f"{curve.value:,} tokens"]
    where = ", ".join([" ".join([*batch, *text.shape(row).split()[2:]]), *conditions(row).split(", ")[1:]])
    return [replace(panel, title=f"{panel.title}, {where}") for panel in panels] if len(found) > 1 else list(panels)


def _others(panels: Sequence[Panel], curved: bool) -> list[Panel]:
    """Panels of the shapes that are on no curve, which say so where there are curves."""
    return [replace(panel, title=f"{panel.title}, other shapes") for panel in panels] if curved else list(panels)


def over(best: pd.DataFrame, baseline: Baseline) -> pd.DataFrame:
    """``compare.speedups`` over what stands for a baseline at each question, of all others that do what was asked."""
    asked = best[competes(best)]
    ranks = {key: i for i, key in enumerate(baseline.columns)}
    rank = asked["variant"].map(ranks) if ranks else pd.Series(0, asked.index)
    base = asked.assign(rank=rank)[rank.notna()].sort_values(["rank", "ms"], kind="stable").drop_duplicates(QUESTION)
    own = f"baseline {baseline.key}"
    pairs = speedups(pd.concat([asked, base.assign(variant=own)[asked.columns]]), own)
    itself = base[[*QUESTION, "variant"]].assign(itself=True)
    pairs = pairs.merge(itself, on=[*QUESTION, "variant"], how="left")
    return pairs[pairs["itself"].isna() | (baseline.key == FASTEST)]


def _overtakes(pairs: pd.DataFrame, along: str = "T") -> str:
    """One clause a variant that crosses the line and stays there: where, by straight lines in log-log."""
    said = []
    for key in variants(pairs[pairs["family"] == "gla"]):
        clauses = []
        for mode, group in modes(pairs[pairs["variant"] == key]):
            found = crossover(group, along)
            if found.crossing:
                does = "overtakes" if found.wins_from else "falls behind"
                clauses.append(f"{does} at {along} ≈ {text.number(found.crossing, 2)} ({text.mode(mode)})")
        said += [f"{labels.title(key)} {' and '.join(clauses)}"] if clauses else []
    return text.sentence("; ".join(said)) if said else ""
