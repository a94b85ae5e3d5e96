"""Language models that differ in the layer that mixes tokens, and in nothing else: blocks, embedding, head and loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel

from .attention import Attention, Rotary, backend
from .gla import EPS, GatedLinearAttention

STD = 0.02  # of all weights at the start, but the norms'


@dataclass(frozen=True)
class Config:
    """Sizes of a model. hidden: the MLP's width, 8/3 of the model's, rounded up to a multiple of 256."""

    layers: int
    width: int
    hidden: int
    gla_heads: int
    attention_heads: int
    vocabulary: int


CONFIGS = {
    "340m": Config(layers=24, width=1024, hidden=2816, gla_heads=4, attention_heads=16, vocabulary=32_000),
    # 16 heads of 128 rather than 32 of 64: the papers print neither, and FlashAttention-2 is faster with these.
    "1.3b": Config(layers=24, width=2048, hidden=5632, gla_heads=4, attention_heads=16, vocabulary=32_000),
    "tiny": Config(layers=2, width=64, hidden=128, gla_heads=2, attention_heads=2, vocabulary=64),
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
    """A layer that mixes tokens and an MLP, each after an RMS norm and beside a residual."""

    def __init__(self, config: Config, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer_norm = nn.RMSNorm(config.width, EPS)
        self.mixer = mixer
        self.mlp_norm = nn.RMSNorm(config.width, EPS)
        self.mlp = SwiGLU(config.width, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> the same shape."""
        x = x + self.mixer(self.mixer_norm(x))
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class LanguageModel(nn.Module):
    """Tokens to logits. The head's weights are the embedding's: tied, as 340M and 1.3B parameters come out that way.

    Weights and activations share one dtype, ``.to(torch.bfloat16)`` for bf16; norms compute in float32 inside.
    system: a name of SYSTEMS. length: the most tokens of a sequence.
    """

    def __init__(self, config: Config, system: str, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config, mixer) for mixer in SYSTEMS[system](config, length))
        self.norm = nn.RMSNorm(config.width, EPS)
        self.apply(_initialize)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, vocabulary] of the token after each of ``tokens`` [B, T]."""
        x = self.embedding(tokens)
        with sdpa_kernel(backend(tokens.device)):
            for block in self.blocks:
                x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy, in float32, of ``targets`` [B, T] after ``tokens`` [B, T]."""
        return F.cross_entropy(self(tokens).flatten(0, 1).float(), targets.flatten())

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _gla(config: Config, length: int, recompute: bool | None = None) -> list[nn.Module]:
    return [GatedLinearAttention(config.width, config.gla_heads, recompute) for _ in range(config.layers)]


def _gla_recompute(config: Config, length: int) -> list[nn.Module]:
    return _gla(config, length, recompute=True)


def _attention(config: Config, length: int) -> list[nn.Module]:
    rotary = Rotary(length, config.width // config.attention_heads)
    return [Attention(config.width, config.attention_heads, rotary) for _ in range(config.layers)]


# (sizes, the most tokens) -> a layer for each block.
SYSTEMS: dict[str, Callable[[Config, int], list[nn.Module]]] = {
    "gla": _gla,
    "gla-recompute": _gla_recompute,
    "fa2": _attention,
}

__all__ = ["CONFIGS", "SYSTEMS", "Config", "LanguageModel"]
