"""One call as the host code sees it: sizes, buffers, and how its kernels are tiled. Nothing here touches a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..launch import Launch
from ..schedule import FEW_WALKS, HOPPER, MIN_TILE, SAFE_COLUMNS, WGMMA_ROWS, Tile, cdiv, padded
from ..tiles.context import CallContext
from ..tiles.descriptors import MOST_ROWS
from ..tiles.slices import Slice, segments_at_once, slices_of

MAX_CHUNK = 128  # rows whose scores one program holds
MAX_DIM = 256  # of a head

# What a walk over time that makes outputs too may hold: rows a chunk, and bytes of a row of q or k, padded, as products
# read them. Compiled for an H100, two programs share an SM then, and bf16 spills 32 bytes a thread at most.
WALKED_ROWS = 64
WALKED_BYTES = 256
# From so many walks on, two thirds of them where a row of q is short, they are faster on an H100 than passes over all
# chunks at once, which fill a GPU with any number of heads.
MANY_WALKS = 96

# What Hopper's own walks take, and of V what a program does, as much as its shared memory holds. From so many
# programs on passes over all chunks at once, which fill a GPU with any number of heads, take longer than it.
NATIVE_K, NATIVE_V = (64, 128), (64, 128, 256)
NATIVE_COLUMNS = 128
NATIVE_WALKS = 40


@dataclass(frozen=True)
class Call(CallContext):
    """The inputs of one call. q, k [B, T, H, K]; v [B, T, H, V]; g [B, T, H], of any strides, or None, as gates of 0;
    initial_state [B, H, K, V] float32 or None. Either q and k or v may have fewer heads, each for as many states as any
    other (heads.py). chunk: rows a chunk; capability: compute capability of the GPU. cu_seqlens [N+1]:
    where each of N sequences packed in a batch of one begins, and T, or None; states are [N, H, K, V] then. v_first:
    they are [.., V, K]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    scale: float
    initial_state: Tensor | None
    chunk: int
    materialize: bool
    capability: int
    cu_seqlens: Tensor | None = None
    v_first: bool = False

    @cached_property
    def dims(self) -> tuple[int, int, int, int, int]:
        """B, T, H, K, V; H: heads of states."""
        B, T, heads, K = self.q.shape
        return B, T, max(heads, self.v.shape[2]), K, self.v.shape[3]

    @cached_property
    def sharing(self) -> tuple[int, int]:
        """How many heads share each one of q and k, and how many each one of v."""
        H = self.dims[2]
        return H // max(1, self.q.shape[2]) or 1, H // max(1, self.v.shape[2]) or 1

    @cached_property
    def n_chunks(self) -> int:
        """Chunks a sequence."""
        return cdiv(self.q.shape[1], self.chunk)

    @property
    def sequences(self) -> int:
        """How many there are, of the batch or packed."""
        return self.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    def one_state(self) -> Tensor:
        """Room for a state of every head on the way, float32, as the call's own lie: [B, H, K, V], or [B, H, V, K]."""
        return self._states_of(self.dims[0])

    def end_states(self) -> Tensor:
        """Room for a state of every sequence and head, or its gradient."""
        return self._states_of(self.sequences)

    def _states_of(self, count: int) -> Tensor:
        _, _, H, K, V = self.dims
        return self.q.new_empty(count, H, *((V, K) if self.v_first else (K, V)), dtype=torch.float32)

    @property
    def walks(self) -> bool:
        """Whether the forward pass is one walk over time. Where states are not materialized it stores none, and where
        it does not fit a program either, slices of the sequence have their states in memory in turn."""
        return self._walk_fits and (self._walk_pays or not self.materialize)

    @property
    def walks_back(self) -> bool:
        """Whether one walk back makes the states' gradients and dv, instead of a pass for each."""
        return self._walk_fits and self._walk_pays

    @property
    def _walk_fits(self) -> bool:
        row = padded(self.dims[3]) * (2 if self.in_bfloat16 else 4)
        return row <= WALKED_BYTES and self.chunk <= WALKED_ROWS

    @property
    def _walk_pays(self) -> bool:
        """Whether walks fill a GPU, as passes over all chunks at once do for any number of heads. Wide operands spill
        in them, on an A100 a kilobyte."""
        B, _, H, K, V = self.dims
        least = MANY_WALKS if padded(K) > SAFE_COLUMNS else MANY_WALKS * 2 // 3
        return self.in_bfloat16 and B * H * cdiv(V, self.walk_tile().block_v) >= least

    @property
    def walks_natively(self) -> bool:
        """Whether one walk back of Hopper's own makes all gradients, as far as sizes and types go: a program for up to
        128 columns of V of a head, and an SM for each."""
        B, _, H, K, V = self.dims
        if self.capability != HOPPER or not self.in_bfloat16 or self.cu_seqlens is not None or self.sharing[1] > 1:
            return False
        sizes = self.chunk == WGMMA_ROWS and K in NATIVE_K and V in NATIVE_V
        return sizes and B * H * self.native_parts >= NATIVE_WALKS and 0 < B * H * self.n_chunks * K <= MOST_ROWS

    @property
    def walks_apart(self) -> bool:
        """Whether walks of Hopper's own, one for each, make the gradients of q, k and v, as far as sizes and types go.
        They keep no states of chunks, and read none: for wide values, of which states are most of the bytes, and where
        one walk for all of a head leaves SMs idle. Else that one reads q, k and do once, and is faster."""
        B, _, H, _, V = self.dims
        pays = V > NATIVE_COLUMNS or 3 * B * H <= FEW_WALKS
        return self.outputs_natively and pays and 2 * B * H * (self.n_chunks + 1) * V <= MOST_ROWS

    @property
    def outputs_natively(self) -> bool:
        """Whether one walk of Hopper's own makes the outputs, as far as sizes and types go. Smaller tiles leave an SM
        room for several programs of Triton's walk, which are faster."""
        K, V = self.dims[3:]
        return self.walks_natively and K == max(NATIVE_K) and V >= NATIVE_COLUMNS

    @property
    def whole(self) -> Slice:
        """All chunks."""
        return Slice(0, 1, 0, self.n_chunks)

    @cached_property
    def slices(self) -> list[Slice]:
        """The runs of chunks whose states are in memory at once, in order; all are where states are materialized."""
        B, _, H, K, V = self.dims
        if self.materialize or not self.n_chunks:
            return [self.whole]
        inputs = sum(x.nbytes for x in (self.q, self.k, self.v))
        at_once = segments_at_once(B * H * K * V * self.state_dtype.itemsize, inputs)
        return list(slices_of(self.n_chunks, self.n_chunks, 1, at_once))

    # --- Tiles, by size: nothing here is tuned -----------------------------------------------------------------------

    def tile(self, block_k: int | None, block_v: int) -> Tile:
        """A tile of at most so many columns, None for all; half as many in float32, whose products have operands in
        parts.

        In 16 bits it has 64 at least, padded where a head has fewer: ptxas 12.8 gets Hopper's own product instruction
        wrong for 64 rows and fewer columns (see `plan.limits`). Eight warps share the scores of more than 64 rows.
        """
        _, _, _, K, V = self.dims
        piece, least = (2, MIN_TILE) if self.q.dtype == torch.float32 else (1, SAFE_COLUMNS)
        block_k = max(least, padded(K) if block_k is None else min(padded(K), block_k // piece))
        block_v = max(least, min(padded(V), block_v // piece))
        warps = 8 if self.chunk > WGMMA_ROWS else 4
        return Tile(block_k, block_v, warps, num_stages=2, descriptors=self.capability == HOPPER)

    def walk_tile(self) -> Tile:
        """The tile of a walk that makes outputs too: all of K in each program, so that a row's output is whole. A third
        stage where two programs fit an H100's SM with it."""
        deep = self.capability == HOPPER and self.in_bfloat16 and padded(self.dims[3]) <= SAFE_COLUMNS
        return replace(self.tile(None, 64), num_stages=3 if deep else 2)

    def native_tile(self) -> Tile:
        """The tile of Hopper's own walks: 64 features a tensor core's operand, and of V what a program does."""
        block_v = min(self.dims[-1], NATIVE_COLUMNS)
        return Tile(WGMMA_ROWS, block_v, num_warps=4, num_stages=2, descriptors=True, hopper=True)

    @property
    def apart_columns(self) -> int:
        """Columns of dq and dk that a program makes: as many as an SM has room for, beside 64 rows of V features."""
        return NATIVE_COLUMNS * NATIVE_COLUMNS // max(NATIVE_COLUMNS, self.dims[-1])

    @property
    def native_parts(self) -> int:
        """How many programs share a head in Hopper's own walks, each with its columns of V."""
        return cdiv(self.dims[-1], NATIVE_COLUMNS)

    def group_tile(self) -> Tile:
        """The tile of dq and dk summed over heads: twice the warps, for what one head gives and the sums so far. For an
        H100, with chunks of 64, these are 240 registers a thread; four warps spill 640 bytes, and with 128 rows eight
        spill 1.4 KB and sixteen 0.8. At least 32 columns, in float32, too: with 16
        ptxas 12.8 loses operands of products, and a process's first call gave another dq and dg than later ones."""
        tile, least = self.tile(64, 64), 2 * MIN_TILE
        block_k, block_v = max(tile.block_k, least), max(tile.block_v, least)
        return replace(tile, block_k=block_k, block_v=block_v, num_warps=2 * tile.num_warps)

    def share(self, columns: int) -> int:
        """How many heads of a group a program adds up for dq and dk, of so many tiles of K: all, if that leaves
        programs enough to fill a GPU; else what each adds is added up after."""
        B, _, H, _, _ = self.dims
        share = self.sharing[0]
        programs = B * H // share * columns * max(1, self.n_chunks)
        while share % 2 == 0 and programs < FEW_WALKS:
            share, programs = share // 2, programs * 2
        return share

    def over_time(self) -> Tile:
        """The tile of the passes over time: wide, if that leaves programs enough to fill a GPU."""
        B, _, H, K, V = self.dims
        wide = self.tile(64, 128)
        few = B * H * cdiv(K, wide.block_k) * cdiv(V, wide.block_v) < FEW_WALKS
        return self.tile(64, 64) if few else wide

    # --- Launches ----------------------------------------------------------------------------------------------------

    def over_slice(
        self, kernel: Any, tile: Tile, columns: int, args: dict[str, Any], piece: Slice, share: int = 1, **flags: Any
    ) -> Launch:
        """A launch of a pass over all chunks of a slice at once: a program a chunk, and a tile of so many, of ``share``
        heads."""
        return self.launch_of(kernel, tile, columns * piece.chunks, args | chunks_of(piece, args), share, **flags)

    def launch_of(
        self, kernel: Any, tile: Tile, programs: int, args: dict[str, Any], share: int = 1, **flags: Any
    ) -> Launch:
        """A launch of so many programs for each ``share`` heads."""
        B, _, _, K, V = self.dims
        sizes = {"K": K, "V": V, "BT": self.chunk, "BK": tile.block_k, "BV": tile.block_v}
        how = self.tiled(kernel, tile, self.chunk, args)
        args = {"scale": self.scale, "B": B, "n_chunks": self.n_chunks} | args
        launch = self.launched(kernel, programs, args, sizes | self.operands(K) | flags, **how)
        return launch if share == 1 else replace(launch, grid=(launch.grid[0] // share,))


def chunks_of(piece: Slice, args: dict[str, Any]) -> dict[str, int]:
    """Arguments that lead a kernel in a slice, and in the buffer of its chunks' states, if it is given one."""
    stored = next((args[name] for name in ("p_s", "p_ds") if args.get(name) is not None), None)
    return {
        "first_chunk": piece.first_chunk,
        "n_here": piece.chunks,
        "n_stored": 0 if stored is None else stored.shape[1],
    }
