"""The parallel form in plain PyTorch: all of the T x T scores at once, quadratic in time and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.systems.base import System
from glabench.systems.recurrent_torch import one_by_one

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs


SUB_CHUNK = 64


class ParallelTorch(System):
    """``((Q e^G) (K e^-G)^T * M) V`` with every score of the sequence: two-level chunking with one chunk of all T rows.

    Anchoring each block of rows keeps the exponents negative, and leaves matrix products off the diagonal; taken
    element by element the same form would hold T x T x K decays. Long sequences end in status oom.
    """

    def implementation(self, case: Case) -> str:
        said = f"quadratic form in log space, blocks of {SUB_CHUNK} rows"
        return f"torch {package_version('torch')}, {said}{one_by_one(case)}"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from gla_kernels import reference

        return reference.chunkwise(
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.g,
            initial_state=inputs.initial_state,
            chunk=max(case.T, 1),
            sub_chunk=SUB_CHUNK,
            gv=inputs.gv,
            cu_seqlens=inputs.cu_seqlens,
        )
