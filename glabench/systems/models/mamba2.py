"""The layer of Mamba-2: state space duality, SSD (Dao and Gu 2024, arXiv 2405.21060, section 7)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from glabench.hardware.environment import package_version
from glabench.systems import mamba2_ssd, mamba_scan
from glabench.systems.base import installed

from .gla import EPS
from .mamba import EXPAND, TAPS, convolved, step_bias
from .operators import Operator

STATE = 128  # of a head; B and C are of this size and all heads share them
HEAD = 64  # channels of a head
RATES = (1.0, 16.0)  # decays a step at the start are between these
CHUNK = 64


def ssd(x: Tensor, steps: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """y [B, T, H, P] of x [B, T, H, P], steps [B, T, H], a [H] < 0, b and c [B, T, N], by chunks in plain PyTorch:

        h_t = e^{steps_t a} h_{t-1} + steps_t b_t^T x_t          y_t = c_t h_t

    Decays are in float32, products in x's dtype. All chunks are computed at once (listing 1 of the paper).
    """
    # a step of 0 takes no decay and brings nothing: chunks are whole
    us, bs, cs = (_in_chunks(y) for y in (x * steps[..., None].to(x.dtype), b, c))  # [B, chunks, CHUNK, ...]
    wide = torch.promote_types(steps.dtype, torch.float32)
    logs = _in_chunks(steps.to(wide) * a).permute(0, 3, 1, 2)  # [B, H, chunks, CHUNK]
    scores = _decays(logs).to(x.dtype) * (cs @ bs.mT)[:, None]
    inside = torch.einsum("ghcij,gcjhp->gcihp", scores, us)
    # each chunk's own state at its end, then that of all chunks so far, then what its tokens see of the one before
    to_end = F.pad(logs[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
    own = torch.einsum("gcjn,gcjhp->gchnp", bs, us * _factors(to_end, x))
    states = torch.einsum("ghcd,gdhnp->gchnp", _decays(logs.sum(-1)).to(x.dtype), own)
    before = F.pad(states[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))
    y = inside + torch.einsum("gcin,gchnp->gcihp", cs, before) * _factors(logs.cumsum(-1), x)
    return y.flatten(1, 2)[:, : x.shape[1]]


def _decays(logs: Tensor) -> Tensor:
    """[..., i, j] of logs [..., n]: e to their sum after j up to i, 0 for later j. Sums only: differences of sums lose
    what little lies between close tokens."""
    count = logs.shape[-1]
    return logs[..., None].expand(*logs.shape, count).tril(-1).cumsum(-2).exp().tril()


def _factors(logs: Tensor, x: Tensor) -> Tensor:
    """e to logs [B, H, chunks, CHUNK], as factors of x [B, chunks, CHUNK, H, P]."""
    return logs.exp().permute(0, 2, 3, 1)[..., None].to(x.dtype)


def _in_chunks(x: Tensor) -> Tensor:
    """x [B, T, ...] -> [B, chunks, CHUNK, ...], with zeros behind T."""
    padding = -x.shape[1] % CHUNK
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, padding)).unflatten(1, (-1, CHUNK))


class Mamba2(nn.Module):
    """Mamba-2's layer, 6 width² parameters and few more, in plain PyTorch.

    The projection into the layer is all that is kept for the backward pass, which computes the rest again: mamba_ssm's
    own layer keeps as little.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = EXPAND * width
        heads, mixed = inner // HEAD, inner + 2 * STATE
        self.in_proj = nn.Linear(width, inner + mixed + heads, bias=False)
        self.conv1d = nn.Conv1d(mixed, mixed, TAPS, groups=mixed, padding=TAPS - 1)
        self.dt_bias = step_bias(heads)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(*RATES).log())
        self.D = nn.Parameter(torch.ones(heads))
        self.operator: Operator = ssd
        self.norm = nn.RMSNorm(inner, EPS)
        self.out_proj = nn.Linear(inner, width, bias=False)

    plain = staticmethod(ssd)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> the same shape."""
        return by_operator(self, x, self.operator)


def by_operator(layer: Any, x: Tensor, operator: Operator) -> Tensor:
    """What a layer with `Mamba2`'s parameters makes of x [B, T, width] in plain PyTorch, ``operator`` apart."""
    mixed = checkpoint(_mixed, layer, layer.in_proj(x), operator, use_reentrant=False, preserve_rng_state=False)
    y: Tensor = layer.out_proj(mixed)
    return y


def _mixed(layer: Any, projected: Tensor, operator: Operator) -> Tensor:
    """[B, T, inner + mixed + heads] -> [B, T, inner]."""
    inner, mixed, heads = layer.out_proj.in_features, layer.conv1d.in_channels, len(layer.dt_bias)
    z, xbc, steps = projected.split((inner, mixed, heads), -1)
    x, b, c = convolved(xbc, layer.conv1d).split((inner, STATE, STATE), -1)
    x = x.unflatten(-1, (-1, HEAD))
    steps = F.softplus(steps.float() + layer.dt_bias.float())
    y = operator(x, steps, -layer.A_log.float().exp(), b, c) + layer.D[:, None] * x
    return F.rms_norm(y.flatten(2) * F.silu(z), (inner,), layer.norm.weight, EPS)


def by_package(*inputs: Tensor) -> Tensor:
    """The operator of `Packaged` that is its own: mamba_ssm has none without the layer around it."""
    raise TypeError("mamba_ssm's SSD is called by its layer")


class Packaged(nn.Module):
    """mamba_ssm's own layer. Where its operator is to be another, `Mamba2` on the same parameters: a step is judged so.

    ``torch.compile`` leaves it alone.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        import mamba_ssm

        self.layer: nn.Module = mamba_ssm.Mamba2(width)
        self.operator: Operator = by_package

    plain = staticmethod(ssd)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> the same shape."""
        if self.operator is not by_package:
            return by_operator(self.layer, x, self.operator)
        y: Tensor = self.layer(x)
        return y


def official() -> bool:
    """Whether mamba_ssm's own layer is what runs, which needs its extension and causal_conv1d."""
    return mamba2_ssd.official() and mamba_scan.official() and installed("causal_conv1d")


def mamba2(width: int) -> nn.Module:
    """`Packaged` where mamba_ssm and causal_conv1d are installed and there is a GPU, else `Mamba2`."""
    return Packaged(width) if official() else Mamba2(width)


def implementation() -> str:
    """What runs in `mamba2`'s layer."""
    if official():
        return f"mamba_ssm {package_version('mamba-ssm')} Mamba2"
    return f"torch {package_version('torch')}, plain: SSD by chunks of {CHUNK}"


__all__ = ["Mamba2", "Packaged", "implementation", "mamba2", "official", "ssd"]
