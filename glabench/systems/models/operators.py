"""What a layer runs between its projections, and what stands for it when a training step is judged.

A layer that mixes tokens has an attribute ``operator``, which it calls with what its projections gave, and a function
``plain``: the same in PyTorch, in whatever dtype it is given. In float64 ``plain`` is right; in the layer's dtype it is
how far from that a sound form may be. Where documents are packed, an operator is given ``packed`` besides, which no
``plain`` takes: documents are judged one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from glabench.systems.inputs import Packed

Operator = Callable[..., Tensor]
Form = Literal["own", "plain", "exact"]


@runtime_checkable
class Mixer(Protocol):
    """A layer whose operator can be another."""

    operator: Operator
    plain: Operator


def given(packed: Packed | None) -> dict[str, Packed]:
    """What an operator is given by name: nothing where no documents are packed."""
    return {} if packed is None else {"packed": packed}


def bounds(packed: Packed | None) -> Tensor | None:
    """Where documents begin and end, as operators take it."""
    return None if packed is None else packed.cu_seqlens


def in_float64(plain: Operator) -> Operator:
    """``plain`` on doubles; its output in the dtype of its first argument, as a layer expects it."""

    def exact(*inputs: Tensor) -> Tensor:
        return plain(*(x.double() for x in inputs)).to(inputs[0].dtype)

    return exact


def operator_of(mixer: Mixer, form: Form, own: Operator) -> Operator:
    """The operator that ``mixer`` runs in one of its forms."""
    return {"own": own, "plain": mixer.plain, "exact": in_float64(mixer.plain)}[form]


__all__ = ["Form", "Mixer", "Operator", "Packed", "bounds", "given", "in_float64", "operator_of"]
