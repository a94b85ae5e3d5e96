"""How long packed sequences are."""

from __future__ import annotations

import pytest

from glabench.spec.lengths import EXPECTED, padding, sequences, short, text_of, total


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, None),
        ("uniform:8", "uniform:8"),
        ("lognormal:1", "lognormal:1"),
        ("one-long:2", "one-long:2"),
        ([1300, 547, 2048], "1300,547,2048"),
        ("1300,547,2048", "1300,547,2048"),  # as rows have it
        ([7], "7"),
    ],
)
def test_what_a_sweep_file_says(given: object, text: str | None) -> None:
    assert text_of(given) == text
    assert text_of(text) == text


@pytest.mark.parametrize(
    "given",
    ["uniform", "uniform:0", "uniform:-1", "uniform:1.5", "one-long:1", "normal:3", "", "3,0", "3,", 8, True, 1.5, [],
     [0], [-1], [1.5], [True], ["3"], [2**31], {"uniform": 8}, "uniform:9999999"],
)  # fmt: skip
def test_what_says_no_lengths(given: object) -> None:
    with pytest.raises(ValueError, match=EXPECTED):
        text_of(given)


@pytest.mark.parametrize("tokens", [8, 64, 8192, 8191])
@pytest.mark.parametrize("text", ["lognormal:8", "lognormal:1", "one-long:2", "one-long:5"])
def test_they_come_to_the_tokens_and_none_is_empty(text: str, tokens: int) -> None:
    found = sequences(text, tokens)
    assert sum(found) == tokens
    assert min(found) >= 1
    assert len(found) == int(text.partition(":")[2])


def test_uniform_ones_are_equal_and_listed_ones_as_listed() -> None:
    assert sequences("uniform:4", 100) == (25, 25, 25, 25)
    assert sequences("3,1,9", 13) == (3, 1, 9)
    assert total("3,1,9") == 13
    assert total("uniform:4") is None


def test_one_long_has_half_and_the_rest_is_even() -> None:
    assert sequences("one-long:9", 8192) == (4096, *[512] * 8)
    long, *others = sequences("one-long:4", 101)
    assert long == 50
    assert max(others) - min(others) <= 1


def test_lognormal_ones_differ_and_are_the_same_everywhere() -> None:
    found = sequences("lognormal:8", 8192)
    assert found == (1358, 369, 993, 1684, 405, 87, 259, 3037)
    assert sequences("lognormal:8", 8192, 1) != found
    logs = sorted(sequences("lognormal:4001", 4001 * 500, 3))
    assert 0.5 < logs[2000] / 500 < 0.7  # the median of exp(N(0, 1)) over its mean is e^-1/2 = 0.61


@pytest.mark.parametrize(
    ("text", "tokens", "said"),
    [
        ("3,1,9", 14, "lengths: expected a sum of T 14, got 13"),
        ("uniform:3", 8, "lengths uniform:3: expected a number that divides T 8"),
        ("lognormal:9", 8, "lengths lognormal:9: expected at most 8 sequences of T 8"),
        ("one-long:6", 8, "lengths one-long:6: expected at most 5 sequences of T 8"),
        ("one-long:2", 1, "lengths one-long:2: expected at most 1 sequences of T 1"),
    ],
)
def test_lengths_that_do_not_come_to_the_tokens(text: str, tokens: int, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        sequences(text, tokens)


def test_padding_is_what_the_longest_would_ask_of_the_others() -> None:
    assert padding((4, 4)) == 0
    assert padding((4, 2, 2)) == pytest.approx(4 / 12)
    assert padding((9,)) == 0


def test_in_a_few_words() -> None:
    assert short("uniform:8") == "packed uniform:8"
    assert short("3,1,9") == "packed 3,1,9"
    assert short("3,1,9,4,5") == "packed 5 from 1 to 9"
