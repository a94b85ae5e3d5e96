"""Our chunkwise GLA: every schedule of the Triton kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.run.settings import Device
from glabench.spec.case import Case
from glabench.systems.base import System, Unavailable, missing_package

if TYPE_CHECKING:
    import torch

    from gla_kernels import Schedule
    from gla_kernels.launch import Launch
    from glabench.run.inputs import Inputs

MAX_HEAD_DIM = 512


def kernels_unavailable(device: Device) -> Unavailable | None:
    """Our kernels run anywhere that Triton is: on a CPU in its interpreter, untimed."""
    return missing_package("triton", "pip install triton (Linux only)")


def head_dim_refusal(case: Case) -> str | None:
    """Why our kernels cannot take the case's head dimensions, or None."""
    for axis, size in (("K", case.K), ("V", case.V)):
        if size > MAX_HEAD_DIM:
            return f"{axis}={size} is above the largest head dimension of the kernels, {MAX_HEAD_DIM}"
    return None


def kernels_version() -> str:
    return f"gla_kernels {package_version('glabench') or 'of this checkout'}, triton {package_version('triton')}"


class Gla(System):
    """``gla_kernels.gla`` with the case's schedule."""

    def unavailable(self, device: Device) -> Unavailable | None:
        return kernels_unavailable(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        try:
            self.schedule(case)
        except ValueError as error:
            return str(error)
        return head_dim_refusal(case)

    def schedule(self, case: Case) -> Schedule | None:
        """The case's schedule, None where the case leaves all of it open. ValueError for one that does not exist."""
        from gla_kernels import Schedule

        if case.chunk is None and case.sub_chunk is None and case.materialize is None:
            return None
        chosen = {"chunk": case.chunk, "sub_chunk": case.sub_chunk, "materialize": case.materialize}
        return Schedule(**{name: value for name, value in chosen.items() if value is not None})  # type: ignore[arg-type]  # values of one dict have one type

    def implementation(self, case: Case) -> str:
        return f"{kernels_version()}, {self.schedule(case) or 'default schedule'}"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from gla_kernels import gla

        return gla(
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.g,
            initial_state=inputs.initial_state,
            output_final_state=case.initial_state,
            schedule=self.schedule(case),
        )

    def launches(self, case: Case, arch: str) -> list[Launch]:
        return kernel_launches("gla", case, arch, self.schedule(case))


def kernel_launches(op: str, case: Case, arch: str, schedule: Schedule | None = None) -> list[Launch]:
    """What the kernels' API would launch for the case, on meta tensors."""
    import gla_kernels
    from glabench.run.inputs import DTYPES

    return gla_kernels.launches(
        op,
        B=case.B,
        T=case.T,
        H=case.H,
        K=case.K,
        V=case.V,
        dtype=DTYPES[case.dtype],
        mode=case.mode,
        schedule=schedule,
        gated=case.gate_strength is not None,
        initial_state=case.initial_state or case.mode == "step",
        capability=int(arch.removeprefix("sm_")),
    )
