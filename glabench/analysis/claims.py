"""What the two versions of the GLA paper claim of speed and memory, in the order of the page.

A claim is data: its words, where it stands, the numbers printed for it, and the judge that weighs rows. "Slightly",
"about" and "similar" have no number in the papers; the limits that stand for them here are named.
"""

from __future__ import annotations

from dataclasses import replace

from glabench.analysis.evidence import OURS, Place
from glabench.analysis.judges import AsLong, BestChunk, Compare, Growth, RunsOut
from glabench.analysis.judges_of_profiles import BoundBy, MoreFlops, Split
from glabench.analysis.papers import Claim, Value
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
SIGNIFICANT = 1.2  # "significant runtime improvements": from this factor on
UNACCEPTABLE = 2.0  # "unacceptably slow": from this factor on
AROUND_30 = (1.2, 1.4)  # "around 30 % more"
ROUNDED = 0.005  # what a share that is printed with two decimals may be more
W, WO = "gla:w", "gla:wo"
BOTH_SIDES = "1 + value side"  # the gates of a place
FIG_6 = "Figure 6"
BATCHED = "Only beside a PyTorch form whose time grows with the length, as chunks that are batched do."
OF_MODELS = "Of steps of training whole models: what an operator takes is a part of them."
AS_DRAWN = "As in the figure: GLA in 4 heads without gates on the value side, attention in 16 heads."


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
# 2024, Figure 6: one layer of the 1.3B model, width 2048 in 4 heads, 16384 tokens a batch; and steps of training it.
BIG_LAYER = {T: Place(_k(T), 16384 // T, T, 4, 256, 512) for T in (2048, 4096, 8192, 16384)}
TRAINING = tuple(replace(place, mode="train") for place in BIG_LAYER.values())
MODEL, RIVAL_MODELS = "gla_lm", ("transformer_lm", "mamba2_lm")
# Two levels of chunking against the one of its sub-chunks alone.
TWO_LEVELS = {(128, 64): (64, 64), (128, 16): (16, 16), (64, 16): (16, 16), (32, 16): (16, 16)}
# The same gates on the key side, with others on the value side and without them.
ONE_SIDE = (TABLE[0], TABLE[1], LAYER[2048], LAYER[8192])
LINEAR_RIVAL = AsLong(("chunkwise_torch",), UNGATED[LENGTHS[0]], UNGATED[LENGTHS[-1]])


def both_sides(places: tuple[Place, ...]) -> tuple[Place, ...]:
    """The same places with gates on the value side too."""
    return tuple(replace(place, gate=BOTH_SIDES) for place in places)


def _levels(schedule: tuple[int, int], at: str) -> Place:
    return replace(LAYER[2048], at=at, chunk=schedule[0], sub_chunk=schedule[1])


def _over(two: tuple[int, int], one: tuple[int, int]) -> str:
    return "C{}/{} over C{}/{}".format(*two, *one)


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
        reason=AS_DRAWN,
    ),
    Claim(
        "at-2k", f"At 2048 tokens GLA and FlashAttention-2 are about as fast (within {ABOUT}×)", V2023,
        "Figure 2, left",
        Compare((OURS,), ("fa2",), (LAYER[2048],), least=(1 / ABOUT,), most=(ABOUT,)),
        _over_fa2(2048),
        reason=AS_DRAWN,
    ),
    Claim(
        "subquadratic", "GLA's time grows no faster than the length, FlashAttention-2's does", V2023, "Figure 2, left",
        Growth((OURS,), LAYER[LENGTHS[0]], LAYER[LENGTHS[-1]], faster=("fa2",)),
        (_grown("GLA", GLA_MS), _grown("FlashAttention-2", FA2_MS)),
        reason="Each against itself, at the longest and the shortest length printed.",
    ),
    Claim(
        "chunk-split", "Larger chunks take less time between chunks and more inside them", V2023, "Figure 2, right",
        Split(),
        (_grown(f"between chunks, {CHUNKS[0]} to {CHUNKS[-1]}", INTER_MS), _grown("inside chunks", INTRA_MS)),
        "glabench profile profile",
        "From each chunk size to the next, which no end tells, and only where the parts come to what runs. The "
        "figure's legend has the curves the other way round.",
    ),
    Claim(
        "bound-by", "HBM I/O is the bottleneck between chunks, FLOPs inside them", V2023, "Speed analysis",
        BoundBy(LAYER_FORWARD),
        needs="glabench profile profile",
        reason="By what each of the two kernels needs longest: counts, at the ceilings of this GPU. The paper does not "
        "name its own, whose FLOPs and bandwidth may have another ratio.",
    ),
    Claim(
        "best-chunk", f"The best chunk size, forward, is {BEST_CHUNK}", V2023, "Speed analysis",
        BestChunk(W, LAYER_FORWARD, BEST_CHUNK),
        (Value("chunk size", BEST_CHUNK, ""),),
        reason="Each chunk size against the others, all tuned, or the one that has kernels of its own wins.",
    ),
    Claim(
        "value-gates", f"Without gates on the value side it is significantly faster (by {SIGNIFICANT}× or more)", V2023,
        "Section 3.3",
        Compare((OURS,), (OURS,), ONE_SIDE, least=(SIGNIFICANT,), than_places=both_sides(ONE_SIDE),
                tuned=True),
        reason="The same shapes and gates of the key side. Gates on both sides ride on the same kernels where Hopper "
        "has its own; else they have others, which nobody tunes.",
    ),
    Claim(
        "log-space", f"In log space, the parallel form is unacceptably slow (by {UNACCEPTABLE:g}× or more)", V2023,
        "Section 3.2",
        Compare((OURS,), ("parallel_triton",), (LAYER[2048],), least=(UNACCEPTABLE,)),
        reason="The paper's kernel used no tensor cores. This one does between blocks of rows, and is faster for it.",
    ),
    Claim(
        "over-recurrent", "GLA is as much faster than the recurrent form with states in HBM as printed, or more", V2023,
        "Table 3",
        Compare((OURS,), ("recurrent_hbm",), both_sides(TABLE), least=tuple(line.speed_up for line in TABLE_3),
                than_places=TABLE),
        tuple(Value(place.at, line.speed_up) for place, line in zip(TABLE, TABLE_3, strict=True)),
        reason="GLA with gates on both sides, as in the table. The recurrent form here has those of the key side "
        "alone, which is less work.",
    ),
    Claim(
        "over-recurrent-memory", "GLA needs the printed share of that form's memory, or less", V2023, "Table 3",
        Compare((OURS,), ("recurrent_hbm",), both_sides(TABLE), "peak_mib", (0.0,),
                tuple(line.memory + ROUNDED for line in TABLE_3), TABLE),
        tuple(Value(place.at, line.memory) for place, line in zip(TABLE, TABLE_3, strict=True)),
        reason="GLA with gates on both sides, as in the table; shares as they are rounded there.",
    ),
    Claim(
        "recurrent-oom", f"At {OUT_OF_MEMORY.at}, the recurrent form runs out of memory", V2023, "Table 3",
        RunsOut("recurrent_hbm", OUT_OF_MEMORY),
        reason="The paper's is of CUDA, on a GPU of at most 80 GB.",
    ),
    Claim(
        "short", "With materialized states and without, it is faster than FlashAttention-2, even at 1024 tokens",
        V2024, "Section 1 and Figure 2",
        Compare((W, WO), ("fa2",), tuple(UNGATED.values()), wall=True),
        reason="Without gates, 16 heads of 64, as in the figure; kernels, and calls as a model makes them.",
    ),
    Claim(
        "io-aware", "With them and without, it is faster than chunkwise linear attention in plain PyTorch", V2024,
        "Figure 2",
        Compare((W, WO), ("chunkwise_torch",), tuple(UNGATED.values()), fair=LINEAR_RIVAL),
        reason=BATCHED,
    ),
    Claim(
        "not-io-aware", "Chunkwise forms that ignore I/O are slower than FlashAttention at 2K to 4K tokens", V2024,
        "Section 3.2",
        Compare(("fa2",), ("chunkwise_torch",), (UNGATED[2048], UNGATED[4096]), fair=LINEAR_RIVAL),
        reason=BATCHED,
    ),
    Claim(
        "materialized-faster", "Without materialized states it is slower than with them", V2024, "Section 3.3",
        Compare((W,), (WO,), tuple(UNGATED.values()), wall=True, tuned=True),
        reason="The same chunks and no gates, both tuned; kernels, and calls as a model makes them.",
    ),
    Claim(
        "more-flops", "Without them, computing states again takes around 30 % more FLOPs", V2024, "Section 3.3",
        MoreFlops(replace(UNGATED[2048], chunk=64), *AROUND_30),
        (Value("FLOPs", 1.3),),
        "glabench profile profile",
        "Matrix products of both directions as our kernels make them, counted: ours compute states again, and no "
        "gradient twice.",
    ),
    Claim(
        "leanest", "Without materialized states it needs the least memory", V2024, "Figure 2",
        Compare((WO,), (W, "fa2", "chunkwise_torch"), tuple(UNGATED.values()), "peak_mib", (0.0,), (1.0,)),
        reason="Peak memory of a forward and a backward pass with its inputs, beside each curve of the figure.",
    ),
    Claim(
        "slightly-more", f"With materialized states it needs slightly more than FlashAttention-2 (up to {ABOUT}×)",
        V2024, "Figure 2",
        Compare((W,), ("fa2",), tuple(UNGATED.values()), "peak_mib", (1.0,), (ABOUT,)),
        reason="Peak memory with its inputs; within 1 % of each other they need the same.",
    ),
    Claim(
        "linear-memory", "Memory grows no faster than the length, of every form", V2024, "Figure 2",
        Growth((W, WO, "fa2", "chunkwise_torch"), UNGATED[LENGTHS[0]], UNGATED[LENGTHS[-1]], "peak_mib"),
        reason="Each curve of the figure against itself, at its longest and its shortest length.",
    ),
    Claim(
        "scan", "A parallel scan over time, which cannot use tensor cores, is slower than the chunkwise form", V2024,
        "Section 3.2",
        Compare((OURS,), ("scan",), (TABLE[0],)),
        reason="The scan is Triton too, and nobody tunes it: beside it belongs a schedule of ours that is not tuned.",
    ),
    Claim(
        "two-levels", "A second level of chunking makes it faster", V2024, "Section 4.3",
        Compare((OURS,), (OURS,), tuple(_levels(two, _over(two, one)) for two, one in TWO_LEVELS.items()),
                than_places=tuple(_levels(one, _over(two, one)) for two, one in TWO_LEVELS.items()), tuned=True),
        reason="Each schedule of two levels beside the one level that its sub-chunks are, all tuned. C16/16 is the "
        "direct form of Algorithms 3 and 4, whose scores are one product; the system chunkwise_direct computes them "
        "element by element, and so is none.",
    ),
    Claim(
        "over-lightning", "With materialized states it has a higher throughput than LightningAttention-2", V2024,
        "Section 6",
        Compare((W,), ("lightning2",), tuple(UNGATED.values())),
        reason="Linear attention without a gate, as both have it; the rival is written here in Triton and nobody "
        "tunes it, so that it may be faster still.",
    ),
    Claim(
        "over-lightning-memory", f"At slightly more memory than that (up to {ABOUT}×)", V2024, "Section 6",
        Compare((W,), ("lightning2",), tuple(UNGATED.values()), "peak_mib", (1.0,), (ABOUT,)),
        reason="Peak memory of both with their inputs.",
    ),
    Claim(
        "throughput", "With materialized states it has the highest throughput", V2024, FIG_6,
        Compare((f"{MODEL}:w",), (f"{MODEL}:wo", *RIVAL_MODELS), TRAINING),
        needs="glabench sweep training",
        reason=OF_MODELS,
    ),
    Claim(
        "throughput-without", "Without them its throughput is still higher than Mamba's and the Transformer's", V2024,
        FIG_6,
        Compare((f"{MODEL}:wo",), RIVAL_MODELS, TRAINING),
        needs="glabench sweep training",
        reason=OF_MODELS,
    ),
    Claim(
        "similar-memory", f"Without them it needs about as much memory as Mamba and the Transformer (up to {ABOUT}×)",
        V2024, FIG_6,
        Compare((f"{MODEL}:wo",), RIVAL_MODELS, TRAINING, "peak_mib", (1 / ABOUT,), (ABOUT,)),
        needs="glabench sweep training",
        reason="Of steps of training whole models, as in the figure.",
    ),
)  # fmt: skip
