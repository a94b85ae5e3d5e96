"""Softmax attention through torch's scaled_dot_product_attention: whatever backend PyTorch picks, or one by name."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System

if TYPE_CHECKING:
    import torch
    from torch.nn.attention import SDPBackend

    from glabench.systems.inputs import Inputs


def sdpa(inputs: Inputs, backend: SDPBackend | None = None, causal: bool = True) -> torch.Tensor:
    """Attention of q, k, v ``[B,T,heads,dim]`` -> o of the same shape; q may have fewer tokens where not ``causal``.

    SDPA wants heads before time: the transposes are views, so nothing is copied on the clock. Raises RuntimeError
    where the named backend cannot take the inputs.
    """
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    with nullcontext() if backend is None else sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def sdpa_step(inputs: Inputs, backend: SDPBackend | None = None) -> tuple[torch.Tensor, None]:
    """One token's attention, ``[B,heads,dim]``, to all keys and values of the cache, its own among them."""
    return sdpa(inputs, backend, causal=False)[:, 0], None


def attention_refusal(case: Case) -> str | None:
    """Attention has no state to start from, and no gates to be as strong as the case asks."""
    return "softmax attention has no initial state" if case.initial_state else None


class Sdpa(System):
    """SDPA with PyTorch's own choice of backend; on a CPU that is its flash kernel for CPUs."""

    def unsupported(self, case: Case, device: Device) -> str | None:
        return attention_refusal(case)

    def implementation(self, case: Case) -> str:
        return f"torch {package_version('torch')} SDPA, backend of its choice"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        return sdpa(inputs), None

    def step(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        return sdpa_step(inputs)
