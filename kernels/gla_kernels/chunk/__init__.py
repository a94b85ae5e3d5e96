"""The chunkwise form: which kernels run, in which order, on which buffers.

Nothing here touches a GPU: each step builds a `Launch` and hands it to ``launch``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..config import KernelConfig, Schedule, Tile, cdiv, padded
from ..launch import Launch, Launcher, described, interpreting, settle_keys
from .descriptors import blocks
from .grad_qk import grad_qk_kernel
from .grad_qk_hopper import grad_qk_hopper_kernel
from .grad_v import grad_v_kernel
from .output import output_kernel
from .slices import SEGMENT_ROWS, Slice, segments_at_once, slices_of
from .states import combine_kernel, grad_states_kernel, states_kernel
from .steep import grad_qk_steep_kernel

settle_keys(
    states_kernel, combine_kernel, output_kernel, grad_states_kernel, grad_qk_kernel, grad_qk_hopper_kernel,
    grad_qk_steep_kernel, grad_v_kernel,
)  # fmt: skip

SHARE = 16  # chunks that a program looks at for what is left undone
COMBINED = Tile(16, 64)  # of a state, in a program that adds segments up: few bytes a step, many programs


@dataclass(frozen=True)
class Kept:
    """What a forward pass leaves for the backward one, which else computes it again.

    chunk, block_t: rows a chunk and a row block. states [B*H, chunks, K, V]: before each chunk; halves, float32
    [B*H, n_blocks, K]: log2 of half of each row block's decay, None without gates.
    """

    chunk: int
    block_t: int
    states: Tensor
    halves: Tensor | None


@dataclass(frozen=True)
class Problem:
    """The inputs of one call. q, k, g [B, T, H, K]; v [B, T, H, V]; initial_state [B, H, K, V] float32."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    scale: float
    initial_state: Tensor | None
    schedule: Schedule
    config: KernelConfig

    @cached_property
    def dims(self) -> tuple[int, int, int, int, int]:
        """B, T, H, K, V."""
        B, T, H, K = self.q.shape
        return B, T, H, K, self.v.shape[-1]

    @cached_property
    def n_chunks(self) -> int:
        """Chunks a sequence; one at least, so that no buffer is empty."""
        return max(1, cdiv(self.q.shape[1], self.schedule.chunk))

    @cached_property
    def n_blocks(self) -> int:
        """Row blocks a sequence."""
        return cdiv(self.q.shape[1], self.config.block_t)

    @cached_property
    def seg_chunks(self) -> int:
        """Chunks a segment."""
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
        """So many segments from one on."""
        first_chunk = first * self.seg_chunks
        return Slice(first, count, first_chunk, min(self.n_chunks - first_chunk, count * self.seg_chunks))

    @cached_property
    def slices(self) -> list[Slice]:
        """What is worked on at once, in order."""
        B, _, H, K, V = self.dims
        segment = self.seg_chunks * B * H * K * V * self.state_dtype.itemsize
        inputs = sum(x.nbytes for x in (self.q, self.k, self.v, self.g) if x is not None)
        at_once = self.n_seg if self.schedule.materialize else segments_at_once(segment, inputs)
        return list(slices_of(self.n_seg, self.n_chunks, self.seg_chunks, at_once))

    @property
    def state_dtype(self) -> torch.dtype:
        """The chunks' states: as they enter a bf16 product, or float32. float16 lacks the range."""
        return torch.bfloat16 if self.q.dtype == torch.bfloat16 else torch.float32

    def state_buffer(self) -> Tensor:
        """Room for the states of one slice's chunks, [B*H, chunks, K, V]: every slice in turn has it."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B * H, self.slices[0].chunks, K, V, dtype=self.state_dtype)

    def boundary_buffer(self, segments: int) -> Tensor:
        """One state a segment, float32 [B*H, segments, K, V]."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B * H, segments, K, V, dtype=torch.float32)

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
        dot, precision = operand_type(self.q.dtype, K)
        return {
            "K": K, "V": V, "BT": self.config.block_t, "BK": tile.block_k, "BV": tile.block_v,
            "GATED": self.g is not None, "DOT": dot, "PRECISION": precision,
        }  # fmt: skip

    def kept(self, states: Tensor, halves: Tensor | None) -> Kept | None:
        """These buffers for the backward pass, if they hold the states of all chunks for good."""
        if not self.schedule.materialize:
            return None
        return Kept(self.schedule.chunk, self.config.block_t, states, halves)

    def served_by(self, kept: Kept | None) -> bool:
        """Whether what was kept is what this backward pass needs."""
        if kept is None or not self.schedule.materialize:
            return False
        return (kept.chunk, kept.block_t) == (self.schedule.chunk, self.config.block_t)

    def launch_of(self, kernel: Any, tile: Tile, programs: int, args: dict[str, Any], **constexprs: Any) -> Launch:
        """A launch of so many programs a head."""
        B, T, H, _, _ = self.dims
        names = described(kernel) if tile.descriptors else ()
        return Launch(
            kernel,
            (programs * B * H,),
            args | {"T": T, "H": H},
            self.constexprs(tile) | constexprs,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            blocks=blocks(args, names, self.config.block_t, tile.block_k, tile.block_v),
            max_registers=tile.max_registers,
        )

    def on_hopper(self, kernel: Any, tile: Tile, portable: Launch) -> Launch | None:
        """The launch by Hopper's own kernel, where the tile asks for that and it can serve: gated bf16 inputs, chunks
        of one row block of 64, and tensors that all bear descriptors."""
        if not tile.hopper or interpreting() or self.g is None:
            return None
        if not self.q.dtype == self.g.dtype == torch.bfloat16 or not self.schedule.chunk == self.config.block_t == 64:
            return None
        names = described(kernel)
        found = blocks(portable.args, names, 64, tile.block_k, tile.block_v)
        if len(found) < len(names):
            return None
        constexprs = portable.constexprs | {"STAGES": tile.num_stages}
        return replace(portable, kernel=kernel, constexprs=constexprs, blocks=found)

    def steep_of(self, tile: Tile, args: dict[str, Any]) -> Launch:
        """A launch of what Hopper's kernel leaves undone: a program so many chunks."""
        shares = cdiv(args["n_here"], SHARE)
        return self.launch_of(grad_qk_steep_kernel, tile, shares, args, CHUNK=self.schedule.chunk, SHARE=SHARE)

    def walk_of(
        self, kernel: Any, tile: Tile, args: dict[str, Any], part: Slice, stored: Tensor, every: int, last: bool,
        **constexprs: Any,
    ) -> Launch:  # fmt: skip
        """A launch of a pass over time, which stores a state every so many chunks: a program a segment and tile.
        ``last``: only each segment's last one."""
        _, _, _, K, V = self.dims
        chunk = self.schedule.chunk
        args = args | {
            "n_seg": part.segments, "first_seg": part.first_segment, "n_stored": stored.shape[1],
            "seg_rows": (part.chunks if part == self.whole else self.seg_chunks) * chunk,
            "every_rows": every * chunk,
        }  # fmt: skip
        columns = cdiv(K, tile.block_k) * cdiv(V, tile.block_v)
        each = every * chunk == self.config.block_t and not last
        return self.launch_of(kernel, tile, columns * part.segments, args, EACH=each, LAST=last, **constexprs)

    def combination_of(
        self, added: Tensor, gamma: Tensor | None, first: Tensor | None, into: Tensor, reverse: bool
    ) -> Launch:
        """A launch that adds up what segments add: a program a tile of the state."""
        B, _, H, K, V = self.dims
        block_k, block_v = min(COMBINED.block_k, padded(K)), min(COMBINED.block_v, padded(V))
        return Launch(
            combine_kernel,
            (cdiv(K, block_k) * cdiv(V, block_v) * B * H,),
            {"p_add": added, "p_gamma": gamma, "p_first": first, "p_s": into, "n_seg": self.n_seg,
             "n_added": added.shape[1]},
            {"K": K, "V": V, "BK": block_k, "BV": block_v, "REVERSE": reverse, "HAS_FIRST": first is not None,
             "GATED": gamma is not None},
            num_warps=COMBINED.num_warps,
        )  # fmt: skip

    def blocks_of(
        self, kernel: Any, tile: Tile, columns: int, args: dict[str, Any], part: Slice, states: Tensor, **flags: Any
    ) -> Launch:
        """A launch of a pass that works on all row blocks of a slice at once: a program a row block and tile."""
        chunk, block_t = self.schedule.chunk, self.config.block_t
        first = part.first_chunk * (chunk // block_t)
        here = min(self.n_blocks - first, part.chunks * (chunk // block_t))
        args = args | {
            "scale": self.scale, "n_blocks": self.n_blocks, "first_block": first, "n_here": here,
            "n_stored": states.shape[1], "chunk": chunk,
        }  # fmt: skip
        return self.launch_of(
            kernel, tile, columns * here, args, SINGLE=chunk == block_t, FULL=self.schedule.rows > block_t, **flags
        )


def operand_type(dtype: torch.dtype, K: int) -> tuple[Any, str]:
    """Type of the tensor-core operands, and what float32 operands are cut to.

    bf16: bf16 products, tf32 where a decayed operand would lose bits that count (inside a sub-chunk).
    fp16: tf32, which has the same 10 mantissa bits but float32's range: states and scores overflow 65504 easily.
    fp32: three tf32 products, within a few units of float32's last place; plain float32 products where K is so large
    that the split operands would not fit the shared memory of an A100.
    The interpreter's bf16 product is wrong, so it computes bf16 inputs in float32.
    """
    if dtype == torch.bfloat16 and not interpreting():
        return tl.bfloat16, "tf32"
    if dtype == torch.float32:
        return tl.float32, "tf32x3" if K <= 256 else "ieee"
    return tl.float32, "tf32"


def forward(p: Problem, output_final_state: bool, launch: Launcher) -> tuple[Tensor, Tensor | None, Kept | None]:
    """o [B, T, H, V] in the inputs' dtype, the final state [B, H, K, V] in float32 if asked for, and what the backward
    pass can make use of."""
    B, _, H, K, V = p.dims
    o = torch.empty_like(p.v)
    final_state = p.q.new_empty(B, H, K, V, dtype=torch.float32) if output_final_state else None
    halves, states = p.half_decays(), p.state_buffer()
    starts = _starts(p, None, launch)
    tile, parts = p.config.output, p.slices
    for part in parts:
        _states(p, part, starts, states, halves, final_state if part == parts[-1] else None, launch)
        args = {"p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s": states, "p_h": halves, "p_o": o}
        launch(p.blocks_of(output_kernel, tile, cdiv(V, tile.block_v), args, part, states))
    return o, final_state, p.kept(states, halves)


def _starts(p: Problem, halves: Tensor | None, launch: Launcher) -> Tensor | None:
    """States that segments start from, [.., n_seg, K, V] in float32: the initial state, if any, where there is but one
    segment. Fills in ``halves``, too, where there are more."""
    if p.n_seg == 1:
        return p.initial_state
    starts, every = p.boundary_buffer(p.n_seg), p.seg_chunks
    if p.schedule.states_every is None:
        _states(p, p.whole, p.initial_state, starts, halves, None, launch, every)
    else:
        walked = p.segments(0, p.n_seg - (halves is None))  # none asks what the last one adds
        added, gamma = p.boundary_buffer(walked.segments), p.decay_buffer(walked.segments)
        _states(p, walked, None, added, halves, None, launch, every, last=True, gamma=gamma)
        launch(p.combination_of(added, gamma, p.initial_state, starts, reverse=False))
    return starts


def _ends(p: Problem, do: Tensor, d_final: Tensor | None, launch: Launcher) -> Tensor | None:
    """Gradients of the states after each segment, as `_starts` has the states before them."""
    if p.n_seg == 1:
        return d_final
    ends, every = p.boundary_buffer(p.n_seg), p.seg_chunks
    if p.schedule.states_every is None:
        _grad_states(p, p.whole, do, d_final, ends, None, launch, every)
    else:
        walked = p.segments(1, p.n_seg - 1)
        added, gamma = p.boundary_buffer(walked.segments), p.decay_buffer(walked.segments)
        _grad_states(p, walked, do, None, added, None, launch, every, last=True, gamma=gamma)
        launch(p.combination_of(added, gamma, d_final, ends, reverse=True))
    return ends


def _states(
    p: Problem, part: Slice, starts: Tensor | None, states: Tensor, halves: Tensor | None, final_state: Tensor | None,
    launch: Launcher, every: int = 1, last: bool = False, gamma: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill ``states`` [B*H, .., K, V] with the states before every n-th chunk of the slice, and the slice's rows of
    ``halves``. ``starts``: the states before each segment of the sequence, none for zero. ``last``: the state after
    each segment instead, and log2 of its decay in ``gamma`` [B*H, segments, K]."""
    args = {
        "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s0": starts, "p_s": states, "p_h": halves, "p_gamma": gamma,
        "p_st": final_state, "n_start": 1 if starts is p.initial_state else p.n_seg, "n_blocks": p.n_blocks,
    }  # fmt: skip
    launch(
        p.walk_of(
            states_kernel,
            p.config.states,
            args,
            part,
            states,
            every,
            last,
            HAS_S0=starts is not None,
            STORE_H=halves is not None,
            STORE_ST=final_state is not None,
        )
    )


def _grad_states(
    p: Problem, part: Slice, do: Tensor, ends: Tensor | None, grads: Tensor, d_initial: Tensor | None, launch: Launcher,
    every: int = 1, last: bool = False, gamma: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill ``grads`` [B*H, .., K, V] with the gradients of the states after every n-th chunk of the slice. ``ends``: of
    the states after each segment of the sequence, or after all of it, [B, H, K, V]; none for zero. ``last``: of the
    state before each segment instead, and log2 of its decay in ``gamma`` [B*H, segments, K]."""
    args = {
        "p_q": p.q, "p_g": p.g, "p_do": do, "p_dst": ends, "p_ds": grads, "p_gamma": gamma,
        "p_ds0": d_initial, "scale": p.scale, "n_end": p.n_seg if part != p.whole else 1,
    }  # fmt: skip
    launch(
        p.walk_of(
            grad_states_kernel,
            p.config.grad_states,
            args,
            part,
            grads,
            every,
            last,
            HAS_DST=ends is not None,
            STORE_DS0=d_initial is not None,
        )
    )


def backward(
    p: Problem, do: Tensor, d_final: Tensor | None, launch: Launcher, kept: Kept | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """dq, dk, dv, dg and the initial state's gradient.

    do [B, T, H, V]; d_final [B, H, K, V] float32 or None. States are computed again unless the forward pass kept them.
    """
    dq, dk, dv = torch.empty_like(p.q), torch.empty_like(p.k), torch.empty_like(p.v)
    dg = None if p.g is None else torch.empty_like(p.g)
    d_initial = torch.empty_like(p.initial_state) if p.initial_state is not None else None
    starts = None
    if kept is not None and p.served_by(kept):
        states, halves = kept.states, kept.halves
    else:
        kept, states, halves = None, p.state_buffer(), p.half_decays()
        starts = _starts(p, halves, launch)
    grads, ends = p.state_buffer(), _ends(p, do, d_final, launch)
    for part in p.slices:
        if kept is None:
            _states(p, part, starts, states, halves if p.n_seg == 1 else None, None, launch)
        _grad_states(p, part, do, ends, grads, d_initial if part.first_segment == 0 else None, launch)
        _grad_qk(p, part, do, states, grads, halves, (dq, dk, dg), launch)
        _grad_v(p, part, do, grads, halves, dv, launch)
    return dq, dk, dv, dg, d_initial


def _grad_qk(
    p: Problem, part: Slice, do: Tensor, states: Tensor, grads: Tensor, halves: Tensor | None,
    out: tuple[Tensor, Tensor, Tensor | None], launch: Launcher,
) -> None:  # fmt: skip
    """Fill the slice's rows of dq, dk and dg: ``out``."""
    _, T, _, K, _ = p.dims
    tile = p.config.grad_qk
    here = min(part.chunks, cdiv(T, p.schedule.chunk))
    args = {
        "p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_do": do, "p_s": states, "p_ds": grads, "p_h": halves,
        "p_dq": out[0], "p_dk": out[1], "p_dg": out[2], "scale": p.scale, "n_blocks": p.n_blocks,
        "n_here": here, "first_chunk": part.first_chunk, "n_stored": states.shape[1],
    }  # fmt: skip
    programs = cdiv(K, tile.block_k) * here
    portable = p.launch_of(grad_qk_kernel, tile, programs, args, CHUNK=p.schedule.chunk)
    native = p.on_hopper(grad_qk_hopper_kernel, tile, portable)
    if native is None:
        launch(portable)
    else:
        launch(native)
        launch(p.steep_of(tile, args))


def _grad_v(
    p: Problem, part: Slice, do: Tensor, grads: Tensor, halves: Tensor | None, dv: Tensor, launch: Launcher
) -> None:
    """Fill the slice's rows of dv."""
    _, _, _, _, V = p.dims
    tile = p.config.grad_v
    args = {"p_q": p.q, "p_k": p.k, "p_g": p.g, "p_do": do, "p_ds": grads, "p_h": halves, "p_dv": dv}
    launch(p.blocks_of(grad_v_kernel, tile, cdiv(V, tile.block_v), args, part, grads))
