"""One form of the operator as two host functions, made differentiable, or only asked what it would launch.

    S_t = Diag(exp g_t) S_{t-1} + k_t^T v_t          o_t = scale q_t S_t

Layout everywhere: q, k, g [B, T, H, K]; v, o [B, T, H, V]; states [B, H, K, V] in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gla_kernels.launch import Launch, Launcher, execute, interpreting
from gla_kernels.ops.validate import check_inputs
from gla_kernels.schedule import cdiv, padded

Kept = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Call:
    """What one call is given. initial_state: float32 or None; chunk: rows of a chunk, where the form has chunks;
    final: whether the state after the last token is asked for."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    scale: float
    initial_state: Tensor | None = None
    chunk: int | None = None
    final: bool = False

    @cached_property
    def dims(self) -> tuple[int, int, int, int, int]:
        """B, T, H, K, V."""
        B, T, H, K = self.q.shape
        return B, T, H, K, self.v.shape[-1]

    @property
    def state_dtype(self) -> torch.dtype:
        """Of states that lie in HBM: bfloat16 with bf16 inputs, else float32, because float16 lacks the range."""
        return torch.bfloat16 if self.q.dtype == torch.bfloat16 else torch.float32

    @property
    def operands(self) -> dict[str, Any]:
        """DOT and PRECISION: what products are given on tensor cores, and what a float32 operand is cut to there.

        float16 goes as tf32, which has its 10 bits and float32's range; float32 as three tf32 products, or whole where
        those would not fit shared memory. The interpreter's bf16 product is wrong: there it is one in float32.
        """
        if self.q.dtype == torch.bfloat16 and not interpreting():
            return {"DOT": tl.bfloat16, "PRECISION": "tf32"}
        fine = "tf32x3" if max(self.dims[3:]) <= 256 else "ieee"
        return {"DOT": tl.float32, "PRECISION": fine if self.q.dtype == torch.float32 else "tf32"}

    @property
    def sizes(self) -> dict[str, Any]:
        """T and H, as every kernel takes them."""
        _, T, H, _, _ = self.dims
        return {"T": T, "H": H}

    def states(self, count: int) -> Tensor:
        """Room for so many states of each head, [B*H, count, K, V]."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B * H, count, K, V, dtype=self.state_dtype)

    def one_state(self, wanted: bool) -> Tensor | None:
        """Room for one float32 state of each head, [B, H, K, V], where it is wanted."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B, H, K, V, dtype=torch.float32) if wanted else None

    def wide(self, *columns: int) -> Tensor:
        """Room for float32 rows of every token and head, [B, T, H, ...]."""
        return self.q.new_empty(*self.q.shape[:3], *columns, dtype=torch.float32)


@dataclass(frozen=True)
class Gradients:
    """Of the inputs of a call, each like its input; None where the input was None."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None = None
    initial_state: Tensor | None = None

    @classmethod
    def empty(cls, call: Call) -> Gradients:
        """Room for the gradients of every input of the call."""
        like = (
            None if x is None else torch.empty_like(x) for x in (call.q, call.k, call.v, call.g, call.initial_state)
        )
        return cls(*like)  # type: ignore[arg-type]  # the first three are never None


@dataclass(frozen=True)
class Form:
    """How one form computes the operator.

    forward(call, launch): o, the final state if it was asked for, and what backward will want besides the inputs.
    backward(call, kept, do, d_final, launch): the gradients; d_final [B, H, K, V] float32 or None.
    """

    forward: Callable[[Call, Launcher], tuple[Tensor, Tensor | None, Kept]]
    backward: Callable[[Call, Kept, Tensor, Tensor | None, Launcher], Gradients]


def run(
    form: Form, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, *, initial_state: Tensor | None = None,
    output_final_state: bool = False, chunk: int | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """o [B, T, H, V] in the dtype of q, and the final state [B, H, K, V] in float32 or None; differentiable once.

    q, k, g [B, T, H, K], v [B, T, H, V]: bf16, fp16 or fp32, g <= 0 or None. scale: K^-1/2 by default. Raises
    ValueError, naming the argument, for a wrong shape, dtype or device.
    """
    check_inputs(q, k, v, g, initial_state)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _Differentiable.apply(q, k, v, g, initial_state, form, scale, chunk, output_final_state)


def launches(
    form: Form, q: Tensor, v: Tensor, *, mode: str, gates: torch.dtype | None, states: bool, chunk: int | None
) -> list[Launch]:  # fmt: skip
    """What a call with inputs like q [B, T, H, K] and v [B, T, H, V] would launch, on tensors of the meta device.

    mode: "fwd", "bwd" or "fwdbwd"; gates: their dtype, None for no gates; states: whether it has an initial state, and
    gives back the final one.
    """
    q, v = (x.to("meta") for x in (q, v))
    g = None if gates is None else torch.empty_like(q, dtype=gates)
    call = Call(q, q, v, g, q.shape[-1] ** -0.5, None, chunk, states)
    if states:
        call = replace(call, initial_state=call.one_state(True))
    fwd: list[Launch] = []
    bwd: list[Launch] = []
    _, final, kept = form.forward(call, fwd.append)
    form.backward(call, kept, v, final, bwd.append)
    return {"fwd": fwd, "bwd": bwd, "fwdbwd": fwd + bwd}[mode]


def blocks(call: Call, split: str, elements: int) -> tuple[dict[str, int], int]:
    """The tile of a K x V state of at most so many elements with the axis ``split`` ("K" or "V") cut, the other whole;
    and how many of them the axis has."""
    _, _, _, K, V = call.dims
    dim, full = (K, padded(V)) if split == "K" else (V, padded(K))
    block = max(8, min(padded(dim), elements // full))
    sizes = {"BK": block, "BV": full} if split == "K" else {"BK": full, "BV": block}
    return {"K": K, "V": V, **sizes}, cdiv(dim, block)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, initial_state, form, scale, chunk, final):  # type: ignore[no-untyped-def]
        q, k, v, g, initial_state = (None if x is None else x.contiguous() for x in (q, k, v, g, initial_state))
        call = Call(q, k, v, g, scale, initial_state, chunk, final)
        o, state, kept = form.forward(call, execute)
        ctx.save_for_backward(q, k, v, g, initial_state, *kept)
        ctx.set_materialize_grads(False)
        ctx.form, ctx.scale, ctx.chunk, ctx.final = form, scale, chunk, final
        return o, state

    @staticmethod
    @once_differentiable
    def backward(ctx, do, d_final):  # type: ignore[no-untyped-def]
        q, k, v, g, initial_state, *kept = ctx.saved_tensors
        call = Call(q, k, v, g, ctx.scale, initial_state, ctx.chunk, ctx.final)
        do = torch.zeros_like(v) if do is None else do.contiguous()
        d_final = None if d_final is None else d_final.contiguous()
        d = ctx.form.backward(call, tuple(kept), do, d_final, execute)
        return d.q, d.k, d.v, d.g, d.initial_state, None, None, None, None
