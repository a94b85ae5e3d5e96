"""Checks of what a caller passes: a failure is a ValueError that names the argument, what it must be and what came."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from ..launch import interpreting
from ..schedule import MAX_HEAD_DIM
from .form import Inputs

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _shape(name: str, x: Tensor, expected: tuple[int, ...], layout: str) -> None:
    if tuple(x.shape) != expected:
        raise ValueError(f"{name}: expected shape {list(expected)} ({layout}), got {list(x.shape)}")


def no_tensor(x: object) -> str | None:
    """What is wrong with what should be a tensor as kernels read them, if anything."""
    if not isinstance(x, Tensor):
        return f"expected a tensor, got {type(x).__name__}"
    if x.is_nested or x.layout != torch.strided:
        return f"expected a dense tensor, got {'a nested one' if x.is_nested else x.layout}"
    return None


def check_tensor(name: str, x: object) -> Tensor:
    if (wrong := no_tensor(x)) is not None:
        raise ValueError(f"{name}: {wrong}")
    return cast("Tensor", x)


def check_flag(name: str, flag: object) -> None:
    """Raises ValueError for what is neither True nor False."""
    if not isinstance(flag, bool):
        got = repr(flag)[:60] if isinstance(flag, int | float | str | None) else type(flag).__name__
        raise ValueError(f"{name}: expected True or False, got {got}")


def _head_dim(name: str, dim: int) -> None:
    if not 1 <= dim <= MAX_HEAD_DIM:
        raise ValueError(f"{name}: expected a head dimension (last axis) from 1 to {MAX_HEAD_DIM}, got {dim}")


def _same_device(name: str, x: Tensor, q: Tensor) -> None:
    if x.device != q.device:
        raise ValueError(f"{name}: expected device {q.device} as of q, got {x.device}")


def check_device(device: torch.device) -> None:
    """Kernels run on CUDA tensors, in Triton's interpreter on CPU tensors, and nowhere on meta ones (planning)."""
    if device.type in ("cuda", "meta") or (device.type == "cpu" and interpreting()):
        return
    hint = "; set TRITON_INTERPRET=1 before Python starts to run on the CPU" if device.type == "cpu" else ""
    raise ValueError(f"q: expected a CUDA tensor, got one on {device}{hint}")


def check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    initial_state: Tensor | None,
    rows: bool = True,
    gv: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    v_first: bool = False,
    groups: bool = False,
    fewer: bool = False,
) -> None:
    """q, k, g [B, T, H, K] and v, gv [B, T, H, V] of one dtype and device, g and gv perhaps float32; state
    [B, H, K, V] float32, or [N, H, K, V] with cu_seqlens [N+1]; v_first: [.., V, K].

    rows=False: one token, without the axis T. groups: several heads of v, gv and the state may share each one of q, k
    and g; fewer: several of q, k, g and the state each one of v. Raises ValueError.
    """
    layout = "B, T, H, K" if rows else "B, H, K"
    n_axes = 4 if rows else 3
    if check_tensor("q", q).dim() != n_axes:
        raise ValueError(f"q: expected {n_axes} axes [{layout}], got shape {list(q.shape)}")
    if q.dtype not in DTYPES:
        raise ValueError(f"q: expected float32, float16 or bfloat16, got {q.dtype}")
    lead = tuple(q.shape[:-1])
    for name, x, expected in (("k", k, tuple(q.shape)), ("g", g, tuple(q.shape))):
        if x is not None or name == "k":
            _shape(name, check_tensor(name, x), expected, f"{layout}, as q")
    if check_tensor("v", v).dim() != n_axes or not _leads(v, lead, groups, fewer):
        also = f", or {'a part or ' if fewer else ''}so many times those {lead[-1]} heads" if groups else ""
        raise ValueError(
            f"v: expected shape [{', '.join(map(str, lead))}, V] ({layout[:-1]}V){also}, got {list(v.shape)}"
            f"{_of_fewer(v, lead) if groups and not fewer else ''}"
        )
    _head_dim("q", q.shape[-1])
    _head_dim("v", v.shape[-1])
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise ValueError(f"{name}: expected dtype {q.dtype} as of q, got {x.dtype}")
        _same_device(name, x, q)
    if gv is not None:
        _shape("gv", check_tensor("gv", gv), tuple(v.shape), f"{layout[:-1]}V, as v")
    for name, gates in (("g", g), ("gv", gv)):
        if gates is not None:
            if gates.dtype not in (q.dtype, torch.float32):
                raise ValueError(f"{name}: expected dtype {q.dtype} (as of q) or float32, got {gates.dtype}")
            _same_device(name, gates, q)
    if cu_seqlens is not None:
        check_lengths(cu_seqlens, q)
    if initial_state is not None:
        name = "initial_state" if rows else "state"
        n = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        last = (v.shape[-1], q.shape[-1]) if v_first else (q.shape[-1], v.shape[-1])
        layout = f"{'B' if cu_seqlens is None else 'N'}, H, {'V, K' if v_first else 'K, V'}"
        heads = max(q.shape[-2], v.shape[-2])
        _shape(name, check_tensor(name, initial_state), (n, heads, *last), layout)
        if initial_state.dtype != torch.float32:
            raise ValueError(f"{name}: expected dtype float32, got {initial_state.dtype}")
        _same_device(name, initial_state, q)
    check_device(q.device)


