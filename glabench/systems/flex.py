"""Causal attention by FlexAttention: PyTorch writes a Triton kernel for the mask."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, missing_package, needs_gpu
from glabench.systems.sdpa import attention_refusal

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs


MANY = 10_000  # shapes that a process may come to; Dynamo's own limit is 8


@cache
def compiled() -> Any:
    """``flex_attention`` as torch.compile makes it, for one shape at a time."""
    import torch
    from torch._dynamo import config
    from torch.nn.attention.flex_attention import flex_attention

    # Past these limits Dynamo would run it as it is, unfused. With fullgraph that is an error, and not a time.
    config.recompile_limit = config.accumulated_recompile_limit = MANY
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@cache
def causal_mask(tokens: int, device: torch.device) -> Any:
    """Which blocks of the attention matrix are computed. Made once for a length, outside of what is timed."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, q, kv: q >= kv, None, None, tokens, tokens, device=device)


class FlexAttention(System):
    """``torch.nn.attention.flex_attention`` with a causal mask. It skips blocks that the mask leaves out."""

    def unavailable(self, device: Device) -> Unavailable | None:
        return missing_package("triton", "pip install triton (Linux only)") or needs_gpu(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        return attention_refusal(case)

    def implementation(self, case: Case) -> str:
        return f"torch {package_version('torch')} FlexAttention, compiled, causal block mask"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
        o: torch.Tensor = compiled()(q, k, v, block_mask=causal_mask(q.shape[2], q.device))
        return o.transpose(1, 2), None
