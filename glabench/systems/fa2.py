"""FlashAttention-2: the flash_attn package where it is installed, else the same algorithm in torch SDPA."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, needs_gpu
from glabench.systems.sdpa import attention_refusal, sdpa, sdpa_step

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs, Packed

MAX_HEAD_DIM = 256


class FlashAttention2(System):
    """``flash_attn.flash_attn_func``, or SDPA's flash backend. One token: ``flash_attn_with_kvcache``, or the same.

    Packed sequences: ``flash_attn_varlen_func``, or ``torch.nn.attention.varlen``, which calls the same kernels of
    PyTorch as SDPA's flash backend.
    """

    def unavailable(self, device: Device) -> Unavailable | None:
        return needs_gpu(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        _, dim = case.attention_shape
        if case.dtype == "fp32":
            return "FlashAttention-2 takes fp16 and bf16, not fp32"
        if dim > MAX_HEAD_DIM:
            return f"FlashAttention-2 takes head dimensions up to {MAX_HEAD_DIM}, not {dim}"
        if case.lengths and not self.packaged and importlib.util.find_spec("torch.nn.attention.varlen") is None:
            return f"torch {package_version('torch')} packs no sequences; flash_attn and torch >= 2.10 do"
        return attention_refusal(case)

    @property
    def packaged(self) -> bool:
        """Whether the flash_attn package is there: of FlashAttention-4 alone it is a folder without code of its own."""
        spec = importlib.util.find_spec("flash_attn")
        return spec is not None and spec.origin is not None

    def implementation(self, case: Case) -> str:
        if self.packaged:
            return f"flash_attn {package_version('flash-attn')}{', varlen' if case.lengths else ''}"
        function = "varlen_attn" if case.lengths else "SDPA flash"
        return f"torch {package_version('torch')} {function} (FlashAttention-2)"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        if inputs.packed is not None:
            return self._packed(inputs, inputs.packed), None
        if self.packaged:
            from flash_attn import flash_attn_func

            return flash_attn_func(inputs.q, inputs.k, inputs.v, causal=True), None
        from torch.nn.attention import SDPBackend

        return sdpa(inputs, SDPBackend.FLASH_ATTENTION), None

    def _packed(self, inputs: Inputs, packed: Packed) -> torch.Tensor:
        q, k, v = (x.squeeze(0) for x in (inputs.q, inputs.k, inputs.v))
        bounds = (packed.cu_seqlens, packed.cu_seqlens, packed.longest, packed.longest)
        o: torch.Tensor = self._varlen()(q, k, v, *bounds)
        return o.unsqueeze(0)

    def _varlen(self) -> Callable[..., Any]:
        """Causal attention of packed sequences: q, k, v ``[T,heads,dim]``, where queries and keys begin, and how many
        tokens the longest sequence has of either."""
        if self.packaged:
            from flash_attn import flash_attn_varlen_func

            return partial(flash_attn_varlen_func, causal=True)
        from torch.nn.attention.varlen import varlen_attn

        from glabench.systems.models.attention import causal

        return partial(varlen_attn, **causal())

    def step(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.packaged:
            from flash_attn import flash_attn_with_kvcache

            return flash_attn_with_kvcache(inputs.q, inputs.k, inputs.v)[:, 0], None
        from torch.nn.attention import SDPBackend

        return sdpa_step(inputs, SDPBackend.FLASH_ATTENTION)
