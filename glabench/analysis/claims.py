"""What the two versions of the GLA paper claim of speed and memory, in the order of the page.

A claim is data: its words, where it stands, the numbers printed for it, and the judge that weighs rows. "Slightly",
"about" and "similar" have no number in the papers; the limits that stand for them here are named.
"""

from __future__ import annotations

from glabench.analysis.evidence import OURS, Place
from glabench.analysis.papers import BestChunk, Claim, Compare, Growth, RunsOut, Split, Value
from glabench.analysis.printed import (
    BEST_CHUNK,
    CHUNKS,
    FA2_MS,
    GLA_MS,
    INTER_MS,
    INTRA_MS,
    LENGTHS,
    TABLE_3,
    TABLE_3_OUT_OF_MEMORY,
    V2023,
    V2024,
)

ABOUT = 1.5  # "comparably" and "slightly larger": up to this factor
W, WO = "gla:w", "gla:wo"


def _k(tokens: int) -> str:
    return f"T {tokens // 1024}k"


# Width 1024 and batch 32 as 4 heads of 128 x 256, the papers' layer; attention in 16 heads of 64.
LAYER = {T: Place(_k(T), 32, T, 4, 128, 256) for T in LENGTHS}
LAYER_FORWARD = Place("T 2k", 32, 2048, 4, 128, 256, mode="fwd")


