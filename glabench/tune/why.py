"""Why a tuning came out as it did: the winner, and in plain words for each candidate why it lost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from glabench.analysis.statistics import Estimate, estimate
from glabench.analysis.tuning import PASSES, Sums, Variant, median_ms, trial_ms, variants, winner
from glabench.report import text
from glabench.tune.finals import KERNEL_TIE, TIE
from glabench.tuning_store import Trial, Tuning

WORDS = {
    "wrong": "wrong",
    "compile_error": "compile error",
    "oom": "out of memory",
    "timeout": "ran out of time",
    "crashed": "crashed",
    "unsupported": "cannot run here",
}


@dataclass(frozen=True)
class Row:
    """One candidate. Times in ms; what is not known is None, a time that was not taken NaN."""

    step: str
    variant: str
    tile: str
    predicted_ms: float
    time: Estimate
    compiled: dict[str, Any]
    why: str  # it lost; for the winner's own tiles that they won
    won: bool


@dataclass(frozen=True)
class PassTime:
    """One pass of the winner: its time as a kernel on its own, NaN where that was not measured."""

    step: str
    tile: str
    ms: float


@dataclass(frozen=True)
class Explanation:
    """A tuning in rows. ``rows``: candidates by pass, best first; ``plans``: (plan, where from, time, verdict)."""

    title: str
    facts: tuple[str, ...]
    passes: tuple[PassTime, ...]
    plans: tuple[tuple[str, str, Estimate, str], ...]
    rows: dict[str, tuple[Row, ...]]


def explanation(tuning: Tuning) -> Explanation:
    """Everything there is to say of one tuning."""
    judge = _Judge(tuning)
    steps = dict.fromkeys(trial.candidate["step"] for trial in tuning.trials)
    rows = {step: [t for t in tuning.trials if t.candidate["step"] == step] for step in PASSES if step in steps}
    return Explanation(
        title=text.workload(tuning.workload),
        facts=tuple(_facts(tuning, judge)),
        passes=judge.winner_passes(),
        plans=tuple(judge.plan(index) for index in range(len(tuning.finalists))),
        rows={step: tuple(map(judge.row, sorted(trials, key=judge.place))) for step, trials in rows.items()},
    )


def _facts(tuning: Tuning, judge: _Judge) -> Iterable[str]:
    share = f" ({tuning.measured / tuning.feasible:.1%})" if tuning.feasible else ""
    yield (
        f"strategy {tuning.strategy}: {tuning.measured:,} of {tuning.feasible:,} feasible candidates measured{share}, "
        f"{tuning.wall_s:.0f} s, {tuning.stopped or 'no reason to stop recorded'}; {tuning.started[:16]} UTC"
    )
    unseen = tuning.feasible - len(tuning.trials)
    if unseen > 0:
        yield f"{text.count(unseen, 'candidate')} were never looked at: the search put others before them"
    if judge.chosen is None:
        yield "no plan won: none ran and was right"
        return
    time = estimate(judge.chosen.samples_ms)
    yield f"winner: {Variant.of(judge.chosen.plan)}: {text.number(time.median)} ms{spread(time)}"
    if judge.chosen.role == "incumbent":
        yield "the plan in use stays: nothing faster was found"


class _Judge:
    """Says of the candidates and plans of one tuning why they lost."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.sums = Sums.of(tuning)
        self.chosen = winner(tuning)
        ranking = self.sums.ranking()
        # Without a winner, candidates are judged against the best that their times would make.
        self.variant = Variant.of(self.chosen.plan) if self.chosen else ranking[0] if ranking else None
        timed = [len(t.samples_ms) for t in tuning.trials if trial_ms(t) < math.inf]
        self.usual = median(timed) if timed else 0
        self.finalists = {Variant.of(finalist.plan): i for i, finalist in reversed(list(enumerate(tuning.finalists)))}

    def place(self, trial: Trial) -> tuple[bool, float, float]:
        """Sorts the candidates of a pass: the winner's tile, then by time, then what has none by prediction."""
        return not self.won(trial), trial_ms(trial), trial.predicted_ms

    def row(self, trial: Trial) -> Row:
        time = estimate(trial.samples_ms if trial.status == "ok" else ())
        candidate, home = trial.candidate, self.home(trial)
        also = f" (+{len(trial.shared)})" if trial.shared else ""
        return Row(
            candidate["step"], f"{home}{also}", text.tile(candidate["tile"]), trial.predicted_ms, time,
            trial.compiled or {}, self.why(trial), self.won(trial),
        )  # fmt: skip

    def home(self, trial: Trial) -> Variant:
        """Of the variants that share the kernel the one it has most chances in: the winner's, or the fastest."""
        shared = variants(trial)
        if self.variant in shared:
            return self.variant
        return min(shared, key=self.sums.total)

    def won(self, trial: Trial) -> bool:
        """Whether the winner runs this kernel."""
        if self.chosen is None or self.variant not in variants(trial):
            return False
        return self.chosen.plan["tiles"][trial.candidate["step"]] == list(trial.candidate["tile"])

    def why(self, trial: Trial) -> str:
        if trial.status != "ok":
            return f"{WORDS.get(trial.status, trial.status)}: {trial.reason or 'no reason was recorded'}"
        if self.won(trial):
            return "in the winner"
        if not trial.samples_ms:
            return self._unmeasured(trial)
        home = self.home(trial)
        return self._against_tile(trial, home) or self._against_plan(home, trial.candidate["step"], trial_ms(trial))

    def _unmeasured(self, trial: Trial) -> str:
        step = trial.candidate["step"]
        tried = [t.predicted_ms for t in self.tuning.trials if t.candidate["step"] == step and t.samples_ms]
        if tried and trial.predicted_ms > min(tried):
            return f"predicted too slow, not measured ({trial.predicted_ms / min(tried):.2f}x the best predicted)"
        return f"not measured: {self.tuning.stopped or 'the search ended'}"

    def _against_tile(self, trial: Trial, home: Variant) -> str | None:
        """Against the tile of the same pass that its variant takes; None for that tile itself."""
        best = self._tile_of(home, trial.candidate["step"])
        if best is trial:
            return None
        ratio = trial_ms(trial) / trial_ms(best)
        if ratio <= KERNEL_TIE:
            if home != self.variant:
                return None  # as good as that tile, so what its variant comes to decides
            return f"within noise of {text.tile(best.candidate['tile'])} ({ratio:.3f}x), lost the tie-break"
        slower = f"{ratio:.2f}x slower than the best of its pass, {text.tile(best.candidate['tile'])}"
        few = len(trial.samples_ms)
        return f"dropped after {text.count(few, 'sample')}: {slower}" if few < self.usual else slower

    def _tile_of(self, home: Variant, step: str) -> Trial:
        """The winner's tile of the pass in its own variant, elsewhere the fastest."""
        if home == self.variant:
            found = next((t for t in self.tuning.trials if t.candidate["step"] == step and self.won(t)), None)
            if found is not None and trial_ms(found) < math.inf:
                return found
        return self.sums.best[home][step]

    def _against_plan(self, home: Variant, step: str, ms: float) -> str:
        """The best tile of its variant: why the variant lost."""
        if home in self.finalists and self.finalists[home] != self.tuning.winner:
            return f"best of its variant, whose plan {self._verdict(self.finalists[home])}"
        total = self.sums.total(home)
        if total == math.inf:
            steps = self.sums.steps(home)
            missing = [step for step in steps if step not in self.sums.best[home]]
            if not missing:
                return "how often its plan runs this kernel was not recorded"
            return f"its variant has no time for {text.listing(missing)}"
        if self.variant is None or home == self.variant:
            return "best of its pass, but not in the plan that was timed as a whole"
        best = self.sums.total(self.variant)
        if total <= best:
            return f"{home} needs {_ms(total)} ms by the sum of its passes, but was not timed as a whole"
        taken = self._tile_of(self.variant, step) if step in self.sums.best.get(self.variant, {}) else None
        reason = "best of its variant, which is slower"
        if taken is not None and ms <= trial_ms(taken):
            reason = "its variant's other passes cost more"
        return f"{reason}: {home} needs {_ms(total)} ms in all, the best {_ms(best)}"

    def plan(self, index: int) -> tuple[str, str, Estimate, str]:
        finalist = self.tuning.finalists[index]
        source = f"in use: {finalist.origin}" if finalist.role == "incumbent" else finalist.origin
        return str(Variant.of(finalist.plan)), source, estimate(finalist.samples_ms), self._verdict(index)

    def _verdict(self, index: int) -> str:
        """What became of a finalist, as the end of a sentence about a plan."""
        finalist = self.tuning.finalists[index]
        if index == self.tuning.winner:
            return "won"
        if finalist.status != "ok":
            return f"was refused, {WORDS.get(finalist.status, finalist.status)}: {finalist.reason or 'no reason'}"
        if not finalist.samples_ms:
            return "was not timed"
        if self.chosen is None:
            return "was timed, and nothing won"
        ratio = median_ms(finalist.samples_ms) / median_ms(self.chosen.samples_ms)
        if self.sums.same(finalist.plan, self.chosen.plan):
            return f"is the winner's own plan, at {ratio:.3f}x of its time"
        return f"lost the final: {ratio:.3f}x the winner" + (", within noise" if ratio <= TIE else "")

    def winner_passes(self) -> tuple[PassTime, ...]:
        if self.chosen is None:
            return ()
        times = self.sums.passes(self.chosen.plan)
        return tuple(PassTime(step, text.tile(self.chosen.plan["tiles"][step]), ms) for step, ms in times.items())


def _ms(value: float) -> str:
    return text.number(value)


def spread(time: Estimate) -> str:
    """ " (0.91 to 0.93, 25 samples)"; empty without an interval."""
    if math.isnan(time.low):
        return ""
    return f" ({text.number(time.low)} to {text.number(time.high)}, {text.count(time.samples, 'sample')})"
