"""Whether steps are right, what they take, and how far states are from float64's after many. Imports torch where it
runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from glabench.errors import in_one_line
from glabench.tools.graphs import replayed
from glabench.tools.rows import Row
from glabench.tools.serving.variants import DTYPES, PLAIN, Drawn, Shape, Variant, drawn, reference, stepper, why_not

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KIND = "serving"
CHECKED = 16  # steps that are compared with float64
# How many times the error of plain PyTorch with states in the same dtype is allowed. Of fp8, which rounds by scales of
# other sizes than plain PyTorch would, and of what is rounded by chance likewise.
FACTOR = 4.0
SPREAD = 128 * 2**20  # bytes of the states that a graph goes over: some times what L2 holds, as a model's layers are
MOST_LAYERS = 128
LEAST_CALLS = 8  # of a graph
REPLAYS = 5  # of a sample


def times(shape: Shape, variants: Sequence[Variant], device: str, samples: int, bytes_per_s: float) -> Iterator[Row]:
    """A row for each variant: error, and the time of a step among those of others, in turns. On a CPU no times."""
    import torch

    rows, timed = list[Row](), list[tuple[Row, Callable[[], float]]]()
    for variant in variants:
        row: Row = {"kind": KIND, "asked": "time", **_said(shape, variant), "status": "ok", "reason": None}
        rows.append(row)
        why = why_not(variant, shape)
        if why is not None:
            row |= {"status": "skipped", "reason": why}
            continue
        try:
            row |= _checked(variant, shape, device)
        except Exception as error:  # a rival's own, of a version that is not known here
            if variant.rival in (None, PLAIN.rival):
                raise
            row |= {"status": "error", "reason": in_one_line(str(error))}
            continue
        row["floor_ms"] = 1e3 * (variant.state_bytes(shape) + _token_bytes(variant, shape)) / bytes_per_s
        if row["status"] == "ok" and device == "cuda":
            timed.append((row, _replayed(variant, shape)))
    for row, _ in timed:
        row["ms"] = []
    for _ in range(samples):
        for row, sample in timed:
            row["ms"].append(sample())
    if device == "cuda":
        torch.cuda.synchronize()
    yield from rows


def drift(
    shape: Shape, variants: Sequence[Variant], device: str, at: Sequence[int], strength: float, mean: float
) -> Iterator[Row]:
    """A row for each variant: the error of o in the steps before each of ``at``, relative to the recurrence in float64,
    of gates times ``strength`` and of k and v around ``mean``."""
    import torch

    torch.manual_seed(0)
    x = drawn(shape, max(at), device, torch.float32, strength, mean)
    zeros = torch.zeros(shape.B, shape.H, shape.K, shape.V, dtype=torch.float64, device=device)
    right, _ = reference(x, zeros, ())
    for variant in variants:
        o = _run(variant, shape, device, x)
        last = {n: min(n, CHECKED) for n in at}
        errors = {str(n): _error(o[n - last[n] : n], right[n - last[n] : n]) for n in at}
        asked = {"kind": KIND, "asked": "drift", "strength": strength, "mean": mean, **_said(shape, variant)}
        yield asked | {"status": "ok", "reason": None, "errors": errors}


def dtype(device: str) -> torch.dtype:
    """Of tokens: the interpreter has bfloat16 without its rounding."""
    import torch

    return torch.bfloat16 if device == "cuda" else torch.float32


def _said(shape: Shape, variant: Variant) -> dict[str, Any]:
    return asdict(shape) | {"variant": variant.name} | asdict(variant)


def _token_bytes(variant: Variant, shape: Shape) -> int:
    """Of bfloat16 q, k, v, g and o. What a tail reads is not counted: it is how a step is taken, not what it is."""
    gates = shape.K if shape.gates == "key" else 1
    return 2 * variant.tokens * shape.B * shape.H * (2 * shape.K + gates + 2 * shape.V)


def _checked(variant: Variant, shape: Shape, device: str) -> Row:
    """The error of o in the first steps, and what is allowed."""
    import torch

    torch.manual_seed(1)
    x = drawn(shape, CHECKED, device, dtype(device))
    zeros = torch.zeros(shape.B, shape.H, shape.K, shape.V, dtype=torch.float64, device=device)
    right, _ = reference(x, zeros, ())
    plain = _error(_plain(x, variant.states, zeros.float()), right)
    error = _error(_run(variant, shape, device, x), right)
    found: Row = {"error": error, "plain_error": plain, "allowed": FACTOR * plain}
    if not error <= FACTOR * plain:
        reason = f"error {error:.2e} after {CHECKED} steps, {FACTOR * plain:.2e} is allowed"
        found |= {"status": "wrong", "reason": reason}
    return found


def _plain(x: Drawn, states: str, held: Tensor) -> Tensor:
    """The recurrence in float32, with states rounded to a dtype after each step and outputs to that of the tokens."""
    import torch

    outputs, kind = [], getattr(torch, DTYPES[states])
    for i in range(len(x)):
        one = Drawn(*(y[i : i + 1] for y in (x.q, x.k, x.v, x.g)))
        o, after = reference(one, held, (1,))
        outputs.append(o.to(x.q.dtype))
        held = after[1].to(kind).float()
    return torch.cat(outputs)


def _error(o: Tensor, right: Tensor) -> float:
    return float((o.double() - right).norm() / right.norm())


def _run(variant: Variant, shape: Shape, device: str, x: Drawn) -> Tensor:
    """o [steps, B, H, V] of all tokens."""
    import torch

    made, step = stepper(variant, shape, device, x.q.dtype)
    found = []
    for first in range(0, len(x), variant.tokens):
        o = step(*made(*x.at(first, variant.tokens)))
        found.append(o[None].clone() if variant.tokens == 1 else o.transpose(0, 1).clone())
    return torch.cat(found)


def _replayed(variant: Variant, shape: Shape) -> Callable[[], float]:
    """sample() -> ms of a step, of a graph of steps on the states of some layers, one after another."""
    import torch

    one = replace(variant, tail=0).state_bytes(shape) / 2
    layers = max(1, min(MOST_LAYERS, ceil(SPREAD / one)))
    period = max(1, variant.tail // variant.tokens)  # after which states are folded again
    steps = period * ceil(max(1, LEAST_CALLS / layers) / period)
    x = drawn(shape, steps * variant.tokens, "cuda", torch.bfloat16)
    called = [stepper(variant, shape, "cuda", torch.bfloat16) for _ in range(layers)]
    given = [called[0][0](*x.at(i * variant.tokens, variant.tokens)) for i in range(steps)]

    def run() -> list[Any]:
        return [step(*one) for one in given for _, step in called]

    sample = replayed(run, REPLAYS)
    return lambda: sample() / (layers * steps)
