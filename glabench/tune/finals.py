"""The finals: whole plans in turns, the plan in use among them; then the winner faces the gate. What passed the screen
and fails here is no winner, and the finals go on without it.

Two tunings of the same workload should agree. What differs by less than the noise is therefore decided by the space's
order, not by the noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from gla_kernels import Plan, Workload
from glabench.tune.candidate import Variant, plan_of
from glabench.tune.gpu import Gpu
from glabench.tune.history import History
from glabench.tuning_store import Finalist

MOST = 3  # plans of the search that reach the finals
CLOSE = 1.05  # how far behind the best sum of passes a plan may be for that
SAMPLES = 25
ROUNDS = 3  # of finals, while plans of the search fail in them
TIE = 1.005  # medians within this factor are a tie: the first in the space's order wins
KERNEL_TIE = 1.01  # the same for the tiles of one pass, which have fewer samples


def contenders(history: History) -> list[Plan]:
    """The plans of the fastest variants, in the space's order."""
    ranking = history.ranking()
    near = [v for v in ranking if history.total(v) <= CLOSE * history.total(ranking[0])][:MOST]
    return [best_plan(history, variant) for variant in history.space.menus if variant in near]


def best_plan(history: History, variant: Variant) -> Plan:
    """The variant's plan of the fastest tiles, ties broken by the space's order."""
    chosen = []
    for step, keys in history.space.menus[variant].items():
        limit = KERNEL_TIE * history.ms(history.best(variant, step))
        first = next(key for key in keys if history.ms(key) <= limit)
        chosen.append(history.space.member(variant, step, first))
    return plan_of(history.space.work, chosen, history.space.capability)


@dataclass(frozen=True)
class Final:
    """The finalists of one workload, and which of them won; None when none runs and is right."""

    finalists: tuple[Finalist, ...]
    winner: int | None

    @property
    def lost(self) -> tuple[Finalist, ...]:
        """The search's plans that did not run, or were not right."""
        return tuple(one for one in self.finalists if one.role == "candidate" and one.status != "ok")


def decide(gpu: Gpu, history: History, incumbent: tuple[Plan, str] | None, other: dict[str, Plan]) -> Final:
    """The finals of the search's contenders and the incumbent, as ``play`` has them.

    One candidate that is only found out here must not take down the plans of its variant: it is looked for, marked in
    the history, and the finals are played again without it. Those that lost before are listed last.
    """
    lost: tuple[Finalist, ...] = ()
    for _ in range(ROUNDS):
        final = play(gpu, history.space.work, contenders(history), incumbent, other)
        if not final.lost:
            break
        for finalist in final.lost:
            _blame(gpu, history, finalist, other)
        lost += final.lost
    else:
        lost = tuple(one for one in lost if one not in final.lost)
    return replace(final, finalists=(*final.finalists, *lost))


def _blame(gpu: Gpu, history: History, finalist: Finalist, other: dict[str, Plan]) -> None:
    """Mark the candidates that broke a plan: each is gated in a plan of default tiles. All of them where none breaks
    that, so that the plan does not come back."""
    space, plan = history.space, Plan.from_dict(finalist.plan)
    variant, work = Variant.of(plan, space.work), space.work
    used = {
        key: space.member(variant, step, key)
        for step, keys in space.menus[variant].items()
        for key in keys
        if space.candidates[key].tile == getattr(plan.config, step)
    }
    if any(history.results[key].status != "ok" for key in used):
        return  # blamed for another plan already
    found = {
        key: gpu.gate(work, {**other, work.direction: plan_of(work, [candidate], space.capability)})
        for key, candidate in used.items()
    }
    guilty = {key: answer for key, answer in found.items() if answer["status"] != "ok"}
    for key in guilty or found:
        status, reason = (
            (guilty[key]["status"], guilty[key]["reason"]) if guilty else (finalist.status, finalist.reason)
        )
        history.add(key, status, f"in the finals: {reason}")


def play(
    gpu: Gpu, work: Workload, plans: list[Plan], incumbent: tuple[Plan, str] | None, other: dict[str, Plan]
) -> Final:
    """Time the plans and the incumbent (with where it comes from) in turns, gate the fastest.

    other: the plan of the other direction that a backward plan is timed after, and that the gate runs beside it.
    """
    entries = [(plan, "candidate", "search") for plan in plans]
    if incumbent is not None:
        entries.append((incumbent[0], "incumbent", incumbent[1]))
    if not entries:
        return Final((), None)
    forward = other.get("fwd") if work.direction == "bwd" else None
    samples, failures = _time(gpu, work, [plan for plan, _, _ in entries], forward)
    gated: dict[int, tuple[str, str | None]] = {}
    winner = None
    for index in _order(samples):
        answer = gpu.gate(work, {**other, work.direction: entries[index][0]})
        gated[index] = (answer["status"], answer["reason"])
        if answer["status"] == "ok":
            winner = index
            break
    finalists = []
    for index, (plan, role, origin) in enumerate(entries):
        status, reason = gated.get(index) or failures.get(index) or ("ok", None)
        finalists.append(Finalist(plan.to_dict(), role, origin, status, reason, tuple(samples[index])))
    return Final(tuple(finalists), winner)


def _time(
    gpu: Gpu, work: Workload, plans: list[Plan], forward: Plan | None
) -> tuple[list[list[float]], dict[int, tuple[str, str | None]]]:
    """Samples of each plan, and why those that have none failed.

    All in turns; where one of them breaks that, each is tried alone, and those that run are timed in turns again.
    """
    samples: list[list[float]] = [[] for _ in plans]
    failures: dict[int, tuple[str, str | None]] = {}
    runs = list(range(len(plans)))
    answer = gpu.final(work, plans, SAMPLES, forward)
    if answer["status"] != "ok":
        alone = {index: gpu.final(work, [plans[index]], 1, forward) for index in runs}
        failures = {i: (one["status"], one["reason"]) for i, one in alone.items() if one["status"] != "ok"}
        runs = [index for index in runs if index not in failures]
        answer = gpu.final(work, [plans[index] for index in runs], SAMPLES, forward) if runs else answer
    for index, taken in zip(runs, answer.get("samples_ms", []), strict=False):
        samples[index] = taken
    return samples, failures


def _order(samples: list[list[float]]) -> Iterator[int]:
    """Finalists in the order in which they deserve to win: the fastest, where a tie goes to the one listed first."""
    left = {index: median(taken) for index, taken in enumerate(samples) if taken}
    while left:
        limit = TIE * min(left.values())
        first = min(index for index, ms in left.items() if ms <= limit)
        del left[first]
        yield first
