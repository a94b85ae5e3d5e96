"""The mLSTM of xLSTM by Tiled Flash Linear Attention (Beck et al. 2025), with its input gates open.

With sigmoid gates and no normaliser the mLSTM is linear attention with one decay a head and token, its keys scaled by
the input gate. With that at 1 it answers the question of ``simple_gla``.

Its gates' gradient is a sum over all later tokens of q dq - k dk, where dq and dk have been rounded to the inputs'
dtype before: in bf16 that is wrong by tenths at a thousand tokens already, and rows with gradients say so.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, missing_package, needs_gpu
from glabench.systems.helion import heads_first

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs

CHUNK = 128  # the package's own default
OPEN = 40.0  # an input gate before its sigmoid, which is 1 in float32 then
HEADED = ("q", "k", "v", "do")


class MlstmTfla(System):
    """``mlstm_kernels``' ``mlstm_siging_chunkwise__xl_chunk``; its forget gates are sigmoids of what it is given."""

    def unavailable(self, device: Device) -> Unavailable | None:
        return missing_package("mlstm_kernels", "pip install mlstm_kernels") or needs_gpu(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.gate_strength is None:
            return "the mLSTM needs forget gates"
        if case.T % CHUNK:
            return f"T={case.T}: TFLA takes lengths that are multiples of its chunks of {CHUNK}"
        return "the mLSTM is measured without an initial state" if case.initial_state else None

    def implementation(self, case: Case) -> str:
        version = package_version("mlstm_kernels")
        return f"mlstm_kernels {version} mLSTM with sigmoid input gates, chunks of {CHUNK}; and its gates' conversion"

    def lay_out(self, inputs: Inputs) -> Inputs:
        return replace(inputs, **{name: heads_first(x) for name, x in inputs.tensors() if name in HEADED})

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from mlstm_kernels.torch.chunkwise import mlstm_siging_chunkwise__xl_chunk

        assert inputs.g is not None  # refused above
        q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
        forget = before_sigmoid(inputs.g.squeeze(-1).transpose(1, 2))
        o = mlstm_siging_chunkwise__xl_chunk(
            q, k, v, open_gates(forget.shape, forget.device), forget,
            normalize=False, chunk_size=CHUNK, autocast_kernel_dtype=q.dtype,
        )  # fmt: skip
        return o.transpose(1, 2), None


@lru_cache(maxsize=1)
def open_gates(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """The input gates before their sigmoid, float32. Made once for a shape: they are none of what is timed."""
    import torch

    return torch.full(shape, OPEN, dtype=torch.float32, device=device)


def before_sigmoid(g: torch.Tensor) -> torch.Tensor:
    """f with logsigmoid(f) = g, float32: g - log(1 - e^g), for g < 0."""
    import torch

    g = g.float()
    return g - torch.log(-torch.expm1(g))
