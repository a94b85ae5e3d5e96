"""Our fused recurrent GLA, and one token of decoding with the same state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable
from glabench.systems.gla import head_dim_refusal, kernel_launches, kernels_unavailable, kernels_version

if TYPE_CHECKING:
    import torch

    from gla_kernels.launch import Launch
    from gla_kernels.ops.form import Form
    from glabench.systems.inputs import Inputs


class GlaRecurrent(System):
    """``gla_kernels.gla_recurrent``; mode "step" is ``gla_kernels.gla_step``, which updates the state in place."""

    def unavailable(self, device: Device) -> Unavailable | None:
        return kernels_unavailable(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        return head_dim_refusal(case)

    def implementation(self, case: Case) -> str:
        return f"{kernels_version()}, {'gla_step' if case.mode == 'step' else 'gla_recurrent'}"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from gla_kernels import gla_recurrent

        return gla_recurrent(
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.g,
            initial_state=inputs.initial_state,
            output_final_state=case.initial_state,
            gv=inputs.gv,
            cu_seqlens=inputs.cu_seqlens,
        )

    def step(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        from gla_kernels import gla_step

        assert inputs.initial_state is not None  # mode "step" always has one
        o = gla_step(inputs.q, inputs.k, inputs.v, inputs.g, inputs.initial_state, gv=inputs.gv)
        return o, inputs.initial_state

    def launches(self, case: Case, arch: str) -> list[Launch]:
        return kernel_launches("gla_step" if case.mode == "step" else "gla_recurrent", case, arch)

    def form_of(self, case: Case, arch: str) -> Form | None:
        from gla_kernels.ops.forms import Recurrent

        return None if case.qk_heads else Recurrent(case.K**-0.5)
