"""Sizes of the language models that mode "train" puts around an operator. No torch: a case's heads follow from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Sizes of a model. hidden: the MLP's width, 8/3 of the model's, rounded up to a multiple of 256. gla_heads: of
    linear attention, too."""

    layers: int
    width: int
    hidden: int
    gla_heads: int
    retention_heads: int
    attention_heads: int
    vocabulary: int

    @property
    def heads(self) -> tuple[int, int, int]:
        """(H, K, V) of gated linear attention by section 4.4 of the 2024 paper: d_k = width / 2, d_v = width."""
        return self.gla_heads, self.width // 2 // self.gla_heads, self.width // self.gla_heads


CONFIGS: dict[str, Config] = {
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
