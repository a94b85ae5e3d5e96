"""The chunkwise form: which kernels run, in which order, on which buffers.

Nothing here touches a GPU: each step builds a `Launch` and hands it to ``launch``.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..copies import copied, thinned
from ..launch import Launcher
from .boundaries import boundary_states, running_state, segment_ends, segment_starts
from .edges import edge_final, edge_first, edge_gradients, edge_output
from .grad_qk import make_grad_qk
from .grad_states import make_grad_states
from .grad_v import make_grad_v
from .grad_walk import fused_grad_scan
from .kept import Gradients, Kept, rows_of
from .output import make_output
from .packing import closed
from .prepare import prepare
from .problem import Problem
from .shards import Added
from .states import make_states
from .strong_gates import at_once, grad_qk_strong_kernel, grad_v_strong_kernel, strong_gates_of
from .walk import fused_scan


def forward(
    p: Problem, output_final_state: bool, launch: Launcher, keep: bool = True, every: int = 1,
    added: Added | None = None,
) -> tuple[Tensor, Tensor | None, Kept | None]:  # fmt: skip
    """o [B, T, H, V] in the inputs' dtype, the final state in float32 if asked for, and what the backward pass can make
    use of. ``keep``: whether there will be one that does, and asks for the states before every so many chunks. added:
    what is known of the segments already, of a schedule that materializes states (shards.py).

    The final state is [B, H, K, V], or [N, H, K, V] of packed sequences, or [.., V, K] (`Problem`).
    """
    p, whole = closed(p.forward(keep), False, launch), len(p.head_groups) == 1
    o, keep = p.v.new_empty(p.v.shape), keep and whole
    kept = keep and p.schedule.materialize
    halves, made = (p.half_decays(), None) if added is None else (added.halves_of(p), added.made)
    if added is None and len(p.slices) == 1:
        made = prepare(p, p.slices[0], p.config.walk, p.v, halves, False, True, launch)
    needless = p.ungated_walk is not None or p.is_wide(p.config.walk)  # but to be kept
    states = None if needless and not (kept and every == 1) else p.state_buffer()
    few = p.few_states(p.whole, every) if kept and every > 1 else None
    boundary = p.boundary_buffer() if keep and p.in_turn else None
    running = running_state(p, p.initial_state, None, launch) if p.in_turn else None
    if running is not None:
        starts: Tensor | None = running
    else:
        starts = segment_starts(p, None, made, launch) if added is None else added.starts_from(p.chain_start)
    final_state = running
    if running is None and output_final_state:
        final_state = p.final_buffer()
    for i, piece in enumerate(p.slices):
        if boundary is not None and running is not None:
            launch(copied(running, boundary[i]))
        if len(p.slices) > 1:
            made = prepare(p, piece, p.config.walk, p.v, halves, False, True, launch)
        final = final_state if piece == p.slices[-1] or p.packed is not None else running
        if not fused_scan(p, piece, starts, states, halves, final, o, few, every if kept else 0, made, launch):
            states = p.state_buffer() if states is None else states  # which only a walk can do without
            make_states(p, piece, starts, states, halves, final, launch)
            make_output(p, piece, states, halves, o, launch)
            if few is not None:
                launch(thinned(states, few, every))
        if p.packed is not None:
            edge_output(p, piece, o, launch)
    if p.packed is not None and output_final_state:
        assert final_state is not None
        edge_final(p, final_state, launch)
    found = p.kept(states if few is None else few, boundary, halves, every) if keep else None
    return o, final_state if output_final_state else None, found


def backward(
    p: Problem, do: Tensor, d_final: Tensor | None, launch: Launcher, kept: Kept | None = None,
    added: Added | None = None,
) -> Gradients:  # fmt: skip
    """The gradients of all inputs.

    do [B, T, H, V]; d_final like the final state, or None. States are computed again unless the forward pass kept them.
    added: as in `forward`, of the states' gradients.
    """
    # torch.empty_like takes six times as long on the meta device, where a tuner looks at launches by the thousand
    dq, dk, dv = (x.new_empty(x.shape) for x in (p.q, p.k, p.v))
    d_gates, d_initial = (None if x is None else x.new_empty(x.shape) for x in (p.g, p.initial_state))
    found = Gradients(dq, dk, dv, d_gates, d_initial)
    kept = kept if p.served_by(kept) else None
    p = closed(replace(p, d_final=d_final), kept is None, launch)
    for at in p.head_groups:
        _backward(p.head_group(at), rows_of(do, at), found.head_group(at, p.packed is not None), launch, kept, added)
    return found


def _backward(
    p: Problem, do: Tensor, into: Gradients, launch: Launcher, kept: Kept | None, added: Added | None
) -> None:
    """Fill the gradients of what is worked on at once."""
    halves = p.half_decays() if added is None else added.halves_of(p)
    if kept is not None:
        halves = kept.halves
    found = None if kept is None else kept.states
    every = p.states_made_apart if kept is None or found is None else kept.every
    # all of them; or where the others are led along, those of strong gates, and few of all beside them
    states = p.state_buffer() if found is None or every > 1 else found
    few = found if found is not None else states if every == 1 else p.few_states(p.slices[0], every)
    made, once = None if added is None else added.made, len(p.slices) == 1
    if once and added is None:
        made = prepare(p, p.slices[0], p.config.grad_walk, do, halves, True, kept is None, launch)
    # by the first pass over states, else they are there
    to_fill = halves if kept is None and made is None else None
    boundary = running = starts = ends = None
    if p.in_turn:
        running = running_state(p, p.initial_state, into.initial_state, launch)
        boundary = boundary_states(p, running, launch) if kept is None else kept.boundary
        ends = running_state(p, p.d_final, running, launch)
    else:
        starts = segment_starts(p, to_fill, made, launch) if found is None else None
        ends = segment_ends(p, do, made, launch) if added is None else added.starts_from(p.chain_end)
        to_fill = to_fill if p.n_seg == 1 else None
    grads = p.state_buffer()
    order = range(len(p.slices))
    for i in reversed(order) if p.in_turn else order:
        piece = p.slices[i]
        first = into.initial_state if running is None and (i == 0 or p.packed is not None) else running
        if found is None:  # they are made again
            make_states(p, piece, starts if boundary is None else boundary[i], few, to_fill, None, launch, every)
        if not once:
            made = prepare(p, piece, p.config.grad_walk, do, halves, True, False, launch)
        walked = fused_grad_scan(p, piece, do, ends, grads, first, halves, into.v, made, launch)
        if not walked:
            make_grad_states(p, piece, do, ends, grads, first, launch)
        begun = not walked and at_once(p)  # dv, beside the pass over states: so it comes right after that
        if begun:
            make_grad_v(p, piece, do, grads, halves, into.v, launch)
        native = make_grad_qk(p, piece, do, few, every, states, grads, halves, into, launch)
        if not (walked or begun):
            make_grad_v(p, piece, do, grads, halves, into.v, launch)
        args = {
            "p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_do": do, "p_s": states, "p_ds": grads, "p_h": halves,
            "p_dq": into.q, "p_dk": into.k, "p_dg": into.g, "p_dv": into.v,
        }  # fmt: skip
        # neither needs what the launch just before it writes, if that is not grad_qk's: see `Launch.early`
        adjacent = begun or (walked and made is not None)
        if walked and made is None:
            launch(strong_gates_of(p, grad_v_strong_kernel, args, piece, grads))
        if native:
            launch(strong_gates_of(p, grad_qk_strong_kernel, args, piece, grads, early=not adjacent))
        if p.packed is not None:
            edge_gradients(p, piece, do, states, grads, into, launch)
    if p.packed is not None and into.initial_state is not None:
        edge_first(p, do, into.initial_state, launch)
