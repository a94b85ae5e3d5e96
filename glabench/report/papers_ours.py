"""Figures of the papers page that no paper has: the front of schedules, crossovers, accuracy by gate, decoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from glabench.analysis import labels, tuned
from glabench.analysis.accuracy import Error
from glabench.analysis.claims import LAYER
from glabench.analysis.compare import Crossover, answers, by, crossovers_by_head_dimension
from glabench.analysis.evidence import OURS, Evidence
from glabench.analysis.pareto import with_front
from glabench.report import text
from glabench.report.model import Figure, Panel, Point, Section, Series
from glabench.report.parts import MIB, MS, length_of, memory_tip, series, slug, time_tip

FRONT_T = 2048
RIVALS = ("fa2", "cudnn")
MOST_PANELS = 3
TWIN = 1.01
MOST_NAMES = 6  # of what is not tuned; of more, what is
SWEEP = "`glabench sweep papers` does."


def sections(name: str, evidence: Evidence) -> list[Section]:
    """Sections in the order of the page; without data, a section of words."""
    return [
        Section("front", "Schedules", "Every schedule: time against memory", front(name, evidence),
                f"No shape was timed with several schedules on a GPU. {SWEEP}"),
        Section("crossover", "Crossover", "From which length on GLA is faster than attention, by head dimension",
                crossing(name, evidence), f"No width was timed over several lengths and head dimensions. {SWEEP}"),
        Section("strength", "Gate strength", "Error against float64, by gate strength", strength(name, evidence),
                f"No shape was checked at several gate strengths. {SWEEP}"),
        Section("decoding", "Decoding", "One token, by length of the context", decoding(name, evidence),
                "No token was decoded at several lengths of the context. `glabench sweep papers` or `glabench sweep "
                "decode` does."),
    ]  # fmt: skip


def front(name: str, evidence: Evidence) -> tuple[Figure, ...]:
    """Time over memory of every schedule, and the line of those that no other beats in both."""
    place = LAYER[FRONT_T]
    known = [line for line in evidence.rows(OURS, place) if line["status"] == "ok"]
    table = pd.DataFrame(known, columns=list(evidence.table.columns))
    same = twin(
        {key: dict(zip(group["beyond_mib"], group["ms"], strict=True)) for (key,), group in by(table, ["variant"])}
    )
    rows = with_front(table[table["variant"] != "gla"] if same else table)
    if len(rows) < 2:
        return ()
    best = rows[rows["front"]]
    line = Series("front", "nothing is better in both", tuple(
        Point(float(x), float(y)) for x, y in zip(best["beyond_mib"], best["ms"], strict=True)
    ))  # fmt: skip
    marks = [
        Series(str(key), labels.title(str(key)), tuple(
            Point(row["beyond_mib"], row["ms"], tip=f"{time_tip(row)}\n{memory_tip(row).splitlines()[2]}")
            for row in group.to_dict("records")
        ))
        for (key,), group in sorted(by(rows, ["variant"]), key=lambda item: labels.order(item[0][0]))
    ]  # fmt: skip
    panel = Panel(text.mode(place.mode), MIB, MS, (*marks, line), front=True)
    on_it = text.listing([str(label) for label in best.sort_values("ms")["label"]])
    caption = (
        f"Batch {place.B}, {place.T} tokens, {text.heads(vars(place))}, bf16. Down and to the left is better. On the "
        f"front, the fastest first: {text.sentence(on_it)}{not_drawn(same)}{not_tuned(rows.to_dict('records'))}"
    )
    return (Figure(slug("papers-front", name), "Time and memory of every schedule", caption, (panel,)),)


def twin(values: Mapping[str, Mapping[float, float]]) -> str:
    """The schedule under which the default one would be drawn and not be seen: its value is the same within 1 %
    wherever the default has one. Empty where there is none."""
    default = values.get("gla") or {}
    for key in ("gla:w", "gla:wo"):
        other = values.get(key) or {}
        if default and all(at in other and 1 / TWIN <= other[at] / value <= TWIN for at, value in default.items()):
            return key
    return ""


def not_drawn(key: str) -> str:
    """The sentence of a caption about a default schedule that has a ``twin``."""
    return f" {labels.title('gla')}, is within 1 % of {labels.title(key)}, and not drawn." if key else ""


def not_tuned(lines: Iterable[Mapping[str, Any]], named: Callable[[Mapping[str, Any]], str] | None = None) -> str:
    """The sentence of a caption about what of it is not tuned, and so may be faster; empty where all is."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for line in lines:
        names[tuned.untuned(line)].append(named(line) if named else str(line["label"]))
    loose, rest = (list(dict.fromkeys(names[key])) for key in (True, False))
    if not loose:
        return ""
    few = loose if len(loose) <= MOST_NAMES or not rest else rest
    return f" Not tuned: {'all but ' if few is rest else ''}{text.sentence(text.listing(few))}"


