"""Walks over time by the kernels for Hopper alone: that to states and outputs (hopper/walk.py), and that back to all
gradients of a slice (hopper/grad_walk.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..launch import Launch, Launcher
from ..tiles.slices import Slice
from .call import Call, chunks_of
from .hopper import simple_grad_walk_hopper_kernel, simple_walk_hopper_kernel
from .parts import Gradients, Sum


def serves(call: Call) -> bool:
    """Whether the kernel makes the call's gradients."""
    return _runs(call) and call.walks_natively


def serves_forward(call: Call) -> bool:
    """Whether the kernel makes the call's outputs."""
    return _runs(call) and call.outputs_natively


def _runs(call: Call) -> bool:
    on_gpu = call.q.device.type != "cpu"  # where the interpreter runs, which knows no Gluon
    return simple_grad_walk_hopper_kernel is not None and on_gpu


def walk(
    call: Call, sums: Tensor, piece: Slice, at: Tensor | None, stored: Tensor | None, after: Tensor | None, o: Tensor
) -> Launch:
    """Fill the slice's rows of o and, if they are given, ``stored`` with the states before its chunks and ``after``
    with that after them. at: the state before the slice, or None."""
    args: dict[str, Any] = {
        "p_q": call.q, "p_k": call.k, "p_v": call.v, "p_s": stored, "p_c": sums, "p_s0": at, "p_st": after, "p_o": o,
    }  # fmt: skip
    flags = {
        "HAS_S0": at is not None,
        "STORE_S": stored is not None,
        "STORE_ST": after is not None,
        "V_FIRST": call.v_first,
        "GK": call.sharing[0],
    }
    args |= chunks_of(piece, args)
    return call.launch_of(simple_walk_hopper_kernel, call.native_tile(), call.native_parts, args, **flags)


@dataclass(frozen=True)
class Walked:
    """The gradients of q, k and g as Hopper's own walk back leaves them: a part of each program of a head, and of
    q and k of each head that shares one. Those are in bfloat16: rounding them costs as much as rounding their sum once
    more, and float32 would be twice the bytes."""

    q: Sum
    k: Sum
    g: Sum | None

    @classmethod
    def of(cls, call: Call, into: Gradients) -> Walked:
        of_k, of_v = call.sharing[0], call.native_parts
        q, k = (Sum(x, of_k * of_v, x.dtype) for x in (into.q, into.k))
        return cls(q, k, None if into.g is None else Sum(into.g, of_v))

    def added(self, into: Gradients) -> Gradients:
        return replace(into, q=self.q.added, k=self.k.added, g=None if self.g is None else self.g.added)

    def end(self, launch: Launcher) -> None:
        for one in (self.q, self.k, self.g):
            if one is not None:
                one.end(launch)


def walk_back(
    call: Call, sums: Tensor, piece: Slice, do: Tensor, states: Tensor, at: Tensor | None, after: Tensor | None,
    into: Gradients,
) -> Launch:  # fmt: skip
    """Fill the slice's rows of the gradients, as `Walked.added` has them, and ``after`` with the gradient of the state
    before the slice. states: of its chunks; at: the gradient of the state after it, or None."""
    args: dict[str, Any] = {
        "p_q": call.q, "p_k": call.k, "p_v": call.v, "p_do": do, "p_s": states, "p_c": sums, "p_dst": at,
        "p_ds0": after, "p_dg": into.g, "p_dq": into.q, "p_dk": into.k, "p_dv": into.v,
    }  # fmt: skip
    flags = {
        "HAS_DST": at is not None,
        "STORE_DS0": after is not None,
        "GRAD_G": into.g is not None,
        "V_FIRST": call.v_first,
        "GK": call.sharing[0],
    }
    args |= chunks_of(piece, args)
    return call.launch_of(simple_grad_walk_hopper_kernel, call.native_tile(), call.native_parts, args, **flags)
