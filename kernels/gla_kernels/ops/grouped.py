"""Heads of values that share queries, keys and gates: q, k, g with H heads, v with H * n.

Heads h*n .. h*n+n-1 of v have states by the same keys and gates, and are read by the same queries. So they are columns
of one head's state, of n * V columns, in which v already lies: [B, T, H*n, V] is [B, T, H, n*V]. No kernel knows of
groups, nothing is repeated, and the gradients of q, k and g come out summed. States [B, H*n, K, V] are copied on the
way in and out, but for those that are [.., V, K], which lie as they should, too.

A head has at most `MAX_HEAD_DIM` columns: Hopper's kernels keep all of them in shared memory. Where a group has more it
goes into as few parts as divide it, a head each, with q, k and g repeated for each part, not for each head. Parts of v
would have to be copied as well, and would be calls one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..schedule import MAX_HEAD_DIM
from .form import Inputs
from .validate import no_tensor

Result = tuple[Tensor, Tensor | None]


def together(x: Inputs, v_first: bool) -> int:
    """How many heads of v go into one; 0 where there are no groups, and where it is for the call's checks to say what
    is wrong. Asked of every call, before anything is checked."""
    if no_tensor(x.q) is not None or no_tensor(x.v) is not None or x.q.dim() != 4 or x.v.dim() != 4:
        return 0
    H, of_values = x.q.shape[2], x.v.shape[2]
    if of_values == H or not H or not of_values or of_values % H or not _fits(x, v_first):
        return 0
    return heads_in_one(of_values // H, x.v.shape[3])


def heads_in_one(group: int, V: int) -> int:
    """How many of a group's heads of V columns go into one; 0 where none fits."""
    return max([0] + [n for n in range(1, group + 1) if group % n == 0 and n * V <= MAX_HEAD_DIM])


def _fits(x: Inputs, v_first: bool) -> bool:
    """Whether all other tensors have the heads that q or v have."""
    if any(t is not None and no_tensor(t) is not None for t in x) or x.k is None:
        return False
    _, _, heads, V = x.v.shape
    K = x.q.shape[3]
    state = (heads, V, K) if v_first else (heads, K, V)
    of_q, of_v, first = x.q.shape, x.v.shape, x.initial_state
    if first is not None and (first.dim() != 4 or tuple(first.shape[1:]) != state):
        return False
    if of_q[:2] != of_v[:2]:
        return False
    return x.k.shape == of_q and (x.g is None or x.g.shape == of_q) and (x.gv is None or x.gv.shape == of_v)


def call(run: Callable[..., Result], x: Inputs, heads: int, v_first: bool, **asked: Any) -> Result:
    """o and the final state of a grouped call of ``run``, which is handed as many heads of q as of v, and what else is
    ``asked``; ``heads`` of v go into one."""
    H, V, parts = x.q.shape[2], x.v.shape[3], x.v.shape[2] // x.q.shape[2] // heads
    q, k, g = (None if t is None else _repeated(t, parts) for t in (x.q, x.k, x.g))
    v, gv = (None if t is None else t.reshape(*t.shape[:2], H * parts, heads * V) for t in (x.v, x.gv))
    state = None if x.initial_state is None else _wide(x.initial_state, heads, v_first)
    o, final = run(q, k, v, g, initial_state=state, gv=gv, cu_seqlens=x.cu_seqlens, state_v_first=v_first, **asked)
    return o.reshape(x.v.shape), None if final is None else _narrow(final, heads, v_first)


def _repeated(x: Tensor, parts: int) -> Tensor:
    """x [B, T, H, K] with each head so many times, one beside another."""
    return x if parts == 1 else x.repeat_interleave(parts, 2)


def _wide(state: Tensor, heads: int, v_first: bool) -> Tensor:
    """States of so many heads each as one: [N, H*heads, K, V] as [N, H, K, heads*V]; v_first: the last two the other
    way about."""
    state = state.unflatten(1, (-1, heads))
    return state.flatten(2, 3) if v_first else state.transpose(2, 3).flatten(3)


def _narrow(state: Tensor, heads: int, v_first: bool) -> Tensor:
    """The inverse of `_wide`."""
    if v_first:
        return state.unflatten(2, (heads, -1)).flatten(1, 2)
    return state.unflatten(3, (heads, -1)).transpose(2, 3).flatten(1, 2)
