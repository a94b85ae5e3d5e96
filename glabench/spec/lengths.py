"""Packed sequences: how long the documents are that lie one after another in a batch of one. No torch.

A case says it as text: ``uniform:8``, eight of one length; ``lognormal:8``, drawn log-normally, by the case's seed;
``one-long:8``, half of all tokens and seven that share the rest; or the lengths themselves, ``1300,547,2048``.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

from glabench.spec.shape import TOO_LARGE

EXPECTED = "null, uniform:N, lognormal:N, one-long:N or a list of integers > 0"
MOST = 2**20  # sequences


def text_of(value: object) -> str | None:
    """What a sweep file gives, as a case has it. Raises ValueError for what says no lengths."""
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,9}(,[1-9]\d{0,9})*", value):
        value = [int(one) for one in value.split(",")]
    if isinstance(value, list) and all(type(one) is int and one > 0 for one in value):
        if 0 < len(value) <= MOST and sum(value) < TOO_LARGE:
            return ",".join(map(str, value))
    elif isinstance(value, str):
        kind = re.fullmatch(r"(uniform|lognormal|one-long):([1-9]\d{0,6})", value)
        if kind is not None and int(kind[2]) <= MOST and value != "one-long:1":
            return value
    raise ValueError(f"expected {EXPECTED}")


def short(text: str) -> str:
    """The lengths in a few words: "uniform:8", or of a list of many "6 from 271 to 3063"."""
    if ":" in text or text.count(",") < 3:
        return f"packed {text}"
    sizes = [int(one) for one in text.split(",")]
    return f"packed {len(sizes)} from {min(sizes)} to {max(sizes)}"


def total(text: str) -> int | None:
    """The tokens of lengths that are listed; None where they follow from a total."""
    return None if ":" in text else sum(map(int, text.split(",")))


@lru_cache(maxsize=256)
def sequences(text: str, tokens: int, seed: int = 0) -> tuple[int, ...]:
    """The length of each sequence, in order, of so many tokens in all. Raises ValueError, one line, where they do not
    come to that."""
    if ":" not in text:
        if total(text) != tokens:
            raise ValueError(f"lengths: expected a sum of T {tokens}, got {total(text)}")
        return tuple(map(int, text.split(",")))
    kind, _, number = text.partition(":")
    count = int(number)
    if kind == "uniform":
        if tokens % count:
            raise ValueError(f"lengths {text}: expected a number that divides T {tokens}")
        return (tokens // count,) * count
    long = tokens // 2 if kind == "one-long" else 0
    most = tokens - long + (long > 0)
    if count > most:
        raise ValueError(f"lengths {text}: expected at most {most} sequences of T {tokens}")
    if kind == "one-long":
        return (long, *shared(tokens - long, [1.0] * (count - 1)))
    drawn = random.Random(seed)
    chances = [(drawn.getrandbits(32) + 0.5) / 2**32 for _ in range(count)]  # the same in every version of Python
    return shared(tokens, [math.exp(NormalDist().inv_cdf(chance)) for chance in chances])


def shared(tokens: int, weights: Sequence[float]) -> tuple[int, ...]:
    """So many tokens, one at least for each weight and the rest by weight, to the nearest whole numbers of that sum."""
    rest, whole = tokens - len(weights), sum(weights)
    exact = [rest * weight / whole for weight in weights]
    found = [math.floor(share) for share in exact]
    for i in sorted(range(len(found)), key=lambda i: found[i] - exact[i])[: rest - sum(found)]:
        found[i] += 1
    return tuple(1 + share for share in found)


def padding(lengths: Sequence[int]) -> float:
    """The share of tokens that would be padding if each sequence were padded to the longest."""
    return 1 - sum(lengths) / (len(lengths) * max(lengths))
