"""How the space of a workload is searched: each strategy yields batches of candidates to measure, and looks at the
history that they make between one batch and the next.

    exhaustive   everything
    model        what the cost model puts first, then the neighbours of the best so far
    halving      what the cost model puts first with few samples, the better half with more, and so on
    tpe          optuna's tree-structured Parzen estimator, one study a pass (an optional dependency)

Each ends with `settle`: more samples for what is close to the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any

from gla_kernels.schedule import PASSES, Tile
from glabench.errors import UserError, did_you_mean
from glabench.tune.candidate import Variant
from glabench.tune.history import History
from glabench.tune.space import Space

SAMPLES = 5
CLOSE = 1.03  # what is within this factor of the best is measured again
CLOSE_SAMPLES = 15


SHARE = 0.12  # of the feasible space that a search may measure
FEWEST = 24  # candidates that it may in any case: enough of each pass, or all of a small space
FIRST_VARIANTS = 5  # of the cost model's order
FIRST_TILES = 8  # a pass
FAR_BEHIND = 1.3  # times the fastest variant: fewer tiles of what is predicted to lie farther, and no climbing there
FAR_TILES = 2
CLIMBING_VARIANTS = 3
RUNG_SAMPLES = 3
TPE_BATCH = 8  # plans asked for at once, so that they compile side by side
TPE_TRIALS = 400


@dataclass(frozen=True)
class Request:
    """Measure a candidate ``samples`` times more."""

    key: str
    samples: int = SAMPLES


Strategy = Callable[[History], Iterator[list[Request]]]


def exhaustive(history: History) -> Iterator[list[Request]]:
    """Every candidate of the space."""
    seen = dict.fromkeys(k for menu in history.space.menus.values() for keys in menu.values() for k in keys)
    yield [Request(k) for k in seen]
    yield from settle(history)


def settle(history: History) -> Iterator[list[Request]]:
    """More samples for the tiles, of the variants that may win, that are close to the best of their pass."""
    ranking = history.ranking()
    close = [v for v in ranking if history.total(v) <= CLOSE * history.total(ranking[0])]
    wanted: dict[str, Request] = {}
    for variant in close:
        for step, keys in history.space.menus[variant].items():
            limit = CLOSE * history.ms(history.best(variant, step))
            wanted |= {k: Request(k, CLOSE_SAMPLES) for k in keys if history.ms(k) <= limit}
    yield list(wanted.values())


def model(history: History) -> Iterator[list[Request]]:
    """The cost model's first choices, then uphill: the neighbours of the best tile of each pass, while any is new."""
    space = history.space
    left = most(history)
    first: dict[str, None] = {}
    far = FAR_BEHIND * min(map(space.predicted_total, space.menus), default=0.0)
    for variant in promising(space):
        menu, count = space.menus[variant].values(), FIRST_TILES if space.predicted_total(variant) <= far else FAR_TILES
        best = (sorted(keys, key=space.predicted_ms.__getitem__)[:count] for keys in menu)
        first |= dict.fromkeys(key for row in zip_longest(*best) for key in row if key)  # whole plans early
    batch = list(first)[:left]
    while batch:
        left -= len(batch)
        yield [Request(key) for key in batch]
        near: dict[str, None] = {}
        ranking = history.ranking()
        close = (v for v in ranking[:CLIMBING_VARIANTS] if history.total(v) <= FAR_BEHIND * history.total(ranking[0]))
        for variant in close:
            for step in space.menus[variant]:
                near |= dict.fromkeys(neighbours(space, variant, step, history.best(variant, step)))
        batch = [key for key in near if key not in history.results][: max(left, 0)]
    yield from settle(history)


def promising(space: Space) -> list[Variant]:
    """The variants that the cost model puts first, and the two best for each size of row block: how well the registers
    take larger tiles is what it knows least about. And the two best with a fused scan."""
    order = sorted(space.menus, key=space.predicted_total)
    found = order[:FIRST_VARIANTS]
    for block_t in sorted({variant.block_t for variant in order}):
        found += [variant for variant in order if variant.block_t == block_t][:2]
    found += [variant for variant in order if variant.walks][:2]
    return list(dict.fromkeys(found))


