"""One call with value-side gates as the kernels' host code sees it: sizes, buffers, launches. Nothing here touches a
GPU; the order of the kernels is in `value_gates`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..copies import copied
from ..launch import Launch, Launcher
from ..schedule import DEFAULT_SHARED_BYTES, MAX_REGISTERS, SAFE_COLUMNS, WGMMA_ROWS, Schedule, cdiv, padded
from ..tiles.context import CallContext
from ..tiles.slices import Slice, segments_at_once, slices_of
from .mild import gv_mild_kernel
from .strong import gv_strong_kernel
from .walk import gv_walk_kernel

MAX_CHUNK = 64  # scores of a chunk are one tile of registers

COLUMNS = 64  # of a program's tiles, in both head dimensions
WIDE_COLUMNS = 128  # of the output of mild chunks in bf16: their scores are made once for so many

# Iterations of a loop whose loads are in flight at once, over time and over the other side's features: so many where
# their tiles and what products pass on, SCRATCH_BYTES, fit the shared memory of any GPU.
WALK_STAGES = 3
MILD_STAGES = 2
SCRATCH_BYTES = 32 * 1024

# Of a thread, for mild chunks. ptxas is told, for left to itself it settles for 32 at times, and spills all the rest.
REGISTERS = MAX_REGISTERS - 1

# Chunks that a program looks at for what is not mild, or fewer, so that there are some programs for each SM: most find
# nothing to do, but all of them a chunk each where gates are strong.
SHARE = 32
STRONG_PROGRAMS = 512


@dataclass(frozen=True)
class Side:
    """One side of the state, [B, T, H, D]: (q, k, g), ``of_keys``, or (do, v, gv), do None in the forward pass.

    halves, float32 [B*H, chunks, D]: log2 of half of the decay of each chunk of a slice, None without gates.
    """

    queries: Tensor | None
    keys: Tensor
    gates: Tensor | None
    halves: Tensor | None
    of_keys: bool

    @property
    def dim(self) -> int:
        return self.keys.shape[-1]


@dataclass(frozen=True)
class Problem(CallContext):
    """The inputs of one call: q, k, g [B, T, H, K]; v, gv [B, T, H, V]; initial_state [B, H, K, V] float32, or v_first
    [B, H, V, K]. framed: the chunks' states are in their frames (frames.py)."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    gv: Tensor | None
    scale: float
    initial_state: Tensor | None
    schedule: Schedule
    v_first: bool = False
    framed: bool = False

    @cached_property
    def slices(self) -> list[Slice]:
        """Runs of chunks whose states are in memory at once, in order: all of them where states are materialized."""
        B, T, H, K, V = self.dims
        chunk = self.schedule.chunk
        n_chunks = max(1, cdiv(T, chunk))
        at_once = n_chunks
        if not self.schedule.materialize:
            inputs = sum(x.nbytes for x in (self.q, self.k, self.v, self.g, self.gv) if x is not None)
            at_once = segments_at_once(B * H * K * V * self.state_dtype.itemsize, inputs)
        return list(slices_of(n_chunks, n_chunks, 1, at_once))

    def chunks_of(self, piece: Slice) -> int:
        """Chunks of a slice that have rows: none in an empty sequence."""
        return min(piece.chunks, cdiv(self.dims[1], self.schedule.chunk))

    def halves_buffer(self, gates: Tensor | None) -> Tensor | None:
        """Room for a side's half decays of the chunks of a slice, see `Side`; None without gates."""
        B, _, H, _, _ = self.dims
        if gates is None:
            return None
        return self.q.new_empty(B * H, self.slices[0].chunks, gates.shape[-1], dtype=torch.float32)

    def sides(self, do: Tensor | None) -> tuple[Side, Side]:
        """The side of the keys and that of the values, with room for their half decays."""
        keys = Side(self.q, self.k, self.g, self.halves_buffer(self.g), True)
        return keys, Side(do, self.v, self.gv, self.halves_buffer(self.gv), False)

    def one_state(self) -> Tensor:
        """Room for one state of every head, or the gradient of one, float32, as the call's own lie."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B, H, *((V, K) if self.v_first else (K, V)), dtype=torch.float32)

    def first(self, start: Tensor | None, launch: Launcher) -> Tensor:
        """The state, or gradient, that a walk over all slices starts from: zero where none is given."""
        if start is not None:
            return start
        state = self.one_state()
        launch(copied(None, state))
        return state

    def walk(
        self, piece: Slice, sides: tuple[Side, Side], start: Tensor, stored: Tensor | None, end: Tensor | None,
        reverse: bool = False,
    ) -> Launch:  # fmt: skip
        """A walk over a slice from ``start`` to ``end``: forward with rows (k, v), else with (q, do). With
        ``stored`` it leaves the chunks' half decays, too."""
        _, _, _, K, V = self.dims
        block_k, block_v = self._columns(K), self._columns(V)
        x, y = (side.queries if reverse else side.keys for side in sides)
        h_x, h_y = (None if stored is None else side.halves for side in sides)
        args = {
            "p_x": x, "p_y": y, "p_gx": self.g, "p_gy": self.gv, "p_start": start, "p_s": stored, "p_hx": h_x,
            "p_hy": h_y, "p_end": end, "scale": self.scale if reverse else 1.0,
        }  # fmt: skip
        constexprs = {
            "K": K, "V": V, "BK": block_k, "BV": block_v, "REVERSE": reverse, "STORE": stored is not None,
            "STORE_END": end is not None,
            "GATED_K": self.g is not None, "GATED_V": self.gv is not None, "V_FIRST": self.v_first,
        }  # fmt: skip
        programs, chunk = cdiv(K, block_k) * cdiv(V, block_v), self.schedule.chunk
        bytes_a_chunk = chunk * (self._bytes(x, self.g) * block_k + self._bytes(y, self.gv) * block_v)
        return self._launch(gv_walk_kernel, piece, programs, args, constexprs, self._stages(WALK_STAGES, bytes_a_chunk))

    def mild(
        self, piece: Slice, side: Side, other: Side, states: tuple[Tensor, Tensor | None],
        out: tuple[Tensor | None, Tensor | None, Tensor | None],
    ) -> Launch:  # fmt: skip
        """X, Y and the gates' gradient of a side, ``out``, of the chunks that are mild, from the other side and the
        states before each chunk and their gradients after it. X alone where there is no Y."""
        args, constexprs = self._sums(side, other, states, out)
        if out[1] is None and self.in_bfloat16:
            constexprs["BD"] = self._columns(side.dim, WIDE_COLUMNS)
        columns, rows = constexprs["BD"], self._bytes(other.keys, other.keys, other.gates) * self.schedule.chunk
        bytes_a_tile = (rows + self._bytes(*states) * columns) * constexprs["BE"]
        launch = self._launch(
            gv_mild_kernel, piece, cdiv(side.dim, columns) * self.chunks_of(piece), args, constexprs,
            self._stages(MILD_STAGES, bytes_a_tile),
        )  # fmt: skip
        return replace(launch, max_registers=REGISTERS)

    def strong(
        self, piece: Slice, sides: tuple[Side, Side], states: tuple[Tensor, Tensor | None],
        out: dict[str, Tensor | None],
    ) -> Launch:  # fmt: skip
        """What `mild` leaves out, of both sides: ``out`` by the kernel's names, of o or of all gradients."""
        B, _, H, K, V = self.dims
        keys, values = sides
        share, chunk = self._share(piece), self.schedule.chunk
        programs = cdiv(self.chunks_of(piece), share)
        args = {
            "p_q": self.q, "p_k": self.k, "p_g": self.g, "p_v": self.v, "p_gv": self.gv, "p_do": values.queries,
            "p_hk": keys.halves, "p_hv": values.halves, "p_s": states[0], "p_ds": states[1],
            "p_a": self.q.new_empty(B * H * programs, chunk, chunk, dtype=torch.float32), "scale": self.scale,
            **{name: out.get(name) for name in ("p_o", "p_dq", "p_dk", "p_dg", "p_dv", "p_dgv")},
        }  # fmt: skip
        constexprs = {
            "K": K, "V": V, "BK": self._columns(K), "BV": self._columns(V), "SUB": self.schedule.rows, "SHARE": share,
            "BACK": "p_o" not in out, "FRAMED": self.framed, "GATED_K": self.g is not None,
            "GATED_V": self.gv is not None,
        }  # fmt: skip
        return self._launch(gv_strong_kernel, piece, programs, args, constexprs)

    def _sums(
        self, side: Side, other: Side, states: tuple[Tensor, Tensor | None],
        out: tuple[Tensor | None, Tensor | None, Tensor | None],
    ) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
        """Arguments of a launch that makes X, and Y and the gates' gradient if it has Y to make."""
        dx, dy, dg = out
        args = {
            "p_x": side.queries, "p_y": side.keys, "p_g": side.gates, "p_h": side.halves,
            "p_u": other.queries, "p_w": other.keys, "p_gu": other.gates, "p_hu": other.halves,
            "p_s": states[0], "p_ds": states[1], "p_dx": dx, "p_dy": dy, "p_dg": dg, "scale": self.scale,
        }  # fmt: skip
        constexprs = {
            "D": side.dim, "E": other.dim, "BD": self._columns(side.dim), "BE": self._columns(other.dim),
            "Y": dy is not None, "STORE_X": dx is not None, "TRANSPOSED": side.of_keys,
            "GATED": side.gates is not None, "GATED_U": other.gates is not None,
        }  # fmt: skip
        return args, constexprs

    def _share(self, piece: Slice) -> int:
        """Chunks that a program looks at for what is not mild."""
        B, _, H, _, _ = self.dims
        share = SHARE
        while share > 1 and cdiv(self.chunks_of(piece), share) * B * H < STRONG_PROGRAMS:
            share //= 2
        return share

    @staticmethod
    def _bytes(*tensors: Tensor | None) -> int:
        """Bytes of an element of each of them, added."""
        return sum(x.element_size() for x in tensors if x is not None)

    def _stages(self, most: int, iteration_bytes: int) -> int:
        """Iterations of a loop whose loads are in flight at once: one more than have their tiles in shared memory."""
        if not self.in_bfloat16:
            return 1
        return min(most, 1 + (DEFAULT_SHARED_BYTES - SCRATCH_BYTES) // iteration_bytes)

    def _columns(self, dim: int, most: int = 0) -> int:
        """Columns of a tile, COLUMNS at most unless it is said: as many as the head dimension fills. But where products
        of 64 rows go to an H100's own product instruction, as sums of gates do in float32, too, fewer than 64 are
        miscompiled (`plan.limits`): so they are there, and masked."""
        filled = min(most or COLUMNS, padded(dim))
        return filled if self.schedule.chunk < WGMMA_ROWS else max(filled, SAFE_COLUMNS)

    def _launch(
        self,
        kernel: Any,
        piece: Slice,
        programs: int,
        args: dict[str, Any],
        constexprs: dict[str, Any],
        stages: int = 1,
    ) -> Launch:
        """A launch of so many programs a head."""
        _, _, _, K, V = self.dims
        args = args | {"n_here": self.chunks_of(piece), "first_chunk": piece.first_chunk}
        constexprs = constexprs | {"C": self.schedule.chunk} | self.operands(max(K, V))
        return self.launched(kernel, programs, args, constexprs, num_stages=stages)
