"""Tunings in words and tables: the headline, each tuning, those of one workload side by side, failures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median

from glabench.analysis import labels, retuned
from glabench.analysis.load import device_name
from glabench.analysis.retuned import Pair
from glabench.analysis.statistics import geometric_mean
from glabench.analysis.tuning import Variant, gains, rank_correlation, runs, table, winner, work_key
from glabench.report import text
from glabench.report.headline import Finding
from glabench.report.tables import SEVERITY, Cell, Failure, Table, number_cell
from glabench.report.tuning_figures import devices
from glabench.tuning_store import Tuning

SPENT = {"measure": "of it measuring"}  # it is part of the search, which comes before it
MOST_NAMED = 12  # candidates that fail for one reason; the count says how many there are


def findings(tunings: Sequence[Tuning]) -> list[Finding]:
    """What the tunings come to, the most asked first; never empty."""
    found = [_workloads(tunings), *_gains(tunings), *_exhaustive(tunings), *_agreement(tunings), *_share(tunings)]
    return [*found, *_time(tunings), *_model(tunings), *_failures(tunings)]


def _workloads(tunings: Sequence[Tuning]) -> Finding:
    keys = {work_key(tuning) for tuning in tunings}
    won = {work_key(tuning) for tuning in tunings if winner(tuning) is not None}
    by_strategy = Counter(tuning.strategy for tuning in tunings)
    said = ", ".join(f"{count} by {name}" for name, count in by_strategy.most_common())
    lost = f"; {text.count(len(keys - won), 'workload')} without a plan that runs and is right" if keys - won else ""
    lead = f"{'workload' if len(keys) == 1 else 'workloads'} tuned"
    return Finding(
        f"{len(keys)}",
        lead,
        f"{text.count(len(tunings), 'tuning')}: {said}{lost}. A workload is a shape in one direction.",
    )


def _gains(tunings: Sequence[Tuning]) -> list[Finding]:
    return [
        Finding(
            f"{found.mean:.3f}×",
            f"the winners' time: what plans in use took that were {name} (geometric mean)",
            f"At worst {found.worst:.2f}×, at {text.workload(found.worst_of.workload)}. Over "
            f"{text.count(found.count, 'tuning')} with both, timed in turns.",
        )
        for name, found in gains(tunings).items()
    ]


def _exhaustive(tunings: Sequence[Tuning]) -> list[Finding]:
    pairs = [pair for pair in retuned.searched(tunings) if not math.isnan(pair.ratio)]
    if not pairs:
        return []
    worst = max(pairs, key=lambda pair: pair.ratio)
    mean = geometric_mean([pair.ratio for pair in pairs])
    where = f"At {text.workload(worst.second.workload)} ({worst.second.strategy}, {worst.basis})"
    rest = f"geometric mean {mean:.3f}× over {text.count(len(pairs), 'search', 'searches')}"
    return [Finding(f"{worst.ratio:.3f}×", "the worst searched winner against the exhaustive one", f"{where}; {rest}.")]


def _agreement(tunings: Sequence[Tuning]) -> list[Finding]:
    pairs, others = retuned.agreement(tunings), retuned.across_code(tunings)
    if not pairs:
        return []
    same, agree = sum(p.basis == retuned.SAME_PLAN for p in pairs), sum(p.agrees for p in pairs)
    lead = "tunings repeated with the same code came to the same: one plan, or two within 1 %"
    said = f"{same} to the same plan."
    if others:
        said += f" Of {text.count(len(others), 'pair')} of other kernels or another tuner, which are not counted, "
        said += f"{sum(p.agrees for p in others)} did."
    return [Finding(f"{agree} of {len(pairs)}", lead, said)]


def _share(tunings: Sequence[Tuning]) -> list[Finding]:
    """How much of the space was measured, by the strategies that do not measure all of it."""
    shares = [t.measured / t.feasible for t in tunings if t.feasible and t.strategy != retuned.EXHAUSTIVE]
    if not shares:
        return []
    span = f"From {min(shares):.1%} to {max(shares):.1%}"
    total = sum(t.measured for t in tunings if t.strategy != retuned.EXHAUSTIVE)
    lead = "of the feasible candidates measured by a search (median)"
    return [Finding(f"{median(shares):.1%}", lead, f"{span}; {text.count(total, 'candidate')} in all.")]


def _time(tunings: Sequence[Tuning]) -> list[Finding]:
    found = runs([t for t in tunings if t.strategy != retuned.EXHAUSTIVE]) or runs(tunings)
    walls = [tuning.wall_s for tuning in found]
    parts = dict.fromkeys(name for tuning in found for name in tuning.spent_s)
    means = {name: sum(t.spent_s.get(name, 0.0) for t in found) / len(found) for name in parts}
    spent = ", ".join(f"{SPENT.get(name, name)} {mean:.0f} s" for name, mean in means.items())
    sentence = f"The longest took {max(walls):.0f} s" + (f"; on average {spent}" if spent else "")
    return [
        Finding(f"{median(walls):.0f} s", "to search a shape, all its directions together (median)", f"{sentence}.")
    ]


def _model(tunings: Sequence[Tuning]) -> list[Finding]:
    found = [value for t in tunings if not math.isnan(value := rank_correlation(t.trials))]
    if not found:
        return []
    lead = "rank correlation of predicted and measured times (median)"
    return [
        Finding(f"{median(found):.2f}", lead, f"Within a pass; the lowest of {len(found)} tunings is {min(found):.2f}.")
    ]


def _failures(tunings: Sequence[Tuning]) -> list[Finding]:
    counts = sum((tuning.failed for tuning in tunings), Counter[str]())
    if not counts:
        return []
    said = ", ".join(f"{n} {labels.STATUS_TITLES.get(status, status)}" for status, n in counts.most_common())
    return [Finding(f"{counts.total()}", "candidates gave no time; the tuning went on", f"{said}.")]


def tuned(tunings: Sequence[Tuning]) -> Table:
    """One line a tuning."""
    many = len(devices(tunings)) > 1
    columns = [*(["device"] if many else []), "shape", "dtype", "direction", "schedule asked", "strategy", "time, ms",
               "± %", "in use, ms", "in use / tuned", "winner", "feasible", "measured", "measured %", "failed", "rank",
               "wall, s", "started", "ended because"]  # fmt: skip
    words = {
        "device",
        "shape",
        "dtype",
        "direction",
        "schedule asked",
        "strategy",
        "winner",
        "started",
        "ended because",
    }
    rows = []
    for tuning, row in zip(tunings, table(tunings).to_dict("records"), strict=True):
        work = tuning.workload
        width = (row["ms_hi"] - row["ms_lo"]) / 2 / row["ms"] * 100
        kept = ", already in use" if row["by"] == "incumbent" else ""
        rows.append((
            *([Cell(row["device"])] if many else []),
            Cell(text.shape(work)), Cell(work["dtype"] + text.gates(work)),
            Cell(text.mode(work["direction"])), Cell(row["asked"] or "open"), Cell(tuning.strategy),
            number_cell(row["ms"]), number_cell(width, 2), number_cell(row["incumbent_ms"]),
            number_cell(row["incumbent_over_winner"], 4),
            Cell(f"{row['plan']}{kept}") if row["plan"] else Cell("none", flag="bad"),
            Cell(f"{tuning.feasible:,}", tuning.feasible), Cell(f"{tuning.measured:,}", tuning.measured),
            number_cell(100 * row["share"]), Cell(str(row["failed"]), row["failed"]),
            number_cell(row["rank_correlation"], 2), number_cell(tuning.wall_s, 2),
            Cell(tuning.started[:16].replace("T", " ")), Cell(tuning.stopped),
        ))  # fmt: skip
    return Table(tuple(columns), tuple(column not in words for column in columns), tuple(rows))


def searched(tunings: Sequence[Tuning]) -> Table:
    """Each search beside the exhaustive tuning of its workload."""
    columns = ("workload", "strategy", "measured %", "searched / exhaustive", "how", "searched", "exhaustive")
    rows = [
        (
            Cell(_title(pair)), Cell(pair.second.strategy),
            number_cell(100 * pair.second.measured / pair.second.feasible if pair.second.feasible else math.nan),
            _ratio(pair), Cell(pair.basis), Cell(_plan(pair.second)), Cell(_plan(pair.first)),
        )
        for pair in retuned.searched(tunings)
    ]  # fmt: skip
    return Table(columns, (False, False, True, True, False, False, False), tuple(rows))


def repeated(tunings: Sequence[Tuning]) -> Table:
    """Each tuning beside the one before it: those of the same code, then those of other code."""
    columns = ("workload", "strategy", "code", "agree", "second / first", "how", "first", "second", "first on",
               "second on", "commits")  # fmt: skip
    rows = [
        (
            Cell(_title(pair)), Cell(pair.second.strategy), Cell("the same" if pair.same_code else "other"),
            _agrees(pair), _ratio(pair), Cell(pair.basis), Cell(_plan(pair.first)), Cell(_plan(pair.second)),
            *(Cell(one.started[:16].replace("T", " ")) for one in (pair.first, pair.second)), Cell(_commits(pair)),
        )
        for pair in (*retuned.agreement(tunings), *retuned.across_code(tunings))
    ]  # fmt: skip
    return Table(columns, (*(False,) * 4, True, *(False,) * 6), tuple(rows))


def _agrees(pair: Pair) -> Cell:
    """Of other code nothing is wrong when two tunings do not agree."""
    return Cell("yes") if pair.agrees else Cell("no", flag="bad" if pair.same_code else "")


def _commits(pair: Pair) -> str:
    commits = (str(one.environment.get("commit") or "unknown")[:7] for one in (pair.first, pair.second))
    return ", ".join(dict.fromkeys(commits))


def _title(pair: Pair) -> str:
    return text.workload(pair.second.workload)


def _ratio(pair: Pair) -> Cell:
    return number_cell(pair.ratio, 4)


def _plan(tuning: Tuning) -> str:
    found = winner(tuning)
    return "none" if found is None else str(Variant.of(found.plan))


def failures(tunings: Sequence[Tuning]) -> list[Failure]:
    """Candidates and whole plans that gave no result, by reason, the worst first."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    many = len(devices(tunings)) > 1
    for tuning in tunings:
        where = text.workload(tuning.workload) + (f", {device_name(tuning.environment)}" if many else "")
        for trial in tuning.trials:
            if trial.status != "ok":
                tile, variant = text.tile(trial.candidate["tile"]), Variant.of(trial.candidate)
                key = (trial.status, trial.candidate["step"], trial.reason or "no reason was recorded")
                groups.setdefault(key, []).append(f"{tile}, {variant}: {where}")
        for one in tuning.finalists:
            if one.status != "ok":
                key = (one.status, "whole plan", one.reason or "no reason was recorded")
                groups.setdefault(key, []).append(f"{Variant.of(one.plan)}, {one.origin}: {where}")
    severity = {status: place for place, status in enumerate(SEVERITY)}
    ordered = sorted(groups.items(), key=lambda item: (severity.get(item[0][0], len(severity)), -len(item[1])))
    return [_failure(*key, names) for key, names in ordered]


def _failure(status: str, step: str, reason: str, names: list[str]) -> Failure:
    left = len(names) - MOST_NAMED
    shown = (*names[:MOST_NAMED], *([f"and {left} more"] if left > 0 else []))
    said = f"{step}, {text.count(len(names), 'time')}"
    return Failure(said, labels.STATUS_TITLES.get(status, status), reason, shown, "")
