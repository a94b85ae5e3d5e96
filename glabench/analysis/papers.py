"""What the papers claim and what rows say of it: claims, outcomes, and how a verdict follows from ratios. No torch.

A judge is called with the evidence of one device and returns an outcome: `judges` has those that compare rows,
`judges_of_profiles` those that read profiles, `claims` says which claim has which. Milliseconds of another GPU are
never compared, only ratios and orders, and where samples do not bear a verdict out there is none.

Nor is there where only tuning could tell. Tuning makes what is not tuned faster, nobody knows by how much: beside
something tuned its time is an upper bound, and a ratio has one end that is open. What is on the same side of its limit
all the same is judged, everything else is "not comparable here". Memory does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from glabench.analysis import labels, tuned
from glabench.analysis.evidence import Evidence, Line, Quantity, Ratio, ratio, speed_up, within
from glabench.analysis.printed import Paper

Verdict = Literal["held", "not held", "too close to call", "not comparable here", "not measured"]
FAILED = tuple(title for status, title in labels.STATUS_TITLES.items() if status != "ok")
VERDICTS: tuple[Verdict, ...] = ("held", "not held", "too close to call", "not comparable here", "not measured")


@dataclass(frozen=True)
class Value:
    """A number and what it is of ("T 4k, GLA without states"); ``unit`` is "×", or "" for a count."""

    at: str
    value: float
    unit: str = "×"


@dataclass(frozen=True)
class Outcome:
    """What rows say of a claim; ``why`` is what numbers and verdict do not tell, and may be empty."""

    verdict: Verdict
    found: tuple[Value, ...] = ()
    why: str = ""
    better: bool = False  # not held only because what was measured is better than claimed
    pairs: tuple[str, ...] = field(default=(), compare=False)  # what stood beside what, and whether it was tuned


@dataclass(frozen=True)
class Claim:
    """A claim of a paper: where it stands, what is printed for it, what gives rows for it, who judges them, and why by
    these pairs."""

    name: str
    says: str
    paper: Paper
    where: str
    judge: Callable[[Evidence], Outcome]
    printed: tuple[Value, ...] = ()
    needs: str = "glabench sweep papers"
    reason: str = ""


@dataclass(frozen=True)
class Judged:
    claim: Claim
    outcome: Outcome


def judged(claims: Iterable[Claim], evidence: Evidence) -> list[Judged]:
    """Every claim with what the evidence says of it, in the order of the claims."""
    return [Judged(claim, claim.judge(evidence)) for claim in claims]


@dataclass(frozen=True)
class Weighed:
    """A ratio, whether it is as claimed (None: its interval does not tell), and whether it errs on the better side."""

    ratio: Ratio
    fits: bool | None
    better: bool = False
    sides: tuple[Line, ...] = ()  # the two rows
    open: bool = False  # whether only tuning could tell


def weigh(
    one: Line, other: Line, at: str, quantity: Quantity = "ms", least: float = 1.0, most: float = math.inf,
    both_tuned: bool = False,
) -> Weighed:  # fmt: skip
    """Whether ``one`` is at least ``least`` and at most ``most`` times as fast as ``other``; or, of memory, needs that
    share of its. ``both_tuned``: two that are not tuned say nothing either, as of schedules of the same kernels.

    Faster than claimed, or leaner, misses the claim too, and is said to be better.
    """
    sides = (one, other)
    if quantity == "peak_mib":
        share = ratio(one, other, quantity, at)
        fits = within(share, least, most)
        return Weighed(share, fits, fits is False and share.high < least, sides)
    faster = speed_up(one, other, at, quantity)
    known = bounded(faster, other, one, both_tuned)
    fits = within(known, least, most)
    return Weighed(faster, fits, fits is False and faster.low > most, sides, fits is None and known != faster)


def bounded(found: Ratio, top: Line, bottom: Line, both_tuned: bool = False) -> Ratio:
    """The ratio of two times with an open end where a side that is tuned has one beside it that is not."""
    loose_top, loose_bottom = tuned.untuned(top), tuned.untuned(bottom)
    if loose_top == loose_bottom and not (loose_top and both_tuned):
        return found
    return replace(found, low=0.0 if loose_top else found.low, high=math.inf if loose_bottom else found.high)


def untuned_sides(found: Iterable[Weighed]) -> str:
    """Which sides of what only tuning could tell are not tuned, in a sentence; empty of nothing."""
    lines = [line for one in found if one.open for line in one.sides]
    loose = list(dict.fromkeys(side(line) for line in lines if tuned.untuned(line)))
    if not loose:
        return ""
    if all(map(tuned.untuned, lines)):
        return f"neither side is tuned: {', '.join(loose)}"
    return f"tuned compared with untuned: {', '.join(loose)} {'is' if len(loose) == 1 else 'are'} not tuned"


def side(line: Line) -> str:
    """A row in a sentence: its system, schedule, and where its gates are."""
    return f"{line['label']}{', gates on both sides' if 'value side' in line['gate'] else ''}"


def settle(found: Sequence[Weighed], missing: Sequence[str] = (), apart: str = "") -> Outcome:
    """The outcome of all that a claim asks: one ratio that is not as claimed decides, then one that only tuning could
    tell, then one whose interval does not. ``apart``: why numbers are shown and not judged."""
    values = tuple(Value(one.ratio.at, one.ratio.value) for one in found)
    if not found:
        return Outcome("not measured", why="; ".join(words for words in missing if words.endswith(FAILED)))
    without = f"without {'; '.join(dict.fromkeys(missing))}" if missing else ""
    pairs = pair_names(found)
    if apart:
        return Outcome("not comparable here", values, _sentence(apart, without), pairs=pairs)
    wrong = [one for one in found if one.fits is False]
    if any(one.open for one in found) and not wrong:
        return Outcome("not comparable here", values, _sentence(untuned_sides(found), without), pairs=pairs)
    unsure = any(one.fits is None for one in found)
    verdict: Verdict = "not held" if wrong else "too close to call" if unsure else "held"
    which = "; ".join(one.ratio.at for one in wrong) if len(wrong) < len(found) else ""
    better = bool(wrong) and all(one.better for one in wrong)
    reason = "it is better than that" if better else f"not at {which}" if which else ""
    return Outcome(verdict, values, _sentence(reason, without), better, pairs)


def _sentence(*words: str) -> str:
    return "; ".join(filter(None, words))


def pair_names(found: Iterable[Weighed]) -> tuple[str, ...]:
    """ "GLA with states C64/64 (tuned) over FlashAttention-2", each pair once, those of one row together, with how its
    sides were tuned at any place."""
    states: dict[str, list[str]] = {}
    pairs: dict[str, list[str]] = {}
    for one in found:
        names = [side(line) for line in one.sides]
        for name, line in zip(names, one.sides, strict=True):
            states.setdefault(name, []).append(tuned.WORDS[tuned.state(line)])
        if names:
            pairs.setdefault(names[0], []).append(names[1])
    said = {name: _with(name, words) for name, words in states.items()}
    return tuple(
        f"{said[own]} over {', '.join('itself' if other == own else said[other] for other in dict.fromkeys(others))}"
        for own, others in pairs.items()
    )


def _with(name: str, words: Iterable[str]) -> str:
    known = " or ".join(filter(None, dict.fromkeys(words)))
    return f"{name} ({known})" if known else name
