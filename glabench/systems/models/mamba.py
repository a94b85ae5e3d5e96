"""The layer of Mamba: a selective state space model (Gu and Dao 2023, arXiv 2312.00752, section 3.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from glabench.hardware.environment import package_version
from glabench.systems.baselines.selective_scan import selective_scan
from glabench.systems.mamba_scan import official

EXPAND = 2  # channels are that many times the width
STATE = 16  # of a channel
TAPS = 4  # of the convolution over time
RANK = 16  # width / RANK is the rank of the projection that steps come from
STEPS = (0.001, 0.1)  # steps at the start are between these


def step_bias(count: int) -> nn.Parameter:
    """The bias [count] with which steps begin: softplus of it is uniform in log over STEPS. ``_no_reinit`` is how
    mamba_ssm marks it, for models that initialize all their layers alike."""
    low, high = (math.log(step) for step in STEPS)
    steps = torch.exp(torch.rand(count) * (high - low) + low)
    bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus
    bias._no_reinit = True  # type: ignore[attr-defined]
    return bias


def convolved(x: Tensor, convolution: nn.Conv1d) -> Tensor:
    """Swish of x [B, T, channels] convolved over time, channel by channel; a token sees itself and what was before."""
    return F.silu(convolution(x.mT)[..., : x.shape[1]].mT)


class Mamba(nn.Module):
    """Mamba's layer, 6 width² parameters and few more, with Triton's selective scan of this package.

    The projection into the layer is all that is kept for the backward pass, which computes the rest again: mamba_ssm's
    own layer keeps as little.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        inner, rank = EXPAND * width, math.ceil(width / RANK)
        self.rank = rank
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, TAPS, groups=inner, padding=TAPS - 1)
        self.x_proj = nn.Linear(inner, rank + 2 * STATE, bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
        self.dt_proj.bias = step_bias(inner)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, STATE + 1)).repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> the same shape."""
        mixed = checkpoint(self._mixed, self.in_proj(x), use_reentrant=False, preserve_rng_state=False)
        y: Tensor = self.out_proj(mixed)
        return y

    def _mixed(self, projected: Tensor) -> Tensor:
        """[B, T, 2 inner] -> [B, T, inner]."""
        x, z = projected.chunk(2, -1)
        x = convolved(x, self.conv1d)
        low_rank, b, c = self.x_proj(x).split((self.rank, STATE, STATE), -1)
        steps = F.softplus(self.dt_proj(low_rank))
        return selective_scan(x, steps, -self.A_log.float().exp(), b, c, self.D.float()) * F.silu(z)


def mamba(width: int) -> nn.Module:
    """mamba_ssm's own layer where it is installed and there is a GPU, else `Mamba`."""
    if official():
        import mamba_ssm

        layer: nn.Module = mamba_ssm.Mamba(width)
        return layer
    return Mamba(width)


def implementation() -> str:
    """What runs in `mamba`'s layer."""
    if official():
        return f"mamba_ssm {package_version('mamba-ssm')} Mamba"
    return f"glabench baselines.selective_scan, triton {package_version('triton')}, and plain PyTorch"


__all__ = ["Mamba", "convolved", "implementation", "mamba", "step_bias"]
