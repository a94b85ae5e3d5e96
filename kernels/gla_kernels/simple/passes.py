"""The order of the passes, forward and backward. Every function hands its launches to ``launch``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import packed
from ..copies import summed
from ..launch import Launch, Launcher
from ..schedule import cdiv, padded
from ..tiles.slices import Slice
from . import edges, native
from .call import Call, chunks_of
from .decays import simple_decays_kernel
from .grad_qk import simple_grad_qk_kernel
from .grad_qk_group import simple_grad_qk_group_kernel
from .grad_v import simple_grad_v_kernel
from .output import simple_output_kernel
from .parts import Gradients, Sum
from .states import simple_states_kernel
from .walk import simple_walk_kernel

MOST_HEADS = 16  # whose gates lie in one sector of 32 bytes, in bfloat16


@dataclass(frozen=True)
class Kept:
    """Buffers that a forward pass leaves for the backward one. sums: of `decay_sums`; states: of the chunks, where they
    are materialized; marks: of `packed.marks`, where sequences are packed."""

    sums: Tensor
    states: Tensor | None
    marks: Tensor | None = None


@dataclass(frozen=True)
class Over:
    """What walks over time go by, and the states, or their gradients, that they start from and end with. Where
    sequences are packed there is one of each sequence, which is taken in, or put out, on the way (edges.py)."""

    sums: Tensor
    marks: Tensor | None
    first: Tensor | None
    last: Tensor | None

    @property
    def start(self) -> Tensor | None:
        return self.first if self.marks is None else None

    @property
    def end(self) -> Tensor | None:
        return self.last if self.marks is None else None

    @property
    def args(self) -> dict[str, Any]:
        taken, put = (None, None) if self.marks is None else (self.first, self.last)
        marks = None if taken is None and put is None else self.marks
        return {"p_c": self.sums, "p_marks": marks, "p_in": taken, "p_out": put}


def forward(call: Call, final: bool, keep: bool, launch: Launcher) -> tuple[Tensor, Tensor | None, Kept]:
    """o [B, T, H, V], the final state [B, H, K, V] in float32 if asked for, and what the backward pass needs. ``keep``:
    whether there will be one."""
    lengths = call.cu_seqlens
    marks = None if lengths is None else packed.marks(lengths, call.dims[1], launch)
    B, T, H, _, V = call.dims
    o, sums, keep = call.v.new_empty(B, T, H, V), decay_sums(call, marks, launch), keep and call.materialize
    natively = native.serves_forward(call)
    walks = natively or call.walks
    keep = keep and not native.serves_apart(call)
    states = call.state_buffer() if keep or not walks else None
    over = Over(sums, marks, call.initial_state, call.end_states() if final else None)
    pieces, at = [call.whole] if walks else call.slices, over.start
    for piece in pieces:
        after = over.end if piece == pieces[-1] else call.one_state()
        if natively:
            launch(native.walk(call, sums, piece, at, states, after, o))
        elif walks:
            _walk(call, over, piece, at, states, after, o, launch)
        else:
            _states(call, over, piece, at, states, after, launch)
            _output(call, sums, piece, states, o, launch)
        at = after
    if marks is not None:
        edges.outputs(call, sums, o, over.last, launch)
    return o, over.last, Kept(sums, states if keep else None, marks)


def backward(
    call: Call, kept: Kept, do: Tensor, d_final: Tensor | None, gates: bool, launch: Launcher
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """dq, dk, dv, dg [B, T, H] if ``gates``, and the initial state's gradient if there is one.

    Where states are not materialized they are computed again: once for the states that slices start from, and then by
    slices, the last one first, in a buffer that all of them share.
    """
    q, k, v = (torch.empty_like(x) for x in (call.q, call.k, call.v))
    into = Gradients(q, k, v, _gate_buffer(call) if gates else None)
    sums, marks = kept.sums, kept.marks
    over = Over(sums, marks, call.initial_state, None)
    back = Over(sums, marks, d_final, None if call.initial_state is None else call.end_states())
    if native.serves_apart(call):
        native.walks_apart(call, sums, do, back.start, back.last, into, launch)
        return into.q, into.k, into.v, into.g, back.last
    starts = [over.start]
    for piece in call.slices[:-1]:
        starts.append(call.one_state())
        _states(call, over, piece, starts[-2], None, starts[-1], launch)
    states = call.state_buffer() if kept.states is None else kept.states
    walked = native.Walked.of(call, into) if native.serves(call) else None
    passes, d_at = Passes.of(call, into) if walked is None else None, back.start
    for piece, start in zip(reversed(call.slices), reversed(starts), strict=True):
        if kept.states is None:
            _states(call, over, piece, start, states, None, launch)
        d_before = call.one_state() if piece.first_chunk else back.end
        if walked is not None:
            launch(native.walk_back(call, sums, piece, do, states, d_at, d_before, walked.added(into)))
        if passes is not None:
            passes.go_over(call, back, piece, do, states, d_at, d_before, launch)
        d_at = d_before
    if walked is not None:
        walked.end(launch)
    if passes is not None:
        passes.end(call, back, do, into, launch)
    return into.q, into.k, into.v, into.g, back.last


def _gate_buffer(call: Call) -> Tensor:
    B, T, H, _, _ = call.dims
    assert call.g is not None  # nobody asks for the gradient of none
    return call.q.new_empty(B, T, H, dtype=call.g.dtype)


@dataclass(frozen=True)
class Passes:
    """What passes back have between them: the gradients of a slice's states; those of q, k and v, of which heads that
    share one may each leave a part; parts of dg, float32 [tiles of K, B, T, H], if it is asked for. share: heads of a
    group that one program adds up for dq and dk."""

    d_states: Tensor
    q: Sum
    k: Sum
    v: Sum
    g: Tensor | None
    share: int

    @classmethod
    def of(cls, call: Call, into: Gradients) -> Passes:
        B, T, H, K, _ = call.dims
        columns, (of_k, of_v) = cdiv(K, call.tile(64, 64).block_k), call.sharing
        share = call.share(columns)
        q, k, v = Sum(into.q, of_k // share), Sum(into.k, of_k // share), Sum(into.v, of_v)
        g = None if into.g is None else call.q.new_empty(columns, B, T, H, dtype=torch.float32)
        return cls(call.state_buffer(), q, k, v, g, share)

    def go_over(
        self, call: Call, back: Over, piece: Slice, do: Tensor, states: Tensor, d_at: Tensor | None,
        d_before: Tensor | None, launch: Launcher,
    ) -> None:  # fmt: skip
        """Fill a slice's rows of what is to be added up, and ``d_before`` with the gradient of the state before it."""
        (K, V), (of_k, of_v), share = call.dims[3:], call.sharing, self.share
        by_k, by_v = call.tile(64, 64), call.tile(64, 128)
        if call.walks_back:
            _grad_walk(call, back, piece, do, d_at, self.d_states, d_before, self.v.added, launch)
        else:
            _grad_states(call, back, piece, do, d_at, self.d_states, d_before, launch)
        args: dict[str, Any] = {
            "p_q": call.q, "p_k": call.k, "p_v": call.v, "p_c": back.sums, "p_marks": back.marks, "p_do": do,
            "p_s": states, "p_ds": self.d_states, "p_dq": self.q.added, "p_dk": self.k.added, "p_dv": self.v.added,
            "p_dg": self.g,
        }  # fmt: skip
        columns, gates = cdiv(K, by_k.block_k), self.g is not None
        if of_k == 1:
            launch(call.over_slice(simple_grad_qk_kernel, by_k, columns, args, piece, GRAD_G=gates, GV=of_v))
        else:
            how = {"GRAD_G": gates, "GK": of_k, "SHARE": share}
            launch(call.over_slice(simple_grad_qk_group_kernel, call.group_tile(), columns, args, piece, share, **how))
        if not call.walks_back:
            launch(call.over_slice(simple_grad_v_kernel, by_v, cdiv(V, by_v.block_v), args, piece, GK=of_k, GO=of_v))
        if back.marks is not None:
            edges.gradients(call, piece, args, back.first, launch)

    def end(self, call: Call, back: Over, do: Tensor, into: Gradients, launch: Launcher) -> None:
        """Add up what is in parts."""
        if back.marks is not None:
            edges.last_gradients(call, back.sums, do, back.first, self.v.added, back.last, launch)
        if self.g is not None and into.g is not None:
            launch(summed(self.g, into.g))
        for one in (self.q, self.k, self.v):
            one.end(launch)


