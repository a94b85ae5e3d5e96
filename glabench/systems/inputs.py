"""Fresh random inputs, seeded: two systems asked the same question are given the same numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F

from glabench.spec.axes import later
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG, Operator, ssm_shape

DTYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Packed:
    """Where sequences that are packed into a batch of 1 begin and end.

    cu_seqlens: int32 [N + 1], from 0 to T; cu_seqlens_cpu: the same on the host; positions: int64 [T], how many tokens
    of its sequence are before each; longest: tokens of the longest one.
    """

    cu_seqlens: torch.Tensor
    cu_seqlens_cpu: torch.Tensor
    positions: torch.Tensor
    longest: int


@lru_cache(maxsize=8)
def packed(sequences: tuple[int, ...], device: str) -> Packed:
    """Made once: FLA knows what it prepared by the tensor itself, as a model's layers give it the same one."""
    bounds = torch.tensor([0, *accumulate(sequences)], dtype=torch.int32)
    starts = bounds[:-1].repeat_interleave(torch.tensor(sequences))
    positions = torch.arange(len(starts)) - starts
    return Packed(bounds.to(device), bounds, positions.to(device), max(sequences))


@dataclass(frozen=True)
class Inputs:
    """What an operator is given, and the gradients that come back to it.

    GLA: q, k, g, ``[B,T,H,K]``, v, do, gv ``[B,T,H,V]``, states ``[B,H,K,V]`` in float32; with one gate a head, g is
    ``[B,T,H,1]``. q and k, and g of every feature, may have fewer heads, each for several of v (`Case.qk_heads`). For
    mode "step" the T axis is gone. Attention: q, k, v, do ``[B,T,heads,dim]``, the rest None; for mode "step" one token
    of q and do, and k and v of all that came before it and of itself. Selective scan: C and B as q and k ``[B,T,1,N]``,
    x, dt and dy as v, g and do ``[B,T,1,channels]``. Mamba-2's SSD: the same with the heads side by side, x and dy
    ``[B,T,1,H*V]``, and a step a head, dt ``[B,T,1,H]``. Where sequences are packed, states are ``[N,H,K,V]``.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    g: torch.Tensor | None = None
    initial_state: torch.Tensor | None = None
    dstate: torch.Tensor | None = None  # the gradient of the final state; where there is an initial state
    gv: torch.Tensor | None = None
    packed: Any = None  # Packed, where sequences are; so typed, `replace` takes the tensors as a dict

    @property
    def cu_seqlens(self) -> torch.Tensor | None:
        """Of packed sequences, on the inputs' device."""
        bounds: Packed | None = self.packed
        return None if bounds is None else bounds.cu_seqlens

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor of numbers that is there, with its name."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, torch.Tensor):
                yield f.name, value

    def leaves(self) -> dict[str, torch.Tensor]:
        """The tensors that gradients are taken of."""
        return {name: x for name, x in self.tensors() if name not in ("do", "dstate")}

    def with_grad(self) -> Inputs:
        """The same numbers as leaves of a new autograd graph."""
        return replace(self, **{name: x.detach().requires_grad_() for name, x in self.leaves().items()})

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for _, x in self.tensors())


def make_inputs(case: Case, operator: Operator, device: str, salt: int = 0) -> Inputs:
    """Draw q, k, v, do from N(0, 1) and g, gv = gate_strength * logsigmoid(N(0, 1)), rounded to the case's dtypes.

    A selective scan's steps, in the place of g, are softplus(N(-4, 1)): of the size that Mamba begins with. SSD's are
    softplus(N(0, 1)), which with A = -gate_strength makes dt A the gates of every other system.

    The operator's own scale (K^-1/2) is applied by the system. Numbers depend on the shape, the case's seed, ``salt``
    (the number of the set when several are rotated) and the kind of device, and on axes that change what was drawn.
    """
    inputs = _drawn(case, operator, device, salt)
    for change in (CHANGES[axis] for axis in later(vars(case)) if axis in CHANGES):
        inputs = change(inputs, case)
    return inputs