def crossing(name: str, evidence: Evidence) -> tuple[Figure, ...]:
    """The length at which GLA overtakes attention of the same heads, over the head dimension."""
    best = answers(evidence.table)
    drawn, said = [], []
    for rival in RIVALS:
        found = crossovers_by_head_dimension(best, "gla", rival)
        points = tuple(
            Point(K, at, tip=f"{labels.title(rival)}\nheads of {K}\n{_overtakes(one)}")
            for K, one in found.items()
            if (at := one.crossing or one.wins_from)
        )
        if len(found) > 1 and points:
            drawn.append(Series(rival, labels.title(rival), points))
        said += [f"never over {labels.title(rival)} at heads of {K}" for K, one in found.items() if not one.wins_from]
    if not drawn:
        return ()
    first = next(iter(crossovers_by_head_dimension(best, "gla", drawn[0].key).values())).first_t
    caption = (
        "Forward and backward, attention with as many heads of the same dimension, the tokens of a batch held. "
        f"Straight between lengths, in log-log; a point at {text.number(first)} is faster at every length measured. "
        "Faster are its kernels."
    )
    asked = (best["variant"] == "gla") & (best["mode"] == "fwdbwd") & (best["K"] == best["V"]) & (best["gate"] == "1")
    caption += not_tuned(
        best[asked].to_dict("records"), lambda line: f"GLA at T {text.length(line['T'])}, heads of {line['K']}"
    )
    caption += f" GLA is faster {'; '.join(said)}." if said else ""
    panel = Panel(text.mode("fwdbwd"), "head dimension, features", "GLA is faster from this T on, tokens", tuple(drawn))
    return (Figure(slug("papers-crossover", name), "Where GLA overtakes attention", caption, (panel,)),)


def _overtakes(one: Crossover) -> str:
    if one.crossing:
        return f"faster from T ≈ {text.number(one.crossing)} on"
    return f"faster at every T from {text.length(one.first_t)} on"


def strength(name: str, evidence: Evidence) -> tuple[Figure, ...]:
    """Relative errors of the output and of the worst gradient, a line a gate strength."""
    errors = evidence.errors
    strengths = sorted({one.strength for one in errors})
    if len(strengths) < 2:
        return ()
    panels = []
    kinds: tuple[tuple[str, Callable[[Error], float]], ...] = (
        ("Output", lambda one: one.output), ("The worst gradient", lambda one: one.gradients),
    )  # fmt: skip
    for title, error_of in kinds:
        points: dict[str, list[Point]] = {}
        for one in errors:
            value = error_of(one)
            if 0 < value < math.inf:
                tip = f"{one.label}\ngate strength {one.strength:g}\nerror {text.power(value)}, {title.lower()}"
                tip += "" if one.passed else "\nnot within its tolerance"
                points.setdefault(one.key, []).append(Point(strengths.index(one.strength), value, tip=tip))
        found = tuple(Series(key, labels.title(key), tuple(at)) for key, at in points.items())
        names = tuple(f"{x:g}" for x in strengths)
        panels.append(Panel(title, "", "relative error", found, names))
    row = errors[0].case
    caption = (
        f"{text.shape(row)}, {row['dtype']}. Gates are g = strength × logsigmoid(N(0, 1)); the error is "
        "‖x − reference‖ / ‖reference‖, left is better."
    )
    lost = [f"{one.label} at {one.strength:g}" for one in errors if math.inf in (one.output, one.gradients)]
    caption += f" Not finite, and so not drawn: {text.sentence(text.listing(lost))}" if lost else ""
    drawn = tuple(panel for panel in panels if panel.series)
    return (Figure(slug("papers-strength", name), "Error by gate strength", caption, drawn),) if drawn else ()


def decoding(name: str, evidence: Evidence) -> tuple[Figure, ...]:
    """Time of one token over the length of its context, a panel a batch and shape of heads."""
    best = answers(evidence.table)
    steps = best[best["mode"] == "step"]
    groups = [group for _, group in by(steps, ["B", "H", "K", "V", "dtype"]) if group["T"].nunique() > 1]
    panels = tuple(
        Panel(f"Batch {rows.iloc[0]['B']}, {text.heads(rows.iloc[0])}", "context, tokens", MS,
              series(rows, "ms", length_of, time_tip))
        for rows in groups[:MOST_PANELS]
    )  # fmt: skip
    if not panels:
        return ()
    caption = (
        "Lower is better. A recurrent form reads and writes a state whose size no context changes; attention reads the "
        "keys and values of all of it."
    )
    caption += not_tuned(line for rows in groups[:MOST_PANELS] for line in rows.to_dict("records"))
    return (Figure(slug("papers-decoding", name), "Time of one decoding step", caption, panels),)
