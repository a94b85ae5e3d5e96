"""Where packed sequences begin and end, if they have states: what the passes over chunks leave to do.

Chunks lie as in one sequence of T rows, and the passes lead states from chunk to chunk. A sequence that begins in a
chunk has a state of its own there, and so has the gradient of one that ends in it. The passes give both to the chunks
beyond (states.py). What rows of the sequence's own first and last chunk have to do with them is made here, of those
rows alone and by any_gate.py's equations, over what the passes made: a program a sequence and tile, with one chunk's
rows to go through.

Nothing of this runs where no states are given, and none are asked for.
"""

# mypy: disallow-untyped-defs=False
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..copies import copied
from ..launch import Launch, Launcher, settle_keys
from ..schedule import Tile, cdiv, padded
from ..tiles.gates import decayed_keys, decayed_queries
from ..tiles.operands import load_state, load_tile, store_state
from ..tiles.products import product
from ..tiles.slices import Slice
from .any_gate import any_gate_grad_qk, any_gate_grad_v
from .output import any_gate_output

if TYPE_CHECKING:
    from .kept import Gradients
    from .problem import Problem

ROWS: tl.constexpr = tl.constexpr(16)  # of a row block, of dq, dk and dg and of what enters states
TILE = Tile(64, 64)

FIRST, LAST, ONLY = 0, 1, 2  # chunk of a sequence: of several, or the only one


@triton.jit
def _tile(N_TILES: tl.constexpr, heads):
    """The program's sequence, head and tile."""
    i_p = tl.program_id(0)
    return i_p // (N_TILES * heads), (i_p // N_TILES) % heads, i_p % N_TILES


@triton.jit
def _state_tile(H, heads, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr):
    """The program's sequence and head, where their state lies, and which of its features and columns it has."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_n, i_h, i_t = _tile(((K + BK - 1) // BK) * NV, heads)
    o_k, o_v = (i_t // NV) * BK + tl.arange(0, BK), (i_t % NV) * BV + tl.arange(0, BV)
    return i_n, i_h, (i_n.to(tl.int64) * H + i_h) * K * V, o_k, o_v


@triton.jit
def _rows(p_lengths, i_n, CHUNK: tl.constexpr):
    """A sequence's first row, the row after its last, and the chunks that they are in."""
    first, end = tl.load(p_lengths + i_n).to(tl.int32), tl.load(p_lengths + i_n + 1).to(tl.int32)
    return first, end, first // CHUNK, tl.maximum(end - 1, first) // CHUNK


