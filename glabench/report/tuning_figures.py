"""Figures of tunings: what the cost model expected, where the time of the winners goes, how fast searches come near."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from glabench.analysis.load import device_name
from glabench.analysis.tuning import (
    PASSES,
    Sums,
    Variant,
    asked,
    median_ms,
    progress,
    trial_ms,
    winner,
    work_key,
)
from glabench.report import parts, text
from glabench.report.model import Figure, Panel, Point, Section, Series
from glabench.tuning_store import Trial, Tuning

MOST_POINTS = 1500  # of the scatter, so that the page stays below a megabyte
MOST_SPLIT = 12  # workloads whose time is split into passes, in each direction
DIRECTIONS = ("fwd", "bwd")


def sections(tunings: Sequence[Tuning]) -> list[Section]:
    """Every section of figures; devices are never mixed in one, and named in titles where there are several."""
    names = devices(tunings)
    found = {name: [t for t in tunings if device_name(t.environment) == name] for name in names}
    prefix = {name: f"{name}: " if len(names) > 1 else "" for name in names}

    def each(draw: Callable[[Sequence[Tuning], str], Figure | None]) -> tuple[Figure, ...]:
        drawn = (draw(group, prefix[name]) for name, group in found.items())
        return tuple(figure for figure in drawn if figure is not None)

    return [
        Section("passes", "Passes", "Where the time goes", each(passes),
                "No winner consists of passes that were measured on their own."),
        Section("search", "Search", "How fast the search comes near", each(falls),
                "No search has measured a whole plan."),
        Section("model", "Model", "What the cost model expected", each(predictions),
                "No candidate has both a prediction and a time."),
    ]  # fmt: skip


def devices(tunings: Iterable[Tuning]) -> list[str]:
    """The names of the GPUs, in the order they first appear."""
    return list(dict.fromkeys(device_name(tuning.environment) for tuning in tunings))


def latest(tunings: Iterable[Tuning]) -> list[Tuning]:
    """The last tuning of each workload that has a winner."""
    in_time = sorted(tunings, key=lambda t: t.started)
    return list({work_key(t): t for t in in_time if winner(t) is not None}.values())


def passes(tunings: Sequence[Tuning], prefix: str) -> Figure | None:
    """ms of each pass of each workload's winner, a panel a direction."""
    panels, shown, total = [], 0, 0
    for direction in DIRECTIONS:
        ours = [t for t in latest(tunings) if t.workload["direction"] == direction]
        most = _by_shape(ours, lambda group: -max(median_ms(_plan(t)) for t in group), MOST_SPLIT)
        points: dict[str, list[Point]] = {step: [] for step in (*PASSES, "plan")}
        for place, tuning in _of(most, direction):
            for step, ms, tip in _parts_of(tuning):
                points[step].append(Point(place, ms, tip=tip))
        drawn = tuple(Series(s, "whole plan" if s == "plan" else s, tuple(p)) for s, p in points.items() if p)
        if drawn:
            panels.append(Panel(text.mode(direction), "", "median time, ms", drawn, categories=tuple(most)))
        shown, total = shown + len(most), total + len(_by_shape(ours, lambda group: 0, most=10**6))
    if not panels:
        return None
    left = f" Of each direction the {MOST_SPLIT} slowest, {shown} of {total} in all." if shown < total else ""
    caption = (
        "Each pass of the winner timed alone, and the whole plan timed against its rivals. Passes whose time alone is "
        f"not known are left out.{left}"
    )
    return Figure(parts.slug("tuning", prefix, "passes"), f"{prefix}Time by pass", caption, tuple(panels))


def falls(tunings: Sequence[Tuning], prefix: str) -> Figure | None:
    """How the best plan falls with the number of candidates measured, a panel a direction."""
    panels = []
    for direction in DIRECTIONS:
        series: dict[tuple[str, str], list[Point]] = {}
        for one in progress([t for t in tunings if t.workload["direction"] == direction]):
            kinds = (("", "typical", one.typical), (":worst", "worst", one.worst))
            for suffix, name, ratio in kinds:
                if ratio < math.inf:
                    tip = f"{one.strategy}, {name}\n{text.count(one.count, 'candidate')}: {ratio:.3f}× the search's end"
                    tip += f"\n{text.workload(one.worst_of.workload)}" if suffix else ""
                    found = series.setdefault((one.strategy + suffix, f"{one.strategy}, {name}"), [])
                    found.append(Point(one.count, ratio, tip=tip))
        drawn = tuple(Series(key, name, tuple(points)) for (key, name), points in series.items())
        if drawn:
            label = "best plan so far / at the end"
            panels.append(Panel(text.mode(direction), "candidates measured", label, drawn, reference=(1.03, "3 %")))
    if not panels:
        return None
    caption = (
        "The best plan by the sum of its passes after so many candidates, over the best at the end of the same search: "
        "the median search and the worst. Curves begin where that many searches have a whole plan; the line is 3 %."
    )
    return Figure(parts.slug("tuning", prefix, "search"), f"{prefix}Best plan so far", caption, tuple(panels))


