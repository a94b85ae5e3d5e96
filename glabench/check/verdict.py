"""All verdicts on one case, and on all cases: what `glabench check` answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from glabench.analysis.load import device
from glabench.check.comparable import Compared, comparable, difference
from glabench.check.measures import Finding, findings
from glabench.check.noise import Floors, floors
from glabench.check.pairs import Pair, pairs
from glabench.check.timing import TimeVerdict, judge_time
from glabench.store import Row

# Worst first: the verdict on a case is the first of these that holds for any of its measures.
ORDER = ("wrong", "missing", "slower", "worse", "not comparable", "ambiguous", "new", "faster", "better", "same")
# Statuses that are a fault of the kernel whatever the machine.
BROKEN = ("wrong", "crashed", "compile_error")
REGRESSIONS = ("wrong", "missing", "slower", "worse")


@dataclass(frozen=True)
class CaseVerdict:
    """What became of one case."""

    pair: Pair  # the runs that were compared
    verdict: str  # one of ORDER
    reason: str | None = None  # for wrong, missing, new and not comparable
    time: TimeVerdict | None = None
    measures: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    # of a slow-down: "held" or "did not hold" on re-measurement, or why there was none
    remeasured: str | None = None


@dataclass(frozen=True)
class Check:
    """Every case's verdict, and what they were judged by."""

    cases: tuple[CaseVerdict, ...]
    noise: Floors
    threshold: float
    device: str
    compared: int  # cases whose times were compared: what intervals are corrected for

    @property
    def counts(self) -> Counter[str]:
        return Counter(case.verdict for case in self.cases)

    @property
    def exit_code(self) -> int:
        """1 for a regression or a missing case, else 3 where something could not be compared, else 0."""
        if any(case.verdict in REGRESSIONS for case in self.cases):
            return 1
        return 3 if any(case.verdict == "not comparable" for case in self.cases) else 0


def check(before: Sequence[Row], after: Sequence[Row], threshold: float) -> Check:
    """The verdicts on rows after a change, by rows before it. ``threshold``: the slow-down to find, 0.03 for 3 %."""
    matched = pairs(before, after)
    timed = [found for pair in matched if (found := timed_runs(pair)) is not None]
    compared = {pair.case_id: comparable(pair) for pair in timed}
    usable = [found.pair for found in compared.values() if found.reason is None]
    floor = floors((pair.case_id, pair.before, pair.after) for pair in usable)
    cases = tuple(judge_case(pair, compared.get(pair.case_id), floor, threshold, len(usable)) for pair in matched)
    return Check(cases, floor, threshold, device(after[-1]), len(usable))


def retimed(case: CaseVerdict, time: TimeVerdict, how: str) -> CaseVerdict:
    """The case, whose times were compared, as its re-measurement says, which decides: only a slow-down that holds is
    one."""
    assert case.time is not None
    said = f"measured {how}: {wording_of(time)}"
    if case.time.verdict == "slower":
        said = f"{'held' if time.verdict == 'slower' else 'did not hold'} when {said}"
    contradicted = case.time.verdict == "slower" and time.verdict == "faster"
    verdict = _worst("ambiguous" if contradicted else time.verdict, case.measures)
    return replace(case, verdict=verdict, remeasured=said)


def wording_of(time: TimeVerdict) -> str:
    """A time in few words: "+3.4 %, slower"."""
    return f"{100 * (time.ratio - 1):+.1f} %, {time.verdict}"


def judge_case(pair: Pair, compared: Compared | None, floor: Floors, threshold: float, count: int) -> CaseVerdict:
    """The verdict on one case by all its measures.

    compared: what of its runs can be compared, None where a side was not timed. threshold: the slow-down to find, 0.03
    for 3 %. count: how many cases are compared, for which intervals are corrected.
    """
    if (early := _without_comparison(pair)) is not None:
        return early
    others = tuple(findings([run for run in pair.before if run.status == "ok"], pair.after))
    if compared is None:
        lost = next((f"no time {when}" for when, runs in _sides(pair) if not any(run.time for run in runs)), None)
        timed = any(run.time for run in (*pair.before, *pair.after))
        return CaseVerdict(pair, _worst("not comparable" if timed else "same", others), lost if timed else None,
                           measures=others)  # fmt: skip
    if compared.reason is not None:
        return CaseVerdict(pair, _worst("not comparable", others), compared.reason, measures=others)
    before, after = compared.pair.before, compared.pair.after
    time = judge_time(pair.case_id, before, after, floor.of([*before, *after]), threshold, count)
    assert time is not None  # both sides have times
    return CaseVerdict(compared.pair, _worst(time.verdict, others), None, time, others, compared.left_out)


def _without_comparison(pair: Pair) -> CaseVerdict | None:
    """The verdict where one side says all; None where there are good rows on both."""
    if not pair.after:
        return CaseVerdict(pair, "missing", "no row of this case, which the baseline has")
    now = next((run for run in pair.after if run.status != "ok"), pair.after[-1])
    said = f"{now.status} now" + (f": {now.reason}" if now.reason else "")
    if not pair.before:
        verdict = "wrong" if now.status in BROKEN else "new"
        return CaseVerdict(pair, verdict, f"the baseline does not have this case; {said}")
    if all(run.status != "ok" for run in pair.before):
        # A case that starts to fit and comes out wrong became worse; one that was broken already did not.
        broke = now.status in BROKEN and not any(run.status in BROKEN for run in pair.before)
        verdict = "new" if now.status == "ok" else "wrong" if broke else "same"
        return CaseVerdict(pair, verdict, f"{pair.before[-1].status} before, {said}")
    if now.status == "ok":
        return None
    other = difference(pair.before[-1], now)
    if now.status not in BROKEN and other is not None:  # what fits, and what runs, depends on the machine
        return CaseVerdict(pair, "not comparable", f"ok before, {said}; but {other}")
    return CaseVerdict(pair, "wrong", f"ok before, {said}")


def timed_runs(pair: Pair) -> Pair | None:
    """The pair with its runs that were timed; None where a side has none, or has no good row at all."""
    before, after = (tuple(run for run in runs if run.status == "ok" and run.time) for _, runs in _sides(pair))
    broken = any(run.status != "ok" for run in pair.after)
    return replace(pair, before=before, after=after) if before and after and not broken else None


def _sides(pair: Pair) -> tuple[tuple[str, tuple[Row, ...]], ...]:
    return ("before", pair.before), ("now", pair.after)


def _worst(time: str, others: Sequence[Finding]) -> str:
    return min([time, *(finding.verdict for finding in others)], key=ORDER.index)
