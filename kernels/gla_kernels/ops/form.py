"""What a call is given, and the form that it takes: the host code of both directions, whichever kernels compute it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..launch import Launcher
from ..launch.run import ALIGNED

DIFFERENTIATED = 6  # of a call's tensors, the first ones
Left = tuple[Tensor | None, ...]  # what a forward pass leaves for the backward one


class Inputs(NamedTuple):
    """The tensors of a call; None of what there is not. All but cu_seqlens may be differentiated in."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    gv: Tensor | None
    initial_state: Tensor | None
    cu_seqlens: Tensor | None = None

    def readable(self, rows: Sequence[int] | None = None) -> Inputs:
        """Every tensor `laid_out`. ``rows``, all that are by default, stay columns of a matrix where they lie well:
        `prepared.Prepared` copies them by launches of its own."""
        for x in self:
            if x is not None and not lies_well(x):
                rows = self.rows if rows is None else rows
                return Inputs(*(None if x is None else laid_out(x, i in rows) for i, x in enumerate(self)))  # type: ignore[arg-type]
        return self

    @property
    def rows(self) -> tuple[int, ...]:
        """Which of the tensors are `in_rows`, by position."""
        return tuple(i for i, x in enumerate(self[:5]) if x is not None and in_rows(x))

    @property
    def requires_grad(self) -> bool:
        """Whether a call has to leave something for a backward pass."""
        if torch.is_grad_enabled():
            for x in self:
                if isinstance(x, Tensor) and x.requires_grad:
                    return True
        return False

    @property
    def has_tangents(self) -> bool:
        """Whether forward-mode differentiation goes through any of them."""
        if getattr(forward_ad, "_current_level", 0) < 0:  # as nearly always: none is under way
            return False
        return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in self)


def no_tangents(*_: Any) -> NoReturn:
    """What forward-mode differentiation of a call comes to: torch.func.jvp, jacfwd and hessian."""
    raise NotImplementedError(
        "these kernels have no forward-mode derivative (torch.func.jvp, jacfwd, hessian); expected torch.func.grad, "
        "vjp or jacrev"
    )


def sequences_of(x: Inputs) -> int:
    """How many sequences a call has, and states: of a batch, or packed."""
    return x.q.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1


def output_shape(x: Inputs) -> tuple[int, int, int, int]:
    """Of o: it has the heads of q or of v, whichever are more."""
    B, T, heads, V = x.v.shape
    return B, T, max(heads, x.q.shape[2]), V


def state_shape(x: Inputs, v_first: bool) -> tuple[int, ...]:
    """Of the states before and after a call: one a sequence and head."""
    _, _, H, V = output_shape(x)
    K = x.q.shape[-1]
    return (sequences_of(x), H, V, K) if v_first else (sequences_of(x), H, K, V)


def looks_at_lengths(x: Inputs, check: bool) -> bool:
    """Whether a call looks at the values of cu_seqlens: if it is to, or where that waits for no GPU."""
    if x.cu_seqlens is None:
        return False
    return check or (isinstance(x.cu_seqlens, Tensor) and x.cu_seqlens.device.type == "cpu")


def lies_well(x: Tensor) -> bool:
    """Whether kernels can read the tensor as it is: contiguous, with no sign that PyTorch turns as it is read, and at
    an address that 16 bytes divide."""
    return x.is_contiguous() and not x.data_ptr() % ALIGNED and not x.is_neg()


def in_rows(x: Tensor) -> bool:
    """Whether a tensor [B, T, H, D] that is not contiguous is columns of a matrix of B*T rows, as the slices of one
    projection are."""
    if x.dim() != 4 or x.is_contiguous():
        return False
    _, T, H, D = x.shape
    of_batch, row, of_head, one = x.stride()
    return one == 1 and of_head == D and row >= H * D and of_batch == T * row


def laid_out(x: Tensor, rows: bool = False) -> Tensor:
    """The tensor as kernels read it: see `lies_well`. rows: or as columns of a matrix, if it lies so (`in_rows`)."""
    if x.is_neg() or not (x.is_contiguous() or (rows and in_rows(x))):
        x = x.resolve_neg().contiguous()
    return x if x.data_ptr() % ALIGNED == 0 else x.clone(memory_format=torch.contiguous_format)


class Form(Protocol):
    """One way to compute a call: the host code of both directions, which allocates tensors and hands launches to
    ``launch``."""

    def forward(self, x: Inputs, final: bool, launch: Launcher) -> tuple[Tensor, Tensor | None, Left]:
        """o, the state after the last token if ``final``, and what `backward` makes use of."""

    def backward(
        self, x: Inputs, left: Left, do: Tensor, d_final: Tensor | None, needed: Sequence[bool], launch: Launcher
    ) -> Sequence[Tensor | None]:
        """The gradients of all that may be differentiated in, in the order of ``x``; None of what there is not, or, if
        a form likes, is not needed. do [B, T, H, V]; d_final like the final state, or None."""
