"""What a user did wrong, as one line: the command line prints it and exits with code 2, nothing written."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

MOST_CHARACTERS = 1000  # of an error, which may quote what somebody wrote


class UserError(Exception):
    """A mistake in what was asked for: one line that says what, where, what was expected and the nearest valid name."""

    def __init__(self, message: str) -> None:
        super().__init__(in_one_line(message))


def in_one_line(text: str) -> str:
    """The text without line ends, cut where it is longer than anyone reads."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."


def dangling(path: Path) -> str | None:
    """What is to be said of a link that leads to nothing, or None of what is no such link."""
    if not path.is_symlink() or path.exists():
        return None
    return f"is a link to {path.readlink()}, which is not there"


def did_you_mean(word: object, names: Iterable[str]) -> str:
    """`` (did you mean 'chunk'?)`` for the name nearest to ``word``; the names themselves when none is near."""
    known = sorted(names)
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    if near:
        return f" (did you mean {near[0]!r}?)"
    return f" (one of: {', '.join(known)})" if known else ""
