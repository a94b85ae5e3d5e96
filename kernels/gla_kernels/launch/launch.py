"""One kernel launch as data, so that the same host code can run it, or only say what it would run.

The host functions of this package never call a kernel directly: they build a `Launch` and hand it to a function.
On a GPU that function is `execute`. To cross-compile without a GPU it is a list's ``append``: the tensors are then
on torch's meta device and nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from ..schedule import MAX_REGISTERS


@dataclass(frozen=True)
class Launch:
    """A Triton kernel, its grid and everything it is given.

    ``args`` holds the run-time arguments by name (tensors, numbers, None for an absent tensor), ``constexprs`` the
    compile-time ones. ``blocks``: of which tensors the kernel gets a tensor descriptor as well, by the argument's name,
    and of what block (see `descriptor`). ``max_registers``: of a thread. ``early``: on Hopper and newer, it may begin
    before the launch before it is done, and waits for that itself, before it reads what that writes and in any case
    before it ends (programmatic dependent launch).
    """

    kernel: Any  # triton.JITFunction, or InterpretedFunction under TRITON_INTERPRET=1
    grid: tuple[int, ...]
    args: dict[str, Any]
    constexprs: dict[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 1
    blocks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    max_registers: int = MAX_REGISTERS
    early: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """All run-time arguments that the kernel takes: of ``args``, and for d_x a descriptor of p_x, or None."""
        found: dict[str, Any] = {}
        for name in self.kernel.arg_names:
            if name in self.args:
                found[name] = self.args[name]
        for x in described(self.kernel):
            block = self.blocks.get(x)
            found[f"d_{x}"] = None if block is None else descriptor(self.args[f"p_{x}"], block, self.in_gluon)
        return found

    @property
    def constants(self) -> dict[str, Any]:
        """All compile-time arguments that the kernel takes."""
        return {name: value for name, value in self.constexprs.items() if name in self.kernel.arg_names}

    @property
    def in_gluon(self) -> bool:
        """Whether the kernel is written in Gluon, which tells the compiler how tiles lie in memory and in registers."""
        return isinstance(self.kernel, GluonJITFunction)

    @property
    def all_described(self) -> bool:
        """Whether all tensors that the kernel wants descriptors of bear one."""
        given = [name for name in described(self.kernel) if self.args[f"p_{name}"] is not None]
        return all(name in self.blocks for name in given)

    @property
    def options(self) -> dict[str, int]:
        """What Triton is told of the compilation."""
        limit = {} if self.max_registers >= MAX_REGISTERS else {"maxnreg": self.max_registers}
        early = {"launch_pdl": True} if self.early else {}
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **limit, **early}

    @property
    def name(self) -> str:
        """The kernel's name, as profilers show it."""
        return str(self.kernel.fn.__name__)

    @property
    def step(self) -> str:
        """The pass that the kernel is, as `KernelConfig` names its tile."""
        name = self.name.removesuffix("_kernel").removesuffix("_hopper")
        return name.removesuffix("_runs").removesuffix("_wide")


try:
    from triton.experimental.gluon._runtime import GluonJITFunction
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia import hopper

    # of tiles in shared memory, by bytes of an element and axes
    LAYOUTS = {(size, rank): NVMMASharedLayout(128, 8 * size, rank) for size in (2, 4) for rank in (2, 3)}
except ImportError:  # an experiment of Triton's, which may move; kernels in it are then not launched
    GluonJITFunction = ()

Launcher = Callable[[Launch], None]


@cache
def described(kernel: Any) -> tuple[str, ...]:
    """Of which tensors p_x a kernel may have a descriptor d_x: their names x."""
    return tuple(name[2:] for name in kernel.arg_names if name.startswith("d_"))


def descriptor(x: torch.Tensor, block: tuple[int, ...], in_gluon: bool = False) -> TensorDescriptor:
    """A tensor descriptor of rows [B, T, H, D] as a tensor [B, T, H*D], with blocks (1, rows, columns), or of states
    [.., K, V] as a matrix [.. * K, V], with blocks (rows of K, columns of V).

    in_gluon: for a kernel that wants to know how blocks lie in shared memory: as tensor cores read them, 128 bytes a
    row, which are 64 columns of 16 bits or 32 of float32.
    """
    if len(block) == 3:
        B, T, H, D = x.shape
        row = x.stride(1) if T > 1 else H * D  # of all heads, where these are some of them
        # of all rows, where these are a slice of them
        shape, strides = [B, T, H * D], [x.stride(0) if B > 1 else T * row, row, 1]
    else:
        V = x.shape[-1]
        shape, strides = [x.numel() // V, V], [V, 1]
    if in_gluon:
        return hopper.TensorDescriptor(x, shape, strides, list(block), LAYOUTS[x.itemsize, len(block)])
    return TensorDescriptor(x, shape, strides, list(block))


def settle_keys(*kernels: Any) -> None:
    """Compute the kernels' keys in Triton's cache on disk, in this order; modules do so when they are imported.

    Triton 3.7 leaves the global constants of an inner function out of a kernel's key where it meets the function for
    the first time. The key would depend on what the process has compiled before, and what one process compiles would
    not be found by another.
    """
    if not triton.knobs.runtime.interpret:
        for kernel in kernels:
            _ = kernel.cache_key
