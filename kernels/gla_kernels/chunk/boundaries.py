"""The states that slices and segments start from, and the gradients that they end with."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..copies import copied
from ..launch import Launch, Launcher
from ..schedule import Tile, cdiv, padded
from ..tiles.slices import Slice
from .combine import combine_kernel
from .grad_states import make_grad_states
from .prepare import Prepared
from .problem import Problem
from .states import make_states
from .wide_walk import wide_ends

COMBINED = Tile(16, 64)  # of a state, in a program that adds segments up: few bytes a step, many programs


def running_state(p: Problem, first_state: Tensor | None, into: Tensor | None, launch: Launcher) -> Tensor:
    """A state, or its gradient, that slices take over from one another, float32 [B, H, K, V]: from
    ``first_state``, or zero. ``into``: where it shall lie."""
    running = p.one_state() if into is None else into
    launch(copied(first_state, running))
    return running


def boundary_states(p: Problem, running: Tensor, launch: Launcher) -> Tensor:
    """The state before each slice, as the forward pass leaves them: `Problem.boundary_buffer`. ``running``: the one
    before the first, and after that the one before the last."""
    boundary, gamma = p.boundary_buffer(), p.decay_buffer(1)
    after = running.view(-1, 1, *running.shape[2:])
    for i, piece in enumerate(p.slices):
        launch(copied(running, boundary[i]))
        if piece != p.slices[-1]:
            make_states(p, piece, running, after, None, None, launch, p.seg_chunks, last=True, gamma=gamma)
    return boundary


def segment_starts(p: Problem, halves: Tensor | None, made: Prepared | None, launch: Launcher) -> Tensor | None:
    """States that segments start from, [.., n_seg, K, V] in float32: the initial state, if any, where there is but one
    segment. Fills in ``halves``, too, where there are more. made: what walks of wide heads read."""
    if p.n_seg == 1:
        return p.chain_start
    starts, every = p.segment_buffer(p.n_seg), p.seg_chunks
    if p.schedule.states_every is None:
        make_states(p, p.whole, p.chain_start, starts, halves, None, launch, every)
    else:
        walked = p.segments(0, p.n_seg - (halves is None))  # none asks what the last one adds
        added, gamma = states_of_segments(p, walked, halves, made, launch)
        launch(combination_of(p, added, gamma, p.chain_start, starts, reverse=False))
    return starts


def states_of_segments(
    p: Problem, walked: Slice, halves: Tensor | None, made: Prepared | None, launch: Launcher
) -> tuple[Tensor, Tensor | None]:
    """What some segments add to a state, and log2 of how they decay it: `Problem.segment_buffer`, `.decay_buffer`."""
    added, gamma = p.segment_buffer(walked.segments), p.decay_buffer(walked.segments)
    if not wide_ends(p, made, walked, None, added, gamma, launch):
        make_states(p, walked, None, added, halves, None, launch, p.seg_chunks, last=True, gamma=gamma)
    return added, gamma


def segment_ends(p: Problem, do: Tensor, made: Prepared | None, launch: Launcher) -> Tensor | None:
    """Gradients of the states after each segment, as `segment_starts` has the states before them."""
    d_final = p.chain_end
    if p.n_seg == 1:
        return d_final
    ends, every = p.segment_buffer(p.n_seg), p.seg_chunks
    if p.schedule.states_every is None:
        make_grad_states(p, p.whole, do, d_final, ends, None, launch, every)
    else:
        added, gamma = gradients_of_segments(p, p.segments(1, p.n_seg - 1), do, made, launch)
        launch(combination_of(p, added, gamma, d_final, ends, reverse=True))
    return ends


def gradients_of_segments(
    p: Problem, walked: Slice, do: Tensor, made: Prepared | None, launch: Launcher
) -> tuple[Tensor, Tensor | None]:
    """As `states_of_segments`, of the gradient of a state."""
    added, gamma = p.segment_buffer(walked.segments), p.decay_buffer(walked.segments)
    if not wide_ends(p, made, walked, do, added, gamma, launch):
        make_grad_states(p, walked, do, None, added, None, launch, p.seg_chunks, last=True, gamma=gamma)
    return added, gamma


def combination_of(
    p: Problem, added: Tensor, gamma: Tensor | None, first: Tensor | None, into: Tensor, reverse: bool
) -> Launch:
    """A launch that adds up what segments add."""
    args = {"p_add": added, "p_gamma": gamma, "p_first": first, "p_s": into, "n_seg": p.n_seg} | p.framed
    flags = {"REVERSE": reverse, "HAS_FIRST": first is not None, "V_FIRST": p.is_v_first(first)}
    flags["FRAMED"] = p.frames is not None
    return launch_of_states(p, combine_kernel, args | {"n_added": added.shape[1]}, flags)


def launch_of_states(p: Problem, kernel: Any, args: dict[str, Any], flags: dict[str, bool], each: int = 1) -> Launch:
    """A launch of a kernel that goes over states, so many of each head: a program a tile of one."""
    B, _, H, K, V = p.dims
    block_k, block_v = min(COMBINED.block_k, padded(K)), min(COMBINED.block_v, padded(V))
    programs = cdiv(K, block_k) * cdiv(V, block_v) * B * H * each
    sizes = {"K": K, "V": V, "BK": block_k, "BV": block_v, "GATED": p.g is not None}
    return Launch(kernel, (programs,), args, sizes | flags, num_warps=COMBINED.num_warps)
