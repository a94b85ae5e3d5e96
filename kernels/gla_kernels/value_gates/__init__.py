"""Gates on both sides of the state (the first version of Yang et al., arXiv 2312.06635v1): which kernels run.

    S_t = (exp g_t)^T (exp gv_t) * S_{t-1} + k_t^T v_t          o_t = scale q_t S_t

Chunk by chunk as in `chunk`, in three kernels. With the sum over pairs of rows of (A of the key side) * (dA of the
value side) the operator is the same from either side, so that each kernel serves both: a walk over time for the states
and back for their gradients, the scores of a side, and what a side's rows get by the other side's scores.

Nothing here touches a GPU: each step builds a `Launch` and hands it to ``launch``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..launch import Launcher, settle_keys
from .apply import apply_kernel
from .problem import MAX_CHUNK, Problem, Side
from .scores import scores_kernel
from .walk import walk_kernel

settle_keys(walk_kernel, scores_kernel, apply_kernel)

# The chunks' states where they are materialized, and the state before each slice.
Kept = tuple[Tensor | None, list[Tensor]]


def forward(p: Problem, launch: Launcher) -> tuple[Tensor, Tensor, Kept]:
    """o [B, T, H, V] in the inputs' dtype, the final state [B, H, K, V] in float32, and what the backward pass can make
    use of."""
    o = torch.empty_like(p.v)
    keys, values = Side(p.q, p.k, p.g, True), Side(None, p.v, p.gv, False)
    handed, states, scores = p.boundaries(p.initial_state), p.state_buffer(), p.scores_buffer()
    for i, part in enumerate(p.slices):
        launch(p.walk(part, (p.k, p.v), handed[i], states, handed[i + 1]))
        launch(p.scores(part, keys, scores))
        launch(p.apply(part, values, keys, scores, (states, None), (o, None, None)))
    return o, handed[-1], (states if p.schedule.materialize else None, handed[:-1])


def backward(
    p: Problem, do: Tensor, d_final: Tensor | None, launch: Launcher, kept: Kept | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor]:
    """dq, dk, dv, dg, dgv and the initial state's gradient.

    do [B, T, H, V]; d_final [B, H, K, V] float32 or None. States are computed again unless the forward pass kept them.
    """
    dq, dk, dv = torch.empty_like(p.q), torch.empty_like(p.k), torch.empty_like(p.v)
    dg, dgv = (None if gates is None else torch.empty_like(gates) for gates in (p.g, p.gv))
    keys, values = Side(p.q, p.k, p.g, True), Side(do, p.v, p.gv, False)
    stored, handed = kept if kept is not None else (None, _handed(p, launch))
    states = p.state_buffer() if stored is None else stored
    grads, scores = p.state_buffer(), p.scores_buffer()
    d_state, *d_handed = p.boundaries(d_final)
    for i, part in reversed(list(enumerate(p.slices))):
        if stored is None:
            launch(p.walk(part, (p.k, p.v), handed[i], states, None))
        launch(p.walk(part, (p.q, do), d_state, grads, d_handed[i], reverse=True))
        d_state = d_handed[i]
        launch(p.scores(part, keys, scores))
        launch(p.apply(part, values, keys, scores, (states, grads), (None, dv, dgv)))
        launch(p.scores(part, values, scores))
        launch(p.apply(part, keys, values, scores, (states, grads), (dq, dk, dg)))
    return dq, dk, dv, dg, dgv, d_state


def _handed(p: Problem, launch: Launcher) -> list[Tensor]:
    """The state before each slice, as the forward pass leaves them."""
    handed = p.boundaries(p.initial_state)
    for i, part in enumerate(p.slices[:-1]):
        launch(p.walk(part, (p.k, p.v), handed[i], None, handed[i + 1]))
    return handed[:-1]


__all__ = ["MAX_CHUNK", "Kept", "Problem", "backward", "forward"]
