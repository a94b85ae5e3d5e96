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
from .boundaries import gradients_of_segments, states_of_segments
from .kept import Kept
from .prepare import Prepared, prepare
from .problem import Problem


class Added(NamedTuple):
    """What each segment adds, float32 [B*H, n_seg, K, V], and log2 of how it decays what comes, [B*H, n_seg, K], None
    without gates; and of walks of wide heads what they read, with the chunks' decays, `Problem.half_decays`.

    starts, left: where segments start, or the gradients that they end with, and log2 of what decays leave there of what
    enters, of the same shapes. They are room for it until a message is made of states, which nobody needs then; None
    where there is but one segment.
    """

    states: Tensor | None
    decays: Tensor | None
    halves: Tensor | None
    made: Prepared | None
    starts: Tensor | None
    left: Tensor | None

    def halves_of(self, p: Problem) -> Tensor | None:
        """The chunks' decays, or room for them."""
        return p.half_decays() if self.halves is None else self.halves

    def starts_from(self, first: Tensor | None) -> Tensor | None:
        """As `boundaries.segment_starts` and `segment_ends`, where ``first`` comes to the first segment of all."""
        return first if self.starts is None else self.starts


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
    starts = left = None
    if p.n_seg > 1:
        starts, left = p.segment_buffer(p.n_seg), p.decay_buffer(p.n_seg)
    return Added(states, decays, None if made is None else halves, made, starts, left)
