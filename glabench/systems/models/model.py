"""Language models that differ in the layer that mixes tokens, and in nothing else: blocks, embedding, head and loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel
from torch.utils.checkpoint import checkpoint

from glabench.hardware.environment import package_version
from glabench.spec.models import CONFIGS, Config
from glabench.systems.gla import kernels_version

from . import fla, mamba, mamba2
from .attention import Attention, Rotary, backend
from .gla import EPS, GatedLinearAttention, by_gla, recomputed
from .linear_attention import LinearAttention
from .operators import Form, Mixer, Operator, Packed, operator_of
from .retnet import MultiScaleRetention

STD = 0.02  # of all weights at the start, but the norms'
NO_TARGET = -100  # of the last token of a document, after which nothing is to be predicted: cross entropy leaves it out


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

    def forward(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        """x [B, T, width] -> the same shape. packed: for layers that take it, those of PACKING."""
        normed = self.mixer_norm(x)
        x = x + (self.mixer(normed) if packed is None else self.mixer(normed, packed))
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y

    def continued(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """`forward` after tokens that left this state, and the state after x. For layers of CARRYING."""
        mixer: Any = self.mixer
        mixed, after = mixer.continued(self.mixer_norm(x), state)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), after


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
        self.system = system
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(_blocks(config, SYSTEMS[system](config, length)))
        self.norm = nn.RMSNorm(config.width, EPS)
        self.keeps_activations = True  # or computes each block's again in the backward pass
        self.criterion: Callable[[Tensor, Tensor], Tensor] = cross_entropy
        self.apply(_initialize)

    @property
    def mixers(self) -> list[Mixer]:
        """The layers that mix tokens. TypeError where their operator cannot be another."""
        found: list[Mixer] = [module for module in self.modules() if isinstance(module, Mixer)]
        if not found:
            raise TypeError(f"{type(self.blocks[0].mixer).__name__} has no operator of its own")
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

    def forward(self, tokens: Tensor, packed: Packed | None = None) -> Tensor:
        """Logits [B, T, vocabulary] of the token after each of ``tokens`` [B, T].

        packed: where documents begin and end that lie in the one row of ``tokens``; no layer sees across. Raises
        ValueError for layers that cannot tell documents apart.
        """
        return F.linear(self.hidden(tokens, packed), self.embedding.weight)

    def continued(self, tokens: Tensor, states: Sequence[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Logits [B, T, vocabulary] after ``tokens`` [B, T] that follow on others, and each block's state after them.

        states: of the tokens before, as a call returned them, [B, H, K, V] in float32; None for none. Gradients go
        through them; detach them for truncated backpropagation. Raises ValueError for layers that carry none.
        """
        if self.system not in CARRYING:
            raise ValueError(f"states: expected a system of {', '.join(CARRYING)}, got {self.system!r}")
        x, after = self.embedding(tokens), list[Tensor]()
        blocks: Any = self.blocks
        before: Sequence[Tensor | None] = [None] * len(blocks) if states is None else states
        for block, state in zip(blocks, before, strict=True):
            x, last = block.continued(x, state)
            after.append(last)
        return F.linear(self.norm(x), self.embedding.weight), after

    def hidden(self, tokens: Tensor, packed: Packed | None = None) -> Tensor:
        """What the head is given: [B, T, width]."""
        if packed is not None and self.system not in PACKING:
            raise ValueError(f"packed: expected None for {self.system!r}, whose layers take no bounds of documents")
        x = self.embedding(tokens)
        with sdpa_kernel(backend(tokens.device)):
            for block in self.blocks:
                x = block(x, packed) if self.keeps_activations else checkpoint(block, x, packed, use_reentrant=False)
        normed: Tensor = self.norm(x)
        return normed

    def loss(self, tokens: Tensor, targets: Tensor, packed: Packed | None = None) -> Tensor:
        """Mean cross entropy, in float32, of ``targets`` [B, T] after ``tokens`` [B, T], of those that are not
        NO_TARGET."""
        return self.criterion(self(tokens, packed), targets)

    def compile_parts(self, in_one_graph: bool = True, segments: bool = False, **options: Any) -> None:
        """From now on each block is compiled, and so is the loss of the logits, as training frameworks do it: what is
        between them stays PyTorch's. in_one_graph: whether a block that does not compile whole is an error. segments:
        blocks are those of `continued`. options: of ``torch.compile``."""
        blocks: Any = self.blocks
        for block in blocks:
            if segments:
                block.continued = torch.compile(block.continued, fullgraph=in_one_graph, **options)
            else:
                block.compile(fullgraph=in_one_graph, **options)
        self.criterion = torch.compile(cross_entropy, fullgraph=True, **options)

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean, in float32, of that of ``targets`` [B, T] by logits [B, T, vocabulary], of those that are not
    NO_TARGET."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=NO_TARGET)


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


def _gla(config: Config, length: int, operator: Operator = by_gla) -> list[nn.Module]:
    return [GatedLinearAttention(config.width, config.gla_heads, operator) for _ in range(config.layers)]


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
    "gla-recompute": partial(_gla, operator=recomputed),
    "fla": _fla,
    "fla-accelerated": _fla_accelerated,
    "retnet": _retnet,
    "linear": _linear,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "fa2": _attention,
}
# a block of these compiles whole, but of Mamba-2 where the layer is mamba_ssm's
ONE_GRAPH = ("gla", "gla-recompute", "retnet", "linear", "mamba2", "fa2")
CARRYING = ("gla",)  # layers whose state goes on from one call to the next
PACKING = ("gla", "gla-recompute", "retnet", "linear", "fa2")  # layers that tell packed documents apart


def in_one_graph(system: str) -> bool:
    """Whether ``torch.compile`` takes a block of the system whole on this machine."""
    return system in ONE_GRAPH and not (system == "mamba2" and mamba2.official())


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


__all__ = [
    "CARRYING", "CONFIGS", "NO_TARGET", "ONE_GRAPH", "PACKING", "SYSTEMS", "Config", "LanguageModel", "implementation",
    "in_one_graph", "missing",
]  # fmt: skip
