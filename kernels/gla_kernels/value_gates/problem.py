"""One call with value-side gates as the kernels' host code sees it: sizes, buffers, launches. Nothing here touches a
GPU; the order of the kernels is in `value_gates`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..chunk.problem import operand_type
from ..chunk.slices import Slice, segments_at_once, slices_of
from ..config import SAFE_COLUMNS, WGMMA_ROWS, Schedule, cdiv, padded
from ..launch import Launch
from .apply import gv_apply_kernel
from .scores import gv_scores_kernel
from .walk import gv_walk_kernel

MAX_CHUNK = 64  # scores of a chunk are one tile of registers

COLUMNS = 64  # of a program's tiles, in both head dimensions


@dataclass(frozen=True)
class Side:
    """One side of the state, [B, T, H, D]: (q, k, g), ``of_keys``, or (do, v, gv), do None in the forward pass."""

    queries: Tensor | None
    keys: Tensor
    gates: Tensor | None
    of_keys: bool

    @property
    def dim(self) -> int:
        return self.keys.shape[-1]


@dataclass(frozen=True)
class Problem:
    """The inputs of one call: q, k, g [B, T, H, K]; v, gv [B, T, H, V]; initial_state [B, H, K, V] float32."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    gv: Tensor | None
    scale: float
    initial_state: Tensor | None
    schedule: Schedule

    @cached_property
    def dims(self) -> tuple[int, int, int, int, int]:
        """B, T, H, K, V."""
        B, T, H, K = self.q.shape
        return B, T, H, K, self.v.shape[-1]

    @cached_property
    def slices(self) -> list[Slice]:
        """Runs of chunks whose states are in memory at once, in order: all of them where states are materialized."""
        B, T, H, K, V = self.dims
        chunk = self.schedule.chunk
        n_chunks = max(1, cdiv(T, chunk))
        at_once = n_chunks
        if not self.schedule.materialize:
            inputs = sum(x.nbytes for x in (self.q, self.k, self.v, self.g, self.gv) if x is not None)
            at_once = segments_at_once(B * H * (K * V * self.state_dtype.itemsize + chunk * chunk * 4), inputs)
        return list(slices_of(n_chunks, n_chunks, 1, at_once))

    def chunks_of(self, part: Slice) -> int:
        """Chunks of a slice that have rows: none in an empty sequence."""
        return min(part.chunks, cdiv(self.dims[1], self.schedule.chunk))

    @property
    def state_dtype(self) -> torch.dtype:
        """The chunks' states, as `chunk` keeps them: as they enter a bf16 product, or float32."""
        return torch.bfloat16 if self.q.dtype == torch.bfloat16 else torch.float32

    def state_buffer(self) -> Tensor:
        """Room for one state a chunk of a slice, [B*H, chunks, K, V]: every slice in turn has it."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B * H, self.slices[0].chunks, K, V, dtype=self.state_dtype)

    def scores_buffer(self) -> Tensor:
        """Room for the scores of a slice's chunks, float32 [B*H, chunks, chunk, chunk]."""
        B, _, H, _, _ = self.dims
        chunk = self.schedule.chunk
        return self.q.new_empty(B * H, self.slices[0].chunks, chunk, chunk, dtype=torch.float32)

    def boundary(self) -> Tensor:
        """Room for one state between slices, or the gradient of one, float32 [B, H, K, V]."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B, H, K, V, dtype=torch.float32)

    def first(self, given: Tensor | None) -> Tensor:
        """The state, or gradient, that a walk over all slices starts from: zero where none is given."""
        return self.boundary().zero_() if given is None else given

    def walk(
        self, part: Slice, rows: tuple[Tensor, Tensor], start: Tensor, stored: Tensor | None, end: Tensor | None,
        reverse: bool = False,
    ) -> Launch:  # fmt: skip
        """A walk over a slice from ``start`` to ``end`` [B, H, K, V]: forward with rows (k, v), else with (q, do)."""
        _, _, _, K, V = self.dims
        block_k, block_v = self._columns(K), self._columns(V)
        args = {
            "p_x": rows[0], "p_y": rows[1], "p_gx": self.g, "p_gy": self.gv, "p_start": start, "p_s": stored,
            "p_end": end, "scale": self.scale if reverse else 1.0,
        }  # fmt: skip
        constexprs = {
            "K": K, "V": V, "BK": block_k, "BV": block_v, "REVERSE": reverse, "STORE": stored is not None,
            "STORE_END": end is not None,
            "GATED_K": self.g is not None, "GATED_V": self.gv is not None,
        }  # fmt: skip
        return self._launch(gv_walk_kernel, part, cdiv(K, block_k) * cdiv(V, block_v), args, constexprs)

    def scores(self, part: Slice, side: Side, into: Tensor) -> Launch:
        """Scores of a side's queries and keys, of the chunks of a slice."""
        args = {"p_x": side.queries, "p_y": side.keys, "p_g": side.gates, "p_a": into, "scale": self.scale}
        constexprs = {"D": side.dim, "BD": self._columns(side.dim), "GATED": side.gates is not None}
        return self._launch(gv_scores_kernel, part, self.chunks_of(part), args, constexprs)

    def apply(
        self, part: Slice, side: Side, other: Side, scores: Tensor, states: tuple[Tensor | None, Tensor | None],
        out: tuple[Tensor | None, Tensor | None, Tensor | None],
    ) -> Launch:  # fmt: skip
        """X, Y and the gates' gradient of a side, ``out``, from the other side's scores and the states before each
        chunk and their gradients after it. X alone where there is no Y."""
        dx, dy, dg = out
        x, y = dx is not None or dg is not None, dy is not None
        block = self._columns(side.dim)
        args = {
            "p_x": side.queries, "p_y": side.keys, "p_g": side.gates, "p_a": scores,
            "p_u": other.queries, "p_w": other.keys, "p_gu": other.gates, "p_s": states[0], "p_ds": states[1],
            "p_dx": dx, "p_dy": dy, "p_dg": dg, "scale": self.scale,
        }  # fmt: skip
        constexprs = {
            "D": side.dim, "E": other.dim, "BD": block, "BE": self._columns(other.dim),
            "X": x, "Y": y, "STORE_X": dx is not None, "TRANSPOSED": side.of_keys,
            "GATED": side.gates is not None, "GATED_U": other.gates is not None,
        }  # fmt: skip
        return self._launch(gv_apply_kernel, part, cdiv(side.dim, block) * self.chunks_of(part), args, constexprs)

    def _columns(self, dim: int) -> int:
        """Columns of a tile: as many as the head dimension fills, but where products of 64 rows go to an H100's own
        product instruction, as sums of gates do in float32, too. That is miscompiled with fewer than 64 (`feasible`),
        so they are there, and masked."""
        filled = min(COLUMNS, padded(dim))
        return filled if self.schedule.chunk < WGMMA_ROWS else max(filled, SAFE_COLUMNS)

    def _launch(
        self, kernel: Any, part: Slice, programs: int, args: dict[str, Any], constexprs: dict[str, Any]
    ) -> Launch:
        """A launch of so many programs a head."""
        B, T, H, K, V = self.dims
        dot, precision = operand_type(self.q.dtype, max(K, V))
        args = args | {"T": T, "H": H, "n_here": self.chunks_of(part), "first_chunk": part.first_chunk}
        constexprs = constexprs | {
            "C": self.schedule.chunk, "SUB": self.schedule.rows, "DOT": dot, "PRECISION": precision,
        }  # fmt: skip
        return Launch(kernel, (programs * B * H,), args, constexprs)
