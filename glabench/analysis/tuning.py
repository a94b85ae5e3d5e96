"""Tunings -> what each came to: how much was measured, how far the winner is ahead, where its time goes.

The time of a plan is the sum of its passes, so what the trials say of single kernels says what every plan takes that
consists of them (`Sums`). Whole plans that were timed in turns, the finalists, say it better where there are any.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import pandas as pd

from glabench.analysis.load import device_name
from glabench.analysis.statistics import Estimate, estimate, geometric_mean
from glabench.tuning_store import Finalist, Trial, Tuning

# In the order in which they run; grad_q and grad_k are of records from before one pass did both.
PASSES = ("states", "output", "walk", "grad_states", "grad_walk", "grad_q", "grad_k", "grad_qk", "grad_v")
WALKS = ("walk", "grad_walk")  # fused scans
FEWEST = 5  # candidates of a pass that a rank correlation needs
SIZES = ("B", "T", "H", "K", "V")

Times = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, order=True)
class Variant:
    """What the passes of a plan have in common, as records have it."""

    chunk: int
    sub_chunk: int
    materialize: bool
    block_t: int
    states_every: int = 0  # chunks a segment; 0: a walk over the whole sequence
    walks: bool = False  # whether there is a fused scan

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Variant:
        """Of a candidate or a plan of a record."""
        schedule = values["schedule"]
        every = schedule.get("states_every") or 0  # older records have none
        walks = values.get("walks", not set(WALKS).isdisjoint(values.get("tiles", ())))
        return cls(schedule["chunk"], schedule["sub_chunk"], schedule["materialize"], values["block_t"], every, walks)

    @property
    def schedule(self) -> str:
        """ "64/16 w/ m.", with segments of 32 chunks "64/16 w/ m., seg 32"."""
        segments = f", seg {self.states_every}" if self.states_every else ""
        return f"{self.chunk}/{self.sub_chunk} {'w/ m.' if self.materialize else 'w/o m.'}{segments}"

    def __str__(self) -> str:
        return f"{self.schedule}, rows of {self.block_t}{', one walk' if self.walks else ''}"

    @property
    def kind(self) -> tuple[bool, bool]:
        """What decides, within one workload, which passes a plan has. Cut into segments, a walk that does two passes'
        work needs another pass before it."""
        return self.walks, self.materialize and not (self.walks and self.states_every)


def variants(trial: Trial) -> list[Variant]:
    """The variants that the trial's kernel is a pass of, the one that it is listed under first."""
    return [Variant.of(trial.candidate), *(Variant(*values) for values in trial.shared)]


def median_ms(samples: Sequence[float]) -> float:
    """The median; NaN without samples."""
    return estimate(samples).median


def trial_ms(trial: Trial) -> float:
    """ms of a kernel; infinite for one that failed or was not run."""
    return median_ms(trial.samples_ms) if trial.status == "ok" and trial.samples_ms else math.inf