def predictions(tunings: Sequence[Tuning], prefix: str) -> Figure | None:
    """Measured against predicted, a panel a direction, thinned to MOST_POINTS."""
    pairs = [(tuning, trial) for tuning in tunings for trial in tuning.trials if trial_ms(trial) < math.inf]
    pairs = [(tuning, trial) for tuning, trial in pairs if trial.predicted_ms > 0]
    kept = pairs[:: math.ceil(len(pairs) / MOST_POINTS) or 1]
    panels = []
    for direction in DIRECTIONS:
        points: dict[str, list[Point]] = {step: [] for step in PASSES}
        for tuning, trial in kept:
            if tuning.workload["direction"] == direction:
                step = trial.candidate["step"]
                points[step].append(Point(trial.predicted_ms, trial_ms(trial), tip=_trial_tip(tuning, trial)))
        drawn = tuple(Series(step, step, tuple(found)) for step, found in points.items() if found)
        if drawn:
            panels.append(Panel(text.mode(direction), "predicted, ms", "measured, ms", drawn, scatter=True))
    if not panels:
        return None
    thinned = f" {len(kept):,} of {len(pairs):,} candidates are drawn, evenly picked." if len(kept) < len(pairs) else ""
    caption = f"Each candidate that was timed. On the line the model is right; order is what the search needs.{thinned}"
    return Figure(parts.slug("tuning", prefix, "model"), f"{prefix}Predicted and measured", caption, tuple(panels))


def _by_shape(
    tunings: Iterable[Tuning], order: Callable[[Sequence[Tuning]], float], most: int
) -> dict[str, list[Tuning]]:
    """Tunings by the name of what they tune, without the direction; the first ``most`` by ``order``."""
    groups: dict[str, list[Tuning]] = {}
    for tuning in tunings:
        groups.setdefault(_name(tuning.workload), []).append(tuning)
    return dict(sorted(groups.items(), key=lambda item: order(item[1]))[:most])


def _of(groups: Mapping[str, Sequence[Tuning]], direction: str) -> list[tuple[int, Tuning]]:
    """(place of the category, tuning) of one direction."""
    return [(i, t) for i, group in enumerate(groups.values()) for t in group if t.workload["direction"] == direction]


def _name(work: Mapping[str, Any]) -> str:
    """A workload as a category: the usual dtype, gates and an open schedule are left out."""
    usual = {"bf16": ""}.get(work["dtype"], work["dtype"])
    words = [text.shape(work), usual, text.gates(work).removeprefix(", "), asked(work)]
    return " ".join(word for word in words if word)


def _plan(tuning: Tuning) -> Sequence[float]:
    found = winner(tuning)
    return found.samples_ms if found else ()


def _parts_of(tuning: Tuning) -> list[tuple[str, float, str]]:
    """(pass, ms, hover text) of the winner, and of the whole as the pass "plan"."""
    best = winner(tuning)
    assert best is not None
    title, whole = text.workload(tuning.workload), median_ms(best.samples_ms)
    found = [("plan", whole, f"whole plan\n{title}\n{text.number(whole)} ms\n{Variant.of(best.plan)}")]
    for step, ms in Sums.of(tuning).passes(best.plan).items():
        tile = text.tile(best.plan["tiles"][step])
        found.append((step, ms, f"{step}\n{title}\n{text.number(ms)} ms, {ms / whole:.0%}\n{tile}"))
    return [one for one in found if one[1] > 0]  # not NaN


def _trial_tip(tuning: Tuning, trial: Trial) -> str:
    times = f"{text.number(trial_ms(trial))} ms, expected {text.number(trial.predicted_ms)}"
    head = f"{trial.candidate['step']} {text.tile(trial.candidate['tile'])}"
    return f"{head}\n{text.shape(tuning.workload)}, {Variant.of(trial.candidate)}\n{times}"
