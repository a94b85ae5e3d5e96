"""Our retention: linear attention with RetNet's constant decays, by the kernels of `simple_gla`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from glabench.spec.case import Case
from glabench.systems.simple_gla import SimpleGla

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs


class Retention(SimpleGla):
    """``gla_kernels.simple_gla`` with ``gla_kernels.retnet_decays``, whose gradient is not asked for."""

    def refusal(self, case: Case) -> str | None:
        return None

    def gates(self, inputs: Inputs, case: Case) -> torch.Tensor:
        return _decays(case.H, inputs.q.device).expand(inputs.q.shape[:-1])

    def planned_gates(self, case: Case) -> torch.Tensor:
        import torch

        return torch.empty(case.H, dtype=torch.float32, device="meta").expand(case.B, case.T, case.H)


@cache
def _decays(H: int, device: torch.device) -> torch.Tensor:
    """Constants of a model, which makes them once, float32 [H]."""
    from gla_kernels import retnet_decays

    return retnet_decays(H, device)
