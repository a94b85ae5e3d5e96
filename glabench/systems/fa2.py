"""FlashAttention-2: the flash_attn package where it is installed, else the same algorithm in torch SDPA."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, needs_gpu
from glabench.systems.sdpa import attention_refusal, sdpa, sdpa_step

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs

MAX_HEAD_DIM = 256


class FlashAttention2(System):
    """``flash_attn.flash_attn_func``, or SDPA's flash backend. One token: ``flash_attn_with_kvcache``, or the same."""

    def unavailable(self, device: Device) -> Unavailable | None:
        return needs_gpu(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        _, dim = case.attention_shape
        if case.dtype == "fp32":
            return "FlashAttention-2 takes fp16 and bf16, not fp32"
        if dim > MAX_HEAD_DIM:
            return f"FlashAttention-2 takes head dimensions up to {MAX_HEAD_DIM}, not {dim}"
        return attention_refusal(case)

    @property
    def packaged(self) -> bool:
        """Whether the flash_attn package is there."""
        return importlib.util.find_spec("flash_attn") is not None

    def implementation(self, case: Case) -> str:
        if self.packaged:
            return f"flash_attn {package_version('flash-attn')}"
        return f"torch {package_version('torch')} SDPA flash (FlashAttention-2)"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.packaged:
            from flash_attn import flash_attn_func

            return flash_attn_func(inputs.q, inputs.k, inputs.v, causal=True), None
        from torch.nn.attention import SDPBackend

        return sdpa(inputs, SDPBackend.FLASH_ATTENTION), None

    def step(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.packaged:
            from flash_attn import flash_attn_with_kvcache

            return flash_attn_with_kvcache(inputs.q, inputs.k, inputs.v)[:, 0], None
        from torch.nn.attention import SDPBackend

        return sdpa_step(inputs, SDPBackend.FLASH_ATTENTION)
