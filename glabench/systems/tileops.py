"""TileOPs' gated linear attention, in TileLang: its forward pass for inference, and the two that train.

All are tuned by TileOPs itself, at each shape, before anything is timed.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, missing_package, needs_gpu

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs

CHUNK = 64  # the package's own default
HEAD_DIMS = (64, 128)


class TileOpsGla(System):
    """``GLAFwdOp``; with gradients ``GLAChunkFwdOp``, whose states ``GLAChunkBwdOp`` reads."""

    def unavailable(self, device: Device) -> Unavailable | None:
        return missing_package("tileops", "pip install tileops") or needs_gpu(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.gate_strength is None:
            return "TileOPs' GLA needs gates"
        if case.dtype == "fp32":
            return "TileOPs' GLA is measured in fp16 and bf16, which both of its forward passes take"
        if case.K != case.V or case.K not in HEAD_DIMS:
            return f"K={case.K}, V={case.V}: TileOPs' GLA takes K = V = 64 or 128"
        if case.H != 1 and case.H % 2:
            return f"H={case.H}: TileOPs' GLA takes one head, or an even number"
        return f"T={case.T}: TileOPs' GLA trains with multiples of {CHUNK} tokens" if case.T % CHUNK else None

    def implementation(self, case: Case) -> str:
        function = "GLAFwdOp" if case.mode == "fwd" else "GLAChunkFwdOp and GLAChunkBwdOp"
        versions = f"tileops {package_version('tileops')} {function}, tilelang {package_version('tilelang')}"
        return f"{versions}, tuned by itself"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        given = (inputs.q, inputs.k, inputs.v, inputs.g, inputs.initial_state)
        o, state = inference()(*given) if case.mode == "fwd" else training()(*given)
        return o, state if case.initial_state else None


def tuned(op: Any) -> Any:
    """The operator, which tunes what it builds for a shape at its first call there."""
    op.request_tune()
    return op


@cache
def inference() -> Any:
    """(o, final state) of q, k, v, g and an initial state or None."""
    from tileops.linear_attention import GLAFwdOp

    return tuned(GLAFwdOp())


@cache
def training() -> Any:
    """The same, with gradients of all that is given."""
    import torch
    from tileops.linear_attention import GLAChunkBwdOp, GLAChunkFwdOp

    forward_op = tuned(GLAChunkFwdOp(chunk_size=CHUNK))
    backward_ops = {given: tuned(GLAChunkBwdOp(chunk_size=CHUNK, has_initial_state=given)) for given in (False, True)}

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
            o, state, h = forward_op(*inputs)
            *numbers, initial_state = inputs
            ctx.save_for_backward(*numbers, h)
            ctx.seeded = initial_state is not None
            return o, state

        @staticmethod
        def backward(ctx: Any, do: torch.Tensor, dstate: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            *numbers, h = ctx.saved_tensors
            *found, dinitial = backward_ops[ctx.seeded](do, dstate, *numbers, h)
            return *(dx.to(x.dtype) for dx, x in zip(found, numbers, strict=True)), dinitial

    return Call.apply
