"""What a layer runs between its projections, and what stands for it when a training step is judged.

A layer that mixes tokens has an attribute ``operator``, which it calls with what its projections gave, and a function
``plain``: the same in PyTorch, in whatever dtype it is given. In float64 ``plain`` is right; in the layer's dtype it is
how far from that a sound form may be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

Operator = Callable[..., Tensor]
Form = Literal["own", "plain", "exact"]


@runtime_checkable
class Mixer(Protocol):
    """A layer whose operator can be another."""

    operator: Operator
    plain: Operator


def in_float64(plain: Operator) -> Operator:
    """``plain`` on doubles; its output in the dtype of its first argument, as a layer expects it."""

    def exact(*inputs: Tensor) -> Tensor:
        return plain(*(x.double() for x in inputs)).to(inputs[0].dtype)

    return exact


def operator_of(mixer: Mixer, form: Form, own: Operator) -> Operator:
    """The operator that ``mixer`` runs in one of its forms."""
    return {"own": own, "plain": mixer.plain, "exact": in_float64(mixer.plain)}[form]


__all__ = ["Form", "Mixer", "Operator", "in_float64", "operator_of"]
