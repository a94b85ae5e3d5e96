"""One call as the kernels' host code sees it: sizes, buffers, and launches of passes.

Nothing here touches a GPU. The order of the passes is in `chunk`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..launch import Launch, on_cpu
from ..schedule import SEGMENT_ROWS, WALKED_K, WGMMA_ROWS, WIDE_K, KernelConfig, Schedule, Tile, cdiv, in_turn
from ..tiles.context import CallContext
from ..tiles.descriptors import MOST_ROWS
from ..tiles.slices import Head, Share, Slice, room_for, segments_at_once, share_of, slices_of
from .hopper import grad_qk_runs_hopper_kernel
from .kept import Frames, HeadGroup, Kept, head_groups_of, rows_of, states_of
from .packing import Packed

LaunchBy = Callable[..., Launch]

# What a forward pass leaves for the backward one may take, by default, a row of a head: what flash-linear-attention
# leaves, scores of chunks of 64 rows in float32.
KEPT_ROW_BYTES = 256

# Of Hopper's own grad_qk: chunks that a state is led along over, at most, and columns of V up to which two programs
# share one of an H100's multiprocessors.
LONGEST_RUN, NARROW, SMS = 32, 128, 132
THREE = 168  # registers of a thread with which three programs of four warps share a multiprocessor


def prepared_bytes(K: int) -> int:
    """Of what a walk of wide heads reads of one chunk of a head: `prepare.Prepared`."""
    return WGMMA_ROWS * 2 * (2 * K + 2 * WGMMA_ROWS) + 4 * K


def least_run(K: int, V: int) -> int:
    """Chunks from one kept state to the next, of a kernel of Hopper's own: as many as keep states, in bfloat16, and
    decays of row blocks within `KEPT_ROW_BYTES`."""
    return cdiv(2 * K * V, WGMMA_ROWS * KEPT_ROW_BYTES - 4 * K)


@dataclass(frozen=True)
class Problem(CallContext):
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

    @cached_property
    def seg_chunks(self) -> int:
        """Chunks a segment."""
        if self.in_turn:
            return cdiv(self.n_chunks, cdiv(self.n_chunks, self.share.at_once))
        by_default = self.n_chunks if self.schedule.materialize else SEGMENT_ROWS // self.schedule.chunk
        return min(self.schedule.states_every or by_default, self.n_chunks)

    @cached_property
    def n_seg(self) -> int:
        """Segments a sequence."""
        return cdiv(self.n_chunks, self.seg_chunks)

    @property
    def whole(self) -> Slice:
        """All chunks as a single segment."""
        return Slice(0, 1, 0, self.n_chunks)

    def segments(self, first: int, count: int) -> Slice:
        """The run of so many segments from one on."""
        first_chunk = first * self.seg_chunks
        return Slice(first, count, first_chunk, min(self.n_chunks - first_chunk, count * self.seg_chunks))

    @cached_property
    def slices(self) -> list[Slice]:
        """The runs of chunks that are worked on at once, in order."""
        at_once = self.n_seg if self.schedule.materialize else 1 if self.in_turn else self.share.at_once
        return list(slices_of(self.n_seg, self.n_chunks, self.seg_chunks, at_once))

    @cached_property
    def share(self) -> Share:
        """The share that the backward pass works on at once, where states are not materialized."""
        if self.settled is not None:
            return self.settled
        B, _, H, K, V = self.dims
        if B * H == 0:
            return self._widest
        row_decays = 0 if self.g is None else self.n_blocks * K * torch.float32.itemsize
        state = K * V * torch.float32.itemsize
        prepared = prepared_bytes(K) if self.is_wide(self.config.grad_walk) else 0
        head = Head(self.n_chunks, self._chunk_bytes, state, row_decays, self._unit, self.in_turn, prepared)
        room = room_for(self.v.nbytes, self._input_bytes - self.v.nbytes)
        return share_of(B, H, cdiv(V, 128), head, self._widest.at_once, room)

    @property
    def _widest(self) -> Share:
        """All heads at once, and slices as long as the L2 cache wants them at most."""
        B, _, H, _, _ = self.dims
        return Share(B, H, segments_at_once(self._unit * B * H * self._chunk_bytes, self._input_bytes), self.in_turn)

    @property
    def _unit(self) -> int:
        """Chunks that a slice is a multiple of."""
        return 1 if self.in_turn else self.seg_chunks

    @property
    def _chunk_bytes(self) -> int:
        """Bytes of a chunk's state."""
        return math.prod(self.dims[3:]) * self.state_dtype.itemsize

    @property
    def _input_bytes(self) -> int:
        return sum(x.nbytes for x in (self.q, self.k, self.v, self.g) if x is not None)

    @cached_property
    def head_groups(self) -> list[HeadGroup]:
        """The groups of heads that the backward pass works on, one after another."""
        B, _, H, _, _ = self.dims
        if self.schedule.materialize or (self.share.batches, self.share.heads) == (B, H):
            return [None]
        return list(head_groups_of(B, H, self.share.batches, self.share.heads))

    def head_group(self, at: HeadGroup) -> Problem:
        """A head group of the problem, on views of its tensors."""
        if at is None:
            return self
        q, k, v = (rows_of(x, at) for x in (self.q, self.k, self.v))
        g = None if self.g is None else rows_of(self.g, at)
        packed, are = self.packed, self.packed is not None
        if packed is not None and packed.closed is not None:
            packed = replace(packed, closed=rows_of(packed.closed, at))
        initial, d_final = (states_of(x, at, are) for x in (self.initial_state, self.d_final))
        part = replace(self, q=q, k=k, v=v, g=g, packed=packed, settled=self.share)
        return replace(part, initial_state=initial, d_final=d_final)

    def forward(self, keep: bool) -> Problem:
        """The problem as the forward pass works on it: all heads at once. ``keep``: in slices that a backward pass will
        take, where it can make use of what lies between them."""
        return self if keep and len(self.head_groups) == 1 else replace(self, settled=self._widest)

    @property
    def gates(self) -> Tensor | None:
        """The gates as passes want them that know nothing of sequences."""
        return self.g if self.packed is None else self.packed.closed

    @property
    def chain_start(self) -> Tensor | None:
        """The state before the first row; those of packed sequences enter later."""
        return self.initial_state if self.packed is None else None

    @property
    def framed(self) -> dict[str, Any]:
        """Arguments of a pass that knows of frames of the value side."""
        halves, strong, low, gamma, gates, of = self.frames or Frames()
        return {"p_hv": halves, "p_strong": strong, "p_low": low, "p_gamma_v": gamma, "p_gv": gates, "p_of": of}

    @property
    def chain_end(self) -> Tensor | None:
        """The gradient of the state after the last row, likewise."""
        return self.d_final if self.packed is None else None

    def is_v_first(self, states: Tensor | None) -> bool:
        """Whether these states are those of the call, and [.., V, K]."""
        return self.v_first and states is not None and (states is self.initial_state or states is self.d_final)

    def final_buffer(self) -> Tensor:
        """Room for the states after sequences, float32, as the call wants them."""
        B, _, H, K, V = self.dims
        n = B if self.packed is None else self.packed.count
        return self.q.new_empty((n, H, V, K) if self.v_first else (n, H, K, V), dtype=torch.float32)

    def with_sequences(
        self, args: dict[str, Any], name: str, states: Tensor | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments and flags of a pass that knows of packed sequences, and has a state of each by that name."""
        flags = {"PACKED": self.packed is not None, "V_FIRST": self.v_first, f"HAS_{name[2:].upper()}": False}
        if self.packed is None:
            return args | {
                "p_marks": None,
                "p_edges": None,
                "p_open": None,
                name: None,
                "n_rows": 0,
                "n_heads": 0,
            }, flags
        marks = self.packed.marks
        args = args | {"p_marks": marks, "p_edges": self.packed.edges, "p_open": self.g, name: states}
        args |= {"n_rows": marks.shape[1], "n_heads": self.heads_a_row}
        return args, flags | {f"HAS_{name[2:].upper()}": states is not None}

    def segment_buffer(self, segments: int) -> Tensor:
        """One state a segment, float32 [B*H, segments, K, V]."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B * H, segments, K, V, dtype=torch.float32)

    def boundary_buffer(self) -> Tensor:
        """Room for the state before each slice, [slices, B, H, K, V], as chunks' states are kept."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(len(self.slices), B, H, K, V, dtype=self.state_dtype)

    def states_a_head(self, states: Tensor | None) -> int:
        """States a head that a tensor holds; 1 for None."""
        B, _, H, K, V = self.dims
        return 1 if states is None else states.numel() // (B * H * K * V)

    def decay_buffer(self, rows: int) -> Tensor | None:
        """A logarithm of a decay for each of so many runs of rows, float32 [B*H, rows, K]; None without gates."""
        B, _, H, K, _ = self.dims
        return None if self.g is None else self.q.new_empty(B * H, rows, K, dtype=torch.float32)

    def half_decays(self) -> Tensor | None:
        """Log2 of half of each row block's decay, float32 [B*H, n_blocks, K]; None without gates."""
        return self.decay_buffer(self.n_blocks)

    def constexprs(self, tile: Tile) -> dict[str, Any]:
        """Compile-time arguments that every kernel takes."""
        _, _, _, K, V = self.dims
        sizes = {"K": K, "V": V, "BT": self.config.block_t, "BK": tile.block_k, "BV": tile.block_v}
        return sizes | {"GATED": self.g is not None} | self.operands(K)

    @cached_property
    def states_apart(self) -> int:
        """Chunks from one state that the backward pass asks for to the next: 1, but for a grad_qk of Hopper's own,
        which leads a state along over a run of chunks. Then so many that what is kept is within `KEPT_ROW_BYTES`, and
        of those what lets an H100's programs end soonest (docs/history/h100.md, "Few states, on an H100")."""
        B, T, H, K, V = self.dims
        if self.run is not None:
            return self.run
        if not self.on_hopper(self.config.grad_qk) or K % WGMMA_ROWS or V % WGMMA_ROWS:
            return 1
        if grad_qk_runs_hopper_kernel is None or T == 0 or B * H * self.n_chunks * K > MOST_ROWS:
            return 1  # no Gluon, or no descriptors
        least, at_once = min(least_run(K, V), self.n_chunks), SMS * (2 if V <= NARROW else 1)

        def turns(run: int) -> int:
            programs = B * H * (K // WGMMA_ROWS) * cdiv(self.n_chunks, run)
            return cdiv(programs, at_once) * (run + 1)  # a program's start takes as long as a chunk

        return min(range(least, max(least, min(self.n_chunks, LONGEST_RUN)) + 1), key=turns)

    @cached_property
    def states_made_apart(self) -> int:
        """`states_apart` where they are made again: a segment has whole runs, if it is not alone. Slices are short, and
        their states mostly stay in the L2 cache: all are asked for."""
        if not self.schedule.materialize:
            return 1
        if self.n_seg == 1:
            return self.states_apart
        options = range(min(self.states_apart, self.seg_chunks), self.seg_chunks + 1)
        return next(n for n in options if self.seg_chunks % n == 0)

    def few_states(self, piece: Slice, every: int) -> Tensor:
        """Room for the states before every so many chunks of a slice, [B*H, .., K, V]."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B * H, cdiv(piece.chunks, every), K, V, dtype=self.state_dtype)

    def kept(
        self, states: Tensor | None, boundary: Tensor | None, halves: Tensor | None, every: int = 1
    ) -> Kept | None:
        """These buffers for the backward pass, if they hold for good the states of every so many chunks or before all
        slices."""
        if not self.schedule.materialize:
            states = None
        if states is None and boundary is None:
            return None
        closed = self.packed is not None and not self.native
        return Kept(self.schedule.chunk, self.config.block_t, every, states, boundary, halves, closed)

    def served_by(self, kept: Kept | None) -> bool:
        """Whether what was kept is what this backward pass needs."""
        if kept is None or (kept.chunk, kept.block_t) != (self.schedule.chunk, self.config.block_t):
            return False
        if self.packed is not None and kept.closed == self.native:
            return False
        if self.in_turn:
            return kept.boundary is not None and len(self.head_groups) == 1 and len(kept.boundary) == len(self.slices)
        return kept.states is not None and self.schedule.materialize and kept.every in (1, self.states_apart)

    def launch_of(self, kernel: Any, tile: Tile, programs: int, args: dict[str, Any], **constexprs: Any) -> Launch:
        """A launch of so many programs a head."""
        how = self.tiled(kernel, tile, self.config.block_t, args)
        return self.launched(
            kernel, programs, args | {"H": self.heads_a_row}, self.constexprs(tile) | constexprs, **how
        )

    def hopper_launch(
        self, kernel: Any, tile: Tile | None, launch_by: LaunchBy, *args: Any, **flags: Any
    ) -> Launch | None:
        """A launch of Hopper's own kernel, by another of these methods, where the plan asks for that and it can serve:
        bf16 inputs, gates in bf16 or float32, chunks of one row block of 64, and tensors that all bear descriptors."""
        if kernel is None or tile is None or not self.on_hopper(tile):
            return None
        launch = launch_by(kernel, tile, *args, **flags)
        return launch if launch.all_described else None

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

    @property
    def ungated_walk(self) -> Tile | None:
        """The tile of a forward pass in one walk that knows no gates, and so is no kernel of Hopper's own; None for
        none."""
        tile = self.config.walk
        if tile is None or tile.hopper or self.g is not None or tile.block_k < self.dims[3]:
            return None
        return tile if self.schedule.chunk == self.config.block_t else None

    def walk_on_chip(
        self, kernel: Any, tile: Tile, args: dict[str, Any], piece: Slice, stored: Tensor | None, **flags: Any
    ) -> Launch:
        """A launch of a fused scan, which stores a state a chunk: a program a segment and tile of V."""
        programs = cdiv(self.dims[-1], tile.block_v) * piece.segments
        flags |= {"FRAMED": self.frames is not None, "STORE_LOW": self.framed["p_low"] is not None}
        args = args | self.framed
        return self.launch_of(kernel, tile, programs, args | self.walked(piece, stored, 1), **flags)

    def of_chunks(
        self, kernel: Any, tile: Tile, args: dict[str, Any], piece: Slice, stored: Tensor, every: int = 1, **flags: Any
    ) -> Launch:
        """A launch of a pass over all chunks of a slice at once: a program a run of so many chunks and tile of K."""
        args = args | self.chunks_of(piece, stored) | {"every": every} | self.framed
        flags["FRAMED"] = self.frames is not None
        programs = cdiv(self.dims[3], tile.block_k) * cdiv(args["n_here"], every)
        return self.launch_of(kernel, tile, programs, args, CHUNK=self.schedule.chunk, **flags)

    def chunks_of(self, piece: Slice, stored: Tensor) -> dict[str, Any]:
        """Arguments of a pass over the chunks of a slice. ``stored``: states of all of them."""
        return {
            "scale": self.scale, "n_blocks": self.n_blocks, "first_chunk": piece.first_chunk,
            "n_here": min(piece.chunks, cdiv(self.q.shape[1], self.schedule.chunk)), "n_stored": stored.shape[1],
        }  # fmt: skip

    def walked(self, piece: Slice, stored: Tensor | None, every: int) -> dict[str, Any]:
        """Arguments of a walk over the segments of a slice, which stores a state every so many chunks."""
        chunk = self.schedule.chunk
        return {
            "n_seg": piece.segments, "first_seg": piece.first_segment,
            "n_stored": 0 if stored is None else stored.shape[1],
            "seg_rows": (piece.chunks if piece == self.whole else self.seg_chunks) * chunk,
            "every_rows": every * chunk,
        }  # fmt: skip

    def walk_of(
        self, kernel: Any, tile: Tile, args: dict[str, Any], piece: Slice, stored: Tensor, every: int, last: bool,
        **constexprs: Any,
    ) -> Launch:  # fmt: skip
        """A launch of a pass over time, which stores a state every so many chunks: a program a segment and tile.
        ``last``: only each segment's last one."""
        _, _, _, K, V = self.dims
        columns = cdiv(K, tile.block_k) * cdiv(V, tile.block_v)
        each = every * self.schedule.chunk == self.config.block_t and not last
        args = args | self.walked(piece, stored, every)
        return self.launch_of(kernel, tile, columns * piece.segments, args, EACH=each, LAST=last, **constexprs)

    def blocks_of(
        self, kernel: Any, tile: Tile, columns: int, args: dict[str, Any], piece: Slice, states: Tensor, **flags: Any
    ) -> Launch:
        """A launch of a pass that works on all row blocks of a slice at once: a program a row block and tile.

        Where a chunk is one, with bfloat16 operands and 64 columns of V a tile, three programs share an H100's
        multiprocessor as long as gates are mild. What runs where they are not would take more registers.
        """
        narrow = tile.descriptors and tile.num_warps == 4 and tile.block_v <= WGMMA_ROWS
        if self.g is not None and self.in_bfloat16 and narrow and self.schedule.chunk == self.config.block_t:
            tile = replace(tile, max_registers=min(tile.max_registers, THREE))
        chunk, block_t = self.schedule.chunk, self.config.block_t
        first = piece.first_chunk * (chunk // block_t)
        here = min(self.n_blocks - first, piece.chunks * (chunk // block_t))
        args = args | {
            "scale": self.scale, "n_blocks": self.n_blocks, "first_block": first, "n_here": here,
            "n_stored": states.shape[1], "chunk": chunk,
        }  # fmt: skip
        return self.launch_of(
            kernel, tile, columns * here, args, SINGLE=chunk == block_t, FULL=self.schedule.rows > block_t, **flags
        )
