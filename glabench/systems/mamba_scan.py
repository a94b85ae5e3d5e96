"""Mamba's selective scan at the case's tokens and width: another operator, which the papers measure beside GLA."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.catalog import SystemInfo, ssm_shape
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, installed
from glabench.systems.gla import kernels_unavailable

if TYPE_CHECKING:
    import torch

    from gla_kernels.launch import Launch
    from glabench.systems.inputs import Inputs


def ssm_parameters(channels: int, state: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A [channels, state] and D [channels] as Mamba begins with them, A_dn = -(n + 1) and D = 1: float32 or wider, on
    the device of ``like``, and made once."""
    import torch

    return _parameters(channels, state, like.device, torch.promote_types(like.dtype, torch.float32))


@cache
def _parameters(
    channels: int, state: int, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    a = -torch.arange(1, state + 1, device=device, dtype=dtype).repeat(channels, 1)
    return a, torch.ones(channels, device=device, dtype=dtype)


EXTENSION = "selective_scan_cuda"  # of mamba_ssm


@cache
def has_package() -> bool:
    """Whether mamba_ssm and a GPU are there."""
    if not installed("mamba_ssm"):
        return False
    import torch

    return torch.cuda.is_available()


def official() -> bool:
    """Whether mamba_ssm's kernel is what runs. It is in the extension, without which mamba_ssm may be there, too."""
    return has_package() and installed(EXTENSION)


def without_extension() -> None:
    """Before its kernels in Triton are imported: mamba_ssm imports its CUDA extension first of all, of which they need
    nothing. Where it was not built an empty module stands in for it."""
    if "mamba_ssm" not in sys.modules and not installed(EXTENSION):
        sys.modules.setdefault(EXTENSION, ModuleType(EXTENSION))


class MambaScan(System):
    """mamba_ssm's ``selective_scan_fn`` on a GPU where it is installed, else `baselines.selective_scan`.

    In ``Inputs``, with one head: v is x, g is dt, k is B and q is C. A and D are constants; what they cost is in the
    time, for both kernels compute their gradients, which the gate does not ask for.
    """

    def __init__(self, info: SystemInfo) -> None:
        # mamba_ssm adds its gradients up in whatever order they come: the gate asks no equal bits of it
        super().__init__(replace(info, triton=False) if official() else info)

    def unavailable(self, device: Device) -> Unavailable | None:
        return None if official() else kernels_unavailable(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        return "the selective scan starts from no state" if case.initial_state else None

    def implementation(self, case: Case) -> str:
        if official():
            return f"mamba_ssm {package_version('mamba-ssm')} selective_scan_fn"
        version = package_version("glabench") or "of this checkout"
        return f"glabench {version} baselines.selective_scan, triton {package_version('triton')}"

    def lay_out(self, inputs: Inputs) -> Inputs:
        """mamba_ssm wants time last in memory."""
        if not official():
            return inputs
        return replace(
            inputs, **{name: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for name, x in inputs.tensors()}
        )

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert inputs.g is not None  # dt
        x, dt, b, c = (t[:, :, 0] for t in (inputs.v, inputs.g, inputs.k, inputs.q))
        a, skip = ssm_parameters(*ssm_shape(case), x)
        if official():
            from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

            x, dt, b, c = (t.transpose(1, 2) for t in (x, dt, b, c))
            return selective_scan_fn(x, dt, a, b, c, skip).transpose(1, 2)[:, :, None], None
        from glabench.systems.baselines.selective_scan import selective_scan

        return selective_scan(x, dt, a, b, c, skip)[:, :, None], None

    def launches(self, case: Case, arch: str) -> list[Launch]:
        if official():
            return []
        import torch

        from glabench.systems.baselines.selective_scan import launches
        from glabench.systems.inputs import DTYPES

        x, b = (torch.empty(case.B, case.T, n, dtype=DTYPES[case.dtype], device="meta") for n in ssm_shape(case))
        return launches(x, b, case.mode)
