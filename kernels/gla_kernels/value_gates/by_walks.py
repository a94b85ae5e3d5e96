"""Gates on both sides, by the walks of `gla` with gates of the keys alone: which kernels run. What is of the value side
is led into frames where its gates are not seen, and out of them again (frames.py).

For Hopper's own kernels; where these cannot serve, the passes of `value_gates` do. Chunks that are not mild on both
sides are left to strong.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..chunk.boundaries import segment_ends, segment_starts
from ..chunk.grad_qk import make_grad_qk
from ..chunk.grad_walk import fused_grad_scan
from ..chunk.kept import Frames, Gradients
from ..chunk.problem import Problem as Walks
from ..chunk.walk import fused_scan
from ..launch import Launch, Launcher
from ..schedule import WALKED_K, cdiv
from .frames import gv_enter_kernel, gv_leave_kernel, gv_scale_kernel
from .problem import Problem

COLUMNS = 64  # of a program's rows
MANY_ROWS, ROWS = 16, 8  # on their way at once: of two tensors, and of seven
# Chunks from one sum of S' dS' to the next, or fewer, for some programs an SM: more rounding errors, fewer bytes.
RUN = 4
PROGRAMS = 1024


class Framed(NamedTuple):
    """What a forward pass leaves: u and both parts of o [B, T, H, V], bfloat16, bfloat16 and int8, of which the first
    is the result itself, but of o' where not `_emerges`; the state before every so many chunks [B*H, .., K, V]; log2 of
    half of each chunk's decay, float32 [B*H, chunks, K]; of the value side `chunk.kept.Frames`; and the final state,
    None where nobody asked for it."""

    u: Tensor
    o: Tensor
    low: Tensor
    states: Tensor
    halves: Tensor
    frames: Tensor
    strong: Tensor
    final: Tensor | None


def serves(fwd: Walks, bwd: Walks, gates: Tensor) -> bool:
    """Whether Hopper's kernels do all of both directions of the call without these gates."""
    kept = fwd.schedule.materialize and bwd.schedule.materialize and fwd.dims[3] <= WALKED_K
    native = fwd.all_native(fwd.config.walk) and bwd.all_native(bwd.config.grad_walk, bwd.config.grad_qk)
    return kept and native and gates.dtype in (torch.bfloat16, torch.float32)


def forward(
    p: Walks, x: Problem, final: bool, keep: bool, launch: Launcher
) -> tuple[Tensor, Tensor | None, Framed | None]:
    """o, the final state if asked for, and with ``keep`` what the backward pass makes use of. p: the call without gates
    of the value side, x: with them."""
    assert x.gv is not None
    o = torch.empty_like(x.v)
    left, states, final_state = _walked(p, x, o, final, keep, launch)
    keys, values = _sides(x, None, left)
    if not _emerges(x):
        launch(_scaled(x, left.o, left, o, guarded=True))
    launch(x.strong(x.slices[0], (keys, values), (states, None), {"p_o": o}))
    return o, final_state, left if keep else None


