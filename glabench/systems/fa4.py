"""FlashAttention-4, in CuTe DSL, for Hopper and newer GPUs, where its package is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, needs_gpu
from glabench.systems.sdpa import attention_refusal

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs

DISTRIBUTION = "flash-attn-4"
INSTALL = "pip install --pre 'flash-attn-4[cu13]', without [cu13] for CUDA 12"
MAX_HEAD_DIM = 256
EIGHTS = 8  # of numbers of 16 bits, in what it loads at once


class FlashAttention4(System):
    """``flash_attn.cute.flash_attn_func``."""

    def unavailable(self, device: Device) -> Unavailable | None:
        """By the name of the distribution: the package, ``flash_attn``, is FlashAttention-2's as well."""
        if package_version(DISTRIBUTION) is None:
            return Unavailable(f"the package {DISTRIBUTION} is not installed", INSTALL)
        return needs_gpu(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        _, dim = case.attention_shape
        if case.dtype == "fp32":
            return "FlashAttention-4 takes fp16 and bf16, not fp32"
        if dim > MAX_HEAD_DIM or dim % EIGHTS:
            return f"FlashAttention-4 takes head dimensions that are multiples of 8 up to {MAX_HEAD_DIM}, not {dim}"
        return attention_refusal(case)

    def implementation(self, case: Case) -> str:
        dsl = package_version("nvidia-cutlass-dsl")
        return f"{DISTRIBUTION} {package_version(DISTRIBUTION)}, nvidia-cutlass-dsl {dsl}"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from flash_attn.cute import flash_attn_func

        found = flash_attn_func(inputs.q, inputs.k, inputs.v, causal=True)
        return (found[0] if isinstance(found, tuple) else found), None  # row sums are beside it
