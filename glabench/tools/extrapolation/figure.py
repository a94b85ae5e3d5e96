"""Rows of losses beyond the length of training as a table and as a figure: loss by position."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from glabench.report.model import Figure, Panel, Point, Series
from glabench.tools.mqar import figure as mqar
from glabench.tools.rows import Row

TITLES = mqar.TITLES | {"fa2": "Transformer++"}
STEP = 0.1  # ends of the axis are round


def best(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Of each system, in the order of legends, the rows of the learning rate whose loss at the length of training is
    least, in the mean of its seeds."""
    found = {}
    for system in TITLES:
        rates: dict[float, list[Row]] = {}
        for row in rows:
            if row["system"] == system and row["error"] is None:
                rates.setdefault(row["learning_rate"], []).append(row)
        if rates:
            found[system] = min(rates.values(), key=_validation)
    return found


def _validation(rows: Sequence[Row]) -> float:
    mean = sum(row["validation_loss"] for row in rows) / len(rows)
    return math.inf if math.isnan(mean) else mean


def at(rows: Sequence[Row], bucket: int) -> tuple[float, float]:
    """The mean loss of a bucket over seeds, and its standard error over documents, which are the same for all seeds."""
    loss, error = (sum(row[key][bucket] for row in rows) / len(rows) for key in ("loss", "standard_error"))
    return loss, error


def figure(rows: Sequence[Row]) -> Figure:
    """A line a system. Models that failed have none."""
    lines = []
    for system, chosen in best(rows).items():
        points = []
        for bucket, position in enumerate(chosen[0]["positions"]):
            loss, error = at(chosen, bucket)
            if math.isfinite(loss):
                points.append(Point(position, loss, loss - error, loss + error, _tip(system, position, loss, error)))
        lines.append(Series(f"model:{system}", TITLES[system], tuple(points)))
    asked = rows[0]["question"]
    title = f"trained on {asked['length']:,} bytes"
    ends = _ends([x for line in lines for point in line.points for x in (point.low, point.high)])
    panel = Panel(title, "position, bytes", "nats a byte", tuple(lines), value_range=ends, linear=True)
    return Figure("extrapolation", "Loss beyond the training length (a toy)", _caption(rows), (panel,))


def _tip(system: str, position: int, loss: float, error: float) -> str:
    return f"{TITLES[system]}\nup to position {position:,}\n{loss:.3f} ± {error:.3f} nats a byte"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    return math.floor(min(values) / STEP) * STEP, math.ceil(max(values) / STEP) * STEP


def _caption(rows: Sequence[Row]) -> str:
    asked, corpus = rows[0]["question"], rows[0]["corpus"]
    return (
        f"Models of {asked['layers']} blocks, {asked['width']} wide, trained for {asked['steps']:,} steps of "
        f"{asked['batch'] * asked['length']:,} bytes of {corpus['text']}, {corpus['training_bytes'] / 1e6:.1f} MB; "
        f"judged on documents of {asked['times'] * asked['length']:,} bytes of its other files. A point is "
        "the mean of the positions since the one before it, with its standard error over documents. Of the learning "
        "rates tried, that of the least loss at the length of training. Minutes of training say nothing of models of "
        "1.3B parameters."
    )


def show(rows: Sequence[Row], console: Console) -> None:
    """Print every model, and the loss in the last bucket of each length of training for the chosen ones."""
    asked = rows[0]["question"]
    ends = range(asked["length"], asked["times"] * asked["length"] + 1, asked["length"])
    device = rows[0]["environment"]["device"]
    table = Table(title=f"nats a byte; {asked['steps']} steps on {asked['length']} bytes, a toy's scale; {device}")
    for column in ("system", "rate", "seed", "s", "validation", *(f"at {end:,}" for end in ends)):
        table.add_column(column, justify="left" if column == "system" else "right", no_wrap=True)
    chosen = [row for some in best(rows).values() for row in some]
    for row in sorted(rows, key=lambda row: (list(TITLES).index(row["system"]), row["learning_rate"], row["seed"])):
        mark = "* " if row in chosen else ""
        who = TITLES[row["system"]], f"{mark}{row['learning_rate']:g}", str(row["seed"])
        if row["error"] is not None:
            table.add_row(*who, *["-"] * (2 + len(ends)))
            continue
        cells = [_cell(row, asked["buckets"] * (i + 1) - 1) for i in range(len(ends))]
        table.add_row(*who, f"{row['training_s']:.0f}", f"{row['validation_loss']:.4f}", *cells)
    console.print(table)
    console.print("* the learning rate that counts, by its loss at the length of training (validation)")
    for row in rows:
        if row["error"] is not None:
            console.print(line_of(row), soft_wrap=True)


def _cell(row: Row, bucket: int) -> str:
    loss, error = at([row], bucket)
    return f"{loss:.3f}±{error:.3f}"


def line_of(row: Row) -> str:
    """A model and what came of it: its loss at the length of training, or its error."""
    name = f"{row['system']}, learning rate {row['learning_rate']:g}, seed {row['seed']}"
    if row["error"] is not None:
        return f"{name}: {row['error']}"
    return f"{name}: {row['validation_loss']:.4f} nats a byte after {row['training_s']:.0f} s"


__all__ = ["best", "figure", "line_of", "show"]
