"""What the papers' rival forms share as systems: a `Form` of ``glabench.systems.baselines``, found by its name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable
from glabench.systems.gla import head_dim_refusal, kernels_unavailable

if TYPE_CHECKING:
    import torch

    from gla_kernels.launch import Launch
    from glabench.systems.baselines import Form
    from glabench.systems.inputs import Inputs


class Baseline(System):
    """A form that the subclass names; what it cannot do is the subclass's to say, in ``refusal``."""

    form = ""  # "module:FORM" in glabench.systems.baselines

    def unavailable(self, device: Device) -> Unavailable | None:
        return kernels_unavailable(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        return head_dim_refusal(case) or self.refusal(case)

    def refusal(self, case: Case) -> str | None:
        """Why the form itself cannot run the case, or None."""
        return None

    def implementation(self, case: Case) -> str:
        version = package_version("glabench") or "of this checkout"
        return f"glabench {version} baselines.{self.form.partition(':')[0]}, triton {package_version('triton')}"

    def found(self) -> Form:
        """The form; its module imports Triton."""
        module, _, name = self.form.partition(":")
        form: Any = getattr(importlib.import_module(f"glabench.systems.baselines.{module}"), name)
        return form

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from glabench.systems.baselines import run

        return run(
            self.found(),
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.g,
            initial_state=inputs.initial_state,
            output_final_state=case.initial_state,
            chunk=case.chunk,
        )

    def launches(self, case: Case, arch: str) -> list[Launch]:
        import torch

        from glabench.systems.baselines import launches
        from glabench.systems.inputs import DTYPES

        rows = (case.B, case.T, case.H)
        q, v = (torch.empty(*rows, d, dtype=DTYPES[case.dtype], device="meta") for d in (case.K, case.V))
        gates = None if case.gate_strength is None else DTYPES[case.gates]
        return launches(self.found(), q, v, mode=case.mode, gates=gates, states=case.initial_state, chunk=case.chunk)
