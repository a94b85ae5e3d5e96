"""A check in words: what every format says of a case, of the noise and of the whole."""

from __future__ import annotations

import math

from glabench.analysis import labels
from glabench.check import queueing
from glabench.check.timing import OTHER_CPU, OTHER_GPU
from glabench.check.verdict import ORDER, CaseVerdict, Check
from glabench.report import text

MOST_REASONS = 3  # why runs were left out; each case has its own


def name(case: CaseVerdict) -> str:
    """The case as a person names it: "GLA with states C64/16, B4 T2k H16 128, bf16, forward, 3f0c12ab45de"."""
    given = case.pair.case
    system = f"{labels.title(labels.variant(given))} {labels.schedule(given)}".strip()
    return f"{system}, {text.shape(given)}, {given['dtype']}, {text.mode(given['mode'])}, {case.pair.case_id}"


def verdict(case: CaseVerdict) -> str:
    """The verdict, which says so where a slow-down was not measured again."""
    return "slower (not re-measured)" if case.verdict == "slower" and _unsettled(case) else case.verdict


def _unsettled(case: CaseVerdict) -> bool:
    return case.remeasured is None or case.remeasured.startswith("could not")


def details(case: CaseVerdict) -> list[str]:
    """Everything there is to say of the case beside its verdict, a line each."""
    said = [case.reason] if case.reason else []
    if (time := case.time) is not None:
        before, now = time.runs
        said.append(
            f"time {change(time.ratio)} ({text.number(time.before_ms)} -> {text.number(time.after_ms)} ms; interval "
            f"{change(time.low)} to {change(time.high)}, noise floor {change(time.floor)}; {text.count(before, 'run')} "
            f"before, {text.count(now, 'run')} now; from {change(time.needed)} on it would be called slower)"
        )
        if time.other_gpu:
            where = ", and so perhaps of another CPU, on which the case waits for its launches" if time.waits else ""
            said.append(f"the runs before are of another GPU of this model{where}")
    if case.remeasured is not None:
        said.append(case.remeasured)
    said += [f"{found.measure} {found.verdict}: {found.words}" for found in case.measures if found.verdict != "same"]
    said += [line] if (line := queueing.change(case)) is not None else []
    return said + [f"a run was left out: {note}" for note in case.notes]


def change(ratio: float) -> str:
    """A ratio as a change: +3.1 %."""
    return f"{100 * (ratio - 1):+.1f} %"


def summary(check: Check) -> str:
    """The counts: "2 slower, 91 same"."""
    counts = check.counts
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict]) or "no case"


def judged_by(check: Check) -> str:
    """What decided: threshold, noise, correction, and which runs were left out; a sentence each."""
    steady, restless = check.noise.steady, check.noise.restless
    if steady.pooled is None and restless.pooled is None:
        floor = (
            "No case was run more than once, so the noise floor is a default, and not measured on this machine: accept "
            "a baseline of several runs"
        )
    else:
        floor = "From run to run medians spread by " + ", and by ".join(
            f"{100 * noise.pooled:.2f} %{where} (standard deviation, from {text.count(noise.repeats, 'repeat')} of the "
            "same code)"
            for noise, where in ((steady, ""), (restless, " of cases that are restless"))
            if noise.pooled is not None
        )
    return (
        f"A slow-down of {100 * check.threshold:g} % is to be found. {floor}. Intervals are corrected for "
        f"{text.count(check.compared, 'case')} compared.{_left_out(check)}{_other_gpus(check)}{queueing.longer(check)}"
    )


def _left_out(check: Check) -> str:
    """That runs were left out, which changes what a verdict rests on, be it "same"; and why, the first reasons."""
    cases = [case for case in check.cases if case.notes]
    if not cases:
        return ""
    reasons = list(dict.fromkeys(note for case in cases for note in case.notes))
    more = "; ..." if len(reasons) > MOST_REASONS else ""
    return f" Runs of {text.count(len(cases), 'case')} were left out: {'; '.join(reasons[:MOST_REASONS])}{more}."


def _other_gpus(check: Check) -> str:
    """That cases were compared with another GPU of the model, and what that means."""
    times = [case.time for case in check.cases if case.time is not None and case.time.other_gpu]
    if not times:
        return ""
    waits = any(time.waits for time in times)
    most = f", and {math.exp(OTHER_CPU):g} times as slow or fast where a case waits for its launches" if waits else ""
    return (
        f" Of {text.count(len(times), 'case')} the runs before are of another GPU of this model, which may be slower "
        f"or faster by {100 * math.expm1(OTHER_GPU):.1f} %{most}: so much more is asked of a call. "
        "--against baseline measures in turns with its commit, on the GPU at hand."
    )


def advice(check: Check) -> str | None:
    """How to have slow-downs measured again, where some were not."""
    if not any(case.verdict == "slower" and _unsettled(case) for case in check.cases):
        return None
    return (
        "To measure the slow-downs again, run the same command on the machine that they were measured on, with "
        "--against REV for the commit before in turns with this one."
    )
