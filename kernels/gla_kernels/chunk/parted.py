"""How a call's work is parted: into segments of chunks, slices of segments and groups of heads; and how far apart
states are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch

from ..schedule import HOPPER_SMS, SEGMENT_ROWS, WGMMA_ROWS, cdiv
from ..tiles.descriptors import MOST_ROWS
from ..tiles.slices import Head, Share, Slice, room_for, segments_at_once, share_of, slices_of
from .call import Call
from .hopper import grad_qk_runs_hopper_kernel
from .kept import HeadGroup, head_groups_of, rows_of, states_of

# What a forward pass leaves for the backward one may take, by default, a row of a head: what flash-linear-attention
# leaves, scores of chunks of 64 rows in float32.
KEPT_ROW_BYTES = 256

# Of Hopper's own grad_qk: chunks that a state is led along over, at most, and columns of V up to which two programs
# share one of an H100's multiprocessors.
LONGEST_RUN, NARROW = 32, 128


def prepared_bytes(K: int) -> int:
    """Of what a walk of wide heads reads of one chunk of a head: `prepare.Prepared`."""
    return WGMMA_ROWS * 2 * (2 * K + 2 * WGMMA_ROWS) + 4 * K


def least_run(K: int, V: int) -> int:
    """Chunks from one kept state to the next, of a kernel of Hopper's own: as many as keep states, in bfloat16, and
    decays of row blocks within `KEPT_ROW_BYTES`."""
    return cdiv(2 * K * V, WGMMA_ROWS * KEPT_ROW_BYTES - 4 * K)


@dataclass(frozen=True)
class Parted(Call):
    """A call, and its parts."""

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

    def head_group(self, at: HeadGroup) -> Self:
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

    def forward(self, keep: bool) -> Self:
        """The problem as the forward pass works on it: all heads at once. ``keep``: in slices that a backward pass will
        take, where it can make use of what lies between them."""
        return self if keep and len(self.head_groups) == 1 else replace(self, settled=self._widest)

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
        least, at_once = min(least_run(K, V), self.n_chunks), HOPPER_SMS * (2 if V <= NARROW else 1)

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