def backward(
    walks: tuple[Walks, Walks], x: Problem, do: Tensor, d_final: Tensor | None, left: Framed | None, launch: Launcher
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor | None]:
    """dq, dk, dv, dg, dgv and the initial state's gradient, None without one. walks: both directions of the call
    without gates of the value side. left: None, and the first makes it again."""
    assert x.g is not None
    assert x.gv is not None
    if left is None:
        left, _, _ = _walked(walks[0], x, torch.empty_like(x.v), d_final is not None, True, launch)
    dv, d_in = torch.empty_like(x.v), torch.empty_like(x.v)
    low = torch.empty_like(x.v, dtype=torch.int8)
    dgv = torch.empty_like(x.gv)
    d_initial = None if x.initial_state is None else torch.empty_like(x.initial_state)
    enters = _emerges(x) and walks[1].n_seg == 1  # else do is read before the walk
    tile = walks[1].config.grad_walk
    led_out = enters and tile is not None and tile.block_v == COLUMNS  # as grad_walk_hopper_kernel does
    du = dv if led_out else torch.empty_like(x.v)
    into = Gradients(torch.empty_like(x.q), torch.empty_like(x.k), du, torch.empty_like(x.g), d_initial)
    if not enters:
        launch(_scaled(x, do, left, d_in, guarded=False))
    led = (x.gv, d_in) if enters else (None, None)
    frames = Frames(left.frames, left.strong, low, _gamma(walks[1]), *led)
    p = replace(walks[1], v=left.u, d_final=d_final, frames=frames)
    piece, grads, every = p.slices[0], p.state_buffer(), _apart(x)
    states = left.states if every == 1 else p.state_buffer()
    ends = segment_ends(p, d_in, None, launch)
    walked = fused_grad_scan(p, piece, do if enters else d_in, ends, grads, d_initial, left.halves, du, None, launch)
    kept = max(1, p.states_apart // every) if every > 1 else 1
    run = every * kept
    native = make_grad_qk(p, piece, d_in, left.states, run, states, grads, left.halves, into, launch, kept)
    assert walked
    assert native
    launch(_left(x, left, states, d_in, du, low, grads, d_final, None if led_out else dv, dgv))
    keys, values = _sides(x, do, left)
    out = {"p_dq": into.q, "p_dk": into.k, "p_dg": into.g, "p_dv": dv, "p_dgv": dgv}
    launch(x.strong(x.slices[0], (keys, values), (states, grads), out))
    return into.q, into.k, dv, into.g, dgv, d_initial


def _apart(x: Problem) -> int:
    """Chunks from one state that is kept to the next: 1 for all. Hopper's own grad_qk leads a state along over several
    times as many."""
    B, _, H, _, V = x.dims
    chunks, tiles, run = x.chunks_of(x.slices[0]), B * H * cdiv(V, COLUMNS), RUN
    while run > 1 and tiles * cdiv(chunks, run) < PROGRAMS:
        run //= 2
    return run


def _emerges(x: Problem) -> bool:
    """Whether a walk leads o out of frames itself, or do into them: it has room for gates of 16 bits."""
    assert x.gv is not None
    return x.gv.dtype == torch.bfloat16


def _walked(
    p: Walks, x: Problem, o: Tensor, final: bool, keep: bool, launch: Launcher
) -> tuple[Framed, Tensor, Tensor | None]:
    """All of a forward pass up to o' and, where `_emerges`, o, of chunks that are mild; the states that it makes of
    others, at least; and the final state if asked for."""
    assert x.gv is not None
    B, _, H, _, V = p.dims
    u, emerges = torch.empty_like(x.v), _emerges(x)
    into = o if emerges else torch.empty_like(x.v)
    low = torch.empty_like(x.v, dtype=torch.int8) if keep else None
    of_columns = x.v.new_empty(B * H, p.n_chunks, V, dtype=torch.float32)
    tiles = cdiv(V, COLUMNS)
    strong = x.v.new_empty(B * H, p.n_chunks, tiles, dtype=torch.int32)
    args = {"p_v": x.v, "p_g": x.gv, "p_u": u, "p_h": of_columns, "p_strong": strong}
    launch(_of_chunks(x, gv_enter_kernel, args, {"V": V, "BV": COLUMNS, "R": MANY_ROWS}))
    frames = Frames(of_columns, strong, low, _gamma(p), x.gv if emerges else None)
    p = replace(p, v=u, frames=frames)
    halves, states = p.half_decays(), p.state_buffer()
    assert halves is not None
    final_state = p.final_buffer() if final else None
    starts, every = segment_starts(p, None, None, launch), _apart(x) if keep else 0
    few = p.few_states(p.slices[0], every) if every > 1 else None
    walked = fused_scan(p, p.slices[0], starts, states, halves, final_state, into, few, every, None, launch)
    assert walked
    kept = states if few is None else few
    left = Framed(u, into, into if low is None else low, kept, halves, of_columns, strong, final_state)
    return left, states, final_state


def _gamma(p: Walks) -> Tensor | None:
    """Room for what segments decay by, of `chunk.kept.Frames`."""
    B, _, H, _, V = p.dims
    return p.q.new_empty(B * H, p.n_seg, V, dtype=torch.float32) if p.n_seg > 1 else None


def _sides(x: Problem, do: Tensor | None, left: Framed) -> Any:
    """Both sides of the call as strong.py wants them."""
    keys, values = x.sides(do)
    return replace(keys, halves=left.halves), replace(values, halves=left.frames)


def _scaled(x: Problem, rows: Tensor, left: Framed, into: Tensor, guarded: bool) -> Launch:
    """A launch that leads rows into frames, or o out of them where all is mild."""
    _, _, _, K, V = x.dims
    args = {"p_x": rows, "p_g": x.gv, "p_h": left.frames, "p_hu": left.halves, "p_y": into}
    sizes = {"D": V, "E": K, "BD": COLUMNS, "R": MANY_ROWS, "GUARDED": guarded}
    return _of_chunks(x, gv_scale_kernel, args, sizes)


def _left(
    x: Problem, left: Framed, states: Tensor, do: Tensor, du: Tensor, low: Tensor, grads: Tensor,
    d_final: Tensor | None, dv: Tensor | None, dgv: Tensor,
) -> Launch:  # fmt: skip
    """A launch that makes dv and dgv where all is mild. do, du: in frames, as is what du, rounded, leaves, ``low``; or
    du is dv, and None is to be made of it."""
    _, _, _, K, V = x.dims
    args = {
        "p_x": left.o, "p_xl": left.low, "p_u": left.u, "p_do": do, "p_du": du, "p_dul": low, "p_g": x.gv,
        "p_h": left.frames, "p_hu": left.halves, "p_s": states, "p_few": left.states, "p_ds": grads,
        "p_st": left.final if d_final is not None else None, "p_dv": dv, "p_dg": dgv,
    }  # fmt: skip
    every = _apart(x)
    sizes = {
        "D": V, "E": K, "R": ROWS, "BD": COLUMNS, "RUN": every, "FEW": every > 1, "EMERGED": _emerges(x),
        "HAS_ST": d_final is not None, "V_FIRST": x.v_first,
    }  # fmt: skip
    return _of_chunks(x, gv_leave_kernel, args, sizes, every)


def _of_chunks(x: Problem, kernel: Any, args: dict[str, Any], sizes: dict[str, Any], run: int = 1) -> Launch:
    """A launch of a program of one warp for each run of chunks of a head and COLUMNS of V."""
    chunks, programs = x.chunks_of(x.slices[0]), cdiv(x.dims[-1], COLUMNS)
    sizes = sizes | {"C": x.schedule.chunk} | x.operands(max(x.dims[3:]))
    return x.launched(kernel, programs * cdiv(chunks, run), args | {"n_here": chunks}, sizes, num_warps=1)
