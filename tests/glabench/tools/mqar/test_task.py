"""Sequences of multi-query associative recall: each query has its answer, and they are drawn as they should be."""

from __future__ import annotations

import pytest
import torch

from glabench.tools.mqar.task import FILLER, Batch, draw

VOCABULARY = 64


def drawn(length: int = 40, pairs: int = 5, count: int = 50, seed: int = 0) -> Batch:
    return draw(length, pairs, VOCABULARY, count, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("length", "pairs"), [(40, 5), (8, 2), (64, 16), (512, 30)])
def test_every_query_has_its_answer_before_it(length: int, pairs: int) -> None:
    batch = drawn(length, pairs)
    rows = zip(*(part.tolist() for part in (batch.tokens, batch.queries, batch.values)), strict=True)
    for tokens, queries, values in rows:
        told = dict(zip(tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
        assert len(told) == len(set(told.values())) == pairs
        assert [told[tokens[query]] for query in queries] == values
        assert {tokens[query] for query in queries} == told.keys()
        assert min(queries) >= 2 * pairs
        rest = set(range(2 * pairs, length)) - set(queries)
        assert {tokens[place] for place in rest} <= {FILLER}


def test_keys_and_values_are_of_their_halves_and_each_comes_up() -> None:
    batch = drawn(count=400)
    keys = batch.tokens.gather(1, batch.queries)
    assert set(keys.flatten().tolist()) == set(range(1, VOCABULARY // 2))
    assert set(batch.values.flatten().tolist()) == set(range(VOCABULARY // 2, VOCABULARY))


def test_a_seed_gives_the_same_again() -> None:
    assert torch.equal(drawn(seed=3).tokens, drawn(seed=3).tokens)
    assert not torch.equal(drawn(seed=3).tokens, drawn(seed=4).tokens)


def test_queries_come_as_often_as_the_power_law_says() -> None:
    """One pair of 42 tokens: its query is at one of 20 places, with a chance of place^(0.01 - 1)."""
    found = (drawn(42, 1, 20_000).queries.flatten() - 2) // 2
    chances = torch.arange(1.0, 21.0) ** -0.99
    shares = found.bincount(minlength=20) / len(found)
    torch.testing.assert_close(shares, chances / chances.sum(), atol=0.015, rtol=0)
