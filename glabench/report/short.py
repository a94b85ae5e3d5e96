"""The answer in a line or two, under the question of a sweep: which one follows from what varies in its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.columns import columns, gates_across, in_columns
from glabench.analysis.compare import answers, curves, speedups, variants
from glabench.analysis.schedules import Spot, schedules
from glabench.report import text
from glabench.report.headline import RIVALS, overtakes
from glabench.report.parts import modes
from glabench.report.shapes import alone, widths

# Of these the first that ran speaks for linear attention.
OWN = ("gla", "gla:w", "gla:wo", "gla_recurrent", "recurrent_torch")
BESIDE = ("fla", *RIVALS)
LEAST = 3  # lengths or widths that make it what a sweep is about
STATES = {True: "with states", False: "without states", None: ""}


def short(table: pd.DataFrame, device: str) -> list[str]:
    """Sentences; none where nothing varies that has an answer here. Where both directions ran together, the backward
    pass alone is left to the matrix."""
    rows = table[(table["device"] == device) & (table["mode"] != "train")]
    rows = rows[rows["mode"] != "bwd"] if (rows["mode"] == "fwdbwd").any() else rows
    best = answers(rows)
    told = (_schedules(rows), _gates(rows), _steps(best), _widths(best), _lengths(best))
    return next(filter(None, told), [])


def _schedules(rows: pd.DataFrame) -> list[str]:
    for found in schedules(rows):
        spots = [spot for spot in found.spots if spot.chunk and spot.entry.timed]
        if not found.crossed and len({spot.chunk for spot in spots}) < 2:
            return _materialized(spots)
        what = "largest sub-chunk that costs no time" if found.crossed else "fastest chunk"
        said = _by_states(spots, _largest if found.crossed else _fastest)
        return [f"The {what}, {said}."] if said else []
    return []


def _by_states(spots: Sequence[Spot], said_of: Callable[[Sequence[Spot]], str]) -> str:
    """What is said of each mode, with states and without; once for both, and once for all modes, where it is the same:
    "forward with states: 64; forward without states: 128"."""
    found: dict[str, dict[str, list[str]]] = {}
    for mode in labels.MODE_ORDER:
        for kept, states in STATES.items():
            here = [spot for spot in spots if (spot.at["mode"], spot.states) == (mode, kept)]
            if here and (said := said_of(here)):
                found.setdefault(said, {}).setdefault(text.mode(mode), []).append(states)
    told = []
    for said, where in found.items():
        alike = {" and ".join(filter(None, states)) for states in where.values()}
        if len(alike) == 1:  # the same states in each mode
            where = {text.listing(list(where)): [*alike]}
        places = [" ".join(filter(None, [mode, " and ".join(states)])) for mode, states in where.items()]
        told.append(f"{', '.join(places)}: {said}")
    return "; ".join(told)


def _fastest(spots: Sequence[Spot]) -> str:
    """The chunk, and those that tie with it."""
    return " or ".join(str(chunk) for chunk in sorted({spot.chunk for spot in spots if spot.best}))


def _largest(spots: Sequence[Spot]) -> str:
    """The largest sub-chunk among the fastest of each chunk that has several, at every shape: "32 at chunk 32"."""
    largest: dict[tuple[int, int], int] = {}
    for spot in spots:
        if spot.best:
            key = (spot.chunk, id(spot.base))  # a question has one base
            largest[key] = max(spot.sub_chunk, largest.get(key, 0))
    found: dict[int, list[str]] = {}
    for chunk in sorted({chunk for chunk, _ in largest}):
        least = min(size for (of, _), size in largest.items() if of == chunk)
        found.setdefault(least, []).append(str(chunk))
    return ", ".join(f"{size} at chunk {text.listing(chunks)}" for size, chunks in found.items())


def _materialized(spots: Sequence[Spot]) -> list[str]:
    """At how many shapes states pay, by how much, and what they take in memory."""
    pairs = [(kept, other) for kept in spots for other in spots
             if kept.states and other.states is False and kept.base and kept.base is other.base]  # fmt: skip
    said = []
    for mode in labels.MODE_ORDER:
        here = [(kept, other) for kept, other in pairs if kept.at["mode"] == mode]
        if here:
            ahead = sum(kept.fastest == 1 for kept, _ in here)
            times = text.span([other.entry.ms / kept.entry.ms for kept, other in here], text.times)
            said.append(f"{text.mode(mode)} at {ahead} of {text.count(len(here), 'shape')}, {times} as fast as without")
    more = [kept.at["beyond_mib"] / other.at["beyond_mib"] for kept, other in pairs if other.at["beyond_mib"] > 0]
    cost = f" They take {text.span(more, text.times)} the memory beyond the inputs." if more else ""
    return [f"States pay {'; '.join(said)}.{cost}"] if said else []


def _gates(rows: pd.DataFrame) -> list[str]:
    """How many times as long as the first each kind of gates takes at the same schedule, and attention."""
    gates, best = gates_across(rows), answers(rows)
    if not gates or best.empty:
        return []
    table = in_columns(best, gates)
    (first, plain), *others = columns(table, gates)
    own = labels.of_system(first)
    pairs = speedups(table.assign(variant=table["column"]), first)
    found = []
    for key, title in others:
        here = pairs[pairs["variant"] == key]
        if len(here) and (labels.of_system(key) == own or key in BESIDE):
            by_mode = [(text.mode(mode), list(1 / part["speedup"])) for mode, part in modes(here)]
            said = ", ".join(f"{mode} {text.span(times, text.times)}" for mode, times in by_mode)
            found.append(f"{title}, {said}")
    return [f"Time beside that of {plain}: {'; '.join(found)}."] if found else []


def _steps(best: pd.DataFrame) -> list[str]:
    """What a token costs after the shortest and after the longest context, at the least and at the largest batch."""
    if set(best["mode"]) != {"step"} or best["T"].nunique() < LEAST:
        return []
    keys = variants(best, OWN)[:1] + variants(best, RIVALS)[:1]
    ends = [best["T"].min(), best["T"].max()]
    found = []
    for batch in sorted({best["B"].min(), best["B"].max()}):
        said = []
        for key in keys:
            rows = best[(best["variant"] == key) & (best["B"] == batch)].set_index("T")["ms"]
            if set(ends) <= set(rows.index):
                said.append(f"{labels.title(key)} {' and '.join(text.duration(rows[end]) for end in ends)}")
        found += [f"batch {batch}: {', '.join(said)}"] if said else []
    first, last = map(text.length, ends)
    return [f"A token after {first} and after {last}, {'; '.join(found)}."] if found else []


def _widths(best: pd.DataFrame) -> list[str]:
    """How many times as long wide heads take as the narrowest, at one width of all heads together."""
    found = widths(best, LEAST)
    for group in found if len(found) == 1 else []:
        mode, rows = modes(group)[-1]  # that which does most
        said = []
        for key in variants(rows, OWN)[:1] + variants(rows, BESIDE):
            own = rows[rows["variant"] == key].sort_values("K")
            first, last = own.iloc[0], own.iloc[-1]
            times = text.times(last["ms"] / first["ms"])
            said.append(f"{labels.title(key)} {times} at {last['K']}" if first["K"] == rows["K"].min() else "")
        narrow = int(rows["K"].min())
        return [f"Time beside that of heads of {narrow}, {text.mode(mode)}: {', '.join(filter(None, said))}."]
    return []


def _lengths(best: pd.DataFrame) -> list[str]:
    """From which length on ours is faster than attention, where lengths are what varies."""
    if len(curves(best, LEAST)) != 1 or len(alone(best)):
        return []
    found = []
    for rival in variants(best, RIVALS):
        pairs = speedups(best, rival)
        for curve in curves(pairs[pairs["family"] == "gla"], LEAST)[:1]:
            champion, said, _ = overtakes(curve)
            beside = labels.title(labels.of_system(rival))
            found.append(f"{labels.title(champion)} beside {beside}, {'; '.join(said)}.")
    return found
