"""Ways of taking a step of decoding: ours by what states are kept in, and rivals'. Imports torch where it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glabench.systems.base import installed

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn"}
GATES = ("key", "head")


@dataclass(frozen=True)
class Shape:
    """A step of B requests. gates: "key", of each feature, as of `gla`, or "head", one a head, as of `simple_gla`."""

    B: int
    H: int
    K: int
    V: int
    gates: str = "key"

    def __str__(self) -> str:
        return f"B{self.B} H{self.H} K{self.K} V{self.V}, gates of a {self.gates}"


@dataclass(frozen=True)
class Variant:
    """How states are kept. states: of DTYPES; tail: as of `gla_kernels.serving.StatePool`; tokens: of a step, all of
    which are accepted. rival: whose kernels these are, or None: ours."""

    states: str = "fp32"
    tail: int = 0
    tokens: int = 1
    stochastic: bool = False
    rival: str | None = None

    @property
    def name(self) -> str:
        if self.rival is not None:
            return self.rival
        parts = [self.states, *(["by chance"] if self.stochastic else [])]
        parts += [f"tail {self.tail}"] if self.tail else []
        return ", ".join([*parts, *([f"{self.tokens} tokens"] if self.tokens > 1 else [])])

    def state_bytes(self, shape: Shape) -> float:
        """Bytes of states that one step has to read and write, the last of tail steps alone writes."""
        size = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}[self.states] * shape.B * shape.H * shape.K * shape.V
        return size * (1 + 1 / self.tail) if self.tail else 2 * size


PLAIN = Variant(rival="gla_step")  # ours, of states that lie in the order of the batch
OURS = (
    Variant(), Variant("bf16"), Variant("bf16", stochastic=True), Variant("fp16"), Variant("fp8"),
    Variant(tail=8), Variant("bf16", tail=8), Variant(tail=8, tokens=4),
)  # fmt: skip
RIVALS = (PLAIN, Variant(rival="fla"), Variant(rival="mamba_ssm"))


def why_not(variant: Variant, shape: Shape) -> str | None:
    """Why the variant cannot be had here, or of such a shape."""
    if variant.rival == "fla":
        return None if installed("fla") else "fla is not installed"
    if variant.rival == "mamba_ssm":
        if shape.gates != "head":
            return "selective_state_update is measured with one gate a head"
        return None if installed("mamba_ssm") else "mamba_ssm is not installed"
    return "gla_step without a pool takes gates of each feature" if variant == PLAIN and shape.gates != "key" else None


@dataclass
class Drawn:
    """Tokens of some steps, in the order of time: q, k, g [steps, B, H, K], or g [steps, B, H]; v [steps, B, H, V]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor

    def at(self, first: int, count: int) -> tuple[Tensor, ...]:
        """The tokens of a step: [B, H, ..] of one, [B, count, H, ..] of more."""
        found = (x[first : first + count] for x in (self.q, self.k, self.v, self.g))
        return tuple(x[0] if count == 1 else x.transpose(0, 1).contiguous() for x in found)

    def __len__(self) -> int:
        return len(self.q)


def drawn(shape: Shape, steps: int, device: str, dtype: torch.dtype, strength: float = 1.0, mean: float = 0.0) -> Drawn:
    """Normal q, k and v, of deviation 1, k and v around a mean; g = logsigmoid(normal) * strength / 16."""
    import torch
    from torch.nn.functional import logsigmoid

    def normal(*last: int) -> Tensor:
        return torch.randn(steps, shape.B, shape.H, *last, device=device)

    q, k, v = normal(shape.K), normal(shape.K) + mean, normal(shape.V) + mean
    g = logsigmoid(normal(shape.K) if shape.gates == "key" else normal()) * strength / 16
    return Drawn(*(x.to(dtype) for x in (q, k, v, g)))


Step = Callable[..., "Tensor"]
Made = Callable[..., "tuple[Tensor, ...]"]


