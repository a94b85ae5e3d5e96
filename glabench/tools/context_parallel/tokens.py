"""A rank's tokens of a sequence, and the calls on them that are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from glabench.spec.case import Mode
from glabench.systems.inputs import Inputs, make_inputs
from glabench.tools.context_parallel.question import Question

DRAWN = 4096  # tokens that are drawn together

Step = Callable[[], tuple[Tensor, ...]]


def bounds(question: Question, rank: int, tokens: int) -> tuple[int, int]:
    """The first of so many tokens that is the rank's, and the first that is not any more."""
    return tokens * rank // question.ranks, tokens * (rank + 1) // question.ranks


def drawn(question: Question, rank: int, tokens: int) -> Inputs:
    """The rank's part of a sequence of so many tokens, without initial state. It is the same sequence for any number of
    ranks: runs of its tokens are drawn as the harness draws a sequence, each from a seed of its own."""
    low, high = bounds(question, rank, tokens)
    found: dict[str, Tensor] = {}
    for number in range(low // DRAWN, -(-high // DRAWN)):
        part = make_inputs(question.case(DRAWN), "gla", question.device, salt=number)
        first = number * DRAWN
        start, end = max(low, first), min(high, first + DRAWN)
        for name, x in part.tensors():
            if name not in found:  # at once as large as it will be: parts side by side would be there twice
                found[name] = x.new_empty(x.shape[0], high - low, *x.shape[2:])
            found[name][:, start - low : end - low] = x[:, start - first : end - first]
    return Inputs(**found)


def operator(question: Question) -> Callable[..., Any]:
    """`gla` as a rank calls it: on one GPU the plain one."""
    import gla_kernels
    from gla_kernels import parallel

    return gla_kernels.gla if question.ranks == 1 else partial(parallel.gla, group=None)


def step(question: Question, x: Inputs, mode: Mode) -> Step:
    """A call on the rank's tokens: o, or o and the gradients of all that it was given."""
    call = operator(question)
    given = x.with_grad() if mode == "fwdbwd" else x
    leaves = tuple(given.leaves().values())

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (call(given.q, given.k, given.v, given.g)[0],)

    def both() -> tuple[Tensor, ...]:
        o, _ = call(given.q, given.k, given.v, given.g)
        return o.detach(), *torch.autograd.grad(o, leaves, given.do)

    return both if mode == "fwdbwd" else forward


def cut(x: Inputs, low: int, high: int) -> Inputs:
    """These tokens of a sequence, with its states."""
    return replace(x, **{name: y[:, low:high].contiguous() for name, y in x.tensors() if "state" not in name})
