"""A check as text, as GitHub's annotations and step summary, as JUnit XML, as JSON, and as a line of a trend."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from glabench.analysis import trend
from glabench.check import queueing, wording
from glabench.check.verdict import ORDER, REGRESSIONS, CaseVerdict, Check

QUIET = ("same", "better", "new")  # verdicts that need no line of their own in a terminal or a summary
UNDECIDED = ("not comparable", "ambiguous")
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_text(check: Check) -> str:
    """For a terminal: every case that is not as before, worst first, then what decided."""
    told = _worst_first(case for case in check.cases if case.verdict not in QUIET)
    console = Console(file=io.StringIO(), highlight=False, markup=False, width=120)
    if told:
        table = Table(box=None, pad_edge=False)
        table.add_column("verdict", no_wrap=True)
        table.add_column("case")
        for case in told:
            table.add_row(wording.verdict(case), "\n".join([wording.name(case), *_indented(case)]))
        console.print(table)
        console.print()
    console.print(f"{check.device}: {wording.summary(check)}", soft_wrap=True)
    console.print(wording.judged_by(check), soft_wrap=True)
    if (advice := wording.advice(check)) is not None:
        console.print(advice, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def render_github(check: Check) -> str:
    """Annotations, one a case: an error for each regression, a warning for what could not be judged."""
    lines = []
    for case in _worst_first(check.cases):
        level = "error" if case.verdict in REGRESSIONS else "warning" if case.verdict in UNDECIDED else None
        if level is not None:
            message = "\n".join([wording.name(case), *wording.details(case)])
            lines.append(f"::{level} title={_property(wording.verdict(case))}::{_escaped(message)}")
    # The word in front keeps a device that is called "::error::" from being a command.
    return "\n".join([*lines, f"On {check.device}: {wording.summary(check)}"])


def step_summary(check: Check) -> str:
    """GitHub's Markdown, for the file that $GITHUB_STEP_SUMMARY names."""
    told = _worst_first(case for case in check.cases if case.verdict not in QUIET)
    lines = [f"## {_cell(check.device)}: {wording.summary(check)}", "", wording.judged_by(check), ""]
    if told:
        lines += ["| verdict | case | what changed |", "|---|---|---|"]
        for case in told:
            cells = (wording.verdict(case), wording.name(case), "; ".join(wording.details(case)))
            lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    if (advice := wording.advice(check)) is not None:
        lines += ["", advice]
    return "\n".join(lines) + "\n"


def render_junit(check: Check) -> str:
    """JUnit XML: regressions are failures, what could not be judged is skipped with the reason."""
    failures = sum(case.verdict in REGRESSIONS for case in check.cases)
    skipped = sum(case.verdict in UNDECIDED for case in check.cases)
    counts = {"tests": str(len(check.cases)), "failures": str(failures), "skipped": str(skipped), "errors": "0"}
    suite = ElementTree.Element("testsuite", {"name": _xml(f"glabench check on {check.device}"), **counts})
    for case in check.cases:
        names = {"classname": _xml(str(case.pair.case["system"])), "name": _xml(wording.name(case))}
        test = ElementTree.SubElement(suite, "testcase", names)
        words = "\n".join(wording.details(case))
        kind = "failure" if case.verdict in REGRESSIONS else "skipped" if case.verdict in UNDECIDED else None
        if kind is not None:
            ElementTree.SubElement(test, kind, {"message": wording.verdict(case)}).text = _xml(words)
        elif words:
            ElementTree.SubElement(test, "system-out").text = _xml(f"{case.verdict}\n{words}")
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def render_json(check: Check) -> str:
    """Everything, for programs; ratios are after over before, times in ms."""
    return json.dumps(as_dict(check), indent=2, ensure_ascii=False)


def as_dict(check: Check) -> dict[str, Any]:
    """The check as plain data."""
    return {
        "device": check.device,
        "exit_code": check.exit_code,
        "threshold": check.threshold,
        "noise": {
            kind: {"spread": noise.pooled, "repeats": noise.repeats}
            for kind, noise in (("steady", check.noise.steady), ("restless", check.noise.restless))
        },
        "compared": check.compared,
        "counts": dict(check.counts),
        "cases": [_case(case) for case in check.cases],
    }


def trend_line(check: Check) -> str:
    """One line of JSON for a file that grows night by night: what each case came to, and its ratio to the baseline.
    ``glabench.analysis.trend`` reads it."""
    runs = [run for case in check.cases for run in case.pair.after]
    last = runs[-1].environment if runs else {}
    now = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": check.device,
        "commit": last.get("commit"),
        "dirty": bool(last.get("dirty")),
        "conditions": trend.conditions(last),
        "counts": dict(check.counts),
        "cases": {case.pair.case_id: _tonight(case) for case in check.cases},
    }
    return json.dumps(now, ensure_ascii=False)


def _tonight(case: CaseVerdict) -> dict[str, Any]:
    found = asdict(trend.time_of(case.pair.after))
    return {"verdict": case.verdict, **found, "ratio": case.time.ratio if case.time else None, "case": case.pair.case}


FORMATS: dict[str, Callable[[Check], str]] = {
    "text": render_text,
    "github": render_github,
    "junit": render_junit,
    "json": render_json,
}


def _worst_first(cases: Any) -> list[CaseVerdict]:
    return sorted(cases, key=lambda case: ORDER.index(case.verdict))


def _indented(case: CaseVerdict) -> list[str]:
    return [f"  {line}" for line in wording.details(case)]


def _case(case: CaseVerdict) -> dict[str, Any]:
    time = None
    if case.time is not None:
        t = case.time
        time = {
            "verdict": t.verdict, "ratio": t.ratio, "low": t.low, "high": t.high, "floor": t.floor, "needed": t.needed,
            "before_ms": t.before_ms, "after_ms": t.after_ms, "runs_before": t.runs[0], "runs_now": t.runs[1],
            "other_gpu": t.other_gpu, "waits_for_launches": t.waits,
        }  # fmt: skip
    return {
        "case_id": case.pair.case_id,
        "case": case.pair.case,
        "verdict": case.verdict,
        "reason": case.reason,
        "time": time,
        "remeasured": case.remeasured,
        "queued_ms": queueing.queued(case),
        **{found.measure: {"verdict": found.verdict, "words": found.words} for found in case.measures},
        "notes": list(case.notes),
    }


def _escaped(message: str) -> str:
    """A message of a workflow command: https://docs.github.com/actions/reference/workflow-commands-for-github-actions"""
    return message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _escaped(value).replace(":", "%3A").replace(",", "%2C")


def _cell(value: str) -> str:
    """Text in a Markdown table: no markup of its own, on one line."""
    for mark in "\\`*_{}[]<>|":
        value = value.replace(mark, f"\\{mark}")
    return " ".join(value.split())


def _xml(value: str) -> str:
    """Without what XML cannot hold (its production "Char"); a reason may quote whatever a process printed."""
    return NO_XML.sub("", value)