def stepper(variant: Variant, shape: Shape, device: str, dtype: torch.dtype) -> tuple[Made, Step]:
    """made(q, k, v, g), a step's tensors as it takes them, and step(*made) -> o, which updates states that are new."""
    import torch

    if variant.rival is not None:
        return _RIVALS[variant.rival](shape, device)
    from gla_kernels.serving import StatePool

    pool = StatePool(
        shape.B, shape.H, shape.K, shape.V, dtype=getattr(torch, DTYPES[variant.states]), gates=shape.gates,
        tail=variant.tail, tokens=variant.tokens, inputs=dtype, stochastic=variant.stochastic, device=device,
    )  # fmt: skip
    slots = torch.randperm(shape.B, device=device).int()  # as where requests come and go
    return _as_they_are, lambda q, k, v, g: pool.step(q, k, v, g, slots)


def _as_they_are(*x: Tensor) -> tuple[Tensor, ...]:
    return x


def _plain(shape: Shape, device: str) -> tuple[Made, Step]:
    import torch

    from gla_kernels import gla_step

    state = torch.zeros(shape.B, shape.H, shape.K, shape.V, device=device)
    return _as_they_are, lambda q, k, v, g: gla_step(q, k, v, g, state)


def _fla(shape: Shape, device: str) -> tuple[Made, Step]:
    """FLA's recurrence of one token, which returns a new state."""
    import torch
    from fla.ops.gla import fused_recurrent_gla
    from fla.ops.simple_gla import fused_recurrent_simple_gla

    held, kept = [torch.zeros(shape.B, shape.H, shape.K, shape.V, device=device)], list[Any]()
    fused, name = (fused_recurrent_gla, "gk") if shape.gates == "key" else (fused_recurrent_simple_gla, "g")

    def step(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            kept.append(held[0])  # for a graph, which does not keep what it reads
        o: Tensor
        o, held[0] = fused(q, k, v, **{name: g}, initial_state=held[0], output_final_state=True)
        return o[:, 0]

    return lambda *x: tuple(y[:, None] for y in x), step


def _mamba(shape: Shape, device: str) -> tuple[Made, Step]:
    """Mamba-2's step, S = e^{dt A} S + dt x B and o = C S, with A = -1: dt is -g, dt x is v, B is k and C is q."""
    import torch

    from glabench.systems import mamba_scan

    mamba_scan.without_extension()
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    B, H, K, V = shape.B, shape.H, shape.K, shape.V
    state = torch.zeros(B, H, V, K, device=device)
    a = torch.full((H, 1, 1), -1.0, device=device).expand(H, V, K)
    zeros = torch.zeros(H, 1, device=device).expand(H, V)  # of dt_bias and D, without which its launch fails

    def made(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        dt = -g.float()[..., None]
        return (v / dt).to(v.dtype), dt.expand(B, H, V), k, q * K**-0.5

    def step(x: Tensor, dt: Tensor, k: Tensor, q: Tensor) -> Tensor:
        o: Tensor = selective_state_update(state, x, dt, a, k, q, D=zeros, dt_bias=zeros)
        return o

    return made, step


_RIVALS: dict[str, Any] = {"gla_step": _plain, "fla": _fla, "mamba_ssm": _mamba}


def reference(x: Drawn, states: Tensor, at: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
    """o [steps, B, H, V] of the recurrence in the dtype of ``states`` [B, H, K, V], and states after so many steps."""
    import torch

    held, outputs, found = states, [], {}
    scale = x.q.shape[-1] ** -0.5
    for i in range(len(x)):
        q, k, v, g = (y[i].to(states.dtype) for y in (x.q, x.k, x.v, x.g))
        held = held * (g if g.dim() == k.dim() else g[..., None]).exp()[..., None] + k[..., None] * v[..., None, :]
        outputs.append(scale * (q[..., None, :] @ held)[..., 0, :])
        if i + 1 in at:
            found[i + 1] = held
    return torch.stack(outputs), found
