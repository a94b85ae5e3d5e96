"""FlashAttention-3, for Hopper, where its package is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, missing_package, needs_gpu
from glabench.systems.sdpa import attention_refusal

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs

INSTALL = "build it in the folder hopper of https://github.com/Dao-AILab/flash-attention"
MAX_HEAD_DIM = 256


class FlashAttention3(System):
    """``flash_attn_interface.flash_attn_func``."""

    def unavailable(self, device: Device) -> Unavailable | None:
        return missing_package("flash_attn_interface", INSTALL) or needs_gpu(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        _, dim = case.attention_shape
        if case.dtype == "fp32":
            return "FlashAttention-3 takes fp16 and bf16, not fp32"
        if dim > MAX_HEAD_DIM:
            return f"FlashAttention-3 takes head dimensions up to {MAX_HEAD_DIM}, not {dim}"
        return attention_refusal(case)

    def implementation(self, case: Case) -> str:
        found = package_version("flash-attn-3") or "of unknown version"
        return f"flash_attn_interface {found}"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from flash_attn_interface import flash_attn_func

        found = flash_attn_func(inputs.q, inputs.k, inputs.v, causal=True)
        return (found[0] if isinstance(found, tuple) else found), None  # older versions return row sums, too