def _leads(v: Tensor, lead: tuple[int, ...], groups: bool, fewer: bool) -> bool:
    """Whether v has these axes before its columns, or so many times the heads of them, or, if it may, one for several
    of them."""
    H, of_values = lead[-1], v.shape[-2]
    if of_values == H or not groups or not H or not of_values:
        return tuple(v.shape[:-1]) == lead
    return tuple(v.shape[:-2]) == lead[:-1] and (of_values % H == 0 or (fewer and H % of_values == 0))


def _of_fewer(v: Tensor, lead: tuple[int, ...]) -> str:
    """What to do with v of fewer heads than q has, if they are as many for each."""
    if v.dim() < 2 or not 0 < v.shape[-2] < lead[-1] or lead[-1] % v.shape[-2]:
        return ""
    times = lead[-1] // v.shape[-2]
    return f"; heads of v that several of q share have to be repeated: v.repeat_interleave({times}, -2)"


def check_lengths(cu_seqlens: Tensor, q: Tensor) -> None:
    """Where packed sequences begin and end: [N+1], int32 or int64, on the device of q [1, T, H, K]. Raises
    ValueError."""
    check_tensor("cu_seqlens", cu_seqlens)
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(f"cu_seqlens: expected shape [N+1], of one sequence or more, got {list(cu_seqlens.shape)}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens: expected int32 or int64, got {cu_seqlens.dtype}")
    if q.shape[0] != 1:
        raise ValueError(f"q: expected B = 1 where sequences are packed (cu_seqlens), got {q.shape[0]}")
    _same_device("cu_seqlens", cu_seqlens, q)


def check_length_values(x: Inputs) -> None:
    """Whether the packed sequences of a call follow one another from 0 to T; waits for the GPU. Raises ValueError."""
    assert x.cu_seqlens is not None
    ends, T = x.cu_seqlens.tolist(), x.q.shape[1]
    if ends[0] != 0:
        raise ValueError(f"cu_seqlens: expected 0 first, got {ends[0]}")
    for n, (first, end) in enumerate(pairwise(ends)):
        if end < first:
            raise ValueError(f"cu_seqlens: expected ascending numbers, got {end} after {first}, at {n + 1}")
    if ends[-1] != T:
        raise ValueError(f"cu_seqlens: expected {T} (T) last, got {ends[-1]}")


def check_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor, v_first: bool = False
) -> None:
    """One token's tensors, and a contiguous state, which is updated in place. Raises ValueError."""
    if state is None:
        raise ValueError(f"state: expected a tensor [B, H, {'V, K' if v_first else 'K, V'}], got None")
    check_flag("state_v_first", v_first)
    check_inputs(q, k, v, g, state, rows=False, gv=gv, v_first=v_first, groups=True)
    if not state.is_contiguous():
        raise ValueError(f"state: expected a contiguous tensor to update in place, got strides {list(state.stride())}")
    if state.is_neg():
        raise ValueError("state: expected a tensor to update in place, got one that PyTorch negates as it is read")


def refuse_gradients(wanted: bool) -> None:
    """Raises ValueError for `gla_step` of inputs that require gradients."""
    if wanted:
        raise ValueError("gla_step: expected inputs without gradients (torch.no_grad()), got one that requires them")


def check_sizes(**sizes: object) -> None:
    """Raises ValueError for what is no natural number."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ValueError(f"{name}: expected a number of 0 or more, got {size!r:.60}")


def no_number(scale: object) -> str | None:
    """What is wrong with what should be a number, if anything."""
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        return f"expected a number or None, got {type(scale).__name__}"
    return None


def check_scale(scale: float | None, K: int) -> float:
    """The scale as a float; K^-1/2 by default. Raises ValueError."""
    if scale is None:
        return float(K**-0.5)
    if (wrong := no_number(scale)) is not None:
        raise ValueError(f"scale: {wrong}")
    if not abs(scale) <= torch.finfo(torch.float32).max:  # nor is NaN
        raise ValueError(f"scale: expected a number that float32 holds, got {scale!r:.60}")
    return float(scale)
