"""What a trend comes to, in words and tables: its answer, its change points, its cases and its nights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.frame import label
from glabench.analysis.trend import History, Moved, Night, Trend
from glabench.report import text
from glabench.report.tables import Cell, Table, number_cell

FIELDS = ("system", "B", "T", "H", "K", "V", "dtype", "mode", "chunk", "sub_chunk", "materialize", "gate_strength")


def system(history: History) -> str:
    """The system and its schedule; the id of a case of which nothing else is known."""
    return f"case {history.case_id}" if history.case is None else label(history.case)


def where(case: Mapping[str, Any]) -> str:
    """The shape of a case with all that its figure has in common: "B4 T1k H16 128, bf16, gate strength 8"."""
    words = [text.shape(case), str(case["dtype"]), *labels.gating(labels.gate(case))]
    return ", ".join([*words, "initial state"] if case.get("initial_state") else words)


def name(history: History) -> str:
    """The case as a person names it: "GLA with states C64/16, B4 T2k H16 128, bf16, forward"."""
    case = history.case
    return system(history) if case is None else f"{system(history)}, {where(case)}, {text.mode(str(case['mode']))}"


def change(ratio: float) -> str:
    """A ratio of times as a change: "+3.1 %"."""
    return f"{100 * (ratio - 1):+.1f} %"


def span(nights: Sequence[Night]) -> str:
    """Commits and days: "from 0123456 to 89abcde, 2026-11-01 to 2026-11-27"."""
    names = list(dict.fromkeys([nights[0].name, nights[-1].name]))
    days = list(dict.fromkeys([nights[0].day, nights[-1].day]))
    said = f"from {' to '.join(names)}" if len(names) > 1 else f"of {names[0]}"
    return f"{said}, {' to '.join(days)}"


def moves(trend: Trend) -> list[tuple[History, Moved]]:
    """Every change, the newest first, and of one night the largest first."""
    found = [(history, moved) for history in trend.histories for moved in history.moved]
    found.sort(key=lambda one: abs(math.log(one[1].change.ratio)), reverse=True)
    return sorted(found, key=lambda one: one[0].at[one[1].change.at], reverse=True)


def answer(trend: Trend) -> str:
    """The trend in a few sentences."""
    commits = len({(night.commit, night.dirty) for night in trend.nights})
    head = (
        f"{text.count(len(trend.histories), 'case')} over {text.count(commits, 'commit')} {span(trend.nights)} "
        f"({text.count(len(trend.nights), 'night')}): "
    )
    found = moves(trend)
    if not found:
        return " ".join([f"{head}none changed.", *_measured(trend)])
    changed = list({history.case_id: history for history, _ in found}.values())
    slower = sum(one.levels.stretches[-1].last_ms > one.levels.stretches[0].first_ms for one in changed)
    said = [f"{head}{len(changed)} changed, of which {slower} {'is' if slower == 1 else 'are'} slower than at first."]
    for word, worst in (("slow-down", max(found, key=_ratio)), ("speed-up", min(found, key=_ratio))):
        history, moved = worst
        if (moved.change.ratio > 1) == (word == "slow-down"):
            still = {True: "", False: ", which is no longer so", None: ", which is no longer measured"}[moved.still]
            said.append(f"The largest {word} is {change(moved.change.ratio)} {_at(moved)}, {name(history)}{still}.")
    return " ".join([*said, *_measured(trend)])


def _measured(trend: Trend) -> Iterator[str]:
    """What is not there from the first night to the last."""
    new, gone = ([getattr(one, what) for one in trend.histories] for what in ("new", "gone"))
    for what, nights in (("new", new), ("no longer measured", gone)):
        if count := sum(night is not None for night in nights):
            yield f"{text.count(count, 'case')} {'is' if count == 1 else 'are'} {what}."


def _ratio(one: tuple[History, Moved]) -> float:
    return one[1].change.ratio


def _at(moved: Moved) -> str:
    return f"{'drifting up to' if moved.change.drift else 'at'} {moved.after.name} of {moved.after.day}"


def changes(trend: Trend) -> Table:
    """A line a change, the newest first."""
    columns = ("case", "change, %", "commits", "day", "ms", "interval, %", "noise, %", "still so", "besides")
    numeric = (False, True, False, False, True, False, True, False, False)
    return Table(columns, numeric, tuple(_change(*one) for one in moves(trend)))


def _change(history: History, moved: Moved) -> tuple[Cell, ...]:
    one = moved.change
    percent = 100 * (one.ratio - 1)
    interval = " to ".join(f"{100 * (end - 1):+.1f}" for end in (one.low, one.high))
    return (
        Cell(name(history)),
        Cell(f"{percent:+.1f}", percent, "bad" if percent > 0 and moved.still is not False else ""),
        Cell(f"{moved.before.name} → {moved.after.name}{', a drift' if one.drift else ''}"), Cell(moved.after.day),
        Cell(f"{text.number(one.before_ms, 4)} → {text.number(one.after_ms, 4)}", one.after_ms),
        Cell(interval), number_cell(100 * history.levels.noise, 2), Cell(still(moved)),
        Cell("; ".join(moved.besides) or "–"),
    )  # fmt: skip


def still(moved: Moved) -> str:
    """Whether the change is there today."""
    return {True: "yes", False: "no", None: "no longer measured"}[moved.still]


def cases(trend: Trend) -> Table:
    """A line a case, those that changed most since the first night first."""
    columns = ("case", "mode", "first, ms", "now, ms", "since then, %", "changes", "noise, %", "nights", "measured")
    numeric = (False, False, True, True, True, True, True, True, False)
    lines = [_case(trend, history) for history in trend.histories]
    return Table(columns, numeric, tuple(sorted(lines, key=lambda line: -abs(line[4].value or 0.0))))


def _case(trend: Trend, history: History) -> tuple[Cell, ...]:
    found = history.levels
    first, now = (found.stretches[0].first_ms, found.stretches[-1].last_ms) if found.stretches else (math.nan,) * 2
    percent = 100 * (now / first - 1)
    mode = "–" if history.case is None else text.mode(str(history.case["mode"]))
    words = system(history) if history.case is None else f"{system(history)}, {where(history.case)}"
    return (
        Cell(words), Cell(mode), number_cell(first, 4), number_cell(now, 4),
        Cell("–") if math.isnan(percent) else Cell(f"{percent:+.1f}", percent),
        Cell(str(len(history.moved)), len(history.moved)), number_cell(100 * found.noise, 2),
        Cell(f"{len(history.at)} of {len(trend.nights)}", len(history.at)),
        Cell(measured(history), flag="wrap bad" if history.gone else "wrap"),
    )  # fmt: skip


def measured(history: History) -> str:
    """From when to when: "always", "new at 0123456", "not since 0123456: crashed"."""
    said = [f"new at {history.new.name}"] if history.new else []
    if history.gone:
        said.append(f"not since {history.gone.name}: {labels.STATUS_TITLES.get(history.status, history.status)}")
    return "; ".join(said) or "always"


def nights(trend: Trend) -> Table:
    """A line a night, the newest first: what was measured, and what of it does not count."""
    columns = ("night", "commit", "cases timed", "not compared", "why", "as before but")
    lines = []
    for before, night in zip((None, *trend.nights), trend.nights, strict=False):
        timed = [time for time in night.times.values() if time.ms is not None]
        why = Counter(time.why for time in timed if time.why is not None)
        other = [] if before is None else [
            f"{key} {before.conditions[key]} -> {value}" for key, value in night.conditions.items()
            if before.conditions.get(key, value) != value
        ]  # fmt: skip
        reason = f"{why.most_common(1)[0][0]}{' and others' if len(why) > 1 else ''}" if why else "–"
        lines.append((
            Cell(night.when[:16].replace("T", " ")), Cell(night.name), Cell(str(len(timed)), len(timed)),
            Cell(str(why.total()), why.total()), Cell(reason, flag="wrap"), Cell("; ".join(other) or "–", flag="wrap"),
        ))  # fmt: skip
    return Table(columns, (False, False, True, True, False, False), tuple(reversed(lines)))


def frame(trends: Sequence[Trend]) -> pd.DataFrame:
    """A line a change of every device, units in the names of the columns."""
    columns = ["device", "case_id", *FIELDS, "kind", "commit_before", "commit_after", "day_before", "day_after",
               "before_ms", "after_ms", "ratio", "ratio_lo", "ratio_hi", "noise", "still", "besides"]  # fmt: skip
    lines = [
        [trend.device, history.case_id, *((history.case or {}).get(key) for key in FIELDS),
         "drift" if moved.change.drift else "step", moved.before.commit, moved.after.commit, moved.before.when,
         moved.after.when, moved.change.before_ms, moved.change.after_ms, moved.change.ratio, moved.change.low,
         moved.change.high, history.levels.noise, still(moved), "; ".join(moved.besides)]
        for trend in trends for history, moved in moves(trend)
    ]  # fmt: skip
    return pd.DataFrame(lines, columns=columns, dtype=object)
