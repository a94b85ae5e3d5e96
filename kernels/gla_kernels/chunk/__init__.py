"""The chunkwise form: which kernels run, in which order, on which buffers.

Nothing here touches a GPU: each step builds a `Launch` and hands it to ``launch``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..copies import copied
from ..launch import Launcher, settle_keys
from ..schedule import cdiv
from ..tiles.slices import Slice
from .grad_qk import grad_qk_kernel
from .grad_v import grad_v_kernel
from .kept import Gradients, Kept, rows_of, states_of
from .output import output_kernel
from .problem import Problem
from .states import combine_kernel, grad_states_kernel, states_kernel
from .strong_gates import grad_qk_strong_kernel, grad_v_strong_kernel, output_strong_kernel, strong_gates_of
from .walk import walk_kernel

try:
    from .hopper.grad_qk import grad_qk_hopper_kernel
    from .hopper.grad_walk import grad_walk_hopper_kernel
    from .hopper.walk import walk_hopper_kernel
except (ImportError, AttributeError):  # Gluon is experimental in Triton, and may look different in the next version
    grad_qk_hopper_kernel = grad_walk_hopper_kernel = walk_hopper_kernel = None

settle_keys(states_kernel, combine_kernel, output_kernel, walk_kernel, output_strong_kernel)
settle_keys(grad_states_kernel, grad_qk_kernel, grad_v_kernel, grad_v_strong_kernel, grad_qk_strong_kernel)
settle_keys(*filter(None, (walk_hopper_kernel, grad_qk_hopper_kernel, grad_walk_hopper_kernel)))


def forward(
    p: Problem, output_final_state: bool, launch: Launcher, keep: bool = True
) -> tuple[Tensor, Tensor | None, Kept | None]:
    """o [B, T, H, V] in the inputs' dtype, the final state [B, H, K, V] in float32 if asked for, and what the backward
    pass can make use of. ``keep``: whether there will be one that does."""
    p, whole = p.forward(keep), len(p.head_groups) == 1
    V = p.dims[-1]
    o, keep = torch.empty_like(p.v), keep and whole
    kept = keep and p.schedule.materialize
    halves, states = p.half_decays(), p.state_buffer() if kept or p.ungated_walk is None else None
    boundary = p.boundary_buffer() if keep and p.in_turn else None
    running = _running_state(p, p.initial_state, None, launch) if p.in_turn else None
    starts = _starts(p, None, launch) if running is None else running
    final_state = running
    if running is None and output_final_state:
        final_state = p.one_state()
    tile, pieces = p.config.output, p.slices
    for i, piece in enumerate(pieces):
        if boundary is not None and running is not None:
            launch(copied(running, boundary[i]))
        final = final_state if piece == pieces[-1] else running
        if not _walk(p, piece, starts, states, halves, final, o, launch, kept):
            assert states is not None  # which only a walk can do without
            _states(p, piece, starts, states, halves, final, launch)
            args = {"p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s": states, "p_h": halves, "p_o": o}
            launch(p.blocks_of(output_kernel, tile, cdiv(V, tile.block_v), args, piece, states))
    return o, final_state if output_final_state else None, p.kept(states, boundary, halves) if keep else None


def _running_state(p: Problem, first_state: Tensor | None, into: Tensor | None, launch: Launcher) -> Tensor:
    """A state, or its gradient, that slices take over from one another, float32 [B, H, K, V]: from
    ``first_state``, or zero. ``into``: where it shall lie."""
    running = p.one_state() if into is None else into
    launch(copied(first_state, running))
    return running


def _boundary_states(p: Problem, running: Tensor, launch: Launcher) -> Tensor:
    """The state before each slice, as the forward pass leaves them: `Problem.boundary_buffer`. ``running``: the one
    before the first, and after that the one before the last."""
    boundary, gamma = p.boundary_buffer(), p.decay_buffer(1)
    after = running.view(-1, 1, *running.shape[2:])
    for i, piece in enumerate(p.slices):
        launch(copied(running, boundary[i]))
        if piece != p.slices[-1]:
            _states(p, piece, running, after, None, None, launch, p.seg_chunks, last=True, gamma=gamma)
    return boundary


def _starts(p: Problem, halves: Tensor | None, launch: Launcher) -> Tensor | None:
    """States that segments start from, [.., n_seg, K, V] in float32: the initial state, if any, where there is but one
    segment. Fills in ``halves``, too, where there are more."""
    if p.n_seg == 1:
        return p.initial_state
    starts, every = p.segment_buffer(p.n_seg), p.seg_chunks
    if p.schedule.states_every is None:
        _states(p, p.whole, p.initial_state, starts, halves, None, launch, every)
    else:
        walked = p.segments(0, p.n_seg - (halves is None))  # none asks what the last one adds
        added, gamma = p.segment_buffer(walked.segments), p.decay_buffer(walked.segments)
        _states(p, walked, None, added, halves, None, launch, every, last=True, gamma=gamma)
        launch(p.combination_of(added, gamma, p.initial_state, starts, reverse=False))
    return starts


def _ends(p: Problem, do: Tensor, d_final: Tensor | None, launch: Launcher) -> Tensor | None:
    """Gradients of the states after each segment, as `_starts` has the states before them."""
    if p.n_seg == 1:
        return d_final
    ends, every = p.segment_buffer(p.n_seg), p.seg_chunks
    if p.schedule.states_every is None:
        _grad_states(p, p.whole, do, d_final, ends, None, launch, every)
    else:
        walked = p.segments(1, p.n_seg - 1)
        added, gamma = p.segment_buffer(walked.segments), p.decay_buffer(walked.segments)
        _grad_states(p, walked, do, None, added, None, launch, every, last=True, gamma=gamma)
        launch(p.combination_of(added, gamma, d_final, ends, reverse=True))
    return ends


def _states(
    p: Problem, piece: Slice, starts: Tensor | None, states: Tensor, halves: Tensor | None, final_state: Tensor | None,
    launch: Launcher, every: int = 1, last: bool = False, gamma: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill ``states`` [B*H, .., K, V] with the states before every n-th chunk of the slice, and the slice's rows of
    ``halves``. ``starts``: the states before each segment of the sequence, none for zero. ``last``: the state after
    each segment instead, and log2 of its decay in ``gamma`` [B*H, segments, K]."""
    args = {
        "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s0": starts, "p_s": states, "p_h": halves, "p_gamma": gamma,
        "p_st": final_state, "n_start": p.states_a_head(starts), "n_blocks": p.n_blocks,
    }  # fmt: skip
    launch(
        p.walk_of(
            states_kernel,
            p.config.states,
            args,
            piece,
            states,
            every,
            last,
            HAS_S0=starts is not None,
            STORE_H=halves is not None,
            STORE_ST=final_state is not None,
        )
    )


