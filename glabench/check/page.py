"""The page of `glabench check`: every verdict, and the times of each case before and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape

from glabench.check import wording
from glabench.check.verdict import ORDER, REGRESSIONS, CaseVerdict, Check
from glabench.report import page, text
from glabench.report.tables import Cell, Table, number_cell
from glabench.store import Row

MOST_DRAWN = 60  # cases whose distributions are drawn, worst first
LEFT, SIZE = 60.0, 14.0  # the room for names, and the size of text: what a phone still shows legibly
WIDTH, HEIGHT, BASE = 460.0, 44.0, 40.0  # of one side's strip, in SVG units; BASE is where its bars stand
BINS = 60
SHOWN = (1, 98)  # percentiles between which times are drawn: a single outlier must not flatten the rest


def render(check: Check) -> str:
    """The whole page as text. What comes out of rows is escaped by the template."""
    cases = sorted(check.cases, key=lambda case: ORDER.index(case.verdict))
    timed = [case for case in cases if case.time is not None and _drawable(case)]
    drawn = timed[:MOST_DRAWN]
    return page.fill(
        "check.html.j2",
        title=check.device,
        summary=wording.summary(check),
        passed=check.exit_code == 0,
        judged_by=wording.judged_by(check),
        advice=wording.advice(check),
        verdicts=_table(cases),
        drawn=[(wording.name(case), wording.verdict(case), wording.details(case), _strips(case)) for case in drawn],
        undrawn=len(timed) - len(drawn),
        total=len(cases),
    )


def _drawable(case: CaseVerdict) -> bool:
    """Whether both sides have times: what failed when it was measured again has none, although it had some before."""
    return all(any(run.time for run in side) for side in (case.pair.before, case.pair.after))


def _table(cases: Sequence[CaseVerdict]) -> Table:
    columns = ("verdict", "case", "before, ms", "now, ms", "change, %", "floor, %", "what changed")
    return Table(columns, (False, False, True, True, True, True, False), tuple(_line(case) for case in cases))


def _line(case: CaseVerdict) -> tuple[Cell, ...]:
    time, nothing = case.time, float("nan")
    change, floor = ((time.ratio - 1) * 100, (time.floor - 1) * 100) if time else (nothing, nothing)
    others = [found.words for found in case.measures if found.verdict != "same"]
    words = [word for word in (case.reason, case.remeasured, *others) if word]
    return (
        Cell(wording.verdict(case), flag="bad" if case.verdict in REGRESSIONS else ""),
        Cell(wording.name(case)),
        number_cell(time.before_ms if time else nothing),
        number_cell(time.after_ms if time else nothing),
        Cell(f"{change:+.1f}", change) if time else Cell("–"),
        number_cell(floor, 2),
        Cell("; ".join(words)),
    )


def _strips(case: CaseVerdict) -> Markup:
    """Histograms of all samples before and now over one axis in ms, each with a line at its median."""
    sides = [("before", _samples(case.pair.before), "grey"), ("now", _samples(case.pair.after), "blue")]
    # Of each side by itself: a run of few samples shall not fall out of the picture beside one of many.
    ends_of_sides = [np.percentile(samples, SHOWN) for _, samples, _ in sides]
    low, high = min(low for low, _ in ends_of_sides), max(high for _, high in ends_of_sides)
    high = high if high > low else low * 1.01
    parts = [_strip(name, samples, colour, (low, high), HEIGHT * i) for i, (name, samples, colour) in enumerate(sides)]
    y = 2 * HEIGHT + SIZE
    ends = (
        f'<text x="{LEFT}" y="{y}" font-size="{SIZE}">{text.number(low, 4)} ms</text>'
        f'<text x="{LEFT + WIDTH}" y="{y}" font-size="{SIZE}" text-anchor="end">{text.number(high, 4)} ms</text>'
    )
    label = escape(f"Times before and now: {wording.name(case)}")
    # Numbers and our own words only, but for the label: nothing else of a row's text is in here.
    return Markup(
        f'<svg viewBox="0 0 {LEFT + WIDTH + 10} {2 * HEIGHT + 20}" role="img" aria-label="{label}" fill="var(--text)">'
        f"{''.join(parts)}{ends}</svg>"
    )


def _strip(name: str, samples: np.ndarray, colour: str, ends: tuple[float, float], top: float) -> str:
    low, high = ends
    counts, _ = np.histogram(samples, BINS, ends)
    tallest = max(1, int(counts.max()))
    step = WIDTH / BINS
    room = BASE - 6
    bars = "".join(
        f'<path d="M{LEFT + i * step:.1f} {top + BASE:.1f}h{step:.1f}v-{room * count / tallest:.1f}h-{step:.1f}z"/>'
        for i, count in enumerate(counts)
        if count
    )
    middle = LEFT + WIDTH * (min(max(float(np.median(samples)), low), high) - low) / (high - low)
    return (
        f'<text x="0" y="{top + BASE:.1f}" font-size="{SIZE}">{name}</text><g fill="var(--c-{colour})">{bars}</g>'
        f'<path d="M{middle:.1f} {top + 2:.1f}V{top + BASE:.1f}" stroke="var(--text)" stroke-width="1.3"/>'
    )


def _samples(runs: Sequence[Row]) -> np.ndarray:
    return np.concatenate([np.asarray(run.time["samples_ms"], dtype=float) for run in runs if run.time])