def _table(T: int, head_dim: int) -> Place:
    return Place(f"{_k(T)}, heads of {head_dim}", 32, T, 1024 // head_dim, head_dim, head_dim)


# Table 3 of 2023: the same width in heads of one dimension.
TABLE = tuple(_table(line.T, line.head_dim) for line in TABLE_3)
OUT_OF_MEMORY = _table(*TABLE_3_OUT_OF_MEMORY)
# Figure 2 of 2024: linear attention without gates.
UNGATED = {T: Place(_k(T), 32, T, 16, 64, 64, gate="none") for T in LENGTHS}
# One layer of the 1.3B model of the 2024 version's Figure 6: width 2048 in 4 heads, 16384 tokens a batch.
BIG_LAYER = {T: Place(_k(T), 16384 // T, T, 4, 256, 512) for T in (2048, 4096, 8192, 16384)}
FIG_6 = "Figure 6, of one layer here"


def _over_fa2(*lengths: int) -> tuple[Value, ...]:
    return tuple(Value(_k(T), FA2_MS[T] / GLA_MS[T]) for T in lengths)


def _grown(title: str, ms: dict[int, float]) -> Value:
    """The last of a printed series over its first."""
    return Value(title, ms[max(ms)] / ms[min(ms)])


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "beyond-4k", "GLA is faster than FlashAttention-2 from 4096 tokens on", V2023, "Figure 2, left",
        Compare((OURS,), ("fa2",), (LAYER[4096], LAYER[8192])),
        _over_fa2(4096, 8192),
    ),
    Claim(
        "at-2k", f"At 2048 tokens GLA and FlashAttention-2 are about as fast (within {ABOUT}×)", V2023,
        "Figure 2, left",
        Compare((OURS,), ("fa2",), (LAYER[2048],), least=(1 / ABOUT,), most=(ABOUT,)),
        _over_fa2(2048),
    ),
    Claim(
        "subquadratic", "GLA's time grows no faster than the length, FlashAttention-2's does", V2023, "Figure 2, left",
        Growth((OURS,), LAYER[LENGTHS[0]], LAYER[LENGTHS[-1]], faster=("fa2",)),
        (_grown("GLA", GLA_MS), _grown("FlashAttention-2", FA2_MS)),
    ),
    Claim(
        "chunk-split", "Larger chunks take less time between chunks and more inside them", V2023, "Figure 2, right",
        Split(),
        (_grown(f"between chunks, {CHUNKS[0]} to {CHUNKS[-1]}", INTER_MS), _grown("inside chunks", INTRA_MS)),
        "glabench profile profile",
    ),
    Claim(
        "best-chunk", f"The best chunk size, forward, is {BEST_CHUNK}", V2023, "Speed analysis",
        BestChunk(W, LAYER_FORWARD, BEST_CHUNK),
        (Value("chunk size", BEST_CHUNK, ""),),
    ),
    Claim(
        "over-recurrent", "GLA is as much faster than the recurrent form with states in HBM as printed, or more", V2023,
        "Table 3",
        Compare((OURS,), ("recurrent_hbm",), TABLE, least=tuple(line.speed_up for line in TABLE_3)),
        tuple(Value(place.at, line.speed_up) for place, line in zip(TABLE, TABLE_3, strict=True)),
    ),
    Claim(
        "over-recurrent-memory", "GLA needs the printed share of that form's memory, or less", V2023, "Table 3",
        Compare((OURS,), ("recurrent_hbm",), TABLE, "peak_mib", (0.0,), tuple(line.memory for line in TABLE_3)),
        tuple(Value(place.at, line.memory) for place, line in zip(TABLE, TABLE_3, strict=True)),
    ),
    Claim(
        "recurrent-oom", f"At {OUT_OF_MEMORY.at}, the recurrent form runs out of memory", V2023, "Table 3",
        RunsOut("recurrent_hbm", OUT_OF_MEMORY),
    ),
    Claim(
        "short", "With materialized states and without, it is faster than FlashAttention-2, even at 1024 tokens",
        V2024, "Section 1 and Figure 2",
        Compare((W, WO), ("fa2",), tuple(UNGATED.values())),
    ),
    Claim(
        "io-aware", "With them and without, it is faster than chunkwise linear attention in plain PyTorch", V2024,
        "Figure 2",
        Compare((W, WO), ("chunkwise_torch",), tuple(UNGATED.values())),
    ),
    Claim(
        "not-io-aware", "Chunkwise forms that ignore I/O are slower than FlashAttention at 2K to 4K tokens", V2024,
        "Section 3.2",
        Compare(("fa2",), ("chunkwise_torch",), (UNGATED[2048], UNGATED[4096])),
    ),
    Claim(
        "materialized-faster", "Without materialized states it is slower than with them", V2024, "Section 3.3",
        Compare((W,), (WO,), tuple(UNGATED.values())),
    ),
    Claim(
        "leanest", "Without materialized states it needs the least memory", V2024, "Figure 2",
        Compare((WO,), (W, "fa2", "chunkwise_torch"), tuple(UNGATED.values()), "peak_mib", (0.0,), (1.0,)),
    ),
    Claim(
        "slightly-more", f"With materialized states it needs slightly more than FlashAttention-2 (up to {ABOUT}×)",
        V2024, "Figure 2",
        Compare((W,), ("fa2",), tuple(UNGATED.values()), "peak_mib", (1.0,), (ABOUT,)),
    ),
    Claim(
        "linear-memory", "Memory grows no faster than the length, FlashAttention-2's too", V2024, "Figure 2",
        Growth((W, WO, "fa2"), UNGATED[LENGTHS[0]], UNGATED[LENGTHS[-1]], "peak_mib"),
    ),
    Claim(
        "scan", "A parallel scan over time, which cannot use tensor cores, is slower than the chunkwise form", V2024,
        "Section 3.2",
        Compare((OURS,), ("scan",), (TABLE[0],)),
    ),
    Claim(
        "two-levels", "A second level of chunking makes it faster", V2024, "Section 4.3",
        Compare((OURS,), ("chunkwise_direct",), (LAYER[2048],)),
    ),
    Claim(
        "throughput", "With materialized states it has the highest throughput", V2024, FIG_6,
        Compare((W,), (WO, "fa2", "mamba_scan"), tuple(BIG_LAYER.values())),
    ),
    Claim(
        "throughput-without", "Without them its throughput is still higher than Mamba's and the Transformer's", V2024,
        FIG_6,
        Compare((WO,), ("fa2", "mamba_scan"), tuple(BIG_LAYER.values())),
    ),
    Claim(
        "similar-memory", "Without them it needs about as much memory as Mamba and the Transformer", V2024, FIG_6,
        Compare((WO,), ("fa2", "mamba_scan"), tuple(BIG_LAYER.values()), "peak_mib",
                apart="the paper's memory is of a whole model in training"),
    ),
)  # fmt: skip
