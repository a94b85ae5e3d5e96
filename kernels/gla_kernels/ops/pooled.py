"""Steps with states in a pool: what `gla.gla_step` does where it is given indices, its checks, and its operators of
PyTorch's own kind, which `serving.StatePool` has in a graph, too.

Decoding is queued as a CUDA graph, or costs a launch: checks are made once for tensors of one kind (`signature`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import pool
from ..launch import execute, interpreting
from ..plan.choose import machine_of
from .form import Inputs
from .signature import is_plain, prepared, signature_of
from .validate import check_flag, check_inputs, check_scale, check_tensor, refuse_gradients

FP8 = torch.float8_e4m3fn
STATE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, FP8)
FP8_CAPABILITY = 89  # the first compute capability that converts to it and from it
INDEX_DTYPES = (torch.int32, torch.int64)


def step(
    inputs: Inputs, scale: float | None, v_first: bool, indices: Tensor, scales: Tensor | None, rounding: Tensor | None
) -> Tensor:
    """o [B, H, V]: `gla.gla_step` with states in a pool, ``inputs.initial_state``."""
    q, k, v, g, gv, state, _ = inputs
    given = (q, k, v, g, gv, state, indices, scales, rounding)
    if torch.compiler.is_compiling() or not is_plain(given):
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        return step_operator(q, k, v, g, gv, state, indices, scales, rounding, factor, v_first)
    refuse_gradients(inputs.requires_grad or inputs.has_tangents)

    def check() -> float:
        check_step(inputs, v_first, indices, scales, rounding)
        return check_scale(scale, q.shape[-1])

    factor = prepared(signature_of("pool_step", given, (scale, type(scale), v_first)), check)
    assert state is not None
    o = _step(inputs, factor, v_first, indices, scales, rounding)
    torch.autograd.graph.increment_version(state)
    return o


def _step(
    inputs: Inputs, scale: float, v_first: bool, indices: Tensor, scales: Tensor | None, rounding: Tensor | None
) -> Tensor:
    x, state = inputs._replace(initial_state=None).readable(()), inputs.initial_state
    assert state is not None
    how: dict[str, Any] = {"gv": x.gv, "v_first": v_first, "scales": scales, "times": rounding}
    return pool.step(x.q, x.k, x.v, x.g, state, indices, scale, execute, **how)


def step_tokens(
    x: Inputs, indices: Tensor, accept: Tensor | None, scale: float | None, slots: pool.Slots
) -> Tensor:  # fmt: skip
    """o of a step of `serving.StatePool`: q [B, n, H, K] with a tail, [B, H, K] without one."""
    if torch.compiler.is_compiling() or not is_plain(x):
        factor = x.q.shape[-1] ** -0.5 if scale is None else scale
        return tokens_operator(*x[:4], indices, accept, factor, *slots.parts)
    refuse_gradients(x.requires_grad or x.has_tangents)
    sizes = slots.tail, slots.v_first, slots.counts.shape

    def check() -> float:
        check_step_tokens(x, indices, accept, slots)
        return check_scale(scale, x.q.shape[-1])

    given = (*x[:4], indices, accept, slots.state, slots.keys, slots.gates)
    factor = prepared(signature_of("pool_tokens", given, (scale, type(scale), sizes)), check)
    return _tokens(x, indices, accept, factor, slots)


# --- Checks -----------------------------------------------------------------------------------------------------------


def check_step(
    x: Inputs, v_first: bool, indices: Tensor, scales: Tensor | None, rounding: Tensor | None
) -> None:  # fmt: skip
    """A step's tensors and its pool, ``x.initial_state``. Raises ValueError."""
    check_flag("state_v_first", v_first)
    check_tokens(x)
    check_pool(x, v_first, scales)
    assert x.initial_state is not None
    B = x.q.shape[0]
    check_row("state_indices", indices, B, x.q.device)
    if rounding is not None:
        if x.initial_state.dtype == torch.float32:
            raise ValueError("rounding: expected None, for states in float32 are not rounded")
        check_row("rounding", rounding, B, x.q.device)


