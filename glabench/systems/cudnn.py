"""Softmax attention by cuDNN, through torch SDPA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, needs_gpu
from glabench.systems.sdpa import attention_refusal, sdpa, sdpa_step

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs


class CudnnAttention(System):
    """SDPA's cuDNN backend. What it cannot take it refuses when it is called, and the row says so."""

    def unavailable(self, device: Device) -> Unavailable | None:
        return needs_gpu(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.dtype == "fp32":
            return "cuDNN attention takes fp16 and bf16, not fp32"
        return attention_refusal(case)

    def implementation(self, case: Case) -> str:
        import torch

        version = torch.backends.cudnn.version()
        return f"torch {package_version('torch')} SDPA cuDNN {version}"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from torch.nn.attention import SDPBackend

        return sdpa(inputs, SDPBackend.CUDNN_ATTENTION), None

    def step(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from torch.nn.attention import SDPBackend

        return sdpa_step(inputs, SDPBackend.CUDNN_ATTENTION)
