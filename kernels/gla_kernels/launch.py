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
from triton.tools.tensor_descriptor import TensorDescriptor

from .config import MAX_REGISTERS


@dataclass(frozen=True)
class Launch:
    """A Triton kernel, its grid and everything it is given.

    ``args`` holds the run-time arguments by name (tensors, numbers, None for an absent tensor), ``constexprs`` the
    compile-time ones. ``blocks``: of which tensors the kernel gets a tensor descriptor as well, by the argument's name,
    and of what block (see `descriptor`). ``max_registers``: of a thread.
    """

    kernel: Any  # triton.JITFunction, or InterpretedFunction under TRITON_INTERPRET=1
    grid: tuple[int, ...]
    args: dict[str, Any]
    constexprs: dict[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 1
    blocks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    max_registers: int = MAX_REGISTERS

    @property
    def arguments(self) -> dict[str, Any]:
        """All run-time arguments: ``args``, and for every d_x that the kernel takes a descriptor of p_x, or None."""
        wanted = [name[2:] for name in self.kernel.arg_names if name.startswith("d_")]
        made = {x: descriptor(self.args[f"p_{x}"], self.blocks[x]) if x in self.blocks else None for x in wanted}
        return self.args | {f"d_{x}": one for x, one in made.items()}

    @property
    def options(self) -> dict[str, int]:
        """What Triton is told of the compilation."""
        limit = {} if self.max_registers >= MAX_REGISTERS else {"maxnreg": self.max_registers}
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **limit}

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
        launch.kernel[launch.grid](**launch.arguments, **launch.constexprs, **launch.options)


def descriptor(x: torch.Tensor, block: tuple[int, ...]) -> TensorDescriptor:
    """A tensor descriptor of rows [B, T, H, D] as a tensor [B, T, H*D], with blocks (1, rows, columns), or of states
    [.., K, V] as a matrix [.. * K, V], with blocks (rows of K, columns of V)."""
    if len(block) == 3:
        B, T, H, D = x.shape
        return TensorDescriptor(x, [B, T, H * D], [T * H * D, H * D, 1], list(block))
    V = x.shape[-1]
    return TensorDescriptor(x, [x.numel() // V, V], [V, 1], list(block))


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
