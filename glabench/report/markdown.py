"""The report as Markdown, for a README or an issue."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import QUESTION, answers, by, competes, variants
from glabench.report import against, tables, text
from glabench.report.environments import environments, mixed
from glabench.report.headline import findings
from glabench.report.lengths import lean
from glabench.report.parts import conditions, devices, modes
from glabench.store import Row

# What a call costs beside its kernels' time: (title, column, unit), of rows that have the time of an eager call.
BESIDE = (
    ("Queued in", "host_ms", "median, ms"),
    ("An eager call", "wall_ms", "median, ms"),
    ("Kept for the backward pass", "kept_mib", "MiB"),
)


def render(rows: Sequence[Row], table: pd.DataFrame, older: int = 0) -> str:
    """The answer of each device, its times and memory by question, what failed, and where the rows come from; and that
    ``older`` rows of the same cases are not among them."""
    parts = [_device(table, device) for device in devices(table)]
    parts += [_failures(rows, table), _environments(rows), made_from(len(rows), older)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _device(table: pd.DataFrame, device: str) -> str:
    rows = table[table["device"] == device]
    said = [f"- **{f.figure}** {plain(f.lead)}. {plain(f.sentence)}" for f in findings(table, device)]
    parts = [f"## {plain(device)}", "\n".join(said)]
    best = answers(rows)
    parts += _against(best)
    for mode, part in modes(best):
        timed = text.timed(part["clock"].iloc[0])
        parts += [f"### Time of {timed}, {text.mode(mode)} (median, ms)", _by_shape(part, "ms")]
    for title, column, unit in BESIDE:
        for mode, part in modes(best[best[column].notna() & (best["wall_ms"].notna() | (column == "kept_mib"))]):
            parts += [f"### {title}, {text.mode(mode)} ({unit})", _by_shape(part, column)]
    for mode, part in modes(lean(rows)):
        parts += [f"### Memory beyond inputs, {text.mode(mode)} (MiB)", _by_shape(part, "beyond_mib")]
    return "\n\n".join(parts)


def _against(best: pd.DataFrame) -> list[str]:
    """The table of docs/results.md, with its heading and what it shows."""
    found = against.table(best)
    if found is None:
        return []
    intro, head, lines = found
    return ["### Beside its rivals", plain(intro), grid(head, lines, numeric_from=3)]


def _by_shape(part: pd.DataFrame, value: str) -> str:
    """A line a question, a column a variant; the best of a line is bold, ties included, where several compete."""
    columns = variants(part)
    lines = []
    for _, group in by(part, QUESTION):
        row = group.iloc[0]
        values = dict(zip(group["variant"], group[value], strict=True))
        rivals = group.loc[competes(group), value].dropna()
        best = rivals.min() if len(rivals) > 1 else None
        cells = [_cell(values.get(key), best) for key in columns]
        lines.append([text.shape(row), conditions(row), *cells])
    head = ["shape", "dtype, gates", *(labels.title(key) for key in columns)]
    return grid(head, lines, numeric_from=2)


def _cell(value: float | None, best: float | None) -> str:
    if value is None:
        return ""
    return f"**{text.number(value)}**" if value == best else text.number(value)


def _failures(rows: Sequence[Row], table: pd.DataFrame) -> str:
    found = tables.failures(rows, table)
    if not found:
        return ""
    lines = [[f.status, f.system, f"{f.questions[0]}{_more(len(f.questions))}", f.reason] for f in found]
    return "## No result, and why\n\n" + grid(["status", "system", "question", "reason"], lines)


def _more(count: int) -> str:
    return f" and {count - 1} more" if count > 1 else ""


def _environments(rows: Sequence[Row]) -> str:
    found = environments(rows)
    parts = ["## Environment", plain(mixed(found))]
    for e in found:
        lines = [[name, value] for name, value in e.facts] + [["note", warning] for warning in e.warnings]
        parts.append(grid([e.device, text.count(e.rows, "case")], lines))
    return "\n\n".join(part for part in parts if part)


def made_from(rows: int, older: int) -> str:
    """What was read, where that is more than what is shown."""
    return f"Made from {text.count(rows, 'row')}{text.left_out(older)}." if older else ""


def grid(head: list[str], lines: list[list[str]], numeric_from: int | None = None) -> str:
    """A table; columns from ``numeric_from`` on are set right."""
    rule = ["---:" if numeric_from is not None and i >= numeric_from else "---" for i in range(len(head))]
    return "\n".join("| " + " | ".join(map(plain, line)) + " |" for line in [head, rule, *lines])


def plain(words: str) -> str:
    """Text from rows as text: no HTML, no column breaks, one line."""
    return " ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