def check_tokens(x: Inputs, rows: bool = False) -> None:
    """q, k, v and gates of one token each, or with rows of several; g of each feature or one a head; of one token v may
    have more heads than q. Raises ValueError."""
    one_a_head = isinstance(x.g, Tensor) and isinstance(x.q, Tensor) and x.g.dim() == x.q.dim() - 1
    check_inputs(x.q, x.k, x.v, None if one_a_head else x.g, None, rows=rows, gv=x.gv, groups=not rows)
    if not one_a_head:
        return
    g = check_tensor("g", x.g)
    if g.shape != x.v.shape[:-1]:
        raise ValueError(
            f"g: expected shape {list(x.v.shape[:-1])}, one gate a head, or that of q, got {list(g.shape)}"
        )
    if g.dtype not in (x.q.dtype, torch.float32):
        raise ValueError(f"g: expected dtype {x.q.dtype} (as of q) or float32, got {g.dtype}")
    if g.device != x.q.device:
        raise ValueError(f"g: expected device {x.q.device} as of q, got {g.device}")


def check_pool(x: Inputs, v_first: bool, scales: Tensor | None) -> None:
    """A pool of states for such tokens. Raises ValueError."""
    state, K, (H, V) = check_tensor("state", x.initial_state), x.q.shape[-1], x.v.shape[-2:]
    expected = (H, V, K) if v_first else (H, K, V)
    layout = "slots, H, V, K" if v_first else "slots, H, K, V"
    if state.dim() != 4 or tuple(state.shape[1:]) != expected:
        raise ValueError(f"state: expected a pool {['slots', *expected]} ({layout}), got shape {list(state.shape)}")
    if state.dtype not in STATE_DTYPES:
        raise ValueError(f"state: expected float32, bfloat16, float16 or float8_e4m3fn, got {state.dtype}")
    size = H * K * V
    if state.stride()[1:] != (K * V, expected[2], 1) or (state.shape[0] > 1 and state.stride(0) < size):
        what = f"each slot's {size} numbers side by side, and slots apart"
        raise ValueError(f"state: expected {what}, got strides {list(state.stride())}")
    if state.device != x.q.device:
        raise ValueError(f"state: expected device {x.q.device} as of q, got {state.device}")
    check_fp8(state.dtype, state.device)
    if (scales is not None) != (state.dtype == FP8):
        wanted = (
            f"a tensor [slots, H, V] for states in {FP8}" if scales is None else f"None for states in {state.dtype}"
        )
        raise ValueError(f"state_scales: expected {wanted}, got {'None' if scales is None else 'a tensor'}")
    if scales is not None:
        shape = (state.shape[0], H, V)
        if tuple(check_tensor("state_scales", scales).shape) != shape or scales.dtype != torch.float32:
            raise ValueError(f"state_scales: expected float32 {list(shape)}, got {scales.dtype} {list(scales.shape)}")
        if not scales.is_contiguous() or scales.device != x.q.device:
            got = f"one on {scales.device} with strides {list(scales.stride())}"
            raise ValueError(f"state_scales: expected a contiguous tensor on {x.q.device}, got {got}")


def check_fp8(dtype: torch.dtype, device: torch.device) -> None:
    """Raises ValueError for fp8 states on a GPU that has no such numbers."""
    if dtype == FP8 and device.type == "cuda" and not interpreting():
        capability = machine_of(device).capability
        if capability < FP8_CAPABILITY:
            raise ValueError(
                f"state: {FP8} needs compute capability {FP8_CAPABILITY / 10}, this GPU has {capability / 10}"
            )


