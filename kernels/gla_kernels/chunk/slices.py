"""Which chunks' states are in memory at once.

Materialized, all chunks are one slice, and a sequence is one segment unless the schedule cuts it (states_every). Not
materialized, a sequence is worked on in slices, one after another, whose chunks' states lie in a buffer that all slices
share: it is small, and mostly stays in the L2 cache. Where there are heads enough to fill a GPU, slices take turns: a
slice is one segment, and starts from the state that the one before it left, in float32 (`Problem.in_turn`). For fewer
heads a slice has several segments, which start from states that a first pass keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# The shared buffer's size: this, or a sixteenth of the inputs where that is more, and a segment at least.
SLICE_BYTES = 64 * 2**20
SLICE_SHARE = 16


@dataclass(frozen=True)
class Slice:
    """A run of segments, and of the chunks in them; the last one may be cut off."""

    first_segment: int
    segments: int
    first_chunk: int
    chunks: int


def slices_of(n_seg: int, n_chunks: int, seg_chunks: int, at_once: int) -> Iterator[Slice]:
    """The slices of a sequence of n_seg segments of seg_chunks chunks, at_once segments each, in order."""
    for first in range(0, n_seg, at_once):
        segments = min(at_once, n_seg - first)
        chunks = min(n_chunks - first * seg_chunks, segments * seg_chunks)
        yield Slice(first, segments, first * seg_chunks, chunks)


def segments_at_once(segment_bytes: int, input_bytes: int) -> int:
    """Segments a slice; segment_bytes: what the states of one segment take, over all sequences and heads."""
    return max(1, max(SLICE_BYTES, input_bytes // SLICE_SHARE) // max(1, segment_bytes))
