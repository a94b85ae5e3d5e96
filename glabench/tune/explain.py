"""``glabench tune --explain``: prints what `glabench.tune.why` works out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from glabench.analysis.statistics import Estimate
from glabench.report import text
from glabench.tune.why import PassTime, Row, explanation, spread
from glabench.tuning_store import Tuning

TOP = 20  # candidates of a pass that are shown


def explain(tunings: Sequence[Tuning], choice_line: str, top: int | None = TOP, console: Console | None = None) -> None:
    """Print the newest of the tunings of one workload. choice_line: what gla() runs for it now, and why.

    top: candidates shown of each pass; None for all of them. Raises ValueError without a tuning.
    """
    if not tunings:
        raise ValueError("tunings: expected at least one")
    out = console or Console(highlight=False, markup=False)
    if not out.is_terminal:
        out.width = max(out.width, 160)  # a pipe has no width
    told = explanation(max(tunings, key=lambda tuning: tuning.started))
    out.print(told.title, style="bold", soft_wrap=True)
    for line in (f"gla() runs: {choice_line}", *told.facts):
        out.print(line, soft_wrap=True)
    if len(tunings) > 1:
        out.print(f"the newest of {len(tunings)} tunings of this workload", soft_wrap=True)
    if told.passes:
        out.print("\nWhere the winner's time goes, each pass timed alone")
        out.print(_pass_table(told.passes))
    if told.plans:
        out.print("\nWhole plans, timed in turns")
        out.print(_plan_table(told.plans))
    if any("(+" in row.variant for rows in told.rows.values() for row in rows):
        out.print("\n(+2): two more variants run the same kernel", soft_wrap=True)
    for step, rows in told.rows.items():
        out.print(f"\nCandidates of {step}")
        out.print(_candidate_table(rows if top is None else rows[:top]))
        if top is not None and len(rows) > top:
            out.print(_hidden(rows[top:]), soft_wrap=True)


def facts(tunings: Sequence[Tuning], top: int | None = TOP) -> dict[str, Any]:
    """The same for other programs: plain values by name."""
    told = explanation(max(tunings, key=lambda tuning: tuning.started))
    plans = [
        {"plan": plan, "from": source, **asdict(time), "verdict": verdict} for plan, source, time, verdict in told.plans
    ]
    return {
        "facts": told.facts,
        "passes": [asdict(one) for one in told.passes],
        "plans": plans,
        "candidates": [asdict(row) for rows in told.rows.values() for row in rows[:top]],
    }


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        words = column.removesuffix(":")
        table.add_column(words, justify="left" if words != column else "right", overflow="fold")
    return table


def _pass_table(passes: Sequence[PassTime]) -> Table:
    table = _table("pass:", "tile:", "ms", "share")
    total = sum(one.ms for one in passes)
    for one in passes:
        share = "–" if math.isnan(total) else f"{one.ms / total:.0%}"
        table.add_row(one.step, one.tile, text.number(one.ms), share)
    table.add_row("sum", "", text.number(total), "")
    return table


def _plan_table(plans: Sequence[tuple[str, str, Estimate, str]]) -> Table:
    table = _table("plan:", "from:", "ms", "spread:", "verdict:")
    for plan, source, time, verdict in plans:
        table.add_row(plan, source, text.number(time.median), spread(time).strip(" ()"), verdict)
    return table


def _candidate_table(rows: Sequence[Row]) -> Table:
    table = _table("variant:", "tile:", "predicted", "ms", "± %", "n", "regs", "spilled", "KiB", "per SM", "why:")
    for row in rows:
        width = (row.time.high - row.time.low) / 2 / row.time.median * 100 if row.time.samples else math.nan
        shared = row.compiled.get("shared_bytes")
        facts = [row.compiled.get(name) for name in ("registers", "spill_bytes", "programs_per_sm")]
        known = ["–" if fact is None else str(fact) for fact in facts]
        table.add_row(
            row.variant, row.tile, text.number(row.predicted_ms), text.number(row.time.median), text.number(width, 2),
            str(row.time.samples or "–"), known[0], known[1], "–" if shared is None else f"{shared / 1024:.0f}",
            known[2], row.why, style="bold" if row.won else None,
        )  # fmt: skip
    return table


def _hidden(rows: Sequence[Row]) -> str:
    """What the table leaves out, failures by kind."""
    counts = Counter("slower" if row.time.samples else row.why.split(":")[0].split(" (")[0] for row in rows)
    listed = ", ".join(f"{n} {word}" for word, n in counts.most_common())
    return f"{len(rows)} more ({listed}); --all shows them"
