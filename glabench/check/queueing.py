"""How long Python takes to queue a case, before and now: said, and never judged, for it depends on the CPU and on what
else runs there, which no row knows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from glabench.check.verdict import CaseVerdict, Check
from glabench.report import text
from glabench.store import Row

TOLD = 1.1  # from this ratio on, in either direction


def queued(case: CaseVerdict) -> tuple[float, float] | None:
    """Milliseconds before and now, the median of the runs' medians; None where a side does not say."""
    before, now = _median(case.pair.before), _median(case.pair.after)
    return None if before is None or now is None else (before, now)


def _median(runs: Sequence[Row]) -> float | None:
    samples = [((run.time or {}).get("eager") or {}).get("host_ms") for run in runs if run.status == "ok"]
    return median([median(values) for values in samples if values]) if any(samples) else None


def change(case: CaseVerdict) -> str | None:
    """A line of the case whose queueing changed by 10 % or more."""
    found = queued(case)
    if found is None or 1 / TOLD < found[1] / found[0] < TOLD:
        return None
    before, now = map(text.number, found)
    return f"queued in {before} ms before, {now} ms now (not judged: it depends on the CPU)"


def longer(check: Check) -> str:
    """A sentence of the cases that Python takes longer to queue, with a space before it; empty where there are none."""
    ratios = [found[1] / found[0] for case in check.cases if (found := queued(case)) is not None]
    slower = [ratio for ratio in ratios if ratio >= TOLD]
    if not slower:
        return ""
    most, of = text.times(max(slower)), text.count(len(ratios), "case")
    return (
        f" Python takes {100 * (TOLD - 1):.0f} % longer or more to queue {len(slower)} of {of}, at most {most} as "
        "long, which is not judged: it depends on the CPU."
    )
