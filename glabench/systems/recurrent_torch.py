"""The recurrence as a Python loop over time: what one writes first, and the slowest on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.systems.base import System

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs


def one_by_one(case: Case) -> str:
    """What a form is said to do where sequences are packed: PyTorch has nothing to do them at once."""
    return ", sequences one after another" if case.lengths else ""


class RecurrentTorch(System):
    """``gla_kernels.reference.recurrent`` in the case's dtype; its states are float32.

    With gradients it keeps a state every 64 tokens and computes those between again, so that long sequences fit.
    """

    def implementation(self, case: Case) -> str:
        return f"torch {package_version('torch')}, Python loop over time, states kept every 64 tokens{one_by_one(case)}"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from gla_kernels import reference

        x = inputs
        return reference.recurrent(x.q, x.k, x.v, x.g, None, x.initial_state, x.gv, x.cu_seqlens)

    def step(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        state = inputs.initial_state
        assert state is not None  # mode "step" always has one
        if inputs.g is not None:
            state.mul_(inputs.g.to(state.dtype).exp()[..., None])
        if inputs.gv is not None:
            state.mul_(inputs.gv.to(state.dtype).exp()[..., None, :])
        state.add_(inputs.k.to(state.dtype)[..., None] * inputs.v.to(state.dtype)[..., None, :])
        o = (inputs.q.to(state.dtype)[..., None, :] @ state)[..., 0, :] * inputs.q.shape[-1] ** -0.5
        return o.to(inputs.v.dtype), state
