"""What a call asks for that these kernels do not have and flash-linear-attention may. Wrong shapes are not among it: no
kernel has them, and the functions of `ops` say what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..launch import interpreting
from ..ops.validate import DTYPES
from ..plan.choose import machine_of

OLDEST = 80  # compute capability of a GPU that the kernels are for


def why_not(
    q: Tensor, k: Tensor, v: Tensor, gates: Sequence[Tensor | None], state: Tensor | None, most: int
) -> str | None:
    """Why kernels that take head dimensions up to ``most`` cannot do a call, or None. Looks at no values."""
    if (why := _no_place(q.device)) is not None:
        return why
    if q.dtype not in DTYPES:
        return f"q is of {_name(q.dtype)}"
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            return f"{name} is of {_name(x.dtype)}, q of {_name(q.dtype)}"
    for g in gates:
        if g is not None and g.dtype not in (q.dtype, torch.float32):
            return f"gates are of {_name(g.dtype)}, q is of {_name(q.dtype)}"
    if state is not None and state.dtype not in DTYPES:
        return f"the initial state is of {_name(state.dtype)}"
    for name, x in (("K", q), ("V", v)):
        if not 1 <= x.shape[-1] <= most:
            return f"{name} is {x.shape[-1]}, head dimensions go up to {most}"
    return None


def _no_place(device: torch.device) -> str | None:
    """Why kernels do not run on a device, or None; on the meta device there is nothing to run."""
    if device.type == "cuda" and torch.version.hip is None:
        capability = machine_of(device).capability
        return None if capability >= OLDEST else f"the GPU is of compute capability {capability / 10}, not 8.0 or later"
    if device.type == "meta" or (device.type == "cpu" and interpreting()):
        return None
    return f"tensors are on a device of the kind {'hip' if device.type == 'cuda' else device.type}"


_no_place._dynamo_marked_constant = True  # type: ignore[attr-defined]  # it asks the machine: see `which.note`


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
