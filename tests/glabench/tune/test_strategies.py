"""What every strategy promises: it ends, measures no more than its share, finds the best, and the same one twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import pytest

from gla_kernels import Schedule, Workload
from gla_kernels.schedule import PASSES, Direction
from glabench.errors import UserError
from glabench.tune import strategies
from glabench.tune.history import History
from glabench.tune.space import Space, space_of
from glabench.tune.strategies import CLOSE_SAMPLES, FEWEST, SHARE, STRATEGIES, Request, check_strategy, settle

WORKS = [Workload("fwd", 4, 512, 16, 128, 128), Workload("bwd", 4, 512, 16, 128, 128)]
MOST_BATCHES = 500
needs_optuna = pytest.mark.skipif(find_spec("optuna") is None, reason="needs optuna")
ALL = [pytest.param(name, marks=needs_optuna if name == "tpe" else ()) for name in STRATEGIES]
SHARING = [param for param in ALL if param.values != ("exhaustive",)]

Times = Callable[[str], float | None]  # ms by key; None for a candidate that fails


@pytest.fixture(scope="module", params=WORKS, ids=lambda work: work.direction)
def space(request: pytest.FixtureRequest) -> Space:
    return space_of(request.param, 90)


def search(name: str, space: Space, times: Times) -> tuple[History, list[list[Request]]]:
    """Go through the strategy, each candidate taking the time given."""
    history, batches = History(space), []
    for batch in STRATEGIES[name](history):
        batches.append(batch)
        assert len(batches) < MOST_BATCHES, "does not end"
        for request in batch:
            ms = times(request.key)
            history.add(request.key, *(("crashed", "made up") if ms is None else ("ok", None, [ms] * request.samples)))
    return history, batches


def sized(name: str, space: Space) -> Space:
    """The space, or a part of it for what takes long."""
    return space_of(replace(space.work, schedule=Schedule(64, 64, True)), 90) if name == "tpe" else space


def near_the_model(space: Space) -> Times:
    """What the cost model says, off by a slope in every size of a tile whose foot is somewhere else for each pass."""

    def ms(key: str) -> float:
        candidate = space.candidates[key]
        text = hashlib.sha256(candidate.step.encode()).digest()
        sizes = [(axis, size) for axis, size in enumerate(candidate.tile.values)]
        slopes = [0.02 * (1 if text[axis] % 2 else -1) * size.bit_length() for axis, size in sizes]
        return space.predicted_ms[key] * (1 + sum(slopes))

    return ms


def best_possible(space: Space, times: Times) -> float:
    history, _ = search("exhaustive", space, times)
    return history.total(history.ranking()[0])


@pytest.mark.each_value
@pytest.mark.parametrize("name", SHARING)
def test_no_more_than_a_share_of_the_space_is_measured(name: str, space: Space) -> None:
    space = sized(name, space)
    history, _ = search(name, space, near_the_model(space))
    assert 0 < len(history.results) <= max(len(PASSES), SHARE * len(space.candidates))


def test_exhaustive_measures_everything(space: Space) -> None:
    history, batches = search("exhaustive", space, near_the_model(space))
    assert set(history.results) == set(space.candidates)
    assert len(batches[0]) == len(space.candidates)


@pytest.mark.parametrize("name", ["model", "halving"])
def test_the_best_is_found_where_the_cost_model_is_nearly_right(name: str, space: Space) -> None:
    times = near_the_model(space)
    history, _ = search(name, space, times)
    assert history.total(history.ranking()[0]) <= 1.03 * best_possible(space, times)


@pytest.mark.parametrize("name", ALL)
def test_the_same_times_make_the_same_search(name: str, space: Space) -> None:
    space = sized(name, space)
    times = near_the_model(space)
    assert search(name, space, times)[1] == search(name, space, times)[1]


@pytest.mark.parametrize("name", ALL)
def test_a_search_ends_where_nothing_runs(name: str) -> None:
    space = space_of(replace(WORKS[0], schedule=Schedule(64, 64, True)), 90)
    history, _ = search(name, space, lambda key: None)
    assert history.results
    assert history.ranking() == []


@pytest.mark.parametrize("name", ["model", "halving"])
def test_candidates_that_fail_do_not_keep_the_rest_from_being_found(name: str, space: Space) -> None:
    times = near_the_model(space)
    failing = {key for key in space.candidates if int(key, 16) % 10 == 0}

    def some_fail(key: str) -> float | None:
        return None if key in failing else times(key)

    history, _ = search(name, space, some_fail)
    assert any(result.status == "crashed" for result in history.results.values())
    best = history.ranking()[0]
    assert not failing & {history.best(best, step) for step in space.menus[best]}
    assert history.total(best) <= 1.10 * best_possible(space, some_fail)


def test_what_is_close_to_the_best_is_measured_again() -> None:
    space = space_of(replace(WORKS[0], schedule=Schedule(64, 64, True)), 90)
    history = History(space)
    fast, slow, *_ = space.menus
    for variant, base in ((fast, 1.0), (slow, 1.2)):
        for keys in space.menus[variant].values():
            for key, ms in zip(keys, (base, 1.02 * base, 1.05 * base), strict=False):
                history.add(key, "ok", None, [ms])
    (batch,) = settle(history)
    assert batch == [Request(key, CLOSE_SAMPLES) for keys in space.menus[fast].values() for key in keys[:2]]
    assert list(settle(History(space))) == [[]]


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_space_smaller_than_its_share_is_measured_all_the_same(direction: Direction) -> None:
    for size in (16, 64):
        asked = Schedule(16, 16, False)
        space = space_of(Workload(direction, 1, 20, 1, size, size, schedule=asked), 90)
        assert SHARE * len(space.candidates) < FEWEST
        for name in ("model", "halving"):
            history, _ = search(name, space, near_the_model(space))
            assert history.ranking(), name


def test_a_strategy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^--strategy halvin: unknown strategy.*halving"):
        check_strategy("halvin")
    for name in ("model", "halving", "exhaustive"):
        check_strategy(name)
    monkeypatch.setattr(strategies, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^--strategy tpe: the package optuna is not installed"):
        check_strategy("tpe")


def test_neighbours_trade_a_step_of_k_for_one_of_v() -> None:
    space = space_of(replace(WORKS[0], schedule=Schedule(64, 64, True)), 90)
    variant = next(v for v in space.menus if v.block_t == 64)
    tiles = {space.candidates[one].tile.values: one for one in space.menus[variant]["states"]}
    found = strategies.neighbours(space, variant, "states", tiles[32, 128, 4, 3, 255, True, False])
    assert found == list(dict.fromkeys(found))
    assert {one for one, key in tiles.items() if key in found} == {
        (*sizes, 255, descriptors, False)
        for *sizes, descriptors in (
            (64, 128, 4, 3, True), (32, 64, 4, 3, True), (32, 128, 8, 3, True), (32, 128, 4, 2, True),
            (32, 128, 4, 4, True), (64, 64, 4, 3, True), (32, 128, 4, 3, False),
        )
    }  # fmt: skip
