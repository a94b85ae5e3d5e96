"""The chunkwise form in plain PyTorch, all chunks at once: what one writes who does not think of memory's bandwidth.

    S_n = Diag(e^gamma) S_{n-1} Diag(e^gammav) + (K e^{gamma-G})^T (V e^{gammav-Gv})
    O_n = scale [(Q e^G) S_{n-1} e^Gv + A V]          A as in `gla_kernels.reference`, by two levels of chunks

(Yang et al. 2024, sections 4.2 and 4.3.) Only the states go through chunks in turn, an addition each; every other step
is one operation over all of them. A loop over slices of the sequence would not do: the gradient of each slice is as
large as the sequence, so that such a backward pass is quadratic in the number of chunks.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad


def chunkwise(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, initial_state: Tensor | None = None, chunk: int = 64,
    sub_chunk: int = 16, gv: Tensor | None = None, cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``(o, final_state)``: q, k, g [B, T, H, K], v, o, gv [B, T, H, V], states [B, H, K, V], of N packed sequences
    [N, H, K, V].

    Products are in the dtype of the inputs, states and sums of gates at least in float32. ``sub_chunk`` divides
    ``chunk``.
    """
    gates = (g, gv)
    if cu_seqlens is None:
        return _sequences(q, k, v, gates, initial_state, chunk, sub_chunk)
    found = []
    for n, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        rows = slice(start, end)
        own = tuple(None if x is None else x[:, rows] for x in gates)
        state = None if initial_state is None else initial_state[n : n + 1]
        found.append(_sequences(q[:, rows], k[:, rows], v[:, rows], own, state, chunk, sub_chunk))
    return torch.cat([o for o, _ in found], dim=1), torch.cat([state for _, state in found])


Gates = tuple[Tensor | None, ...]  # of keys, of values


def _sequences(
    q: Tensor, k: Tensor, v: Tensor, gates: Gates, initial_state: Tensor | None, chunk: int, sub_chunk: int
) -> tuple[Tensor, Tensor]:
    T, (B, _, H, K), V = q.shape[1], q.shape, v.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    first = q.new_zeros(B, H, K, V, dtype=wide) if initial_state is None else initial_state.to(wide)
    if T == 0:
        return torch.empty_like(v), first
    q, k, v = (_cut(x, chunk) for x in (q, k, v))
    g, gv = (None if x is None else _cut(x.to(wide), chunk) for x in gates)
    before, last = _states(_to_end(k, g).mT @ _to_end(v, gv), g, gv, first)
    o = _from_start(_from_start(q, g) @ before.to(q.dtype), gv) + _inside(q, k, v, g, gv, sub_chunk)
    return (o * K**-0.5).flatten(2, 3)[:, :, :T].transpose(1, 2), last


def _cut(x: Tensor, chunk: int) -> Tensor:
    """[B, T, H, D] -> [B, H, chunks, C, D]; rows that the last chunk lacks are 0, which changes no state."""
    return pad(x.transpose(1, 2), (0, 0, 0, -x.shape[1] % chunk)).unflatten(2, (-1, chunk))


def _states(added: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """The state before each chunk [B, H, chunks, K, V] and the one after the last, from what each chunk adds."""
    decay = torch.ones((), dtype=state.dtype, device=state.device)
    if g is not None:
        decay = decay * g.sum(-2).exp()[..., :, None]
    if gv is not None:
        decay = decay * gv.sum(-2).exp()[..., None, :]
    shape = (*added.shape[:3], *(decay.shape[3:] or (1, 1)))
    before = []
    for each, new in zip(decay.expand(shape).unbind(2), added.unbind(2), strict=True):
        before.append(state)
        state = each * state + new
    return torch.stack(before, dim=2), state


def _inside(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, sub_chunk: int) -> Tensor:
    """What rows of a chunk give each other, [..., C, V]."""
    C = q.shape[-2]
    if g is None and gv is None:
        return (q @ k.mT).tril() @ v
    blocks = []
    for start in range(0, C, sub_chunk):
        here = slice(start, start + sub_chunk)
        own, own_v = (None if x is None else x[..., here, :] for x in (g, gv))
        earlier, earlier_v = (None if x is None else x[..., :start, :] for x in (g, gv))
        # both factors are decays up to the border before the block: products, whatever the gates
        scores = _from_start(q[..., here, :], own) @ _to_end(k[..., :start, :], earlier).mT
        entering = _from_start(scores @ _to_end(v[..., :start, :], earlier_v), own_v)
        blocks.append(entering + _within(q[..., here, :], k[..., here, :], v[..., here, :], own, own_v))
    return torch.cat(blocks, dim=-2)


def _within(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None) -> Tensor:
    """What rows of a sub-chunk give each other, [..., c, V]: element by element where there are gates."""
    if g is None:
        scores = (q @ k.mT).tril()
    else:
        scores = torch.einsum("...ik,...jk,...ijk->...ij", q.to(g.dtype), k.to(g.dtype), _between(g).exp())
        scores = scores.tril().to(q.dtype)
    if gv is None:
        return scores @ v
    o = torch.einsum("...ij,...jv,...ijv->...iv", scores.to(gv.dtype), v.to(gv.dtype), _between(gv).exp())
    return o.to(v.dtype)


def _between(g: Tensor) -> Tensor:
    """[i, j]: the sum of the gates of rows j+1 to i, [..., c, c, D]; 0 above the diagonal. A sum and no difference of
    sums, in which a hard reset would swallow all digits of what follows."""
    below = torch.ones(g.shape[-2], g.shape[-2], dtype=torch.bool, device=g.device).tril(-1)[..., None]
    return torch.where(below, g[..., :, None, :], 0.0).cumsum(-3)


def _from_start(x: Tensor, g: Tensor | None) -> Tensor:
    """Rows decayed by the gates up to their own."""
    return x if g is None else (x * g.cumsum(-2).exp()).to(x.dtype)


def _to_end(x: Tensor, g: Tensor | None) -> Tensor:
    """Rows decayed by the gates after their own."""
    if g is None:
        return x
    after = pad(g[..., 1:, :], (0, 0, 0, 1)) if g.shape[-2] else g
    return (x * after.flip(-2).cumsum(-2).flip(-2).exp()).to(x.dtype)
