"""Language models that differ in the layer that mixes tokens, and in nothing else: blocks, embedding, head and loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel

from glabench.hardware.environment import package_version
from glabench.systems.gla import kernels_version

from . import fla, mamba, mamba2
from .attention import Attention, Rotary, backend
from .gla import EPS, GatedLinearAttention
from .linear_attention import LinearAttention
from .retnet import MultiScaleRetention

STD = 0.02  # of all weights at the start, but the norms'


@dataclass(frozen=True)
class Config:
    """Sizes of a model. hidden: the MLP's width, 8/3 of the model's, rounded up to a multiple of 256.

    gla_heads: of linear attention, too.
    """

    layers: int
    width: int
    hidden: int
    gla_heads: int
    retention_heads: int
    attention_heads: int
    vocabulary: int


CONFIGS = {
    "340m": Config(
        layers=24, width=1024, hidden=2816, gla_heads=4, retention_heads=4, attention_heads=16, vocabulary=32_000
    ),
    # 16 heads of 128 rather than 32 of 64: the GLA papers print neither, and FlashAttention-2 is faster with these.
    # RetNet prints 8 heads for 1.3B.
    "1.3b": Config(
        layers=24, width=2048, hidden=5632, gla_heads=4, retention_heads=8, attention_heads=16, vocabulary=32_000
    ),
    "tiny": Config(layers=2, width=64, hidden=128, gla_heads=2, retention_heads=2, attention_heads=2, vocabulary=64),
}


class SwiGLU(nn.Module):
    """The MLP of both papers' models: 3 width * hidden parameters."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> the same shape."""
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Block(nn.Module):
    """A layer that mixes tokens and an MLP, each after an RMS norm and beside a residual.

    mlp: SwiGLU, or for Mamba, whose models have no MLP, a second layer that mixes tokens.
    """

    def __init__(self, config: Config, mixer: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.mixer_norm = nn.RMSNorm(config.width, EPS)
        self.mixer = mixer
        self.mlp_norm = nn.RMSNorm(config.width, EPS)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> the same shape."""
        x = x + self.mixer(self.mixer_norm(x))
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class LanguageModel(nn.Module):
    """Tokens to logits. The head's weights are the embedding's: tied, as 340M and 1.3B parameters come out that way.

    Weights and activations share one dtype, ``.to(torch.bfloat16)`` for bf16; norms compute in float32 inside.
    system: a name of SYSTEMS. length: the most tokens of a sequence.

    Raises ValueError for a system that cannot run here.
    """

    def __init__(self, config: Config, system: str, length: int) -> None:
        super().__init__()
        if why := missing(system):
            raise ValueError(f"system: {system!r} cannot run here: {why}")
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(_blocks(config, SYSTEMS[system](config, length)))
        self.norm = nn.RMSNorm(config.width, EPS)
        self.apply(_initialize)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, vocabulary] of the token after each of ``tokens`` [B, T]."""
        return F.linear(self.hidden(tokens), self.embedding.weight)

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the head is given: [B, T, width]."""
        x = self.embedding(tokens)
        with sdpa_kernel(backend(tokens.device)):
            for block in self.blocks:
                x = block(x)
        normed: Tensor = self.norm(x)
        return normed

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy, in float32, of ``targets`` [B, T] after ``tokens`` [B, T]."""
        return F.cross_entropy(self(tokens).flatten(0, 1).float(), targets.flatten())

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def _initialize(module: nn.Module) -> None:
    bias = getattr(module, "bias", None)
    if getattr(bias, "_no_reinit", False):
        return  # Mamba's steps begin as its layer has them
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=STD)
    if isinstance(module, nn.Linear) and bias is not None:
        nn.init.zeros_(bias)


def _blocks(config: Config, layers: list[nn.Module]) -> list[Block]:
    """A block for each layer, with an MLP; of twice as many layers as the model has blocks, one for each two."""
    if len(layers) == config.layers:
        return [Block(config, layer, SwiGLU(config.width, config.hidden)) for layer in layers]
    return [Block(config, *pair) for pair in zip(layers[::2], layers[1::2], strict=True)]


def _gla(config: Config, length: int, recompute: bool | None = None) -> list[nn.Module]:
    return [GatedLinearAttention(config.width, config.gla_heads, recompute) for _ in range(config.layers)]


def _gla_recompute(config: Config, length: int) -> list[nn.Module]:
    return _gla(config, length, recompute=True)


def _fla(config: Config, length: int, accelerated: bool = False) -> list[nn.Module]:
    return [fla.FlaLayer(config.width, config.gla_heads, accelerated) for _ in range(config.layers)]


def _fla_accelerated(config: Config, length: int) -> list[nn.Module]:
    return _fla(config, length, accelerated=True)


def _retnet(config: Config, length: int) -> list[nn.Module]:
    rotary = Rotary(length, config.width // 2 // config.retention_heads)
    return [MultiScaleRetention(config.width, config.retention_heads, rotary) for _ in range(config.layers)]


def _linear(config: Config, length: int) -> list[nn.Module]:
    return [LinearAttention(config.width, config.gla_heads) for _ in range(config.layers)]


def _mamba(config: Config, length: int) -> list[nn.Module]:
    return [mamba.mamba(config.width) for _ in range(2 * config.layers)]


def _mamba2(config: Config, length: int) -> list[nn.Module]:
    return [mamba2.mamba2(config.width) for _ in range(2 * config.layers)]


def _attention(config: Config, length: int) -> list[nn.Module]:
    rotary = Rotary(length, config.width // config.attention_heads)
    return [Attention(config.width, config.attention_heads, rotary) for _ in range(config.layers)]


# (sizes, the most tokens) -> a layer for each block, or two.
SYSTEMS: dict[str, Callable[[Config, int], list[nn.Module]]] = {
    "gla": _gla,
    "gla-recompute": _gla_recompute,
    "fla": _fla,
    "fla-accelerated": _fla_accelerated,
    "retnet": _retnet,
    "linear": _linear,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "fa2": _attention,
}
ONE_GRAPH = ("gla", "gla-recompute", "retnet", "linear", "mamba2", "fa2")  # a block of these compiles whole


def missing(system: str) -> str | None:
    """Why a system of SYSTEMS cannot run on this machine, and how to get what it needs; or None."""
    return fla.missing() if system.startswith("fla") else None


def implementation(system: str, device: torch.device) -> str:
    """What really runs in a system's layers there, with its version."""
    if system.startswith("fla"):
        return fla.implementation(system == "fla-accelerated")
    if system in ("mamba", "mamba2"):
        return mamba.implementation() if system == "mamba" else mamba2.implementation()
    if system == "fa2":
        return f"torch {package_version('torch')} SDPA {backend(device).name}"
    return kernels_version()


__all__ = ["CONFIGS", "ONE_GRAPH", "SYSTEMS", "Config", "LanguageModel", "implementation", "missing"]
