"""A sequence of which others have the tokens before and after: what its own add to a state that is led through, or to
the gradient of one that is led back, before it is known what that is.

Both directions begin with what segments add, from which all of them can start at once (boundaries.py). So that is done
first, and what comes after it when the others' part is known (pairs.py), with nothing done twice where there are
segments.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..launch import Launcher
from .boundaries import combination_of, gradients_of_segments, states_of_segments
from .kept import Kept
from .prepare import Prepared, prepare
from .problem import Problem


class Added(NamedTuple):
    """What each segment adds, float32 [B*H, n_seg, K, V], and log2 of how it decays what comes, [B*H, n_seg, K], None
    without gates; and of walks of wide heads what they read, with the chunks' decays, `Problem.half_decays`."""

    states: Tensor
    decays: Tensor | None
    halves: Tensor | None
    made: Prepared | None

    def halves_of(self, p: Problem) -> Tensor | None:
        """The chunks' decays, or room for them."""
        return p.half_decays() if self.halves is None else self.halves


def states_added(p: Problem, launch: Launcher) -> Added:
    """What the segments add to a state. The schedule materializes states."""
    halves = p.half_decays()
    made = prepare(p, p.slices[0], p.config.walk, p.v, halves, False, True, launch)
    return _added(p, *states_of_segments(p, p.segments(0, p.n_seg), None, made, launch), halves, made)


def gradients_added(p: Problem, do: Tensor, kept: Kept | None, launch: Launcher) -> Added:
    """What the segments add to the gradient of a state, likewise. kept: what the backward pass will be given."""
    kept = kept if p.served_by(kept) else None
    halves = p.half_decays() if kept is None else kept.halves
    made = prepare(p, p.slices[0], p.config.grad_walk, do, halves, True, kept is None, launch)
    return _added(p, *gradients_of_segments(p, p.segments(0, p.n_seg), do, made, launch), halves, made)


def _added(p: Problem, states: Tensor, decays: Tensor | None, halves: Tensor | None, made: Prepared | None) -> Added:
    return Added(states, decays, None if made is None else halves, made)


def starts_of(p: Problem, added: Added, launch: Launcher) -> Tensor | None:
    """As `boundaries.segment_starts`."""
    return _combined(p, added, p.chain_start, False, launch)


def ends_of(p: Problem, added: Added, launch: Launcher) -> Tensor | None:
    """As `boundaries.segment_ends`."""
    return _combined(p, added, p.chain_end, True, launch)


def _combined(p: Problem, added: Added, first: Tensor | None, reverse: bool, launch: Launcher) -> Tensor | None:
    if p.n_seg == 1:
        return first
    states = p.segment_buffer(p.n_seg)
    launch(combination_of(p, added.states, added.decays, first, states, reverse))
    return states
