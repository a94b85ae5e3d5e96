"""Calls known by their signature: all that decides how a call runs but the addresses of its tensors.

A call whose signature is known was checked, has its form and is prepared (`prepared.Prepared`). Only plain tensors have
one: what computes on tensors of another kind (FakeTensor, DTensor, those of torch.func), or watches PyTorch's
operators, has to be asked what a call means, by an operator of PyTorch's own kind (`library`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from ..launch.run import ALIGNED
from ..plan import choose

MOST = 4096  # calls that are known
PLAIN = frozenset((Tensor, Parameter))

Signature = tuple[Any, ...]
T = TypeVar("T")

_known: dict[Signature, Any] = {}


def forget() -> None:
    """Forget all calls: the next ones are prepared anew."""
    _known.clear()


def is_plain(inputs: Sequence[Any]) -> bool:
    """Whether PyTorch computes on these tensors at once, and itself. What is no tensor counts as one: it is refused."""
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    return all(x is None or type(x) in PLAIN or not isinstance(x, Tensor) for x in inputs)


def signature_of(function: str, inputs: Sequence[Any], how: tuple[Any, ...]) -> Signature | None:
    """The signature of a call, of plain tensors; None for what is none, and for what tells nothing of how it lies in
    memory. ``how``: flags, the scale and all else that is asked for."""
    found: list[Any] = [function, how, choose.generation()]
    add = found.append
    try:
        for x in inputs:
            if x is None:
                add(None)
            elif not isinstance(x, Tensor):
                return None
            else:
                add(x.shape)
                add(x.dtype)
                add(x.device)
                add(x.layout)
                if not x.is_contiguous():  # it may be read as it lies
                    add((x.stride(), x.data_ptr() % ALIGNED, x.is_neg()))
    except (AttributeError, RuntimeError):
        return None
    return tuple(found)


def prepared(signature: Signature | None, prepare: Callable[[], T]) -> T:
    """The prepared call that is known by the signature, or what ``prepare`` makes, which is kept if there is one."""
    try:
        known = _known.get(signature) if signature is not None else None
    except TypeError:  # something that cannot be told from others: the checks will say what
        return prepare()
    if known is None:
        known = prepare()
        if signature is not None:
            if len(_known) >= MOST:
                _known.clear()
            _known[signature] = known
    return known
