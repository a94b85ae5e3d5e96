"""Mamba-2's SSD, state space duality: a state space model whose decay is one number a head and token.

    h_t = e^{dt_t A} h_{t-1} + dt_t B_t x_t^T          y_t = C_t h_t

All heads share B and C (ngroups = 1, as Mamba-2 has it), of K states; x has H heads of V. That is ``simple_gla`` with
q = C, k = B, v = dt x and g = dt A. Mamba-2's skip D x and gate z are left out: they are no part of the recurrence, and
the systems beside it have none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.catalog import SystemInfo
from glabench.spec.settings import Device
from glabench.systems import mamba_scan
from glabench.systems.base import Unavailable
from glabench.systems.simple_gla import SimpleGla

if TYPE_CHECKING:
    import torch

    from gla_kernels.launch import Launch
    from glabench.systems.inputs import Inputs

CHUNK = 256  # of mamba_ssm's own layer


def official() -> bool:
    """Whether mamba_ssm's kernels are what runs; its version 1 has none of SSD."""
    return mamba_scan.has_package() and not (package_version("mamba-ssm") or "").startswith("1.")


def package_scan() -> Callable[..., torch.Tensor]:
    """mamba_ssm's ``mamba_chunk_scan_combined``, in Triton."""
    mamba_scan.without_extension()
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    scan: Callable[..., torch.Tensor] = mamba_chunk_scan_combined
    return scan


@cache
def decay_rates(heads: int, strength: float, device: torch.device) -> torch.Tensor:
    """A [heads], float32: -strength in every head, so that dt A are the gates of every other system. Made once."""
    import torch

    return torch.full((heads,), -strength, device=device)


class Mamba2Ssd(SimpleGla):
    """mamba_ssm's ``mamba_chunk_scan_combined`` on a GPU where it is installed, else ``gla_kernels.simple_gla``, whose
    heads of x share B and C, too.

    In ``Inputs``, with the heads side by side as one: v is x, g is dt, k is B and q is C. A is a constant; mamba_ssm
    computes its gradient all the same, which is in its time.
    """

    def __init__(self, info: SystemInfo) -> None:
        # mamba_ssm adds its gradients up in whatever order they come: the gate asks no equal bits of it
        super().__init__(replace(info, triton=False) if official() else info)

    @property
    def autotuned(self) -> bool:
        return official()

    def unavailable(self, device: Device) -> Unavailable | None:
        return None if official() else super().unavailable(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        return self.refusal(case) if official() else super().unsupported(case, device)

    def refusal(self, case: Case) -> str | None:
        if case.gate_strength is None:
            return "SSD needs decays, and so a gate strength"
        if case.qk_heads not in (None, 1):
            return f"qk_heads={case.qk_heads}: SSD is measured with one head of B and C"
        return "SSD is measured without an initial state" if case.initial_state else None

    def implementation(self, case: Case) -> str:
        if official():
            return f"mamba_ssm {package_version('mamba-ssm')} mamba_chunk_scan_combined, chunks of {CHUNK}"
        return f"{super().implementation(case)}, simple_gla with one head of B and C"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert inputs.g is not None  # dt
        assert case.gate_strength is not None  # refused otherwise
        c, b, dt = inputs.q, inputs.k, inputs.g.squeeze(2)
        a = decay_rates(case.H, case.gate_strength, dt.device)
        x = inputs.v.squeeze(2).unflatten(-1, (case.H, case.V))
        if official():
            y = package_scan()(x, dt, a, b, c, CHUNK)
        else:
            from gla_kernels import simple_gla

            y, _ = simple_gla(c, b, x * dt.unsqueeze(-1), dt.float() * a, scale=1.0, schedule=self.schedule(case))
        return y.flatten(2).unsqueeze(2), None

    def qk_heads(self, case: Case) -> int:
        return 1

    def planned_gates(self, case: Case) -> torch.Tensor:
        import torch

        return torch.empty(case.B, case.T, case.H, dtype=torch.float32, device="meta")

    def launches(self, case: Case, arch: str) -> list[Launch]:
        return [] if official() else super().launches(case, arch)
