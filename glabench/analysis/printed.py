"""What the two versions of the GLA paper print of speed and memory, as data, each with where it stands.

Both are arXiv:2312.06635: version 3, of 24 December 2023, and the one of 2024. Only numbers that are printed are here:
the 2024 version's Figures 2 and 6 are drawn curves without values. The 2023 version does not say which GPU its times
are of.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A version of the paper, and what it was measured on."""

    short: str
    title: str
    gpu: str


V2023 = Paper("2023", "Yang et al. 2023, arXiv:2312.06635v3 of 24 December 2023", "GPU not named")
V2024 = Paper("2024", "Yang et al. 2024, the 2024 version of arXiv:2312.06635", "one H100")

# 2023, Figure 2, left: milliseconds of forward and backward by sequence length, batch 32, width 1024, bf16.
# FlashAttention-2 with 16 heads, GLA with 4.
LENGTHS = (1024, 2048, 4096, 8192)
FA2_MS = dict(zip(LENGTHS, (27.1, 82.9, 281.7, 1037.1), strict=True))
GLA_MS = dict(zip(LENGTHS, (51.2, 108.7, 210.3, 415.8), strict=True))

# 2023, Figure 2, right: milliseconds of the forward pass by chunk size. The text of the figure has the values that grow
# first and its legend "Inter-chunk" first, which would have the time between chunks grow. They are assigned the other
# way round here: there is one state a chunk to keep, section 3.3 says that large chunks relieve that, and a chunk twice
# as large has twice the scores a row.
CHUNKS = (16, 32, 64, 128, 256)
INTER_MS = dict(zip(CHUNKS, (5.0, 2.9, 2.1, 1.4, 1.3), strict=True))
INTRA_MS = dict(zip(CHUNKS, (1.8, 1.8, 2.1, 2.5, 3.4), strict=True))
BEST_CHUNK = 128  # in the words of section 4, speed analysis


@dataclass(frozen=True)
class OverRecurrent:
    """A line of the 2023 version's Table 3: GLA over the recurrent form that keeps its states in HBM."""

    T: int
    head_dim: int
    speed_up: float
    memory: float  # GLA's as a share of the recurrent form's


# Batch 32, width 1024; GLA with both of its gates. In the fourth line the recurrent form ran out of memory.
TABLE_3 = (OverRecurrent(1024, 64, 3.8, 0.26), OverRecurrent(1024, 128, 2.8, 0.13), OverRecurrent(2048, 64, 2.3, 0.26))
TABLE_3_OUT_OF_MEMORY = (2048, 128)  # T and head dimension

LARGEST_THEN_BYTES = 80e9  # of the largest A100, by the 2023 version's appendix on GPUs

# What the papers print and this does not try, with the reason.
LEFT_OUT = (
    (V2023, "Tables 1 and 4", "perplexity and accuracy of models of 340M and 1.3B parameters after 15B and 100B "
     "tokens, which nobody trains here"),
    (V2023, "Table 2", "the ablation: perplexity of trained models"),
    (V2024, "Tables 1 and 3", "the same two tables, with the same tokens"),
    (V2024, "Table 2", "the ablation: perplexity after 7B tokens"),
    (V2024, "Figure 4", "recall (MQAR): accuracy and no speed; glabench.tools.mqar trains such models"),
    (V2024, "Figure 5", "perplexity beyond the length of training, of models of 1.3B parameters after 100B tokens; "
     "glabench.tools.extrapolation does so of a toy"),
    (V2024, "Figures 1, 3 and 7", "drawings and code without numbers"),
)  # fmt: skip
