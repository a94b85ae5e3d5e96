"""One decay a head: the kernels for Hopper alone, in Gluon. None where Triton's Gluon is another."""

from ...launch import settle_keys

try:
    from .grad_walk import simple_grad_walk_hopper_kernel
    from .grad_walks import simple_grad_walks_hopper_kernel
    from .walk import simple_walk_hopper_kernel

    settle_keys(simple_grad_walk_hopper_kernel, simple_grad_walks_hopper_kernel, simple_walk_hopper_kernel)
except (ImportError, AttributeError):
    simple_grad_walk_hopper_kernel = simple_grad_walks_hopper_kernel = simple_walk_hopper_kernel = None

__all__ = ["simple_grad_walk_hopper_kernel", "simple_grad_walks_hopper_kernel", "simple_walk_hopper_kernel"]
