"""The default schedule of ``gla`` beside its rivals in one table, a line a question: that of docs/results.md."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import QUESTION, by, competes
from glabench.report import text
from glabench.report.parts import conditions
from glabench.spec.catalog import RIVALS

OWN = "gla"
SHORT = {"fwd": "fwd", "bwd": "bwd", "fwdbwd": "fwd+bwd", "step": "step", "train": "training step"}
# column: (its heading, what it says of the default schedule). The last three need rows with the time of an eager call.
FACTS = {
    "ms": ("kernels, ms", "the median of its kernels"),
    "over_floor": ("of the floor", "how many times as long that is as moving inputs and outputs alone"),
    "host_ms": ("queued in, ms", "what Python takes to queue a call"),
    "wall_ms": ("wall, eager, ms", "what one of many eager calls takes"),
    "kept_mib": ("kept, MiB", "what is kept for the backward pass"),
}
ALWAYS = ("ms", "over_floor")


def table(best: pd.DataFrame) -> tuple[str, list[str], list[list[str]]] | None:
    """(what the table shows, its head, its lines) from ``compare.answers``; None without the default schedule and a
    rival at one question. What no row says has no column."""
    asked = best[best["variant"].map(labels.of_system).isin([OWN, *RIVALS]) & competes(best)]
    groups = [group for _, group in by(asked, QUESTION) if (group["variant"] == OWN).any() and len(group) > 1]
    if not groups:
        return None
    both = pd.concat(groups)
    own = both[both["variant"] == OWN]
    # those that have a time get a column
    rivals = [name for name in RIVALS if (both["variant"].map(labels.of_system) == name).any()]
    called = bool(own["wall_ms"].notna().any())
    facts = [name for name in FACTS if name in ALWAYS or (called and own[name].notna().any())]
    of_what = "kernels / eager calls" if called else "kernels"
    head = ["B, T, H, K, V", "mode", "dtype, gates", *(FACTS[name][0] for name in facts)]
    head += [f"{labels.title(name)}: {of_what}, ×" for name in rivals]
    said = text.listing([FACTS[name][1] for name in facts])
    eager = ", and after the stroke its eager calls as the rival's" if called else ""
    intro = f"{labels.title(OWN)}: {said}. By rival: how many times as fast as the rival's its kernels are{eager}."
    return intro, head, [_line(group, facts, rivals) for group in groups]


def _line(group: pd.DataFrame, facts: list[str], rivals: list[str]) -> list[str]:
    own = group[group["variant"] == OWN].iloc[0]
    shape = ", ".join(str(int(own[axis])) for axis in "BTHKV") + text.further(own)
    found = [group[group["variant"].map(labels.of_system) == name].sort_values("ms") for name in rivals]
    ratios = [_ratios(own, rows.iloc[0]) if len(rows) else "" for rows in found]
    return [shape, SHORT[own["mode"]], conditions(own), *(text.number(own[fact]) for fact in facts), *ratios]


def _ratios(own: Mapping[str, Any], rival: Mapping[str, Any]) -> str:
    """How many times as fast as the rival's the kernels are and, where both have one, eager calls: "4.37 / 2.10"."""
    of_calls = rival["wall_ms"] / own["wall_ms"]
    said = [text.number(rival["ms"] / own["ms"]), *([] if math.isnan(of_calls) else [text.number(of_calls)])]
    return " / ".join(said)
