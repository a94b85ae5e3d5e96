"""States of many requests in a pool, for engines that serve a model: decoding, several tokens at once, prefill.

from gla_kernels.serving import StatePool
pool = StatePool(256, H, K, V, dtype=torch.bfloat16, tail=8, device="cuda")      # of one layer
pool.reset(slots)                                    # new requests: slots [N], -1 for none
o = pool.prefill(q, k, v, g, slots, cu_seqlens)      # q, k, g [1, T, H, K]: a chunk of each prompt, or all of it
o = pool.step(q, k, v, g, slots)                     # q, k, g [B, H, K]: one token of each
o = pool.step(q, k, v, g, slots, accept=accepted)    # q, k, g [B, n, H, K]: n drafts of each, accepted of the last ones

Nothing here waits for the GPU, and nothing is allocated but what is returned and a prefill's states: a CUDA graph of a
step serves all steps of its B and n, with what its tensors hold then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import pool
from .launch import execute
from .ops.form import Inputs
from .ops.gla import gla
from .ops.pooled import FP8, STATE_DTYPES, check_fp8, check_row, step_tokens
from .ops.simple_gla import simple_gla
from .ops.validate import DTYPES, check_flag, refuse_gradients
from .schedule import MAX_HEAD_DIM

GATES = ("key", "head", None)
MAX_TOKENS = 8
MAX_TAIL = 64


class StatePool:
    """The states of one layer for as many requests as there are slots, zeros at first.

    slots, H, K, V: numbers of slots and heads, and a state's sizes, of 1 to 512.
    dtype: of the states: float32, bfloat16, float16 or float8_e4m3fn, with a scale for each column of V, which needs
        compute capability 8.9. All sums are float32.
    state_v_first: states lie as [V, K].
    gates: "key", g is like q, as of `gla`; "head", one a head, as of `simple_gla`; None: there are none.
    tail: how many of a slot's last tokens are kept as k, v and g, beside the state as it was before them. A step then
        reads the state, and every tail-th one folds them into it. 0: each step reads and writes the state.
    tokens: the most that a step takes of one request, 1 to 8. More than 1 needs a tail, from 1 on: drafts are kept
        there until it is known which are accepted.
    inputs, gate_dtype: dtype of q, k and v, and of g, by default the same, in a tail.
    stochastic: round states up or down by chance, so that what is less than half a unit counts in the long run, by
        bits that follow from how many tokens the slot has folded: the same request gets the same bits, in any slot.

    A slot is that of one request at a time: no call may name it twice. A number that is none of a slot, such as -1, is
    padding. Results do not depend on what else is in the
    batch, bit for bit. Raises ValueError, naming the argument.
    """

    def __init__(
        self,
        slots: int,
        H: int,
        K: int,
        V: int,
        *,
        dtype: torch.dtype = torch.float32,
        state_v_first: bool = False,
        gates: str | None = "key",
        tail: int = 0,
        tokens: int = 1,
        inputs: torch.dtype = torch.bfloat16,
        gate_dtype: torch.dtype | None = None,
        stochastic: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        for name, size, least, most in (
            ("slots", slots, 1, None), ("H", H, 1, None), ("K", K, 1, MAX_HEAD_DIM), ("V", V, 1, MAX_HEAD_DIM),
            ("tail", tail, 0, MAX_TAIL), ("tokens", tokens, 1, MAX_TOKENS),
        ):  # fmt: skip
            if isinstance(size, bool) or not isinstance(size, int) or size < least or (most and size > most):
                raise ValueError(f"{name}: expected a number from {least}{f' to {most}' if most else ''}, got {size!r}")
        check_flag("state_v_first", state_v_first)
        check_flag("stochastic", stochastic)
        if gates not in GATES:
            raise ValueError(f"gates: expected 'key', 'head' or None, got {gates!r:.60}")
        if dtype not in STATE_DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(map(str, STATE_DTYPES))}, got {dtype!r:.60}")
        if stochastic and dtype == torch.float32:
            raise ValueError("stochastic: expected False, for states in float32 are not rounded")
        if inputs not in DTYPES:
            raise ValueError(f"inputs: expected float32, float16 or bfloat16, got {inputs!r:.60}")
        if gate_dtype not in (None, inputs, torch.float32):
            raise ValueError(f"gate_dtype: expected {inputs} (as of inputs) or float32, got {gate_dtype!r:.60}")
        if tokens > 1 and not tail:
            raise ValueError(f"tail: expected 1 or more for steps of up to tokens={tokens}, got 0")
        self.gates, gate_dtype = gates, gate_dtype or inputs

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(slots, H, *shape, dtype=dtype, device=device)

        state, scales = zeros(*((V, K) if state_v_first else (K, V)), dtype=dtype), zeros(V) if dtype == FP8 else None
        check_fp8(dtype, state.device)
        counts = zeros(pool.COUNTS, dtype=torch.int32)
        keys = values = g = None
        if tail:
            rows = pool.rows_of_tail(tail, tokens)
            keys, values = zeros(rows, K, dtype=inputs), zeros(rows, V, dtype=inputs)
            g = None if gates is None else zeros(rows, *((K,) if gates == "key" else ()), dtype=gate_dtype)
        self.slots = pool.Slots(state, scales, keys, values, g, counts, tail, state_v_first, stochastic)

    @property
    def state(self) -> Tensor:
        """The states, [slots, H, K, V] or [slots, H, V, K], as they are without what tails have; see `read`."""
        return self.slots.state

    @property
    def nbytes(self) -> int:
        """Bytes of all slots, tails and counts included."""
        return sum(x.nbytes for x in vars(self.slots).values() if isinstance(x, Tensor))

    @property
    def lengths(self) -> Tensor:
        """Tokens in each slot's tail, the last step's among them: int32 [slots]."""
        return self.slots.counts[:, 0, 1]

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, indices: Tensor, scale: float | None = None,
        accept: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The next token of each request, or the next n, of which the next call says how many are accepted.

        q, k: [B, H, K], or [B, n, H, K] with n up to ``tokens``; v: [B, H, V] or [B, n, H, V]; g: as the pool's gates
            are, like q or without its last axis.
        indices: [B], int32 or int64, the slot of each; -1, or what is no slot: nothing is done, and o is 0.
        scale: factor on the output; K^-1/2 by default.
        accept: [B], int32 or int64, how many tokens of the slot's last step count, the first ones; the others are
            forgotten. None: all. What is out of range counts as the nearest number that is not.

        Returns o [B, H, V] or [B, n, H, V], in the dtype of v. Not differentiable. Raises ValueError, naming the
        argument, for a wrong shape, dtype or device.
        """
        kind = None if g is None else "key" if g.dim() == q.dim() else "head"
        if kind != self.gates:
            raise ValueError(f"g: expected gates={self.gates!r} as of the pool, got {kind!r}")
        one = q.dim() == 3 and self.slots.tail > 0
        if one:
            q, k, v, g = (None if x is None else x.unsqueeze(1) for x in (q, k, v, g))  # type: ignore[assignment]
        o = step_tokens(Inputs(q, k, v, g, None, None), indices, accept, scale, self.slots)
        return o.squeeze(1) if one else o

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, indices: Tensor, cu_seqlens: Tensor | None = None,
        scale: float | None = None, accept: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Tokens of prompts, by `gla` or, with a gate a head, `simple_gla`: o [1, T, H, V], or [B, T, H, V].

        q, k, v, g: [1, T, H, ..] with cu_seqlens [N+1], or a batch [B, T, H, ..]. A slot's state goes on from where it
        is, so that a prompt may come in chunks; `reset` it for a new one. indices: the slot of each sequence. accept:
        as of `step`. Tails are empty afterwards.

        States are copied to float32 and back, 16 K V bytes a head of each sequence beyond reading and writing the pool.
        With K = V = 128 that is what q, k, v, g and o of 200 tokens in bfloat16 are.

        Raises ValueError as `gla` does, and where gradients are required.
        """
        refuse_gradients(Inputs(q, k, v, g, None, None).requires_grad)
        if (g is None) != (self.gates is None):
            raise ValueError(
                f"g: expected gates={self.gates!r} as of the pool, got {'None' if g is None else 'a tensor'}"
            )
        states = self.read(indices, accept)
        how: dict[str, Any] = {"cu_seqlens": cu_seqlens, "state_v_first": self.slots.v_first}
        with torch.no_grad():
            if self.gates == "head" and g is not None:
                o, states = simple_gla(q, k, v, g, scale, states, True, **how)  # type: ignore[assignment]
            else:
                o, states = gla(q, k, v, g, scale, states, True, **how)  # type: ignore[assignment]
        self.write(indices, states)
        return o

    def read(self, indices: Tensor, accept: Tensor | None = None) -> Tensor:
        """States of the slots [N] after all their tokens, float32 [N, H, K, V] or [N, H, V, K]; zeros where
        there is none."""
        self._check_row("indices", indices, None)
        self._check_accept(accept, indices)
        return pool.read(self.slots, indices, accept, execute)

    def write(self, indices: Tensor, states: Tensor) -> None:
        """Put states, as `read` has them, into the slots [N]. Their tails are empty afterwards."""
        self._check_row("indices", indices, None)
        expected = (indices.shape[0], *self.state.shape[1:])
        if not isinstance(states, Tensor) or tuple(states.shape) != expected or states.dtype != torch.float32:
            got = f"{states.dtype} {list(states.shape)}" if isinstance(states, Tensor) else type(states).__name__
            raise ValueError(f"states: expected float32 {list(expected)}, got {got}")
        pool.write(self.slots, indices, states.contiguous(), execute)

    def reset(self, indices: Tensor) -> None:
        """Zeros in the slots [N], for new requests."""
        self._check_row("indices", indices, None)
        pool.write(self.slots, indices, None, execute)

    def fold(self, indices: Tensor, accept: Tensor | None = None) -> None:
        """Fold the tails of the slots [N] into their states now. accept: as of `step`."""
        self._check_row("indices", indices, None)
        self._check_accept(accept, indices)
        if self.slots.tail:
            pool.fold(self.slots, indices, accept, execute)

    def _check_row(self, name: str, x: Tensor, size: int | None) -> None:
        if size is None:
            size = x.shape[0] if isinstance(x, Tensor) and x.dim() else 0
        check_row(name, x, size, self.state.device)

    def _check_accept(self, accept: Tensor | None, indices: Tensor) -> None:
        if accept is None:
            return
        if not self.slots.tail:
            raise ValueError("accept: expected None for a pool without a tail, got a tensor")
        self._check_row("accept", accept, indices.shape[0])