def _drawn(case: Case, operator: Operator, device: str, salt: int) -> Inputs:
    generator = torch.Generator(device).manual_seed(1_000_003 * case.seed + salt)
    dtype = DTYPES[case.dtype]
    bounds = None if case.sequences is None else packed(case.sequences, device)

    def normal(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    if operator == "attention":
        heads, dim = case.attention_shape
        tokens = 1 if case.mode == "step" else case.T
        q, k, v, do = (normal(case.B, rows, heads, dim) for rows in (tokens, case.T, case.T, tokens))
        return Inputs(q, k, v, do, packed=bounds)
    if operator == "ssm":
        channels, n_states = ssm_shape(case)
        c, b, x, dy = (normal(case.B, case.T, 1, n) for n in (n_states, n_states, channels, channels))
        steps = F.softplus(normal(case.B, case.T, 1, channels, dtype=torch.float32) - 4).to(dtype)
        return Inputs(c, b, x, dy, steps)
    if operator == "ssd":
        c, b, x, dy = (normal(case.B, case.T, 1, n) for n in (case.K, case.K, case.H * case.V, case.H * case.V))
        return Inputs(c, b, x, dy, F.softplus(normal(case.B, case.T, 1, case.H, dtype=torch.float32)).to(dtype))

    rows = (case.B,) if case.mode == "step" else (case.B, case.T)
    of_q = case.qk_heads or case.H
    q, k = normal(*rows, of_q, case.K), normal(*rows, of_q, case.K)
    v, do = normal(*rows, case.H, case.V), normal(*rows, case.H, case.V)

    def gates(heads: int, dim: int, strength: float) -> torch.Tensor:
        drawn = F.logsigmoid(normal(*rows, heads, dim, dtype=torch.float32)) * strength
        return drawn.clamp_min(torch.finfo(dtype).min).to(DTYPES[case.gates])  # the same, whatever they are rounded to

    g = None if case.gate_strength is None else gates(*gate_shape(case, operator), case.gate_strength)
    state = dstate = None
    if case.initial_state or case.mode == "step":
        shape = (case.states, case.H, case.K, case.V)
        state = normal(*shape, dtype=torch.float32)
        dstate = None if case.mode == "step" else normal(*shape, dtype=torch.float32)
    # drawn last, so that the other numbers are those of the case without them
    gv = gates(case.H, case.V, 1.0 if case.gate_strength is None else case.gate_strength) if case.value_gate else None
    return Inputs(q, k, v, do, g, state, dstate, gv, bounds)


def forgetting(case: Case) -> torch.Tensor:
    """Which rows forget all before them, bool [B, T]: every `Case.resets`-th, the first of each sequence of the batch
    at a place that the case's seed says."""
    assert case.resets is not None  # asked for where there are some
    drawn = random.Random(case.seed)
    first = torch.tensor([drawn.randrange(case.resets) for _ in range(case.B)])
    return torch.arange(case.T) % case.resets == first[:, None]


def _reset(inputs: Inputs, case: Case) -> Inputs:
    assert inputs.g is not None  # a case without gates has none that reset
    return replace(inputs, g=inputs.g.masked_fill(forgetting(case).to(inputs.g.device)[:, :, None, None], -math.inf))


# What an axis makes of inputs that were drawn without it, whose other numbers stay.
CHANGES: dict[str, Callable[[Inputs, Case], Inputs]] = {
    "resets": _reset,
}


def gate_shape(case: Case, operator: Operator) -> tuple[int, int]:
    """Heads of gates and gates a head, of a token, where there are any: one for each state, or as q has them."""
    return (case.H, 1) if operator == "simple" else (case.qk_heads or case.H, case.K)


def input_bytes(case: Case) -> int:
    """Bytes of one set of inputs, without making it."""
    operator = CATALOG[case.system].operator
    e = DTYPES[case.dtype].itemsize
    if operator == "attention":
        heads, dim = case.attention_shape
        tokens = 1 if case.mode == "step" else case.T
        return 2 * e * case.B * (case.T + tokens) * heads * dim
    if operator == "ssm":
        channels, state = ssm_shape(case)
        return e * case.B * case.T * (3 * channels + 2 * state)
    if operator == "ssd":
        return e * case.B * case.T * (2 * case.K + case.H * (1 + 2 * case.V))
    rows = case.B * (1 if case.mode == "step" else case.T)
    gates = 0 if case.gate_strength is None else math.prod(gate_shape(case, operator))
    gates += case.H * case.V if case.value_gate else 0
    states = 1 if case.mode == "step" else 2 * int(case.initial_state)
    numbers = (case.qk_heads or case.H) * case.K + case.H * case.V
    tokens_bytes = rows * (2 * e * numbers + DTYPES[case.gates].itemsize * gates)
    return tokens_bytes + 4 * states * case.states * case.H * case.K * case.V