def decay_sums(call: Call, marks: Tensor | None, launch: Launcher) -> Tensor:
    """Log2 of the decay from the start of each row's chunk, float64 [B, H, n_chunks * chunk]."""
    B, T, H, _, _ = call.dims
    sums = call.q.new_empty(B, H, call.n_chunks * call.chunk, dtype=torch.float64)
    heads = min(MOST_HEADS, padded(H))
    lie = (0, 0, 0) if call.g is None else call.g.stride()
    strides = dict(zip(("stride_b", "stride_t", "stride_h"), lie, strict=True))
    args = {"p_g": call.g, "p_marks": marks, "p_c": sums, "T": T, "H": H, "n_chunks": call.n_chunks} | strides
    grid = (B * call.n_chunks * cdiv(H, heads),)
    launch(Launch(simple_decays_kernel, grid, args, {"C": call.chunk, "BH": heads}))
    return sums


def _states(
    call: Call, over: Over, piece: Slice, at: Tensor | None, stored: Tensor | None, after: Tensor | None,
    launch: Launcher,
) -> None:  # fmt: skip
    """The states of a slice's chunks, into ``stored``; it starts from ``at`` and ends with ``after``."""
    args = {"p_k": call.k, "p_v": call.v, "p_s0": at, "p_s": stored, "p_st": after}
    _over_time(call, over, piece, args, False, launch)


