"""Gates on both sides of the state (the 2023 version of Yang et al., arXiv 2312.06635v3): which kernels run.

    S_t = (exp g_t)^T (exp gv_t) * S_{t-1} + k_t^T v_t          o_t = scale q_t S_t

Chunk by chunk as in `chunk`. With the sum over pairs of rows of (A of the key side) * (dA of the value side) the
operator is the same from either side, so that each kernel serves both: a walk over time for the states and back for
their gradients, and what a side's rows get by the other side's scores. That is one kernel for chunks that are mild on
both sides (mild.py), as most are; the others are left to one that is right at any gate strength (strong.py), and looks
for them on the device (guard.py).

Where Hopper's own kernels serve the call without gates of the value side, these ride on its walks instead: by_walks.py.

Nothing here touches a GPU: each step builds a `Launch` and hands it to ``launch``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..launch import Launcher, settle_keys
from .mild import gv_mild_kernel
from .problem import MAX_CHUNK, Problem, Side
from .strong import gv_strong_kernel
from .walk import gv_walk_kernel

settle_keys(gv_walk_kernel, gv_mild_kernel, gv_strong_kernel)

# The chunks' states where they are materialized, and the state before each slice.
Kept = tuple[Tensor | None, list[Tensor]]


def forward(p: Problem, launch: Launcher) -> tuple[Tensor, Tensor, Kept]:
    """o [B, T, H, V] in the inputs' dtype, the final state in float32, as the initial one lies, and what the backward
    pass can make use of."""
    o = torch.empty_like(p.v)
    keys, values = p.sides(None)
    state, boundary = p.first(p.initial_state, launch), []
    states = p.state_buffer()
    for piece in p.slices:
        boundary.append(state)
        state = p.one_state()
        launch(p.walk(piece, (keys, values), boundary[-1], states, state))
        launch(p.mild(piece, values, keys, (states, None), (o, None, None)))
        launch(p.strong(piece, (keys, values), (states, None), {"p_o": o}))
    return o, state, (states if p.schedule.materialize else None, boundary)


def backward(
    p: Problem, do: Tensor, d_final: Tensor | None, launch: Launcher, kept: Kept | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor]:
    """dq, dk, dv, dg, dgv and the initial state's gradient.

    do [B, T, H, V]; d_final like the final state, or None. States are computed again unless the forward pass kept them.
    """
    dq, dk, dv = torch.empty_like(p.q), torch.empty_like(p.k), torch.empty_like(p.v)
    dg, dgv = (None if gates is None else torch.empty_like(gates) for gates in (p.g, p.gv))
    keys, values = p.sides(do)
    stored, boundary = kept if kept is not None else (None, _boundary_states(p, (keys, values), launch))
    states = p.state_buffer() if stored is None else stored
    grads = p.state_buffer()
    around, into = (states, grads), {"p_dq": dq, "p_dk": dk, "p_dg": dg, "p_dv": dv, "p_dgv": dgv}
    d_state = p.first(d_final, launch)
    for piece, state in zip(reversed(p.slices), reversed(boundary), strict=True):
        if stored is None:
            launch(p.walk(piece, (keys, values), state, states, None))
        d_after, d_state = d_state, p.one_state()
        launch(p.walk(piece, (keys, values), d_after, grads, d_state, reverse=True))
        for side, other, out in ((values, keys, (None, dv, dgv)), (keys, values, (dq, dk, dg))):
            launch(p.mild(piece, side, other, around, out))
        launch(p.strong(piece, (keys, values), around, into))
    return dq, dk, dv, dg, dgv, d_state


def _boundary_states(p: Problem, sides: tuple[Side, Side], launch: Launcher) -> list[Tensor]:
    """The state before each slice, as the forward pass leaves them."""
    boundary = [p.first(p.initial_state, launch)]
    for piece in p.slices[:-1]:
        boundary.append(p.one_state())
        launch(p.walk(piece, sides, boundary[-2], None, boundary[-1]))
    return boundary


__all__ = ["MAX_CHUNK", "Kept", "Problem", "backward", "forward"]
