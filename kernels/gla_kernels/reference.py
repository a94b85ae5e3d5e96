"""The operator in plain PyTorch: what every kernel is judged by.

    S_t = Diag(exp g_t) S_{t-1} Diag(exp gv_t) + k_t^T v_t          o_t = scale q_t S_t

Layout: q, k, g [B, T, H, K]; v, o, gv [B, T, H, V]; states [B, H, K, V]. ``g`` is the natural log of the decay, <= 0,
and ``gv`` that of the value side, which the paper's 2023 version has (arXiv 2312.06635v3); None means no decay.
``scale`` defaults to K^-1/2. All forms compute in the dtype of their inputs (call them on doubles for the judge), take
an initial state, return ``(o, final_state)`` and are differentiable by autograd. With 16-bit inputs the products have
16-bit operands and results, while states and sums of gates are float32: what a careful PyTorch program would do, and so
the yardstick of a kernel's error. The quadratic form has no gates of the value side.

``cu_seqlens``, [N + 1] integers from 0 to T that never fall, packs N sequences into a batch of 1: sequence n is rows
cu_seqlens[n] to cu_seqlens[n + 1], none of them knows of another, and states are [N, H, K, V].
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Steps between two states that the recurrence keeps for its backward pass; the steps between are computed again.
SEGMENT = 64


def _wide(x: Tensor) -> torch.dtype:
    """The dtype of states and of sums of gates: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def _start(q: Tensor, v: Tensor, scale: float | None, initial_state: Tensor | None) -> tuple[float, Tensor]:
    B, _, H, K = q.shape
    if scale is None:
        scale = K**-0.5
    if initial_state is None:
        return scale, q.new_zeros(B, H, K, v.shape[-1], dtype=_wide(q))
    return scale, initial_state.to(_wide(q))


