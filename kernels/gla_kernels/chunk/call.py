"""One call as the kernels' host code sees it: what it is given, its chunks, and which kernels can serve it.

Nothing here touches a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..launch import on_cpu
from ..schedule import WALKED_K, WGMMA_ROWS, WIDE_K, KernelConfig, Schedule, Tile, cdiv, in_turn
from ..tiles.context import CallContext
from ..tiles.descriptors import MOST_ROWS
from ..tiles.slices import Share
from .kept import Frames
from .packing import Packed


@dataclass(frozen=True)
class Call(CallContext):
    """The inputs of one call. q, k, g [B, T, H, K]; v [B, T, H, V]; initial_state [B, H, K, V] float32.

    settled: what is worked on at once, where the problem is a head group of another. run: chunks from one state that is
    asked for to the next, if not `states_apart`. v_first: the states that the call is given and gives are [.., V, K].
    packed: where the rows are packed sequences; then there is a state a sequence, and native says whether Hopper's own
    kernels do all of the direction. d_final: the gradient of the final state, in the backward pass. frames: in which v,
    o and their gradients are, and states, of a schedule that materializes these.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    scale: float
    initial_state: Tensor | None
    schedule: Schedule
    config: KernelConfig
    settled: Share | None = None
    run: int | None = None
    v_first: bool = False
    packed: Packed | None = None
    native: bool = False
    d_final: Tensor | None = None
    frames: Frames | None = None

    @cached_property
    def heads_a_row(self) -> int:
        """Heads from one row of a tensor to the next: those of the problem that this may be a head group of, too."""
        _, T, H, K, _ = self.dims
        return self.q.stride(1) // K if T > 1 else H

    @cached_property
    def n_chunks(self) -> int:
        """Chunks a sequence; one at least, so that no buffer is empty."""
        return max(1, cdiv(self.q.shape[1], self.schedule.chunk))

    @cached_property
    def n_blocks(self) -> int:
        """Row blocks a sequence."""
        return cdiv(self.q.shape[1], self.config.block_t)

    @cached_property
    def in_turn(self) -> bool:
        """Whether a slice is one segment, which starts from the state that the slice before it left."""
        B, _, H, _, V = self.dims
        if self.packed is not None or self.v_first:  # a state that slices hand on is [K, V], and one of a sequence
            return False
        return in_turn(self.schedule, B * H, V) if self.settled is None else self.settled.in_turn

    def on_hopper(self, tile: Tile) -> bool:
        """Whether a tile asks for a kernel of Hopper's own, and that can serve such inputs."""
        if self.packed is not None and not self.native:
            return False  # one pass that goes by closed gates, and all do
        if not tile.hopper or on_cpu(self.q):
            return False
        if self.g is None or self.q.dtype != torch.bfloat16 or not self.scale > 0:
            return False
        return self.schedule.chunk == self.config.block_t == WGMMA_ROWS

    def is_wide(self, walk: Tile | None) -> bool:
        """Whether a fused scan with such a tile is one of wide heads, which works on what was prepared for it
        (wide_walk.py)."""
        _, T, _, K, V = self.dims
        if walk is None or T == 0 or K != WIDE_K or V % walk.block_v:
            return False
        if not (self.schedule.materialize or self.in_turn):  # as packed ones never are
            return False
        return self.on_hopper(walk)

    def all_native(self, *tiles: Tile | None) -> bool:
        """Whether Hopper's own kernels can serve packed sequences in all passes of these tiles."""
        B, T, H, K, V = self.dims
        fits = 0 < T and B * H * self.n_chunks * K <= MOST_ROWS and K % WGMMA_ROWS == V % WGMMA_ROWS == 0
        walked = K <= WALKED_K or (K == WIDE_K and self.schedule.materialize)
        return (
            fits
            and walked
            and all(tile is not None and V % tile.block_v == 0 and self.on_hopper(tile) for tile in tiles)
        )

    @property
    def ungated_walk(self) -> Tile | None:
        """The tile of a forward pass in one walk that knows no gates, and so is no kernel of Hopper's own; None for
        none."""
        tile = self.config.walk
        if tile is None or tile.hopper or self.g is not None or tile.block_k < self.dims[3]:
            return None
        return tile if self.schedule.chunk == self.config.block_t else None