def _walk(
    p: Problem, piece: Slice, starts: Tensor | None, states: Tensor | None, halves: Tensor | None,
    final_state: Tensor | None, o: Tensor, launch: Launcher, kept: bool,
) -> bool:  # fmt: skip
    """What `_states` does, and the slice's rows of o, in one walk; False where the plan has none or it cannot serve.
    Without gates it does without ``states``, too. kept: whether anybody asks for states but of strong gates."""
    args = {
        "p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s0": starts, "p_s": states, "p_h": halves,
        "p_st": final_state, "p_o": o, "scale": p.scale, "n_start": p.states_a_head(starts),
    }  # fmt: skip
    flags = {"HAS_S0": starts is not None, "STORE_S": states is not None, "STORE_ST": final_state is not None}
    if p.ungated_walk is not None:
        launch(p.walk_on_chip(walk_kernel, p.ungated_walk, args, piece, states, **flags))
        return True
    flags["STORE_S"] = kept
    walk = p.hopper_launch(walk_hopper_kernel, p.config.walk, p.walk_on_chip, args, piece, states, **flags)
    if walk is None:
        return False
    assert states is not None
    launch(walk)
    launch(strong_gates_of(p, output_strong_kernel, args, piece, states))
    return True


def _grad_states(
    p: Problem, piece: Slice, do: Tensor, ends: Tensor | None, grads: Tensor, d_initial: Tensor | None,
    launch: Launcher, every: int = 1, last: bool = False, gamma: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill ``grads`` [B*H, .., K, V] with the gradients of the states after every n-th chunk of the slice. ``ends``: of
    the states after each segment of the sequence, or after all of it, [B, H, K, V]; none for zero. ``last``: of the
    state before each segment instead, and log2 of its decay in ``gamma`` [B*H, segments, K]."""
    args = {
        "p_q": p.q, "p_g": p.g, "p_do": do, "p_dst": ends, "p_ds": grads, "p_gamma": gamma,
        "p_ds0": d_initial, "scale": p.scale, "n_end": p.states_a_head(ends),
    }  # fmt: skip
    launch(
        p.walk_of(
            grad_states_kernel,
            p.config.grad_states,
            args,
            piece,
            grads,
            every,
            last,
            HAS_DST=ends is not None,
            STORE_DS0=d_initial is not None,
        )
    )


def backward(p: Problem, do: Tensor, d_final: Tensor | None, launch: Launcher, kept: Kept | None = None) -> Gradients:
    """The gradients of all inputs.

    do [B, T, H, V]; d_final [B, H, K, V] float32 or None. States are computed again unless the forward pass kept them.
    """
    d_gates = None if p.g is None else torch.empty_like(p.g)
    d_initial = torch.empty_like(p.initial_state) if p.initial_state is not None else None
    found = Gradients(torch.empty_like(p.q), torch.empty_like(p.k), torch.empty_like(p.v), d_gates, d_initial)
    kept = kept if p.served_by(kept) else None
    for at in p.head_groups:
        _backward(p.head_group(at), rows_of(do, at), states_of(d_final, at), found.head_group(at), launch, kept)
    return found


def _backward(
    p: Problem, do: Tensor, d_final: Tensor | None, into: Gradients, launch: Launcher, kept: Kept | None
) -> None:
    """Fill the gradients of what is worked on at once."""
    halves = p.half_decays() if kept is None else kept.halves
    states = p.state_buffer() if kept is None or kept.states is None else kept.states
    again = kept is None or kept.states is None  # whether the chunks' states are made again
    boundary = running = starts = ends = None
    if p.in_turn:
        running = _running_state(p, p.initial_state, into.initial_state, launch)
        boundary = _boundary_states(p, running, launch) if kept is None else kept.boundary
        ends = _running_state(p, d_final, running, launch)
    else:
        starts = _starts(p, halves, launch) if again else None
        ends = _ends(p, do, d_final, launch)
    made = halves if kept is None and (p.in_turn or p.n_seg == 1) else None  # by the pass below, else they are there
    grads = p.state_buffer()
    order = range(len(p.slices))
    for i in reversed(order) if p.in_turn else order:
        piece = p.slices[i]
        first = into.initial_state if i == 0 and running is None else running
        if again:
            _states(p, piece, starts if boundary is None else boundary[i], states, made, None, launch)
        walked = _grad_walk(p, piece, do, ends, grads, first, halves, into.v, launch)
        if not walked:
            _grad_states(p, piece, do, ends, grads, first, launch)
        native = _grad_qk(p, piece, do, states, grads, halves, into, launch)
        if not walked:
            _grad_v(p, piece, do, grads, halves, into.v, launch)
        args = {
            "p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_do": do, "p_s": states, "p_ds": grads, "p_h": halves,
            "p_dq": into.q, "p_dk": into.k, "p_dg": into.g, "p_dv": into.v,
        }  # fmt: skip
        if walked:  # neither needs what the launch just before it writes: see `Launch.early`
            launch(strong_gates_of(p, grad_v_strong_kernel, args, piece, grads))
        if native:
            launch(strong_gates_of(p, grad_qk_strong_kernel, args, piece, grads))


def _grad_walk(
    p: Problem, piece: Slice, do: Tensor, ends: Tensor | None, grads: Tensor, d_initial: Tensor | None,
    halves: Tensor | None, dv: Tensor, launch: Launcher,
) -> bool:  # fmt: skip
    """What `_grad_states` and `_grad_v` do, in one walk, but for what is not mild; False where the plan has none or it
    cannot serve."""
    args = {
        "p_q": p.q, "p_k": p.k, "p_g": p.g, "p_do": do, "p_h": halves, "p_dst": ends, "p_ds": grads,
        "p_ds0": d_initial, "p_dv": dv, "scale": p.scale, "n_end": p.states_a_head(ends),
    }  # fmt: skip
    flags = {"HAS_DST": ends is not None, "STORE_DS0": d_initial is not None}
    walk = p.hopper_launch(grad_walk_hopper_kernel, p.config.grad_walk, p.walk_on_chip, args, piece, grads, **flags)
    if walk is not None:
        launch(walk)
    return walk is not None


def _grad_qk(
    p: Problem, piece: Slice, do: Tensor, states: Tensor, grads: Tensor, halves: Tensor | None,
    into: Gradients, launch: Launcher,
) -> bool:  # fmt: skip
    """Fill the slice's rows of the gradients of q, k, g. Whether Hopper's own kernel did, but for what is not mild."""
    args = {
        "p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_do": do, "p_s": states, "p_ds": grads, "p_h": halves,
        "p_dq": into.q, "p_dk": into.k, "p_dg": into.g,
    }  # fmt: skip
    tile = p.config.grad_qk
    native = p.hopper_launch(grad_qk_hopper_kernel, tile, p.of_chunks, args, piece, states, STAGES=tile.num_stages)
    launch(native or p.of_chunks(grad_qk_kernel, tile, args, piece, states))
    return native is not None


def _grad_v(
    p: Problem, piece: Slice, do: Tensor, grads: Tensor, halves: Tensor | None, dv: Tensor, launch: Launcher
) -> None:
    """Fill the slice's rows of dv."""
    _, _, _, _, V = p.dims
    tile = p.config.grad_v
    args = {"p_q": p.q, "p_k": p.k, "p_g": p.g, "p_do": do, "p_ds": grads, "p_h": halves, "p_dv": dv}
    launch(p.blocks_of(grad_v_kernel, tile, cdiv(V, tile.block_v), args, piece, grads))