def neighbours(space: Space, variant: Variant, step: str, key: str) -> list[str]:
    """The tiles of the pass that differ from this one in one size, by one step of the space, and those that trade a
    step of K for one of V: as large in registers, where a step of either alone may be worse."""
    keys = {space.candidates[one].tile.values: one for one in space.menus[variant][step]}
    here = space.candidates[key].tile.values
    sizes = [sorted(set(axis)) for axis in zip(*keys, strict=True)]
    at = [axis.index(size) for axis, size in zip(sizes, here, strict=True)]
    moves = [[sign * (axis == one) for axis in range(len(here))] for one in range(len(here)) for sign in (-1, 1)]
    moves += [[sign, -sign, *[0] * (len(here) - 2)] for sign in (-1, 1)]
    found = []
    for move in moves:
        places = [i + by for i, by in zip(at, move, strict=True)]
        if all(0 <= i < len(axis) for i, axis in zip(places, sizes, strict=True)):
            found.append(keys.get(tuple(axis[i] for i, axis in zip(places, sizes, strict=True))))
    return [one for one in found if one is not None]


def halving(history: History) -> Iterator[list[Request]]:
    """The candidates that the cost model puts first, with few samples; the better half of them with twice as many."""
    space = history.space
    rung = sorted(space.candidates, key=lambda key: least_total(space, key, space.predicted_ms.__getitem__))
    rung, samples = rung[: most(history)], RUNG_SAMPLES
    while len(rung) > len(PASSES) or not history.results:
        yield [Request(key, samples) for key in rung]
        rung = sorted(rung, key=lambda key: least_total(space, key, history.ms))
        rung, samples = rung[: len(rung) // 2], 2 * samples
    yield from settle(history)


def least_total(space: Space, key: str, ms_of: Callable[[str], float]) -> float:
    """ms of the fastest plan that the candidate is a part of."""
    return min(space.total(variant, ms_of, (key,)) for variant in space.homes[key])


def tpe(history: History) -> Iterator[list[Request]]:
    """optuna's TPE: a trial is a whole plan, its variant and the tile of each pass; kernels known already are free."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space, limit = history.space, most(history)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True))
    names = {str(variant): variant for variant in space.menus}
    while len(history.results) < limit:
        asked = [study.ask() for _ in range(TPE_BATCH)]
        plans = [_suggest(trial, space, names) for trial in asked]
        new = dict.fromkeys(key for plan in plans for key in plan if key not in history.results)
        yield [Request(key) for key in list(new)[: limit - len(history.results)]]
        for trial, plan in zip(asked, plans, strict=True):
            total = sum(history.ms(key) for key in plan)
            failed = total == float("inf")
            study.tell(trial, None if failed else total, optuna.trial.TrialState.FAIL if failed else None)
        if len(study.trials) >= TPE_TRIALS:
            break
    yield from settle(history)


def _suggest(trial: Any, space: Space, names: dict[str, Variant]) -> list[str]:
    """The keys of the plan that the sampler asks for: sizes that the variant's pass lacks become the nearest ones."""
    menu = space.menus[names[trial.suggest_categorical("variant", list(names))]]
    plan = []
    for step, keys in menu.items():
        tiles = {key: space.candidates[key].tile.values for key in keys}
        wanted = [
            trial.suggest_categorical(f"{step}.{field.name}", _choices(space, step, axis))
            for axis, field in enumerate(fields(Tile))
        ]
        plan.append(min(keys, key=lambda key: sum(a != b for a, b in zip(tiles[key], wanted, strict=True))))
    return plan


def _choices(space: Space, step: str, axis: int) -> list[int]:
    """Every size of a pass's tiles along one axis, over all variants: a study's parameters must not change."""
    return sorted({one.tile.values[axis] for one in space.candidates.values() if one.step == step})


def most(history: History) -> int:
    """How many candidates a search may measure."""
    return max(FEWEST, int(SHARE * len(history.space.candidates)))


STRATEGIES: dict[str, Strategy] = {f.__name__: f for f in (model, halving, exhaustive, tpe)}


def check_strategy(name: str) -> None:
    """UserError for a strategy that does not exist, or lacks its package."""
    if name not in STRATEGIES:
        raise UserError(f"--strategy {name}: unknown strategy{did_you_mean(name, STRATEGIES)}")
    if name == "tpe" and find_spec("optuna") is None:
        raise UserError("--strategy tpe: the package optuna is not installed; pip install 'glabench[tune]'")