def _heads_first(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """[B, T, H, D] -> [B, H, T, D]; gates in the wide dtype."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return q, k, v, None if g is None else g.transpose(1, 2).to(_wide(q))


def _one_by_one(
    form: Callable[..., tuple[Tensor, Tensor]], cu_seqlens: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None,
    initial_state: Tensor | None, gv: Tensor | None = None, **how: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``(o, final_state)`` of packed sequences, each by itself. Raises ValueError for a batch, and for other bounds."""
    bounds = cu_seqlens.tolist()
    if q.shape[0] != 1:
        raise ValueError(f"cu_seqlens: expected a batch of 1, got {q.shape[0]}")
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != q.shape[1] or bounds != sorted(bounds):
        raise ValueError(f"cu_seqlens: expected bounds from 0 to T={q.shape[1]} that never fall, got {bounds}")
    if initial_state is not None and len(initial_state) != len(bounds) - 1:
        raise ValueError(f"initial_state: expected {len(bounds) - 1} states, got {len(initial_state)}")
    outputs, states = [], []
    for n, (start, end) in enumerate(pairwise(bounds)):
        rows = slice(start, end)
        given = None if initial_state is None else initial_state[n : n + 1]
        if start == end:  # nothing becomes of its state
            o, state = v[:, rows], _start(q, v, None, given)[1]
        else:
            gates = {} if gv is None else {"gv": gv[:, rows]}
            g_n = None if g is None else g[:, rows]
            o, state = form(q[:, rows], k[:, rows], v[:, rows], g_n, initial_state=given, **gates, **how)
        outputs.append(o)
        states.append(state)
    return torch.cat(outputs, dim=1), torch.cat(states)


def _decays(g: Tensor | None, gv: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The factor of the state at each token, [B, T, H, K or 1, V or 1]; None where there is none."""
    of_keys = None if g is None else g.to(dtype).exp().unsqueeze(-1)
    if gv is None:
        return of_keys
    of_values = gv.to(dtype).exp().unsqueeze(-2)
    return of_values if of_keys is None else of_keys * of_values


def _states(k: Tensor, v: Tensor, decays: Tensor | None, state: Tensor) -> Tensor:
    """The state after each token, [B, T, H, K, V]."""
    # What does not depend on the state before is done for all tokens at once: a loop of small operations takes the time
    # of launching them.
    states = (k.unsqueeze(-1) * v.unsqueeze(-2)).to(state.dtype)
    each = [None] * k.shape[1] if decays is None else decays.unbind(1)
    for now, decay in zip(states.unbind(1), each, strict=True):
        _carry(now, state, decay)
        state = now
    return states


def _carry(to: Tensor, state: Tensor, decay: Tensor | None) -> None:
    """Add the state, decayed, to what is there."""
    if decay is None:
        to.add_(state)
    else:
        to.addcmul_(state, decay)


class _Walk(torch.autograd.Function):
    """``(o, last state)`` of some tokens, o without the scale. Autograd would keep, and go through, three times as much
    as the backward recurrence does:  dS_t = q_t^T do_t + Diag(exp g_t+1) dS_t+1 Diag(exp gv_t+1)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q, k, v, g, gv, state)
        states = _states(k, v, _decays(g, gv, state.dtype), state)
        o = q.unsqueeze(-2).to(state.dtype) @ states
        return o.squeeze(-2).to(v.dtype), states[:, -1].clone()  # not a view, which would keep them all

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, g, gv, state = ctx.saved_tensors
        decays = _decays(g, gv, state.dtype)
        states = _states(k, v, decays, state)
        q_wide, k_wide, v_wide, do = (x.to(state.dtype) for x in (q, k, v, do))
        dq = (states @ do.unsqueeze(-1)).squeeze(-1)
        grads = q_wide.unsqueeze(-1) * do.unsqueeze(-2)
        grads[:, -1] += d_last
        for t in range(grads.shape[1] - 1, 0, -1):
            _carry(grads[:, t - 1], grads[:, t], None if decays is None else decays[:, t])
        dk = (grads @ v_wide.unsqueeze(-1)).squeeze(-1)
        dv = (k_wide.unsqueeze(-2) @ grads).squeeze(-2)
        if decays is not None:
            grads *= decays
        d_state = grads[:, 0].clone()
        grads[:, 0] *= state  # from here on the terms of the gates' gradients
        grads[:, 1:] *= states[:, :-1]
        dg = None if g is None else grads.sum(-1).sum_to_size(g.shape).to(g.dtype)
        dgv = None if gv is None else grads.sum(-2).sum_to_size(gv.shape).to(gv.dtype)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dg, dgv, d_state


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    gv: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, one token after another. In float64 this is the judge of every other form.

    With gradients, states are kept every SEGMENT tokens only, so that T = 8192 fits.
    """
    if cu_seqlens is not None:
        return _one_by_one(recurrent, cu_seqlens, q, k, v, g, initial_state, gv, scale=scale)
    scale, state = _start(q, v, scale, initial_state)
    parts = []
    for t in range(0, q.shape[1], SEGMENT):
        rows = slice(t, t + SEGMENT)
        gates = (None if x is None else x[:, rows] for x in (g, gv))
        o, state = _Walk.apply(q[:, rows], k[:, rows], v[:, rows], *gates, state)
        parts.append(o)
    o = torch.cat(parts, dim=1) if parts else torch.empty_like(v)
    return o * scale, state


def _block_scores(q: Tensor, k: Tensor, g: Tensor | None) -> Tensor:
    """A_ij = sum_k q_ik k_jk exp(sum of g over (j, i]) for i >= j, element by element: [..., C, K] -> [..., C, C]."""
    C = q.shape[-2]
    lower = torch.ones(C, C, dtype=torch.bool, device=q.device).tril()
    if g is None:
        return (q @ k.mT).masked_fill(~lower, 0.0)
    scores = torch.einsum("...ik,...jk,...ijk->...ij", q.to(g.dtype), k.to(g.dtype), _block_decay(g).exp())
    return scores.masked_fill(~lower, 0.0).to(q.dtype)


def _block_decay(g: Tensor) -> Tensor:
    """decay[i, j] = sum of g over (j, i], 0 for i <= j: [..., C, D] -> [..., C, C, D]."""
    # Cumulative over i of g_i where i > j. A sum, not a difference of running sums, because a hard reset (g = -1e4)
    # would swallow the digits of every later difference.
    C = g.shape[-2]
    strictly = torch.ones(C, C, dtype=torch.bool, device=g.device).tril(-1)[:, :, None]
    return torch.where(strictly, g[..., :, None, :], torch.zeros((), dtype=g.dtype, device=g.device)).cumsum(-3)


def parallel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The quadratic form O = scale (((Q B)(K/B)^T * M) V + (Q B) S_0), in log space; O(T^2 K) memory."""
    if cu_seqlens is not None:
        return _one_by_one(parallel, cu_seqlens, q, k, v, g, initial_state, scale=scale)
    scale, state = _start(q, v, scale, initial_state)
    q, k, v, g = _heads_first(q, k, v, g)
    o = _block_scores(q, k, g) @ v
    inter, state = _through_state(q, k, v, g, None, state)
    return ((o + inter) * scale).transpose(1, 2), state


def _through_state(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """(Q e^G) S_0 e^Gv and the state after the last row, all heads first."""
    inter = _from_start(q, g) @ state.to(q.dtype)
    if gv is not None:
        inter = (inter * gv.cumsum(-2).exp()).to(q.dtype)
    update = _to_end(k, g).mT @ _to_end(v, gv)
    if g is not None:
        state = state * g.cumsum(-2)[..., -1, :, None].exp()
    if gv is not None:
        state = state * gv.cumsum(-2)[..., -1:, :].exp()
    return inter, state + update


def _from_start(x: Tensor, g: Tensor | None) -> Tensor:
    """Rows decayed by the gates up to their own, [..., C, D]."""
    return x if g is None else (x * g.cumsum(-2).exp()).to(x.dtype)


def _to_end(x: Tensor, g: Tensor | None) -> Tensor:
    """Rows decayed by the gates after their own, [..., C, D]."""
    return x if g is None else (x * _sum_after(g).exp()).to(x.dtype)


def _sum_after(g: Tensor) -> Tensor:
    """Sum of g over the rows after each row, [..., C, K]."""
    following = torch.cat([g[..., 1:, :], torch.zeros_like(g[..., :1, :])], dim=-2)
    return following.flip(-2).cumsum(-2).flip(-2)


def chunkwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    chunk: int = 64,
    sub_chunk: int = 16,
    gv: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Two-level chunking, every intermediate in memory: the chunkwise form without a thought for input and output.

    Blocks of ``sub_chunk`` rows off the diagonal are matrix products anchored before the row block, blocks on it are
    computed element by element (Yang et al. 2024, section 4.3).
    """
    if cu_seqlens is not None:
        how = {"scale": scale, "chunk": chunk, "sub_chunk": sub_chunk}
        return _one_by_one(chunkwise, cu_seqlens, q, k, v, g, initial_state, gv, **how)
    scale, state = _start(q, v, scale, initial_state)
    T = q.shape[1]
    outputs = []
    q, k, v, g = _heads_first(q, k, v, g)
    gv = None if gv is None else gv.transpose(1, 2).to(_wide(v))
    for t in range(0, T, chunk):
        rows = slice(t, min(t + chunk, T))
        g_c, gv_c = (None if x is None else x[:, :, rows] for x in (g, gv))
        o, state = _one_chunk(q[:, :, rows], k[:, :, rows], v[:, :, rows], g_c, gv_c, state, sub_chunk)
        outputs.append(o)
    o = torch.cat(outputs, dim=2) if outputs else torch.empty_like(v)
    return (o * scale).transpose(1, 2), state


def _one_chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor, sub_chunk: int
) -> tuple[Tensor, Tensor]:
    """Output and next state of one chunk; q, k, g [B, H, C, K], v, gv [B, H, C, V]."""
    o, state = _through_state(q, k, v, g, gv, state)
    if g is None and gv is None:
        return o + _block_scores(q, k, None) @ v, state
    rows = []
    for a in range(0, q.shape[-2], sub_chunk):
        here = slice(a, min(a + sub_chunk, q.shape[-2]))
        g_a, gv_a, g_before, gv_before = (
            None if x is None else x[..., part, :] for part in (here, slice(a)) for x in (g, gv)
        )
        block = _by_scores(_block_scores(q[..., here, :], k[..., here, :], g_a), v[..., here, :], gv_a)
        if a:
            decayed_q, decayed_k = _from_start(q[..., here, :], g_a), _to_end(k[..., :a, :], g_before)
            entering = (decayed_q @ decayed_k.mT) @ _to_end(v[..., :a, :], gv_before)
            block = block + _from_start(entering, gv_a)
        rows.append(block)
    return o + torch.cat(rows, dim=-2), state


def _by_scores(scores: Tensor, v: Tensor, gv: Tensor | None) -> Tensor:
    """sum_j A_ij v_jv exp(sum of gv over (j, i]), element by element where there are gates: [..., C, V]."""
    if gv is None:
        return scores @ v
    o = torch.einsum("...ij,...jv,...ijv->...iv", scores.to(gv.dtype), v.to(gv.dtype), _block_decay(gv).exp())
    return o.to(v.dtype)
