"""Whether what a row ran was tuned, by what the row says: no claim rests on a tuned kernel beside one that is not.

``tuned``: its plans were measured and chosen, for its shape, for one ``nearby``, or ``elsewhere``, on another GPU.
``untuned``: tiles by size or by a model, as of a schedule that no table has, or by hand, as of the papers' rivals in
Triton. ``fixed``: whoever made it chose, and there is nothing to tune here: attention's kernels, PyTorch's products,
other projects' kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from glabench.analysis.tuning import NEAREST, UNTUNED, reach

State = Literal["tuned", "nearby", "elsewhere", "untuned", "fixed"]
WORDS: dict[State, str] = {
    "tuned": "tuned", "nearby": "tuned at a shape nearby", "elsewhere": "tuned on another GPU", "untuned": "not tuned",
    "fixed": "",
}  # fmt: skip
OURS = "gla_kernels "
ELSEWHERE = "tuned on "  # and the name of a GPU
BY_HAND = (" baselines.", "not tuned")


def state(line: Mapping[str, Any]) -> State:
    """Of a line of the table or of a row's dict; a call is as tuned as its direction that is the least."""
    words = line.get("implementation") or ""
    if any(sign in words for sign in BY_HAND):
        return "untuned"
    if not words.startswith(OURS):
        return "fixed"
    _, *directions = words.split("; ")
    reached = {reach(one) for one in directions} or {UNTUNED}
    if UNTUNED in reached:
        return "untuned"
    if any(ELSEWHERE in one for one in directions):
        return "elsewhere"
    return "nearby" if NEAREST in reached else "tuned"


def untuned(line: Mapping[str, Any]) -> bool:
    return state(line) == "untuned"
