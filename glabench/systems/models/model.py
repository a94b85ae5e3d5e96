"""Language models that differ in the layer that mixes tokens, and in nothing else: blocks, embedding, head and loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel
from torch.utils.checkpoint import checkpoint

from glabench.spec.models import CONFIGS, Config

from .attention import Attention, Rotary, backend
from .gla import EPS, GatedLinearAttention, by_gla, recomputed
from .operators import Form, Mixer, Operator, operator_of

STD = 0.02  # of all weights at the start, but the norms'


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
        self.keeps_activations = True  # or computes each block's again in the backward pass
        self.apply(_initialize)

    @property
    def mixers(self) -> list[Mixer]:
        """The layers that mix tokens. TypeError for one whose operator cannot be another."""
        found: list[Mixer] = []
        for block in self.blocks:
            if not isinstance(block.mixer, Mixer):
                raise TypeError(f"{type(block.mixer).__name__} has no operator of its own")
            found.append(block.mixer)
        return found

    def attend_to_themselves(self) -> None:
        """Make every token's key its query, where a layer normalizes what it reads with it.

        With random weights the first tokens of a sequence read next to nothing, and their norm divides by it: what
        comes back is so large, and so much of it rounding, that nothing else is seen in a gradient.
        """
        for mixer in self.mixers:
            if hasattr(mixer, "attend_to_itself"):
                mixer.attend_to_itself()

    def judged_by(self, form: Form) -> None:
        """From now on each layer runs this form of the operator that it has now; all but its own take so much memory
        that blocks are computed again in the backward pass. A model that has been so is not its own again."""
        for mixer in self.mixers:
            mixer.operator = operator_of(mixer, form, mixer.operator)
        self.keeps_activations = form == "own"

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, vocabulary] of the token after each of ``tokens`` [B, T]."""
        x = self.embedding(tokens)
        with sdpa_kernel(backend(tokens.device)):
            for block in self.blocks:
                x = block(x) if self.keeps_activations else checkpoint(block, x, use_reentrant=False)
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


def _gla(config: Config, length: int, operator: Operator = by_gla) -> list[nn.Module]:
    return [GatedLinearAttention(config.width, config.gla_heads, operator) for _ in range(config.layers)]


def _attention(config: Config, length: int) -> list[nn.Module]:
    rotary = Rotary(length, config.width // config.attention_heads)
    return [Attention(config.width, config.attention_heads, rotary) for _ in range(config.layers)]


# (sizes, the most tokens) -> a layer for each block.
SYSTEMS: dict[str, Callable[[Config, int], list[nn.Module]]] = {
    "gla": _gla,
    "gla-recompute": partial(_gla, operator=recomputed),
    "fa2": _attention,
}

__all__ = ["CONFIGS", "SYSTEMS", "Config", "LanguageModel"]
