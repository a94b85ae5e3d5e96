"""Who is faster, by how much, and whether the samples bear it out.

Two rows are compared only where they answer the same question on the same device: QUESTION below. Attention and linear
attention know no gates, so a row of theirs stands beside every gate strength of its shape. Linear attention without
gates does less than was asked, and so does one with a single decay a head: there they are shown and never win.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.statistics import log_log_crossing
from glabench.spec.axes import BESIDE, FURTHER

SHAPE = ["device", "B", "T", "H", "K", "V", "dtype", "mode", *FURTHER, "training", *BESIDE]
QUESTION = [*SHAPE[:8], "gate", "initial_state", *SHAPE[8:]]
EAGER = "eager_wall"  # the clock of what `eager` gives
# What stays the same along a curve over T; B may vary with T where a sweep keeps B*T constant.
SETTING = [name for name in QUESTION if name not in ("B", "T", "mode")]


def answers(table: pd.DataFrame) -> pd.DataFrame:
    """Timed rows, one for each (question, variant): the fastest schedule where there are several.

    Rows of systems without gates are repeated for every (gate, initial_state) that others were asked at their shape.
    """
    timed = aligned(table[(table["status"] == "ok") & table["ms"].notna()])
    fastest = timed.sort_values("ms", kind="stable").drop_duplicates([*QUESTION, "variant"])
    return fastest.sort_values(QUESTION, kind="stable").reset_index(drop=True)


def eager(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that have the time of an eager call, with it in the place of the kernels' and what follows from it."""
    known = table[table["wall_ms"].notna()]
    longer = known["wall_ms"] / known["ms"]
    return known.assign(
        ms=known["wall_ms"], ms_lo=known["wall_ms_lo"], ms_hi=known["wall_ms_hi"], clock=EAGER,
        tokens_per_s=known["tokens_per_s"] / longer, tflop_per_s=known["tflop_per_s"] / longer,
        over_floor=known["over_floor"] * longer,
    )  # fmt: skip


