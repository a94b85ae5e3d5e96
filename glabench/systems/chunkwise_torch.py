"""The chunkwise form in plain PyTorch: the right amount of arithmetic, every intermediate through memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System
from glabench.systems.recurrent_torch import one_by_one

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs

DEFAULT_CHUNK = 64
SUB_CHUNK = 16


class ChunkwiseTorch(System):
    """`batched_chunks` with the case's chunk and sub-chunks of 16."""

    def unsupported(self, case: Case, device: Device) -> str | None:
        chunk = case.chunk or DEFAULT_CHUNK
        if chunk <= 0:
            return f"chunk={chunk} is not a positive number of rows"
        sub_chunk = min(SUB_CHUNK, chunk)
        return f"chunk={chunk} is not a multiple of its sub-chunks, {sub_chunk}" if chunk % sub_chunk else None

    def implementation(self, case: Case) -> str:
        chunk = case.chunk or DEFAULT_CHUNK
        return f"torch {package_version('torch')}, chunks of {chunk}, all at once{one_by_one(case)}"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from glabench.systems.batched_chunks import chunkwise

        chunk = case.chunk or DEFAULT_CHUNK
        return chunkwise(
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.g,
            initial_state=inputs.initial_state,
            chunk=chunk,
            sub_chunk=min(SUB_CHUNK, chunk),
            gv=inputs.gv,
            cu_seqlens=inputs.cu_seqlens,
        )
