"""The chunkwise form's kernels for Hopper alone, in Gluon. Each takes the place of a portable one in `chunk`, or ends
what another one here leaves undone.

Gluon is experimental in Triton, and may look different in the next version: all are None where it does.
"""

from ...launch import settle_keys

try:
    from .grad_qk import grad_qk_hopper_kernel
    from .grad_qk_runs import grad_qk_runs_hopper_kernel
    from .grad_qk_wide import grad_qk_wide_runs_hopper_kernel
    from .grad_walk import grad_walk_hopper_kernel
    from .prepare import prepare_hopper_kernel
    from .prepare_strong import prepare_strong_hopper_kernel
    from .strong_grad_qk import grad_qk_strong_hopper_kernel
    from .strong_rows import (
        grad_v_hopper_kernel,
        grad_v_strong_hopper_kernel,
        output_hopper_kernel,
        output_strong_hopper_kernel,
    )
    from .walk import walk_hopper_kernel
    from .wide_ends import grad_states_wide_hopper_kernel, states_wide_hopper_kernel
    from .wide_walk import grad_walk_wide_hopper_kernel, walk_wide_hopper_kernel

    settle_keys(walk_hopper_kernel, grad_walk_hopper_kernel, grad_qk_hopper_kernel)
    settle_keys(prepare_hopper_kernel, walk_wide_hopper_kernel, grad_walk_wide_hopper_kernel)
    settle_keys(states_wide_hopper_kernel, grad_states_wide_hopper_kernel)
    settle_keys(grad_qk_runs_hopper_kernel, grad_qk_wide_runs_hopper_kernel)
    settle_keys(output_strong_hopper_kernel, grad_v_strong_hopper_kernel, grad_qk_strong_hopper_kernel)
    settle_keys(output_hopper_kernel, grad_v_hopper_kernel, prepare_strong_hopper_kernel)
except (ImportError, AttributeError):
    walk_hopper_kernel = grad_walk_hopper_kernel = grad_qk_hopper_kernel = None
    prepare_hopper_kernel = walk_wide_hopper_kernel = grad_walk_wide_hopper_kernel = None
    states_wide_hopper_kernel = grad_states_wide_hopper_kernel = None
    grad_qk_runs_hopper_kernel = grad_qk_wide_runs_hopper_kernel = None
    output_strong_hopper_kernel = grad_v_strong_hopper_kernel = grad_qk_strong_hopper_kernel = None
    output_hopper_kernel = grad_v_hopper_kernel = prepare_strong_hopper_kernel = None

__all__ = [
    "grad_qk_hopper_kernel",
    "grad_qk_runs_hopper_kernel",
    "grad_qk_strong_hopper_kernel",
    "grad_qk_wide_runs_hopper_kernel",
    "grad_states_wide_hopper_kernel",
    "grad_v_hopper_kernel",
    "grad_v_strong_hopper_kernel",
    "grad_walk_hopper_kernel",
    "grad_walk_wide_hopper_kernel",
    "output_hopper_kernel",
    "output_strong_hopper_kernel",
    "prepare_hopper_kernel",
    "prepare_strong_hopper_kernel",
    "states_wide_hopper_kernel",
    "walk_hopper_kernel",
    "walk_wide_hopper_kernel",
]
