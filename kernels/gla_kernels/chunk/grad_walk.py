"""The states' gradients and dv in one walk back over time, as grad_states and grad_v make them in two passes.

There is a kernel for Hopper alone: hopper/grad_walk.py.
"""

from __future__ import annotations

from torch import Tensor

from ..launch import Launcher
from ..schedule import WALKED_K
from ..tiles.slices import Slice
from .hopper import grad_walk_hopper_kernel
from .prepare import Prepared
from .problem import Problem
from .wide_walk import wide_grad_scan


def fused_grad_scan(
    p: Problem, piece: Slice, do: Tensor, ends: Tensor | None, grads: Tensor, d_initial: Tensor | None,
    halves: Tensor | None, dv: Tensor, made: Prepared | None, launch: Launcher,
) -> bool:  # fmt: skip
    """Fill what `make_grad_states` and `make_grad_v` do, but for what is not mild, in a fused scan. Returns False where
    the plan has none or it cannot serve. made: what a walk of wide heads reads."""
    args = {
        "p_q": p.q, "p_k": p.k, "p_g": p.g, "p_do": do, "p_h": halves, "p_dst": ends, "p_ds": grads,
        "p_ds0": d_initial, "p_dv": dv, "scale": p.scale, "n_end": p.states_a_head(ends),
    }  # fmt: skip
    args, flags = p.with_sequences(args, "p_dsn", p.d_final)
    flags |= {"HAS_DST": ends is not None, "STORE_DS0": d_initial is not None, "DST_V_FIRST": p.is_v_first(ends)}
    if p.is_wide(p.config.grad_walk):
        return wide_grad_scan(p, made, piece, args, flags, launch)
    if p.dims[3] > WALKED_K:
        return False
    walk = p.hopper_launch(grad_walk_hopper_kernel, p.config.grad_walk, p.walk_on_chip, args, piece, grads, **flags)
    if walk is not None:
        launch(walk)
    return walk is not None
