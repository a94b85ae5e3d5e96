"""Rows as tables: what a step takes on so many ranks, and which lengths fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from glabench.analysis.statistics import Estimate, estimate
from glabench.tools.context_parallel.question import CHECKED, Shape
from glabench.tools.rows import Row

MIB, GIB = 2**20, 2**30
TIMES = ("shape", "mode", "ranks", "by", "ms", "±", "one GPU", "exposed", "MiB sent", "GiB", "right")
LENGTHS = ("shape", "ranks", "GiB a rank", "runs")


def slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Of each sample the rank that took longest."""
    return [max(sample) for sample in zip(*ranks, strict=True)]


def figures(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """What the table says of a row that has times. Keys: ms, an Estimate; times_one_gpu: how many times the speed of
    one GPU, of the last row of one rank among ``rows`` with the same question and model of GPU, None without; exposed:
    the share of the time that is not there without messages, None of one rank; sent_bytes: of a rank to all others."""
    ms = estimate(slowest(row["ms"]))
    exposed = None
    if row["ranks"] > 1:
        exposed = 1 - estimate(slowest(row["alone_ms"])).median / ms.median
    one = [other for other in rows if other["ranks"] == 1 and other["status"] == "ok" and _alike(other, row)]
    times = estimate(slowest(one[-1]["ms"])).median / ms.median if one else None
    sent = max(sum(messages) for messages in row["message_bytes"]) * (row["ranks"] - 1)
    return {"ms": ms, "times_one_gpu": times, "exposed": exposed, "sent_bytes": sent}


def _alike(one: Row, other: Row) -> bool:
    keys = (*"BTHKV", "mode", "dtype", "device", "asked")
    return all(one[key] == other[key] for key in keys) and set(one["devices"]) == set(other["devices"])


def show(rows: Sequence[Row], before: Sequence[Row], console: Console) -> None:
    """Print the rows; those of one GPU may be among the ones before."""
    timed = [row for row in rows if row["asked"] == "time"]
    if timed:
        console.print(_times(timed, [*before, *timed]))
    tried = [row for row in rows if row["asked"] == "memory"]
    if tried:
        console.print(_lengths(tried))
    for row in rows:
        if row["reason"]:
            console.print(line_of(row), soft_wrap=True)


def line_of(row: Row) -> str:
    """A row in a few words, for who waits for them."""
    ranks = f"{row['ranks']} ranks" if row["ranks"] > 1 else "1 rank"
    return f"{_of(row)}, {row['mode']}, {ranks}: {row['reason'] or row['status']}"


def _times(rows: Sequence[Row], known: Sequence[Row]) -> Table:
    table = _table(f"One sequence over GPUs, a step, {_where(rows)}", TIMES)
    for row in rows:
        by = ", ".join(row.get("exchange") or "-")
        table.add_row(_of(row), row["mode"], str(row["ranks"]), by, *_costs(row, known), _right(row))
    return table


def _costs(row: Row, known: Sequence[Row]) -> list[str]:
    """Of times, dashes where there are none and of a CPU."""
    if row["status"] != "ok":
        return ["-"] * 6
    found = figures(row, known)
    sent = f"{found['sent_bytes'] / MIB:.1f}" if row["ranks"] > 1 else "-"
    if row["device"] == "cpu":
        return ["-"] * 4 + [sent, "-"]
    ms: Estimate = found["ms"]
    times, exposed = found["times_one_gpu"], found["exposed"]
    return [
        f"{ms.median:.3f}",
        f"{(ms.high - ms.low) / 2 / ms.median:.1%}" if ms.kind == "95 %" else "",
        "-" if times is None else f"{times:.2f}x",
        "-" if exposed is None else f"{exposed:.1%}",
        sent,
        f"{max(row['peak_bytes']) / GIB:.2f}",
    ]


def _right(row: Row) -> str:
    """Where ranks are right, how far they are from one GPU at most, if that had memory for it."""
    if row["status"] != "ok":
        return "out of memory" if row["status"] == "oom" else row["status"]
    if row["ranks"] == 1:
        return "yes"
    return f"yes, at {CHECKED} tokens" if row["apart"] is None else f"yes, {row['apart']:.0e} apart"


def _lengths(rows: Sequence[Row]) -> Table:
    table = _table(f"Forward and backward, {_where(rows)}", LENGTHS)
    for row in rows:
        peaks = [peak for peak in row["peak_bytes"] if peak is not None]
        most = f"{max(peaks) / GIB:.2f}" if peaks else "-"
        says = {"ok": "yes", "oom": "out of memory"}.get(row["status"], row["status"])
        table.add_row(_of(row), str(row["ranks"]), most, says)
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column in ("shape", "mode", "by", "right", "runs") else "right")
    return table


def _of(row: Row) -> str:
    return str(Shape(*(row[axis] for axis in "BTHKV")))


def _where(rows: Sequence[Row]) -> str:
    return f"{rows[0]['dtype']}, {rows[0]['environment']['device']}"
