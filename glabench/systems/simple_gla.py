"""Our linear attention with one gate a head and token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable
from glabench.systems.gla import kernels_unavailable, kernels_version, schedule_of

if TYPE_CHECKING:
    import torch

    from gla_kernels import Schedule
    from gla_kernels.launch import Launch
    from glabench.systems.inputs import Inputs

MOST = 256


class SimpleGla(System):
    """``gla_kernels.simple_gla`` with the case's schedule; in ``Inputs``, g is [B, T, H, 1]."""

    def unavailable(self, device: Device) -> Unavailable | None:
        return kernels_unavailable(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        try:
            self.schedule(case)
        except ValueError as error:
            return str(error)
        for axis, size in (("K", case.K), ("V", case.V)):
            if size > MOST:
                return f"{axis}={size} is above the largest head dimension of these kernels, {MOST}"
        return self.refusal(case)

    def refusal(self, case: Case) -> str | None:
        """Why the gates of the case are none for it, or None."""
        return "simple_gla needs gates; retention has constant ones" if case.gate_strength is None else None

    def schedule(self, case: Case) -> Schedule:
        """The case's schedule, or the kernels' own. ValueError for one that they do not have."""
        from gla_kernels.ops.simple_gla import check_schedule

        return check_schedule(schedule_of(case))

    def implementation(self, case: Case) -> str:
        schedule = self.schedule(case)
        return f"{kernels_version()}; chunks of {schedule.chunk} {'w/' if schedule.materialize else 'w/o'} m."

    def gates(self, inputs: Inputs, case: Case) -> torch.Tensor:
        """g [B, T, H]."""
        assert inputs.g is not None  # refused otherwise
        return inputs.g.squeeze(-1)

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from gla_kernels import simple_gla

        return simple_gla(
            inputs.q,
            inputs.k,
            inputs.v,
            self.gates(inputs, case),
            initial_state=inputs.initial_state,
            output_final_state=case.initial_state,
            cu_seqlens=inputs.cu_seqlens,
            schedule=self.schedule(case),
        )

    def qk_heads(self, case: Case) -> int | None:
        """Heads of q and k as kernels are given them; None for those of v."""
        return case.qk_heads

    def planned_gates(self, case: Case) -> torch.Tensor:
        """g on the meta device as kernels are given it."""
        import torch

        from glabench.systems.inputs import DTYPES

        return torch.empty(case.B, case.T, case.H, dtype=DTYPES[case.gates], device="meta")

    def launches(self, case: Case, arch: str) -> list[Launch]:
        from gla_kernels.ops.simple_gla import launches
        from glabench.systems.inputs import DTYPES

        lengths = case.sequences
        return launches(
            B=case.B,
            T=case.T,
            H=case.H,
            K=case.K,
            V=case.V,
            dtype=DTYPES[case.dtype],
            mode=case.mode,
            schedule=self.schedule(case),
            initial_state=case.initial_state,
            gates=self.planned_gates(case),
            gradient_of_g=self.info.gated,
            capability=int(arch.removeprefix("sm_")),
            qk_heads=self.qk_heads(case),
            sequences=None if lengths is None else len(lengths),
        )
