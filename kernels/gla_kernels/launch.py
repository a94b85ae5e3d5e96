"""One kernel launch as data, so that the same host code can run it, or only say what it would run.

The host functions of this package never call a kernel directly: they build a `Launch` and hand it to a function.
On a GPU that function is `execute`. To cross-compile without a GPU it is a list's ``append``: the tensors are then
on torch's meta device and nothing runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import triton


@dataclass(frozen=True)
class Launch:
    """A Triton kernel, its grid and everything it is given.

    ``args`` holds the run-time arguments by name (tensors, numbers, None for an absent tensor), ``constexprs`` the
    compile-time ones.
    """

    kernel: Any  # triton.JITFunction, or InterpretedFunction under TRITON_INTERPRET=1
    grid: tuple[int, ...]
    args: dict[str, Any]
    constexprs: dict[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 1

    @property
    def name(self) -> str:
        """The kernel's name, as profilers show it."""
        return str(self.kernel.fn.__name__)

    @property
    def step(self) -> str:
        """The pass that the kernel is, as `KernelConfig` names its tile."""
        return self.name.removesuffix("_kernel")


Launcher = Callable[[Launch], None]


def execute(launch: Launch) -> None:
    """Run the kernel on the device that its tensors are on. An empty grid (no batch, no heads) runs nothing."""
    if math.prod(launch.grid) == 0:
        return
    tensor = next(x for x in launch.args.values() if isinstance(x, torch.Tensor))
    with torch.cuda.device_of(tensor):  # Triton launches on the current GPU, which need not be the tensors'
        launch.kernel[launch.grid](
            **launch.args, **launch.constexprs, num_warps=launch.num_warps, num_stages=launch.num_stages
        )


def interpreting() -> bool:
    """Whether kernels run on CPU tensors through Triton's interpreter (TRITON_INTERPRET=1 at import)."""
    return bool(triton.knobs.runtime.interpret)


def settle_keys(*kernels: Any) -> None:
    """Compute the kernels' keys in Triton's cache on disk, in this order; modules do so when they are imported.

    Triton 3.7 leaves the global constants of an inner function out of a kernel's key where it meets the function for
    the first time. The key would depend on what the process has compiled before, and what one process compiles would
    not be found by another.
    """
    if not interpreting():
        for kernel in kernels:
            _ = kernel.cache_key
