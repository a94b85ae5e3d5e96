"""How far states that are kept in few bits drift: ``python -m glabench.tools.state_errors``.

Requests of one head each are decoded token by token, with states in each dtype, rounded to nearest or by chance, after
every token or when a tail of some is folded. The judge is the recurrence in float64, on the same inputs. Errors are
relative to the norm of what is right: of the outputs of the last 64 tokens, and of the last state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from gla_kernels.serving import StatePool

LAST = 64  # tokens whose outputs are judged
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Drift:
    """The errors of one way to keep states, by `StatePool`'s dtype, stochastic and tail."""

    dtype: str
    stochastic: bool
    tail: int
    o: float
    state: float


@dataclass(frozen=True)
class Decoding:
    """What is decoded: ``tokens`` of B requests of one head, K x V. decay: gates are logsigmoid(N(0, 1)) / decay, or
    with None there are none, and a state is a sum of all there was. mean: of k and v, whose deviation is 1: with 0 a
    state is a random walk, and what is rounded away cancels out; otherwise it grows, and drifts."""

    B: int = 16
    K: int = 128
    V: int = 128
    tokens: int = 4096
    decay: float | None = 16.0
    mean: float = 0.0


def drifts(
    what: Decoding, device: torch.device, dtypes: Sequence[torch.dtype] = DTYPES, tails: Sequence[int] = (0, 8)
) -> Iterator[Drift]:
    """The errors of each dtype, to nearest and by chance, with each tail; all from the same inputs."""
    inputs = _drawn(what, device)
    right = _right(*inputs)
    for dtype in dtypes:
        for stochastic in (False, True) if dtype != torch.float32 else (False,):
            for tail in tails:
                found = _decoded(*inputs, dtype, stochastic, tail)
                o, state = (_error(x, y) for x, y in zip(found, right, strict=True))
                yield Drift(str(dtype).removeprefix("torch."), stochastic, tail, o, state)


Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


def _drawn(what: Decoding, device: torch.device) -> Inputs:
    """q, k [T, B, 1, K], v [T, B, 1, V] and g, or None, in float32."""
    generator = torch.Generator(device).manual_seed(0)
    draws = [
        torch.randn(what.tokens, what.B, 1, D, device=device, generator=generator) for D in (what.K, what.K, what.V)
    ]
    q, k, v = draws[0], draws[1] + what.mean, draws[2] + what.mean
    if what.decay is None:
        return q, k, v, None
    g = torch.randn(k.shape, device=device, generator=generator)
    return q, k, v, torch.nn.functional.logsigmoid(g) / what.decay


def _right(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """The last outputs and the last state in float64."""
    state, outputs = k.new_zeros(*k.shape[1:], v.shape[-1], dtype=torch.float64), []
    for t in range(len(q)):
        if g is not None:
            state = state * g[t].double().exp().unsqueeze(-1)
        state = state + k[t].double().unsqueeze(-1) * v[t].double().unsqueeze(-2)
        if t >= len(q) - LAST:
            outputs.append((q[t].double().unsqueeze(-2) @ state).squeeze(-2) * q.shape[-1] ** -0.5)
    return torch.stack(outputs), state


def _decoded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor | None, dtype: torch.dtype, stochastic: bool,
    tail: int,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The same as kernels make them of states that are kept so."""
    _, B, H, K = q.shape
    how = {"dtype": dtype, "stochastic": stochastic, "tail": tail, "inputs": q.dtype, "device": q.device}
    pool = StatePool(B, H, K, v.shape[-1], gates=None if g is None else "key", **how)  # type: ignore[arg-type]
    slots = torch.arange(B, device=q.device)
    outputs = [pool.step(q[t], k[t], v[t], None if g is None else g[t], slots) for t in range(len(q))]
    pool.fold(slots)
    return torch.stack(outputs[-LAST:]), pool.read(slots)


def _error(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


@app.command()
def main(
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a request.")] = 4096,
    batch: Annotated[int, typer.Option(min=1, help="Requests.")] = 16,
    decay: Annotated[float, typer.Option(help="Gates are logsigmoid(N(0, 1)) over this; 0: there are none.")] = 16.0,
    mean: Annotated[float, typer.Option(help="The mean of k and v.")] = 0.0,
) -> None:
    """Print the errors of states in each dtype, a line each way to keep them."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    what = Decoding(B=batch, tokens=tokens, decay=decay or None, mean=mean)
    gates = "no gates" if what.decay is None else f"gates logsigmoid(N(0, 1)) / {what.decay:g}"
    table = Table(
        "states",
        "rounded",
        "tail",
        "error of o",
        "error of the state",
        title=f"{tokens} tokens, {gates}, mean {mean:g}",
    )
    for one in drifts(what, device):
        rounded = "by chance" if one.stochastic else "to nearest" if one.dtype != "float32" else ""
        table.add_row(one.dtype, rounded, str(one.tail), f"{one.o:.2e}", f"{one.state:.2e}")
    Console().print(table)


if __name__ == "__main__":
    app()