def _grad_states(
    call: Call, over: Over, piece: Slice, do: Tensor, at: Tensor | None, stored: Tensor, after: Tensor | None,
    launch: Launcher,
) -> None:  # fmt: skip
    """Their gradients, from the slice's end to its start."""
    args = {"p_k": call.q, "p_v": do, "p_s0": at, "p_s": stored, "p_st": after}
    _over_time(call, over, piece, args, True, launch)


def _over_time(
    call: Call, over: Over, piece: Slice, args: dict[str, Any], reverse: bool, launch: Launcher
) -> None:  # fmt: skip
    _, _, _, K, V = call.dims
    tile = call.over_time()
    args = args | over.args | chunks_of(piece, args)
    programs = cdiv(K, tile.block_k) * cdiv(V, tile.block_v)
    of_k, of_v = call.sharing
    flags = {"REVERSE": reverse, "V_FIRST": call.v_first, "GK": of_k, "GV": 1 if reverse else of_v} | _given(args)
    launch(call.launch_of(simple_states_kernel, tile, programs, args, **flags))


def _given(args: dict[str, Any]) -> dict[str, Any]:
    """Which states a pass over time starts from and stores."""
    return {flag: args[x] is not None for flag, x in (("HAS_S0", "p_s0"), ("STORE_S", "p_s"), ("STORE_ST", "p_st"))}


def _output(call: Call, sums: Tensor, piece: Slice, states: Tensor | None, o: Tensor, launch: Launcher) -> None:
    tile = call.tile(64, 128)
    args = {"p_q": call.q, "p_k": call.k, "p_v": call.v, "p_c": sums, "p_s": states, "p_o": o}
    columns, (of_k, of_v) = cdiv(call.dims[-1], tile.block_v), call.sharing
    launch(call.over_slice(simple_output_kernel, tile, columns, args, piece, GK=of_k, GV=of_v))


def _walk(
    call: Call, over: Over, piece: Slice, at: Tensor | None, stored: Tensor | None, after: Tensor | None, o: Tensor,
    launch: Launcher,
) -> None:  # fmt: skip
    """`_states`, and the outputs."""
    args = {"p_q": call.q, "p_k": call.k, "p_v": call.v, "p_s0": at, "p_s": stored, "p_st": after, "p_o": o}
    _walk_over(call, over, piece, args, False, launch)


def _grad_walk(
    call: Call, over: Over, piece: Slice, do: Tensor, at: Tensor | None, stored: Tensor, after: Tensor | None,
    dv: Tensor, launch: Launcher,
) -> None:  # fmt: skip
    """`_grad_states`, and dv."""
    args = {"p_q": call.k, "p_k": call.q, "p_v": do, "p_s0": at, "p_s": stored, "p_st": after, "p_o": dv}
    _walk_over(call, over, piece, args, True, launch)


def _walk_over(
    call: Call, over: Over, piece: Slice, args: dict[str, Any], reverse: bool, launch: Launcher
) -> None:  # fmt: skip
    tile = call.walk_tile()
    args = args | over.args | chunks_of(piece, args)
    programs = cdiv(call.dims[-1], tile.block_v)
    of_k, of_v = call.sharing
    flags = {"REVERSE": reverse, "WHOLE": piece == call.whole, "V_FIRST": call.v_first} | _given(args)
    flags |= {"GK": of_k, "GV": 1 if reverse else of_v, "GO": of_v if reverse else 1}
    launch(call.launch_of(simple_walk_kernel, tile, programs, args, **flags))