def aligned(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with rows of systems without gates repeated for every (gate, initial_state) asked at their shape."""
    gated = reads_gates(table)
    asked = table.loc[gated, QUESTION].drop_duplicates()
    repeated = table[~gated].merge(asked, on=SHAPE, how="left", suffixes=("_own", ""))
    for column in ("gate", "initial_state"):
        repeated[column] = repeated[column].where(repeated[column].notna(), repeated[f"{column}_own"])
    repeated["initial_state"] = repeated["initial_state"].astype(bool)
    return pd.concat([table[gated], repeated[table.columns]], ignore_index=True)


def reads_gates(table: pd.DataFrame) -> pd.Series[bool]:
    """Which rows are of systems for which gates are part of the question."""
    return (table["family"] == "gla") | ((table["family"] == "scalar") & (table["gate"] != "none"))


def speedups(best: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Each row of ``answers`` beside the baseline's row of the same question: speed-up = baseline ms / own ms.

    Adds speedup, speedup_lo, speedup_hi (worst and best case of the two intervals) and verdict: "faster", "slower",
    or "ambiguous" when the interval holds 1 or there is none. Questions the baseline has no time for are left out.
    """
    base = best.loc[best["variant"] == baseline, [*QUESTION, "ms", "ms_lo", "ms_hi"]]
    pairs = best[best["variant"] != baseline].merge(base, on=QUESTION, suffixes=("", "_base"))
    pairs["speedup"] = pairs["ms_base"] / pairs["ms"]
    pairs["speedup_lo"] = pairs["ms_lo_base"] / pairs["ms_hi"]
    pairs["speedup_hi"] = pairs["ms_hi_base"] / pairs["ms_lo"]
    pairs["verdict"] = [verdict(lo, hi) for lo, hi in zip(pairs["speedup_lo"], pairs["speedup_hi"], strict=True)]
    return pairs


def verdict(low: float, high: float) -> str:
    """What an interval of a speed-up says; without an interval (one sample) it says nothing."""
    if math.isnan(low) or math.isnan(high):
        return "ambiguous"
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "ambiguous"


@dataclass(frozen=True)
class Winner:
    """The fastest variant of one question and how far ahead of the next it is."""

    question: dict[str, Any]
    variant: str
    ms: float
    runner_up: str | None  # None where nothing else was timed
    lead: float  # ms of the runner-up / ms of the winner; NaN without a runner-up
    clear: bool  # the two intervals do not meet
    entrants: int  # how many competed


def winners(best: pd.DataFrame, family: str | None = None) -> list[Winner]:
    """The fastest system of every question, each at its best schedule: among all that do as much as was asked, or in
    one family ("gla", "attention").

    Schedules of one system do not compete: the default is one of the others, and would only ever tie with it. Attention
    with other heads is another function, and does.
    """
    chosen = best[competes(best)] if family is None else best[best["family"] == family]
    chosen = chosen.sort_values("ms", kind="stable").drop_duplicates([*QUESTION, "system", "attn_heads", "attn_dim"])
    return [_winner(dict(zip(QUESTION, key, strict=True)), group) for key, group in by(chosen, QUESTION)]


def competes(table: pd.DataFrame) -> pd.Series[bool]:
    """Which rows do as much as their question asks: `labels.LESS` do not, but that nothing more than linear attention
    is asked where there are no gates."""
    ungated = (table["family"] == "linear") & (table["gate"] == "none")
    return ~table["family"].isin(labels.LESS) | ungated


def _winner(question: dict[str, Any], group: pd.DataFrame) -> Winner:
    ranked = group.sort_values("ms", kind="stable")
    first = ranked.iloc[0]
    if len(ranked) == 1:
        return Winner(question, first["variant"], float(first["ms"]), None, math.nan, False, 1)
    second = ranked.iloc[1]
    clear = bool(first["ms_hi"] < second["ms_lo"])  # False when either interval is missing
    lead = second["ms"] / first["ms"]
    return Winner(question, first["variant"], float(first["ms"]), second["variant"], lead, clear, len(ranked))


@dataclass(frozen=True)
class Crossover:
    """How two variants compare along T at one setting and mode."""

    points: int  # values of T at which both have a time
    wins_from: float | None  # the first measured T from which on the variant is faster to the end; None: never
    crossing: float | None  # T where the curves cross last, straight in log-log; None: no crossing in between
    first_t: float
    last_t: float
    last_speedup: float  # at last_t


def crossovers_by_head_dimension(best: pd.DataFrame, challenger: str, baseline: str) -> dict[int, Crossover]:
    """Head dimension (K = V) -> where ``challenger`` overtakes ``baseline``, forward and backward with gates of
    strength 1, at the width H*V and the tokens B*T that have the most head dimensions, then the most lengths."""
    pairs = speedups(best, baseline)
    same = (pairs["variant"] == challenger) & (pairs["K"] == pairs["V"]) & (pairs["gate"] == "1")
    pairs = pairs[same & (pairs["mode"] == "fwdbwd") & ~pairs["initial_state"] & (pairs["lengths"] == "")]
    pairs = pairs.assign(width=pairs["H"] * pairs["V"], tokens=pairs["B"] * pairs["T"])
    groups = [group for _, group in by(pairs, ["device", "dtype", "width", "tokens"])]
    if not groups:
        return {}
    most = max(groups, key=lambda group: (group["K"].nunique(), len(group)))
    found = by(most, ["K"])
    return {int(K): crossover(rows) for (K,), rows in found if rows["T"].nunique() > 1}


def crossover(pairs: pd.DataFrame, along: str = "T") -> Crossover:
    """The crossover on one curve: ``pairs`` are rows of ``speedups`` of one variant at one setting and mode. It may go
    ``along`` another column than T."""
    ordered = pairs.sort_values(along).drop_duplicates(along)
    t = [float(x) for x in ordered[along]]
    ratio = [float(x) for x in ordered["speedup"]]
    losses = [i for i, r in enumerate(ratio) if r <= 1]
    after = losses[-1] + 1 if losses else 0
    crossing = None
    for i in range(len(t) - 1):
        crossing = log_log_crossing(t[i], t[i + 1], ratio[i], ratio[i + 1]) or crossing
    wins_from = t[after] if after < len(t) else None
    return Crossover(len(t), wins_from, crossing, t[0], t[-1], ratio[-1])


@dataclass(frozen=True)
class Curve:
    """Rows that make one picture over T: one setting, with B constant or B*T constant."""

    held: str  # "B" or "tokens"
    value: int  # of B, or of B*T
    table: pd.DataFrame


def curves(table: pd.DataFrame, least: int = 2) -> list[Curve]:
    """Splits rows into curves over T with at least ``least`` values of T. B constant goes first; of the rows left
    over, those that share B*T make a curve too. Rows that join no curve are left out."""
    found: list[Curve] = []
    for _, group in by(table, SETTING):
        left = []
        for (batch,), rows in by(group, ["B"]):
            if rows["T"].nunique() >= least:
                found.append(Curve("B", int(batch), rows))
            else:
                left.append(rows)
        if left:
            rest = pd.concat(left)
            same = by(rest.assign(tokens=rest["B"] * rest["T"]), ["tokens"])
            found += [Curve("tokens", int(n), rows) for (n,), rows in same if rows["T"].nunique() >= least]
    return found


def by(table: pd.DataFrame, columns: list[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Groups in the order of the columns; an empty table has no group; keys are always tuples."""
    if len(table):
        yield from table.groupby(columns, dropna=False, sort=True)


def records_by(table: pd.DataFrame, columns: list[str]) -> Iterator[tuple[tuple[Any, ...], list[dict[Any, Any]]]]:
    """`by`, of each group its rows. They are made of the whole table at once, which takes as long as of one group."""
    rows = table.to_dict("records")
    for key, group in by(table[columns].assign(position=range(len(table))), columns):
        yield key, [rows[position] for position in group["position"]]


def variants(table: pd.DataFrame, systems: Sequence[str] | None = None) -> list[str]:
    """The variants in a table in the order of every legend; those of ``systems`` alone, in their order: attention with
    each of its heads, but of ``gla`` no schedule but the default."""
    found = sorted(table["variant"].unique(), key=labels.order)
    return found if systems is None else [key for name in systems for key in found if labels.of_system(key) == name]