def check_step_tokens(x: Inputs, indices: Tensor, accept: Tensor | None, slots: pool.Slots) -> None:
    """The tensors of a step of `serving.StatePool`. Raises ValueError."""
    q, v, g, (H, K, V) = x.q, x.v, x.g, slots.sizes
    check_tokens(x, rows=slots.tail > 0)
    for name, y, expected in (("q", q, (H, K)), ("v", v, (H, V))):
        if tuple(y.shape[-2:]) != expected:
            raise ValueError(f"{name}: expected {list(expected)} last, as of the pool, got shape {list(y.shape)}")
    if q.device != slots.state.device:
        raise ValueError(f"q: expected device {slots.state.device} as of the pool, got {q.device}")
    check_row("indices", indices, q.shape[0], q.device)
    if slots.keys is None:
        if accept is not None:
            raise ValueError("accept: expected None for a pool without a tail, got a tensor")
        return
    if not 1 <= q.shape[1] <= slots.most:
        raise ValueError(f"q: expected 1 to {slots.most} tokens a step, as of the pool, got {q.shape[1]}")
    for name, given, kept in (("q", q, slots.keys), ("g", g, slots.gates)):
        if given is not None and kept is not None and given.dtype != kept.dtype:
            raise ValueError(f"{name}: expected {kept.dtype} as of the pool's tail, got {given.dtype}")
    if accept is not None:
        check_row("accept", accept, q.shape[0], q.device)


def check_row(name: str, x: object, B: int, device: torch.device) -> None:
    """Integers [B]. Raises ValueError."""
    row = check_tensor(name, x)
    if tuple(row.shape) != (B,) or row.dtype not in INDEX_DTYPES:
        raise ValueError(f"{name}: expected int32 or int64 of shape [{B}], got {row.dtype} of {list(row.shape)}")
    if row.device != device:
        raise ValueError(f"{name}: expected device {device} as of q, got {row.device}")
    if not row.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {list(row.stride())}")


# --- Operators --------------------------------------------------------------------------------------------------------


@torch.library.custom_op("gla_kernels::pool_step", mutates_args=("state", "scales"))
def step_operator(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor, indices: Tensor,
    scales: Tensor | None, rounding: Tensor | None, scale: float, v_first: bool,
) -> Tensor:  # fmt: skip
    """`gla.gla_step` with states in a pool."""
    factor = check_scale(scale, q.shape[-1])
    return _step(Inputs(q, k, v, g, gv, state), factor, v_first, indices, scales, rounding)


@step_operator.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor, indices: Tensor,
    scales: Tensor | None, rounding: Tensor | None, scale: float, v_first: bool,
) -> Tensor:  # fmt: skip
    check_step(Inputs(q, k, v, g, gv, state), v_first, indices, scales, rounding)
    return v.new_empty(v.shape)


def _tokens(x: Inputs, indices: Tensor, accept: Tensor | None, scale: float, slots: pool.Slots) -> Tensor:
    q, k, v, g, *_ = x.readable(())
    if slots.tail:
        return pool.replay(q, k, v, g, slots, indices, accept, scale, execute)
    times = slots.counts if slots.stochastic else None
    how: dict[str, Any] = {"v_first": slots.v_first, "scales": slots.scales, "times": times, "counted": True}
    return pool.step(q, k, v, g, slots.state, indices, scale, execute, **how)


@torch.library.custom_op(
    "gla_kernels::pool_tokens", mutates_args=("state", "scales", "keys", "values", "gates", "counts")
)
def tokens_operator(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, indices: Tensor, accept: Tensor | None, scale: float,
    state: Tensor, scales: Tensor | None, keys: Tensor | None, values: Tensor | None, gates: Tensor | None,
    counts: Tensor, tail: int, v_first: bool, stochastic: bool,
) -> Tensor:  # fmt: skip
    """`step_tokens`; what follows the scale is a `pool.Slots`."""
    slots = pool.Slots(state, scales, keys, values, gates, counts, tail, v_first, stochastic)
    return _tokens(Inputs(q, k, v, g, None, None), indices, accept, check_scale(scale, q.shape[-1]), slots)


@tokens_operator.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, indices: Tensor, accept: Tensor | None, scale: float, *a: Any,
    **more: Any,
) -> Tensor:  # fmt: skip
    check_step_tokens(Inputs(q, k, v, g, None, None), indices, accept, pool.Slots(*a, **more))
    return v.new_empty(v.shape)
