"""What gla() itself runs for a workload, with the schedule and the tiles that it chooses."""

from __future__ import annotations

import gla_kernels
from gla_kernels import Launch, Workload
from glabench.run.inputs import DTYPES


def shipped_launches(work: Workload, capability: int, initial_state: bool = False) -> dict[str, Launch]:
    """The launches by pass, on meta tensors."""
    found = gla_kernels.launches(
        "gla",
        B=work.B,
        T=work.T,
        H=work.H,
        K=work.K,
        V=work.V,
        dtype=DTYPES[work.dtype],
        mode=work.direction,
        schedule=work.schedule,
        gated=work.gated,
        initial_state=initial_state,
        capability=capability,
    )
    return {launch.step: launch for launch in found}
