"""Rows of multi-query associative recall as a table and as a figure: accuracy by width."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from glabench.report.model import Figure, Panel, Point, Series
from glabench.tools.rows import Row

# In the order of legends.
TITLES = {
    "fa2": "Softmax attention",
    "gla": "GLA",
    "gla-recompute": "GLA, no states kept",
    "fla": "FLA's GLA layer",
    "fla-accelerated": "FLA's GLA layer, accelerated",
    "mamba2": "Mamba-2",
    "mamba": "Mamba",
    "retnet": "RetNet",
    "linear": "Linear attention, no gates",
}
CAPTION = (
    "Each point is the best of the learning rates tried: the mean of its seeds, with the least and the most of them as "
    "bars. A model is trained on the tasks of all panels. Hyena and RWKV, which the paper has too, are left out: there "
    "are no kernels of them here."
)


def best(rows: Sequence[Row], system: str, width: int, task: str) -> list[Row]:
    """The rows of the system, width and learning rate that answer the task best, in the mean of its seeds."""
    rates: dict[float, list[Row]] = {}
    for row in rows:
        if (row["system"], row["width"]) == (system, width) and row["accuracy"] is not None:
            rates.setdefault(row["learning_rate"], []).append(row)
    return max(rates.values(), key=lambda found: mean(found, task), default=[])


def mean(rows: Sequence[Row], task: str) -> float:
    return statistics.mean(row["accuracy"][task] for row in rows)


def tasks_of(rows: Sequence[Row]) -> list[str]:
    """Names of the tasks of rows, in their order."""
    return list(dict.fromkeys(task for row in rows if row["accuracy"] is not None for task in row["accuracy"]))


def systems_of(rows: Sequence[Row]) -> list[str]:
    found = {row["system"] for row in rows}
    return [system for system in TITLES if system in found]


def figure(rows: Sequence[Row]) -> Figure:
    """A panel a task, a line a system. Rows of models that failed have no point."""
    panels = tuple(
        Panel(task, "model width", "accuracy, %", tuple(_lines(rows, task)), value_range=(0, 100), linear=True)
        for task in tasks_of(rows)
    )
    return Figure("mqar", "Multi-query associative recall", CAPTION, panels)


def _lines(rows: Sequence[Row], task: str) -> list[Series]:
    lines = []
    for system in systems_of(rows):
        points = []
        for width in sorted({row["width"] for row in rows}):
            if found := best(rows, system, width, task):
                values = [100 * row["accuracy"][task] for row in found]
                points.append(Point(width, statistics.mean(values), min(values), max(values)))
        if points:
            lines.append(Series(f"model:{system}", TITLES[system], tuple(points)))
    return lines


def show(rows: Sequence[Row], console: Console) -> None:
    """Print a table a task, and what failed."""
    first = rows[0]
    widths = sorted({row["width"] for row in rows})
    for task in tasks_of(rows):
        steps, device = first["question"]["steps"], first["environment"]["device"]
        table = Table(title=f"accuracy, %: {task}; {steps} steps, {device}")
        for column in ("system", *(f"width {width}" for width in widths), "what ran"):
            table.add_column(column, justify="right" if column.startswith("width") else "left")
        for system in systems_of(rows):
            cells = [_cell(best(rows, system, width, task), task) for width in widths]
            ran = next((row["implementation"] for row in rows if row["system"] == system), "")
            table.add_row(TITLES[system], *cells, ran)
        console.print(table)
    for row in rows:
        if row["error"]:
            console.print(line_of(row), soft_wrap=True)


def _cell(found: Sequence[Row], task: str) -> str:
    return f"{100 * mean(found, task):.1f} at {found[0]['learning_rate']:g}" if found else "-"


def line_of(row: Row) -> str:
    """A model and what came of it: its accuracy by task, or its error."""
    name = f"{row['system']}, width {row['width']}, learning rate {row['learning_rate']:g}, seed {row['seed']}"
    if row["error"]:
        return f"{name}: {row['error']}"
    return f"{name}: {', '.join(f'{100 * share:.1f} %' for share in row['accuracy'].values())}"


__all__ = ["figure", "line_of", "show"]
