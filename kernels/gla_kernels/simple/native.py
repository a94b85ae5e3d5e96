"""Walks over time by the kernels for Hopper alone: that to states and outputs (hopper/walk.py), that back to all
gradients of a slice (hopper/grad_walk.py), and those to the gradients of q, k and v, one each (hopper/grad_walks.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..launch import Launch, Launcher, on_cpu
from ..schedule import WGMMA_ROWS, cdiv
from ..tiles.slices import Slice
from .call import Call, chunks_of
from .gates import EVERY, gates
from .hopper import simple_grad_walk_hopper_kernel, simple_grad_walks_hopper_kernel, simple_walk_hopper_kernel
from .parts import Gradients, Sum


def serves(call: Call) -> bool:
    """Whether the kernel makes the call's gradients."""
    return _runs(call) and call.walks_natively


def serves_forward(call: Call) -> bool:
    """Whether the kernel makes the call's outputs."""
    return _runs(call) and call.outputs_natively


def serves_apart(call: Call) -> bool:
    """Whether a walk for each of them makes the call's gradients, which reads no state."""
    return _runs(call) and call.walks_apart


def _runs(call: Call) -> bool:
    return simple_grad_walk_hopper_kernel is not None and not on_cpu(call.q)


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


def walks_apart(
    call: Call, sums: Tensor, do: Tensor, d_final: Tensor | None, d_initial: Tensor | None, into: Gradients,
    launch: Launcher,
) -> None:  # fmt: skip
    """Fill the gradients, and that of the initial state, if there is room for it."""
    (B, _, H, K, V), shared, tile = call.dims, call.sharing[0], call.native_tile()
    columns = call.apart_columns
    q, k = (Sum(x, shared, x.dtype) for x in (into.q, into.k))
    left = few = None
    n_few = cdiv(call.n_chunks, EVERY)
    if into.g is not None:
        left = sums.new_empty(2, 2, K // columns, B * H, call.n_chunks * call.chunk, dtype=torch.float32)
        few = do.new_empty(2, B * H, n_few + 1, V, K)
    args: dict[str, Any] = {
        "p_q": call.q, "p_k": call.k, "p_v": call.v, "p_do": do, "p_qu": call.q, "p_ku": call.k, "p_dou": do,
        "p_few": few, "p_c": sums, "p_s0": call.initial_state, "p_dst": d_final, "p_ds0": d_initial, "p_sums": left,
        "p_dq": q.added, "p_dk": k.added, "p_dv": into.v, "n_few": n_few, "every": EVERY,
        "n_sums": 0 if left is None else left[0].numel(),
    }  # fmt: skip
    flags = {
        "HAS_S0": call.initial_state is not None,
        "HAS_DST": d_final is not None,
        "STORE_DS0": d_initial is not None,
        "GRAD_G": few is not None,
        "V_FIRST": call.v_first,
        "GK": shared,
        "BY": columns,
    }
    programs = 2 * K // columns + V // tile.block_v
    walks = call.launch_of(simple_grad_walks_hopper_kernel, tile, programs, args, **flags)
    widths = dict.fromkeys(("q", "k", "v", "do"), WGMMA_ROWS) | dict.fromkeys(("qu", "ku", "dq", "dk"), columns)
    widths |= {"dou": tile.block_v, "dv": tile.block_v}
    blocks: dict[str, tuple[int, ...]] = {name: (1, WGMMA_ROWS, width) for name, width in widths.items()}
    launch(replace(walks, blocks=blocks | ({} if few is None else {"few": (WGMMA_ROWS, columns)})))
    if left is not None and few is not None and into.g is not None:
        launch(gates(call, sums, left, few, into.g))
    for one in (q, k):
        one.end(launch)
