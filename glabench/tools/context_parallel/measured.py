"""What ranks reported, as rows: one for each mode that was timed, or for each length that was tried."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from glabench.tools.context_parallel.processes import Ended, Failure, Report, run
from glabench.tools.context_parallel.question import Finding, Question
from glabench.tools.rows import Row

KIND = "context parallel"
FULL = "oom"
# Of a run of tokens. In bf16 the plain form is 0.003 from float64, and one that loses a state 0.05 to 0.13.
MOST_APART = 0.02


def times(question: Question) -> Iterator[Row]:
    """A row for each mode and way that messages go, of which one rank has none."""
    question = question if question.ranks > 1 else replace(question, ways=(None,))
    ended = run(_timed, question)
    yield from (time_row(question, mode, ended, way) for mode in question.modes for way in question.ways)


def memory(question: Question) -> Iterator[Row]:
    """Rows of one rank, with ever more tokens until they do not fit; then one of that many tokens on all ranks."""
    rows = memory_rows(replace(question, ranks=1), run(_fitted, replace(question, ranks=1)))
    yield from rows
    if rows[-1]["status"] == FULL and question.ranks > 1:
        more = replace(question, shape=replace(question.shape, T=rows[-1]["T"]))
        yield from memory_rows(more, run(_fitted, more))


def time_row(question: Question, mode: str, ended: Ended, way: str | None = None) -> Row:
    """Of what all ranks found. It has no times where they are not right."""
    row = _begun(question, "time", mode) | {"samples": question.samples, "calls": question.calls}
    checks = [next((one for one in said if "check" in one), None) for said in ended.found]
    row["devices"] = [check and check["device"] for check in checks]
    row["check"] = checks[0] and checks[0]["check"]
    if checks[0] and checks[0]["wrong"][mode]:
        return row | {"status": "wrong", "reason": checks[0]["wrong"][mode]}
    found = [one for said in ended.found for one in said if (one.get("mode"), one.get("way")) == (mode, way)]
    if len(found) < question.ranks:
        return row | _failed(ended.failure)
    if not all(one["same_bits"] for one in found):
        return row | {"status": "wrong", "reason": "two runs of the same inputs differ, or hold NaN"}
    row["apart"], row["exchange"] = found[0]["apart"], found[0]["exchange"]
    if row["apart"] is not None and not row["apart"] <= MOST_APART:
        return row | {
            "status": "wrong",
            "reason": f"{row['apart']:.2e} from one GPU's results, {MOST_APART} is allowed",
        }
    of_ranks: dict[str, Any] = {key: [one[key] for one in found] for key in ("message_bytes", "peak_bytes")}
    for name, key in (("", "samples"), ("alone_", "alone")):
        for clock in ("ms", "wall_ms"):
            of_ranks[f"{name}{clock}"] = [[sample[clock] for sample in one[key]] for one in found]
    return row | of_ranks | {"status": "ok"}


def memory_rows(question: Question, ended: Ended) -> list[Row]:
    """Of the lengths that all ranks had memory for, and of the one after them."""
    rows, tokens = list[Row](), question.shape.T
    for found in zip(*ended.found, strict=False):
        tokens = found[0]["T"]
        rows.append(_tried(question, tokens, found) | {"status": "ok"})
        if not all(one["finite"] for one in found):
            rows[-1] |= {"status": "wrong", "reason": "results are not finite"}
        tokens *= 2
    return [*rows, _tried(question, tokens, ()) | _failed(ended.failure)] if ended.failure else rows


def _tried(question: Question, tokens: int, found: Sequence[Finding]) -> Row:
    row = _begun(question, "memory", "fwdbwd") | {"T": tokens, "devices": [one["device"] for one in found]}
    return row | {"peak_bytes": [one["peak_bytes"] for one in found]}


def _begun(question: Question, asked: str, mode: str) -> Row:
    row: Row = {"kind": KIND, "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "asked": asked}
    row |= asdict(question.shape) | {"ranks": question.ranks, "mode": mode, "dtype": question.dtype}
    return row | {"device": question.device, "status": "error", "reason": None}


def _failed(failure: Failure | None) -> Row:
    return {"status": failure.status, "reason": failure.reason} if failure else {"reason": "a rank said nothing"}


# What processes run is imported where it runs: it needs torch.
def _timed(question: Question, rank: int, report: Report) -> None:
    from glabench.tools.context_parallel.work import timed

    timed(question, rank, report)


def _fitted(question: Question, rank: int, report: Report) -> None:
    from glabench.tools.context_parallel.work import fitted

    fitted(question, rank, report)