@triton.jit
def edge_output_kernel(
    p_q, p_k, p_v, p_g, p_s, p_o, p_lengths, scale, H, heads, first_chunk, n_here,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, CHUNK: tl.constexpr,
    V_FIRST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o [1, T, H, V] of the rows of each sequence's first chunk, from p_s [N, H, K, V], float32."""
    i_n, i_h, i_v = _tile((V + BV - 1) // BV, heads)
    first, end, i_c, _ = _rows(p_lengths, i_n, CHUNK)
    end = tl.minimum(end, (i_c + 1) * CHUNK)
    if (end > first) & (i_c >= first_chunk) & (i_c < first_chunk + n_here):
        p_s += (i_n.to(tl.int64) * H + i_h) * K * V
        for i_b in range(0, tl.cdiv(end - first, BT)):
            any_gate_output(
                p_q + i_h * K, p_k + i_h * K, p_v + i_h * V, p_g + i_h * K, p_s, p_o + i_h * V, None, scale, end, H,
                0, i_h, first, i_b, i_v * BV, K, V, BT, BK, BV, BK, DOT, PRECISION, V_FIRST,
            )  # fmt: skip


@triton.jit
def edge_final_kernel(
    p_k, p_v, p_g, p_s0, p_st, p_lengths, H, heads,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, HAS_S0: tl.constexpr,
    V_FIRST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """p_st [N, H, K, V], float32: the state after each sequence, from the one before the row block that it ends in,
    which lies there where it came from the block before, else from p_s0 [N, H, K, V], or from zero."""
    i_n, i_h, i_state, o_k, o_v = _state_tile(H, heads, K, V, BK, BV)
    first, end, i_first, i_last = _rows(p_lengths, i_n, BT)
    b_s = tl.zeros([BK, BV], dtype=tl.float32)
    if i_first < i_last:
        b_s = load_state(p_st + i_state, o_k, o_v, K, V, V_FIRST)
    elif HAS_S0:
        b_s = load_state(p_s0 + i_state, o_k, o_v, K, V, V_FIRST)
    for i_row in range(tl.maximum(first, i_last * BT), end, ROWS):
        b_kd, b_total = decayed_keys(p_k + i_h * K, p_g + i_h * K, i_row, end, H * K, o_k, K, ROWS, True)
        b_v = load_tile(p_v + i_h * V, i_row, end, H * V, o_v, V, ROWS)
        b_s = product(tl.trans(b_kd), b_v, b_s * tl.exp2(b_total)[:, None], DOT, PRECISION)
    store_state(p_st + i_state, b_s, o_k, o_v, K, V, V_FIRST)


@triton.jit
def edge_first_kernel(
    p_q, p_g, p_do, p_dst, p_ds0, p_lengths, scale, H, heads,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, HAS_DST: tl.constexpr,
    V_FIRST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """p_ds0 [N, H, K, V], float32: the gradient of the state before each sequence, from the one after the row block
    that it begins in, which lies there where it goes on in the next one, else from p_dst [N, H, K, V], or from zero."""
    i_n, i_h, i_state, o_k, o_v = _state_tile(H, heads, K, V, BK, BV)
    first, end, i_first, i_last = _rows(p_lengths, i_n, BT)
    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    if i_first < i_last:
        b_ds = load_state(p_ds0 + i_state, o_k, o_v, K, V, V_FIRST)
    elif HAS_DST:
        b_ds = load_state(p_dst + i_state, o_k, o_v, K, V, V_FIRST)
    end = tl.minimum(end, (i_first + 1) * BT)
    n_blocks = tl.cdiv(end - first, ROWS)
    for i_up in range(0, n_blocks):
        i_row = first + (n_blocks - 1 - i_up) * ROWS
        b_qd, b_total = decayed_queries(p_q + i_h * K, p_g + i_h * K, i_row, end, H * K, o_k, K, ROWS, True)
        b_do = load_tile(p_do + i_h * V, i_row, end, H * V, o_v, V, ROWS)
        b_ds = product(tl.trans(b_qd * scale), b_do, b_ds * tl.exp2(b_total)[:, None], DOT, PRECISION)
    store_state(p_ds0 + i_state, b_ds, o_k, o_v, K, V, V_FIRST)


@triton.jit
def _chunk_rows(p_lengths, i_n, first_chunk, n_here, CHUNK: tl.constexpr, WHICH: tl.constexpr):
    """The chunk of a sequence that is asked for: its rows in it, none where there is no such chunk here, and where the
    chunk's states lie."""
    first, end, i_first, i_last = _rows(p_lengths, i_n, CHUNK)
    i_c = i_first
    there = (end > first) & ((i_first == i_last) == (WHICH == 2))
    if WHICH == 0:
        end = tl.minimum(end, (i_first + 1) * CHUNK)
    if WHICH == 1:
        i_c = i_last
        first = i_last * CHUNK
    there = there & (i_c >= first_chunk) & (i_c < first_chunk + n_here)
    return first, tl.where(there, end, first), i_c - first_chunk


@triton.jit
def edge_grad_qk_kernel(
    p_q, p_k, p_v, p_g, p_do, p_s, p_ds, p_dq, p_dk, p_dg, p_lengths,
    scale, H, heads, first_chunk, n_here, s_n, s_h, s_c, ds_n, ds_h, ds_c,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, CHUNK: tl.constexpr, WHICH: tl.constexpr,
    V_FIRST: tl.constexpr, DS_V_FIRST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, dk and dg [1, T, H, K] of the rows of one chunk of each sequence: its first, its last or its only one. p_s:
    the state before those rows, and p_ds the gradient of that after them, each in steps of a sequence, a head and a
    chunk."""
    i_n, i_h, i_k = _tile((K + BK - 1) // BK, heads)
    first, end, i_c = _chunk_rows(p_lengths, i_n, first_chunk, n_here, CHUNK, WHICH)
    if end > first:
        o_k = i_k * BK + tl.arange(0, BK)
        p_s += (i_n.to(tl.int64) * s_n + i_h * s_h + i_c * s_c) * K * V
        p_ds += (i_n.to(tl.int64) * ds_n + i_h * ds_h + i_c * ds_c) * K * V
        any_gate_grad_qk(
            p_q + i_h * K, p_k + i_h * K, p_v + i_h * V, p_g + i_h * K, p_do + i_h * V, p_s, p_ds,
            p_dq + i_h * K, p_dk + i_h * K, p_dg + i_h * K, scale, first, end, H, o_k,
            K, V, CHUNK, BK, BV, DOT, PRECISION, V_FIRST, DS_V_FIRST,
        )  # fmt: skip


@triton.jit
def edge_grad_v_kernel(
    p_q, p_k, p_g, p_do, p_ds, p_dv, p_lengths, scale, H, heads, first_chunk, n_here,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, CHUNK: tl.constexpr,
    WHICH: tl.constexpr, V_FIRST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv [1, T, H, V] of the rows of each sequence's last or only chunk, from the gradients of the states after
    sequences, p_ds [N, H, K, V]."""
    i_n, i_h, i_v = _tile((V + BV - 1) // BV, heads)
    first, end, _ = _chunk_rows(p_lengths, i_n, first_chunk, n_here, CHUNK, WHICH)
    if end > first:
        p_ds += (i_n.to(tl.int64) * H + i_h) * K * V
        for i_row in range(first, end, BT):
            any_gate_grad_v(
                p_q + i_h * K, p_k + i_h * K, p_g + i_h * K, p_do + i_h * V, p_ds, p_dv + i_h * V, None, scale,
                0, i_h, i_row, end, end, H, i_v * BV, K, V, BT, BK, BV, BK, DOT, PRECISION, V_FIRST,
            )  # fmt: skip


settle_keys(edge_output_kernel, edge_final_kernel, edge_first_kernel, edge_grad_qk_kernel, edge_grad_v_kernel)


def _launch(p: "Problem", kernel: Any, tiles: str, args: dict[str, Any], **constexprs: Any) -> Launch:
    """A launch over all sequences, heads, and tiles of the axes that are named: "K", "V" or both."""
    assert p.packed is not None
    _, _, heads, K, V = p.dims
    blocks = {"K": min(TILE.block_k, padded(K)), "V": min(TILE.block_v, padded(V))}
    programs = p.packed.count * heads
    for axis in tiles:
        programs *= cdiv(K if axis == "K" else V, blocks[axis])
    args = {"p_lengths": p.packed.lengths, "scale": p.scale, "H": p.heads_a_row, "heads": heads} | args
    sizes = {"K": K, "V": V, "BT": p.config.block_t, "BK": blocks["K"], "BV": blocks["V"], "V_FIRST": p.v_first}
    sizes |= p.operands(K)
    return Launch(kernel, (programs,), args, sizes | constexprs)


def edge_output(p: "Problem", piece: Slice, o: Tensor, launch: Launcher) -> None:
    """Make again the slice's rows of o that sequences' states before them reach in their own chunk."""
    if p.initial_state is None:
        return
    args = {"p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s": p.initial_state, "p_o": o} | _here(piece)
    launch(_launch(p, edge_output_kernel, "V", args, CHUNK=p.schedule.chunk))


def edge_final(p: "Problem", final_state: Tensor, launch: Launcher) -> None:
    """Lead the states before the row blocks that sequences end in, [N, H, K, V], to their ends."""
    args = {"p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s0": p.initial_state, "p_st": final_state}
    launch(_launch(p, edge_final_kernel, "KV", args, HAS_S0=p.initial_state is not None))


def edge_first(p: "Problem", do: Tensor, d_initial: Tensor, launch: Launcher) -> None:
    """Lead the gradients of the states after the row blocks that sequences begin in, [N, H, K, V], to their starts."""
    args = {"p_q": p.q, "p_g": p.g, "p_do": do, "p_dst": p.d_final, "p_ds0": d_initial}
    launch(_launch(p, edge_first_kernel, "KV", args, HAS_DST=p.d_final is not None))


def edge_gradients(
    p: "Problem", piece: Slice, do: Tensor, states: Tensor, grads: Tensor, into: "Gradients", launch: Launcher
) -> None:
    """Make again the slice's rows of the gradients that states before and after sequences have a part in."""
    s0, dst = p.initial_state, p.d_final
    if s0 is None and dst is None:
        return
    nothing = torch.empty(p.dims[3:], dtype=torch.float32, device=p.q.device)
    launch(copied(None, nothing))
    common = {"p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_do": do} | _here(piece)
    common |= {"p_dq": into.q, "p_dk": into.k, "p_dg": into.g, "p_dv": into.v}
    given = ((p.heads_a_row, 1, 0), p.v_first)  # steps of a sequence, a head and a chunk, and how a state lies
    cases = [(FIRST, s0, given, grads, ((0, grads.shape[1], 1), False))] if s0 is not None else []
    if dst is not None:
        cases.append((LAST, states, ((0, states.shape[1], 1), False), dst, given))
    zero = ((0, 0, 0), p.v_first)
    before, after = (nothing, zero) if s0 is None else (s0, given), (nothing, zero) if dst is None else (dst, given)
    cases.append((ONLY, *before, *after))
    for which, s, (s_steps, s_v_first), ds, (ds_steps, ds_v_first) in cases:
        args = common | {"p_s": s, "p_ds": ds} | dict(zip(("s_n", "s_h", "s_c"), s_steps, strict=True))
        args |= dict(zip(("ds_n", "ds_h", "ds_c"), ds_steps, strict=True))
        flags = {"CHUNK": p.schedule.chunk, "WHICH": which, "V_FIRST": s_v_first, "DS_V_FIRST": ds_v_first}
        launch(_launch(p, edge_grad_qk_kernel, "K", args, **flags))
        if which != FIRST and dst is not None:
            flags = {"CHUNK": p.schedule.chunk, "WHICH": which, "V_FIRST": p.v_first}
            launch(_launch(p, edge_grad_v_kernel, "V", common | {"p_ds": dst}, **flags))


def _here(piece: Slice) -> dict[str, int]:
    return {"first_chunk": piece.first_chunk, "n_here": piece.chunks}
