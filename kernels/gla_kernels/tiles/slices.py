"""Which states are in memory at once.

Materialized, all chunks are one slice, and a sequence is one segment unless the schedule cuts it (states_every). Not
materialized, a sequence is worked on in slices, one after another, whose chunks' states lie in a buffer that all slices
share: it is small, and mostly stays in the L2 cache. Where there are heads enough to fill a GPU, slices take turns: a
slice is one segment, and starts from the state that the one before it left (`Problem.in_turn`): forward in float32, and
backward, where states are made again, as it was kept, in the type of chunks' states. For fewer heads a slice has
several segments, which start from states that a first pass keeps.

Short slices have many states between them, long ones large buffers. Where no length keeps the backward pass within its
room, it works on a group of heads after another (`share_of`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ..schedule import HEADS_IN_TURN, cdiv

# The shared buffer's size: this, or a sixteenth of the inputs where that is more, and a segment at least.
SLICE_BYTES = 64 * 2**20
SLICE_SHARE = 16
LEAST_ROOM = 8 * 2**20  # nobody misses
ENOUGH = HEADS_IN_TURN  # walks over time, of 128 columns of V, to fill half a GPU


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


def room_for(v_bytes: int, others_bytes: int) -> int:
    """Bytes that the backward pass may take beside its results; others_bytes: of q, k and g.

    As many as make it FlashAttention-2's equal in heads of V: that has o, dq, dk, dv and dq in float32, six times v,
    where we have o, dv and what q, k and g have as gradients. A quarter of the inputs where K is so much larger than V
    that little or nothing is left.
    """
    return max(4 * v_bytes - others_bytes, (v_bytes + others_bytes) // 4, LEAST_ROOM)


@dataclass(frozen=True)
class Head:
    """Bytes that the states of one head of a sequence take.

    chunks, chunk: how many there are, and each one's state as it enters products. state: one in float32. decays: of all
    row blocks. segment: chunks a segment; in_turn: a slice is one, of any length. prepared: what a walk
    reads, of each chunk in a slice.
    """

    chunks: int
    chunk: int
    state: int
    decays: int
    segment: int
    in_turn: bool
    prepared: int = 0

    def scratch(self, at_once: int) -> int:
        """Bytes that a backward pass needs beside its results, where a slice has so many segments, or in turn chunks:
        states and their gradients in a slice, and what slices or segments start from."""
        here = min(self.chunks, at_once * self.segment)
        if self.in_turn:
            between = cdiv(self.chunks, here) * self.chunk + self.state
        else:
            segments = cdiv(self.chunks, self.segment)
            between = 2 * segments * self.state if segments > 1 else 0
        return here * (2 * self.chunk + self.prepared) + between + self.decays


@dataclass(frozen=True)
class Share:
    """The share of a call that is worked on at once: so many sequences and heads of them, fewer at the end, and of each
    so many segments, or where slices take turns so many chunks."""

    batches: int
    heads: int
    at_once: int
    in_turn: bool


@cache
def share_of(B: int, H: int, tiles: int, head: Head, at_once: int, room: int) -> Share:
    """The share of a backward pass without materialized states that fits the room, with as many walks as fill half a
    GPU, or nearly so, and then of as many heads as possible; all heads where none fits. tiles: of 128 columns of V;
    at_once: segments, or chunks, a slice of all heads at most.
    """

    def option(batches: int, heads: int) -> tuple[tuple[bool, int, int], Share]:
        count = batches * heads
        most = min(cdiv(head.chunks, head.segment), at_once * (B * H // count))
        while most > 1 and count * head.scratch(most) > room:
            most = cdiv(most, 2)
        fits = count * head.scratch(most) <= room
        walks = count * tiles * (1 if head.in_turn else most)
        return (fits, min(walks, ENOUGH), count), Share(batches, heads, most, head.in_turn)

    options = [option(batches, heads) for batches, heads in _groups(B, H)]
    best, share = max(options, key=lambda found: found[0])
    return share if best[0] else Share(B, H, at_once, head.in_turn)


def _groups(B: int, H: int) -> Iterator[tuple[int, int]]:
    """Sizes of groups of heads: of whole sequences, or of heads of one."""
    yield from ((cdiv(B, 2**i), H) for i in range(max(1, B).bit_length()))
    yield from ((1, cdiv(H, 2**i)) for i in range(1, H.bit_length()))
