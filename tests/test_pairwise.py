"""What is left of the combinations of a ``pairwise`` test's parameters where there is no GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import pytest
import torch

Covering = Callable[..., set[int]]


def pairs(one: dict[str, Any]) -> set[tuple[Any, ...]]:
    return set(combinations(sorted(one.items()), 2))


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 3, 5), (9, 3, 3), (2, 2, 2, 4)], ids=str)
def test_every_pair_of_values_is_left_and_few_combinations_are(covering: Covering, sizes: tuple[int, ...]) -> None:
    names = "abcd"[: len(sizes)]
    every = [dict(zip(names, values, strict=True)) for values in product(*map(range, sizes))]
    kept = [every[place] for place in covering(every)]
    assert set().union(*map(pairs, kept)) == set().union(*map(pairs, every))
    *_, second, first = sorted(sizes)
    assert first * second <= len(kept) <= 1.4 * first * second


@pytest.mark.parametrize("sizes", [(9, 2), (2, 7), (3, 3, 2), (4,)], ids=str)
def test_every_value_is_left_once_or_evenly(covering: Covering, sizes: tuple[int, ...]) -> None:
    every = [dict(zip("abc", values, strict=False)) for values in product(*map(range, sizes))]
    kept = [every[place] for place in covering(every, 1)]
    assert len(kept) == max(sizes)
    for name, size in zip("abc", sizes, strict=False):
        times = Counter(one[name] for one in kept)
        assert set(times) == set(range(size))
        assert max(times.values()) - min(times.values()) <= 1


def test_of_two_parameters_or_one_combination_all_are_left(covering: Covering) -> None:
    assert covering([{"a": a, "b": b} for a in range(3) for b in range(2)]) == set(range(6))
    assert covering([{"a": 1, "b": [], "c": 2}]) == {0}


def test_the_same_combinations_are_left_in_every_process(covering: Covering) -> None:
    """Processes that share tests must agree, and objects lie elsewhere in each."""
    left = []
    for _ in range(2):
        values = [[object() for _ in range(n)] for n in (4, 3, 3)]
        left.append(covering([dict(zip("abc", one, strict=True)) for one in product(*values)]))
    assert left[0] == left[1]


@pytest.mark.pairwise
@pytest.mark.parametrize("a", [0, 1])
@pytest.mark.parametrize("b", [0, 1])
@pytest.mark.parametrize("c", [0, 1])
def test_half_of_these_run_where_there_is_no_gpu(request: pytest.FixtureRequest, a: int, b: int, c: int) -> None:
    mine = [item for item in request.session.items if item.name.startswith("test_half_of_these")]
    assert len(mine) <= (8 if torch.cuda.is_available() or request.config.option.exhaustive else 4)


@pytest.mark.exhaustive
def test_this_runs_on_a_gpu_or_where_all_is_asked_for(request: pytest.FixtureRequest) -> None:
    assert torch.cuda.is_available() or request.config.option.exhaustive
