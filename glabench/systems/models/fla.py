"""Flash-linear-attention's own GLA layer, with its operator or with this package's."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from torch import Tensor, nn

from glabench.hardware.environment import package_version

from .gla import EPS

INSTALL = "pip install flash-linear-attention"


def missing() -> str | None:
    """Why FLA's layer cannot be made here and how to get it, or None."""
    try:
        import fla.layers  # noqa: F401
    except ImportError as error:
        return f"flash-linear-attention with its layers cannot be imported ({error}): {INSTALL}"
    return None


class FlaLayer(nn.Module):
    """``fla.layers.GatedLinearAttention`` of ``heads`` heads, as FLA's models have it: d_k = width / 2, d_v = width.

    accelerated: with what `gla_kernels.fla.accelerate` puts in the place of FLA's functions, in this layer alone, so
    that one process may have models of both.
    """

    def __init__(self, width: int, heads: int, accelerated: bool) -> None:
        super().__init__()
        from fla.layers import GatedLinearAttention

        self.layer = GatedLinearAttention(hidden_size=width, expand_k=0.5, expand_v=1.0, num_heads=heads, norm_eps=EPS)
        self.call = _accelerated(self.layer.forward.__func__) if accelerated else type(self.layer).forward

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> the same shape."""
        y: Tensor = self.call(self.layer, x)[0]
        return y


def _accelerated(forward: Any) -> FunctionType:
    """The function with the names that its module has while FLA is accelerated."""
    from gla_kernels.fla import accelerate

    with accelerate():
        names = dict(forward.__globals__)
    again = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    again.__kwdefaults__ = forward.__kwdefaults__
    return again


def implementation(accelerated: bool) -> str:
    """What runs: "flash-linear-attention 0.6.0 GatedLinearAttention", and with which operator."""
    theirs = f"flash-linear-attention {package_version('flash-linear-attention')} GatedLinearAttention"
    return f"{theirs}, accelerated by gla_kernels" if accelerated else theirs


__all__ = ["FlaLayer", "implementation", "missing"]
