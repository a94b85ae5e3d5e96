"""Which kernels a call runs, these or flash-linear-attention's own, and why; counted, and said once."""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

INSTALL = "pip install flash-linear-attention, or fla-core and einops for its functions alone"

# Where flash-linear-attention has the functions.
WHERE = {
    "chunk_gla": "fla.ops.gla",
    "fused_recurrent_gla": "fla.ops.gla",
    "chunk_simple_gla": "fla.ops.simple_gla",
    "fused_recurrent_simple_gla": "fla.ops.simple_gla",
    "chunk_retention": "fla.ops.retention",
    "chunk_linear_attn": "fla.ops.linear_attn",
}

Function = Callable[..., Any]

# FLA's own functions, by name, once they were asked for: what is at their place in FLA may be ours by then.
THEIRS: dict[str, Function] = {}

_calls: Counter[tuple[str, str | None]] = Counter()


class FallbackWarning(UserWarning):
    """A call ran flash-linear-attention's own kernels, for the reason that the warning gives."""


def calls() -> dict[tuple[str, str | None], int]:
    """How many calls there were so far, by function and by the reason why it ran FLA's own kernels, None where it ran
    these. In a graph of torch.compile a call counts once, when the graph is made."""
    return dict(_calls)


def load(name: str) -> Function:
    """FLA's own function. Raises ImportError where FLA is not installed."""
    if name not in THEIRS:
        THEIRS[name] = getattr(importlib.import_module(WHERE[name]), name)
    return THEIRS[name]


def note(name: str, why: str | None = None) -> None:
    """Count a call; ``why``: what it runs FLA's own kernels for, which is warned of at the first time."""
    if why is not None and (name, why) not in _calls:
        text = f"{name} runs flash-linear-attention's own kernels, not those of gla_kernels: {why}"
        warnings.warn(text, FallbackWarning, stacklevel=5)  # who called the function
    _calls[name, why] += 1


def _found(name: str, why: str) -> bool:
    """Whether there is FLA's own function to go to; if so the call is counted."""
    try:
        load(name)
    except ImportError:
        return False
    note(name, why)
    return True


# Called as a graph of torch.compile is made, and no part of it: what torch.compiler.assume_constant_result does, but
# for importing torch._dynamo.
note._dynamo_marked_constant = _found._dynamo_marked_constant = True  # type: ignore[attr-defined]


def fall_back(name: str, why: str) -> Function:
    """FLA's own function, for a call that these kernels cannot do. Raises ValueError where FLA is not installed."""
    if not _found(name, why):
        missing = f"flash-linear-attention, which may do it, is not installed ({INSTALL})"
        raise ValueError(f"{name}: these kernels cannot do this call ({why}), and {missing}")
    return THEIRS[name]
