"""What passes ask of a call: buffers, arguments and launches. The order of the passes is in `chunk`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..launch import Launch
from ..schedule import WGMMA_ROWS, Tile, cdiv
from ..tiles.slices import Slice
from .kept import Frames, Kept
from .parted import Parted

LaunchBy = Callable[..., Launch]

THREE = 168  # registers of a thread with which three programs of four warps share a multiprocessor


@dataclass(frozen=True)
class Problem(Parted):
    """A call as passes see it."""

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