class Sums:
    """What the trials of a tuning say of plans. given: whether a forward pass leaves its states for backward ones.
    times: `Tuning.times`; without them plans of slices cannot be compared with others, and have no sums then."""

    def __init__(self, trials: Sequence[Trial], given: bool = False, times: Times | None = ()) -> None:
        self.best: dict[Variant, dict[str, Trial]] = {}  # the fastest tile of each pass
        self._by_place: dict[tuple[Variant, str, tuple[int, ...]], Trial] = {}
        needed: dict[tuple[bool, bool], set[str]] = defaultdict(set)
        for trial in trials:
            step, tile = trial.candidate["step"], tuple(trial.candidate["tile"])
            for variant in variants(trial):
                needed[variant.kind].add(step)
                self._by_place[variant, step, tile] = trial
                found = self.best.setdefault(variant, {})
                if trial_ms(trial) < (trial_ms(found[step]) if step in found else math.inf):
                    found[step] = trial
        self._needed = {kind: tuple(step for step in PASSES if step in steps) for kind, steps in needed.items()}
        backward = any(step.startswith("grad") for steps in needed.values() for step in steps)
        self._left = {"states"} if given and backward else set()
        self._factors = {(Variant(*variant), step): factor for variant, step, factor in times or ()}
        self._sliced = {variant for variant in self.best if times is None and not variant.materialize}
        self._unknown = self._sliced if len(self._sliced) < len(self.best) else set()

    @classmethod
    def of(cls, tuning: Tuning) -> Sums:
        return cls(tuning.trials, tuning.states_given, tuning.times)

    def ms(self, variant: Variant, trial: Trial | None) -> float:
        """What the variant takes of the trial's pass; infinite where that is not known."""
        if trial is None or variant in self._unknown:
            return math.inf
        return self._factors.get((variant, trial.candidate["step"]), 1.0) * trial_ms(trial)

    def steps(self, variant: Variant) -> tuple[str, ...]:
        """The passes that a variant runs, in order."""
        left = self._left if variant.materialize else ()
        return tuple(step for step in self._needed.get(variant.kind, ()) if step not in left)

    def runs(self, plan: Mapping[str, Any]) -> tuple[Variant, tuple[tuple[int, ...], ...]]:
        """What of a plan of a record runs: the tiles of passes that the workload does not have say nothing."""
        variant = Variant.of(plan)
        return variant, tuple(tuple(plan["tiles"][step]) for step in self.steps(variant))

    def same(self, plan: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether two plans of records run the same."""
        return self.runs(plan) == self.runs(other)

    def total(self, variant: Variant) -> float:
        """ms of the variant's fastest tiles; infinite while a pass has none."""
        found, steps = self.best.get(variant, {}), self.steps(variant)
        return sum(self.ms(variant, found.get(step)) for step in steps) if steps else math.inf

    def ranking(self) -> list[Variant]:
        """The variants of which every pass has run, fastest first."""
        totals = {variant: self.total(variant) for variant in self.best}
        return sorted((v for v in totals if totals[v] < math.inf), key=lambda v: (totals[v], v))

    def passes(self, plan: Mapping[str, Any]) -> dict[str, float]:
        """ms of each pass of a plan of a record; NaN for a pass of which that is not known."""
        variant = Variant.of(plan)
        places = {step: (variant, step, tuple(plan["tiles"][step])) for step in self.steps(variant)}
        times = {
            step: math.inf if variant in self._sliced else self.ms(variant, self._by_place.get(place))
            for step, place in places.items()
        }
        return {step: ms if ms < math.inf else math.nan for step, ms in times.items()}


def work_key(tuning: Tuning) -> tuple[Any, ...]:
    """Equal for two tunings of the same workload on the same kind of GPU."""
    work = tuning.workload
    schedule = work.get("schedule")
    asked = Variant.of({"schedule": schedule, "block_t": 0}) if schedule else None
    sizes = tuple(work[name] for name in SIZES)
    how = (work["dtype"], work.get("gate_dtype"), work["gated"], asked, tuning.states_given)
    return (device_name(tuning.environment), *sizes, *how, work["direction"])


def asked(work: Mapping[str, Any]) -> str:
    """The schedule that a workload asks for, "64/16 w/ m."; empty where it leaves that open."""
    schedule = work.get("schedule")
    return "" if schedule is None else Variant.of({"schedule": schedule, "block_t": 0}).schedule


def winner(tuning: Tuning) -> Finalist | None:
    return None if tuning.winner is None else tuning.finalists[tuning.winner]


def incumbent(tuning: Tuning) -> Finalist | None:
    """The plan that was in use before, when it ran."""
    return next((f for f in tuning.finalists if f.role == "incumbent" and f.samples_ms and f.status == "ok"), None)


def gain(tuning: Tuning) -> float:
    """The incumbent's time over the winner's, timed in turns: what tuning brought. NaN without both."""
    first, old = winner(tuning), incumbent(tuning)
    return math.nan if first is None or old is None else median_ms(old.samples_ms) / median_ms(first.samples_ms)


def rank_correlation(trials: Sequence[Trial]) -> float:
    """Spearman's, between predicted and measured times, in each pass; the mean over passes. NaN for too few trials."""
    timed = [trial for trial in trials if trial_ms(trial) < math.inf]
    found = []
    for step in PASSES:
        pairs = [(t.predicted_ms, trial_ms(t)) for t in timed if t.candidate["step"] == step]
        if len(pairs) >= FEWEST:
            ranks = pd.DataFrame(pairs).rank()
            if (ranks.nunique() > 1).all():  # otherwise there is nothing to correlate
                found.append(float(ranks[0].corr(ranks[1])))
    return sum(found) / len(found) if found else math.nan


def descent(tuning: Tuning) -> Iterator[tuple[int, float]]:
    """(candidates measured, ms of the best plan that they make) after each trial, from the first whole plan on."""
    needed, best, lowest = Sums.of(tuning), dict[Variant, dict[str, float]](), math.inf
    for count, trial in enumerate((trial for trial in tuning.trials if trial.samples_ms), 1):
        step = trial.candidate["step"]
        for variant in variants(trial):
            found, ms = best.setdefault(variant, {}), needed.ms(variant, trial)
            if ms < found.get(step, math.inf):
                found[step] = ms
                lowest = min(lowest, sum(found.get(one, math.inf) for one in needed.steps(variant)))
        if lowest < math.inf:
            yield count, lowest


@dataclass(frozen=True)
class Progress:
    """How far searches had come after ``count`` candidates: ms of the best plan over that at the search's end."""

    strategy: str
    count: int
    typical: float  # the median search; infinite where half of them had no whole plan yet
    worst: float
    worst_of: Tuning


def progress(tunings: Sequence[Tuning]) -> list[Progress]:
    """By strategy and number of candidates, at 1, 2, 3, 4, 6, 8, 12 ... and at the end of the longest search."""
    found = []
    for strategy in dict.fromkeys(tuning.strategy for tuning in tunings):
        falls = [(t, list(descent(t))) for t in tunings if t.strategy == strategy]
        falls = [(tuning, fall) for tuning, fall in falls if fall]
        most = max((fall[-1][0] for _, fall in falls), default=0)
        for count in [*_halves_of_octaves(most), most] if falls else []:
            ratios = [(_reached(fall, count), tuning) for tuning, fall in falls]
            worst, tuning = max(ratios, key=lambda pair: pair[0])
            found.append(Progress(strategy, count, median([ratio for ratio, _ in ratios]), worst, tuning))
    return found


def _halves_of_octaves(below: int) -> list[int]:
    counts = sorted({size for i in range(below.bit_length()) for size in (2**i, 3 * 2**i // 2)})
    return [count for count in counts if 0 < count < below]


def _reached(fall: Sequence[tuple[int, float]], count: int) -> float:
    return next((ms for at, ms in reversed(fall) if at <= count), math.inf) / fall[-1][1]


def runs(tunings: Sequence[Tuning]) -> list[Tuning]:
    """One tuning of each run: both directions of a shape are tuned together, and each record has the time of both."""
    shapes = {(t.started, t.wall_s, t.strategy, work_key(replace(t, states_given=False))[:-1]): t for t in tunings}
    return list(shapes.values())


COLUMNS = (
    "device", "direction", *SIZES, "dtype", "gate_dtype", "gated", "asked", "strategy", "started", "feasible",
    "measured", "share", "failed", "rank_correlation", "plan", "by", "ms", "ms_lo", "ms_hi", "samples", "incumbent_ms",
    "incumbent_origin", "incumbent_over_winner", "sum_ms", "sum_plan", "wall_s", "budget_s", "stopped",
)  # fmt: skip


def table(tunings: Sequence[Tuning]) -> pd.DataFrame:
    """One line a tuning, in their order.

    share: measured / feasible. plan, by, ms ...: the winner, with the interval of its median; by: "incumbent" when
    tuning found nothing better. sum_ms, sum_plan: the best plan by the sums of its passes. wall_s is of the whole run.
    """
    return pd.DataFrame([_line(tuning) for tuning in tunings], columns=list(COLUMNS))


def _line(tuning: Tuning) -> dict[str, Any]:
    work, first, old = tuning.workload, winner(tuning), incumbent(tuning)
    time: Estimate = estimate(first.samples_ms if first else ())
    sums = Sums.of(tuning)
    best = next(iter(sums.ranking()), None)
    return {
        "device": device_name(tuning.environment), "direction": work["direction"],
        **{name: work[name] for name in SIZES}, "dtype": work["dtype"],
        "gate_dtype": work.get("gate_dtype") or work["dtype"], "gated": work["gated"], "asked": asked(work),
        "strategy": tuning.strategy, "started": tuning.started, "feasible": tuning.feasible,
        "measured": tuning.measured, "share": tuning.measured / tuning.feasible if tuning.feasible else math.nan,
        "failed": tuning.failed.total(), "rank_correlation": rank_correlation(tuning.trials),
        "plan": str(Variant.of(first.plan)) if first else "", "by": first.role if first else "",
        "ms": time.median, "ms_lo": time.low, "ms_hi": time.high, "samples": time.samples,
        "incumbent_ms": median_ms(old.samples_ms) if old else math.nan, "incumbent_origin": old.origin if old else "",
        "incumbent_over_winner": gain(tuning), "sum_ms": sums.total(best) if best else math.nan,
        "sum_plan": str(best) if best else "", "wall_s": tuning.wall_s, "budget_s": tuning.budget_s,
        "stopped": tuning.stopped,
    }  # fmt: skip


@dataclass(frozen=True)
class Gains:
    """Incumbent over winner, over many tunings: how the plans in use do where they are."""

    mean: float  # geometric
    worst: float
    worst_of: Tuning
    count: int


# Where the plan in use had been tuned, the farthest last.
OWN_CLASS = "tuned for their class"
NEAREST = "tuned for a class nearby"
UNTUNED = "not tuned"


def reach(origin: str) -> str:
    """One of the three, from what `gla_kernels.Choice` said of a plan; older ones were of "the nearest" class."""
    if any(words in origin for words in (", nearby", ", the nearest", ", for gates in")):
        return NEAREST
    return OWN_CLASS if "tuned" in origin else UNTUNED


def gains(tunings: Sequence[Tuning]) -> dict[str, Gains]:
    """By `reach`, those that there are, of the tunings that have both an incumbent and a winner."""
    found: dict[str, list[tuple[float, Tuning]]] = {OWN_CLASS: [], NEAREST: [], UNTUNED: []}
    for tuning in tunings:
        old = incumbent(tuning)
        if old is not None and not math.isnan(gain(tuning)):
            found[reach(old.origin)].append((gain(tuning), tuning))
    return {name: _gains(pairs) for name, pairs in found.items() if pairs}


def _gains(pairs: Sequence[tuple[float, Tuning]]) -> Gains:
    worst, tuning = max(pairs, key=lambda pair: pair[0])
    return Gains(geometric_mean([value for value, _ in pairs]), worst, tuning, len(pairs))
