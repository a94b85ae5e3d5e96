"""Buffers that one pass leaves for another or the caller, and groups of heads that are worked on at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

HeadGroup = tuple[slice, slice] | None  # of all sequences, and of their heads; None for all


def head_groups_of(B: int, H: int, batches: int, heads: int) -> Iterator[HeadGroup]:
    """Groups of so many sequences, or of so many heads of one."""
    for b in range(0, B, batches):
        for h in range(0, H, heads):
            yield slice(b, b + batches), slice(h, h + heads)


def rows_of(x: Tensor, at: HeadGroup) -> Tensor:
    """A head group's rows of a tensor [B, T, H, D]."""
    return x if at is None else x[at[0], :, at[1]]


def states_of(x: Tensor | None, at: HeadGroup, packed: bool = False) -> Tensor | None:
    """A head group's states, or their gradients, [B, H, K, V]; of packed sequences [N, H, K, V], all of them."""
    return x if x is None or at is None else x[:, at[1]] if packed else x[at]


@dataclass(frozen=True)
class Kept:
    """Buffers that a forward pass leaves for the backward one, which else computes them again.

    chunk, block_t: rows a chunk and a row block. states [B*H, .., K, V]: before each ``every``-th chunk; or where
    slices took turns, boundary [slices, B, H, K, V]: before each of them. halves, float32 [B*H, n_blocks, K]: log2 of
    half of each row block's decay, None without gates. closed: counted from gates that are closed where a sequence
    begins.
    """

    chunk: int
    block_t: int
    every: int
    states: Tensor | None
    boundary: Tensor | None
    halves: Tensor | None
    closed: bool = False


class Frames(NamedTuple):
    """Of gates on the value side, each chunk's columns (value_gates/frames.py).

    halves [B*H, chunks, V], float32: log2 of the frame, or of all the decay of a column without one; strong [B*H,
    chunks, V / 64], int32: 1 where there is such a column. low [B, T, H, V], int8: room for what is left of a walk's
    result where that is rounded (hopper/frames.py), of each 64 columns those together that a thread has of a product:
    column 8 j + 2 i + c at 16 i + 2 j + c. gamma, float32 [B*H, segments, V]: room for log2 of what segments decay by.
    gates [B, T, H, V]: by which a walk leads o out of frames, or do into them; of, like do: room for it as it is there.
    """

    halves: Tensor | None = None
    strong: Tensor | None = None
    low: Tensor | None = None
    gamma: Tensor | None = None
    gates: Tensor | None = None
    of: Tensor | None = None


class Gradients(NamedTuple):
    """Gradients of q, k, v and g, of their shapes and dtypes, and of the initial state, [B, H, K, V] float32; None of
    what there is not."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    initial_state: Tensor | None

    def head_group(self, at: HeadGroup, packed: bool) -> Gradients:
        """Views of a head group's."""
        q, k, v = (rows_of(x, at) for x in (self.q, self.k, self.v))
        d_initial = states_of(self.initial_state, at, packed)
        return Gradients(q, k, v, None if self.g is None else rows_of(self.g, at), d_initial)
