"""What sweeps ask, in the words of their files: the heading of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glabench.errors import UserError
from glabench.spec import sweep


@dataclass(frozen=True)
class Asked:
    """A sweep's title and question; of one that has no file here its name, and no question."""

    title: str
    question: str


def asked(names: Sequence[str]) -> list[Asked]:
    """The sweeps of these names, as their files say."""
    return [_asked(name) for name in names]


def _asked(name: str) -> Asked:
    known = sweep.available()
    if name not in known:
        return Asked(name, "")
    try:
        found = sweep.load(known[name])
    except UserError:  # somebody's own, half written: the page has rows to show all the same
        return Asked(name, "")
    return Asked(found.title, " ".join(found.question.split()))
