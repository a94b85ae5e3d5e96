"""Where packed sequences begin and end: the states before and after them, and the rows beside.

Chunks lie as in one sequence of T rows, and no decay leads into a sequence (decays.py). So the state S0 before one
enters, and the state after it leaves, here. With c the sums of a chunk and p those before the sequence's first row, the
decay from S0 to row i of the sequence's first chunk is e_i = e^{c_i - p} with the first gate as it is, and with l its
last row, f_i = e^{c_l - c_i} that from row i of its last chunk to the sequence's end:

                    first chunk, ENTERS                        last chunk
    rows            O  += scale (Q S0) e                       dV += (K dS) f
    grads           dQ += scale (dO S0^T) e                    dK += (V dS^T) f
    states          dS0 = e_end dS' + scale Q^T (dO e)         S   = e^{c_l} S' + K^T (V f)

dS: the gradient of the state after the sequence. S' and dS': the state before the chunk and its gradient after it,
where the sequence goes on there, and where the chunk is the whole sequence, S0 by e_l and dS by e_l. Walks over time
leave S' and dS' where S and dS0 will be (`put_out`), and are handed S0 and dS on the way (`take_in`).

What passes the gate of row t besides: from S0 to rows i >= t and to dS', from rows j < t and S' to dS.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from .. import packed
from ..launch import Launch, Launcher
from ..schedule import Tile, cdiv
from ..tiles.operands import load_state, load_tile, state_offsets, store_state, store_tile
from ..tiles.products import product
from ..tiles.slices import Slice
from .call import Call, chunks_of
from .decays import CLOSED
from .heads import first_row_of_part

ROWS: tl.constexpr = tl.constexpr(packed.ROWS)

# --- In walks over time -----------------------------------------------------------------------------------------------


@triton.jit
def _mark(p_marks, i_row, T):
    """Of a row its sequence, and that one's first row and the row after its last."""
    n_rows = tl.cdiv(T, ROWS) * ROWS
    i_n = tl.load(p_marks + 2 * n_rows + i_row).to(tl.int64)
    return i_n, tl.load(p_marks + i_row), tl.load(p_marks + n_rows + i_row)


@triton.jit
def _load_if(p_s, wanted, o_k, o_v, K: tl.constexpr, V: tl.constexpr, V_FIRST: tl.constexpr):
    """`load_state`, or zeros."""
    m_s = (o_k < K)[:, None] & (o_v < V)[None, :] & wanted
    return tl.load(p_s + state_offsets(o_k, o_v, K, V, V_FIRST), mask=m_s, other=0.0).to(tl.float32)


@triton.jit
def _store_if(p_s, b_s, wanted, o_k, o_v, K: tl.constexpr, V: tl.constexpr, V_FIRST: tl.constexpr):
    """`store_state`, or nothing."""
    m_s = (o_k < K)[:, None] & (o_v < V)[None, :] & wanted
    tl.store(p_s + state_offsets(o_k, o_v, K, V, V_FIRST), b_s.to(p_s.dtype.element_ty), mask=m_s)


@triton.jit
def put_out(
    p_out, p_marks, b_s, i_row, i_h, T, H, o_k, o_v, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr,
    REVERSE: tl.constexpr, V_FIRST: tl.constexpr,
):  # fmt: skip
    """The state before a chunk, for the sequence that comes from before it and ends in it; REVERSE, the gradient of the
    state after the chunk, for the one that begins in it and goes on. p_out [N, H, K, V]."""
    i_n, i_first, i_end = _mark(p_marks, i_row + BT - 1 if REVERSE else i_row, T)
    ends = i_end <= i_row + BT
    wanted = (i_first >= i_row) & (ends == 0) if REVERSE else (i_first < i_row) & ends
    _store_if(p_out + (i_n * H + i_h) * K * V, b_s, wanted, o_k, o_v, K, V, V_FIRST)


@triton.jit
def take_in(
    p_in, p_marks, p_c, b_s, i_row, i_h, T, H, o_k, o_v, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr,
    REVERSE: tl.constexpr, V_FIRST: tl.constexpr,
):  # fmt: skip
    """The state after a chunk, b_s, with that before the sequence, which begins in it and is the last there; REVERSE,
    the gradient before it, with that after the sequence which comes from before the chunk and ends in it.
    p_in [N, H, K, V]; p_c: of the head."""
    i_n, i_first, i_end = _mark(p_marks, i_row if REVERSE else i_row + BT - 1, T)
    if REVERSE:
        wanted = (i_first < i_row) & (i_end > i_row) & (i_end <= i_row + BT)
        b_decay = tl.load(p_c + i_end - 1, mask=wanted, other=0.0)
    else:
        wanted = i_first >= i_row
        b_before = tl.load(p_c + i_first - 1, mask=wanted & (i_first > i_row), other=0.0)
        b_decay = tl.where(wanted, tl.load(p_c + i_row + BT - 1) - b_before - CLOSED, 0.0)
    b_in = _load_if(p_in + (i_n * H + i_h) * K * V, wanted, o_k, o_v, K, V, V_FIRST)
    return b_s + b_in * tl.exp2(b_decay.to(tl.float32))


# --- Kernels of a program a sequence and head ------------------------------------------------------------------------


@triton.jit
def _edge(p_lengths, p_c, i_n, BT: tl.constexpr, ENTERS: tl.constexpr):
    """A sequence's first chunk, or its last: its number, the sequence's rows in it and the row after those, whether the
    sequence goes on beyond it, and decays: of the rows [BT], 0 from the last one on; of all of them; and, where it is
    taken from both, from S0 to the first of them. p_c: of the head."""
    i_begin, i_end = tl.load(p_lengths + i_n).to(tl.int32), tl.load(p_lengths + i_n + 1).to(tl.int32)
    i_chunk = (i_begin if ENTERS else tl.maximum(i_begin, i_end - 1)) // BT
    i_start = i_chunk * BT
    i_first, i_stop = tl.maximum(i_begin, i_start), tl.minimum(i_end, i_start + BT)
    goes_on, is_empty = (i_begin < i_first) | (i_stop < i_end), i_first >= i_stop
    o_t = i_first + tl.arange(0, BT)
    m_t = o_t < i_stop
    b_c = tl.load(p_c + o_t, mask=m_t, other=0.0)
    b_last = tl.load(p_c + i_stop - 1, mask=i_first < i_stop, other=0.0)
    b_before = tl.load(p_c + i_begin - 1, mask=i_begin > i_start, other=0.0)
    b_before += tl.where(i_begin >= i_start, CLOSED, 0.0)
    if ENTERS:  # the first row's own gate is apart: no operand is then too small for its parts
        b_from = tl.load(p_c + i_first, mask=i_first < i_stop, other=0.0)
        b_rows, b_all, b_own = b_c - b_from, b_last - b_from, b_from - b_before
    else:
        b_rows, b_all, b_own = b_last - b_c, b_last - b_before, b_last - b_last
    b_rows = tl.exp2(tl.where(m_t, b_rows, CLOSED).to(tl.float32))
    b_all, b_own = tl.where(is_empty, 0.0, b_all), tl.where(is_empty, 0.0, b_own)
    return i_chunk, i_first, i_stop, goes_on, b_rows, tl.exp2(b_all.to(tl.float32)), tl.exp2(b_own.to(tl.float32))


@triton.jit(do_not_specialize=["T", "n_chunks"])
def simple_edge_rows_kernel(
    p_lengths, p_c, p_x, p_z, p_y, scale, T, H, n_chunks,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GX: tl.constexpr, GY: tl.constexpr, ENTERS: tl.constexpr, V_FIRST: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What rows p_x [1, T, H, K] of each edge get through the states p_z [N, H, K, V], added to p_y [1, T, H, V]. GX
    heads share each one of p_x; where GY share one of p_y, it is [GY, 1, T, H // GY, V] (heads.py)."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_nh = i_p % NV, (i_p // NV).to(tl.int64)
    i_n, i_h, o_v = i_nh // H, i_nh % H, i_v * BV + tl.arange(0, BV)
    _, i_first, i_stop, _, b_w, _, b_own = _edge(p_lengths, p_c + i_h * n_chunks * BT, i_n, BT, ENTERS)
    b_y = tl.zeros([BT, BV], dtype=tl.float32)
    for i_k in range(0, K, BK):
        o_k = i_k + tl.arange(0, BK)
        b_x = load_tile(p_x + i_h // GX * K, i_first, i_stop, H // GX * K, o_k, K, BT)
        b_z = load_state(p_z + i_nh * K * V, o_k, o_v, K, V, V_FIRST)
        b_y = product(b_x, b_z, b_y, DOT, PRECISION)
    b_y *= (scale * b_own * b_w)[:, None]
    p_y += first_row_of_part(i_h, 1, T, H, GY) * V
    b_y += load_tile(p_y, i_first, i_stop, H // GY * V, o_v, V, BT).to(tl.float32)
    store_tile(p_y, b_y, i_first, i_stop, H // GY * V, o_v, V, BT)


@triton.jit(do_not_specialize=["n_chunks"])
def simple_edge_states_kernel(
    p_lengths, p_c, p_x, p_u, p_z, p_y, scale, H, n_chunks,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GX: tl.constexpr, GU: tl.constexpr, ENTERS: tl.constexpr, V_FIRST: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """p_y [N, H, K, V], which holds what `put_out` left: the states after the sequences, from rows p_x [1, T, H, K] and
    p_u [1, T, H, V], and p_z [N, H, K, V], those before them, or None for zeros; ENTERS: the gradients of the latter,
    from those of the former. One of no rows hands its state on. GX heads share each one of p_x, GU each one of p_u."""
    NK: tl.constexpr = (K + BK - 1) // BK
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_k, i_nh = i_p % NV, (i_p // NV) % NK, (i_p // (NV * NK)).to(tl.int64)
    i_n, i_h = i_nh // H, i_nh % H
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    _, i_first, i_stop, goes_on, b_w, b_all, b_own = _edge(p_lengths, p_c + i_h * n_chunks * BT, i_n, BT, ENTERS)
    p_y += i_nh * K * V
    b_y = _load_if(p_y, goes_on, o_k, o_v, K, V, V_FIRST)
    if p_z is not None:
        b_y += _load_if(p_z + i_nh * K * V, goes_on == 0, o_k, o_v, K, V, V_FIRST)
    b_x = load_tile(p_x + i_h // GX * K, i_first, i_stop, H // GX * K, o_k, K, BT)
    b_u = load_tile(p_u + i_h // GU * V, i_first, i_stop, H // GU * V, o_v, V, BT)
    b_u = b_u.to(tl.float32) * (scale * b_w)[:, None]
    b_y = product(tl.trans(b_x), b_u, b_y * b_all, DOT, PRECISION) * b_own
    store_state(p_y, b_y, o_k, o_v, K, V, V_FIRST)


@triton.jit(do_not_specialize=["n_chunks", "first_chunk", "n_here", "n_stored"])
def simple_edge_grads_kernel(
    p_lengths, p_c, p_x, p_u, p_z, p_end, p_s, p_y, p_dg, scale, T, H, n_chunks, first_chunk, n_here, n_stored,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GX: tl.constexpr, GU: tl.constexpr, ENTERS: tl.constexpr, GRAD_G: tl.constexpr, V_FIRST: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What rows p_u [1, T, H, V] of the edges in n_here chunks from first_chunk on get through the states p_z
    [N, H, K, V], added to p_y [1, T, H, K]; GRAD_G: what that and p_x, [1, T, H, K], add to the gradients of gates,
    added to p_dg of `simple_grad_qk_kernel`.

    p_s [H, n_stored, K, V]: states before the chunks, or ENTERS, gradients of those after them; p_end [N, H, K, V]:
    ENTERS, the gradients of the states after the sequences, if there are any. GX heads share each one of p_x and p_y,
    and are a program's; GU share each one of p_u.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    i_p = tl.program_id(0)
    i_k, i_nx = i_p % NK, (i_p // NK).to(tl.int64)
    i_n, i_x, o_k = i_nx // (H // GX), i_nx % (H // GX), i_k * BK + tl.arange(0, BK)
    p_c0 = p_c + i_x * GX * n_chunks * BT
    i_chunk, i_first, i_stop, goes_on, b_w, b_all, b_own = _edge(p_lengths, p_c0, i_n, BT, ENTERS)
    i_chunk -= first_chunk
    if (i_chunk < 0) | (i_chunk >= n_here) | (i_first >= i_stop):
        return
    p_x, p_y, o_t = p_x + i_x * K, p_y + i_x * K, i_first + tl.arange(0, BT)
    b_sum = load_tile(p_y, i_first, i_stop, H // GX * K, o_k, K, BT).to(tl.float32)
    for i_g in range(0, GX):
        i_h = i_x * GX + i_g
        i_nh, p_sh = i_n * H + i_h, p_s + (i_h * n_stored + i_chunk) * K * V
        p_ch = p_c + i_h * n_chunks * BT  # of each head decays alone differ; names keep their types around a loop
        _c, _f, _s, _g, b_w, b_all, b_own = _edge(p_lengths, p_ch, i_n, BT, ENTERS)
        b_y = tl.zeros([BT, BK], dtype=tl.float32)
        b_phi = tl.zeros([BK], dtype=tl.float32)
        for i_v in range(0, V, BV):
            o_v = i_v + tl.arange(0, BV)
            b_u = load_tile(p_u + i_h // GU * V, i_first, i_stop, H // GU * V, o_v, V, BT)
            b_z = load_state(p_z + i_nh * K * V, o_k, o_v, K, V, V_FIRST)
            b_y = product(b_u, tl.trans(b_z), b_y, DOT, PRECISION)
            if GRAD_G:
                b_s = _load_if(p_sh, goes_on, o_k, o_v, K, V, False)
                if p_end is not None:
                    b_s += _load_if(p_end + i_nh * K * V, goes_on == 0, o_k, o_v, K, V, V_FIRST)
                b_phi += tl.sum(b_z * b_s, axis=1)
        b_y *= (scale * b_own * b_w)[:, None]
        if GRAD_G:
            b_x = load_tile(p_x, i_first, i_stop, H // GX * K, o_k, K, BT).to(tl.float32)
            b_p = tl.sum(b_x * b_y, axis=1)
            b_dg = tl.cumsum(b_p, axis=0, reverse=ENTERS)
            if not ENTERS:
                b_dg -= b_p
            b_dg += b_own * b_all * tl.sum(b_phi, axis=0)
            p_dgh = p_dg + (i_k.to(tl.int64) * T + o_t) * H + i_h
            b_dg += tl.load(p_dgh, mask=o_t < i_stop, other=0.0)
            tl.store(p_dgh, b_dg, mask=o_t < i_stop)
        b_sum += b_y
    store_tile(p_y, b_sum, i_first, i_stop, H // GX * K, o_k, K, BT)


# --- Launches ---------------------------------------------------------------------------------------------------------


def outputs(call: Call, sums: Tensor, o: Tensor, last: Tensor | None, launch: Launcher) -> None:
    """o gets what it does from the states before the sequences; ``last`` those after them, if they are asked for."""
    first, (_, _, _, K, V), tile = call.initial_state, call.dims, call.tile(64, 64)
    if first is not None:
        rows = {"p_x": call.q, "p_z": first, "p_y": o}
        launch(_of_edges(call, simple_edge_rows_kernel, cdiv(V, tile.block_v), sums, rows, True, GY=1))
    if last is not None:
        args: dict[str, Any] = {"p_x": call.k, "p_u": call.v, "p_z": first, "p_y": last}
        launch(_of_edges(call, simple_edge_states_kernel, _tiles(tile, K, V), sums, args, False, GU=call.sharing[1]))


def gradients(call: Call, piece: Slice, args: dict[str, Any], d_final: Tensor | None, launch: Launcher) -> None:
    """dq, dk and the parts of dg, of a slice's rows, get what they do from the states before and after the sequences.
    args: of `simple_grad_qk_kernel`, whose tiles these are."""
    first, sums, tiles = call.initial_state, args["p_c"], cdiv(call.dims[-2], call.tile(64, 64).block_k)
    common, flags = {"p_dg": args["p_dg"], **chunks_of(piece, args)}, {"GRAD_G": args["p_dg"] is not None}
    share, of_v = call.sharing
    if first is not None:
        entering = {"p_x": call.q, "p_u": args["p_do"], "p_z": first, "p_end": d_final}
        entering |= common | {"p_s": args["p_ds"], "p_y": args["p_dq"]}
        launch(_of_edges(call, simple_edge_grads_kernel, tiles, sums, entering, True, share, GU=1, **flags))
    if d_final is not None:
        leaving = {"p_x": call.k, "p_u": call.v, "p_z": d_final, "p_end": None}
        leaving |= common | {"p_s": args["p_s"], "p_y": args["p_dk"]}
        launch(_of_edges(call, simple_edge_grads_kernel, tiles, sums, leaving, False, share, GU=of_v, **flags))


def last_gradients(
    call: Call, sums: Tensor, do: Tensor, d_final: Tensor | None, dv: Tensor, d_initial: Tensor | None, launch: Launcher
) -> None:
    """dv gets what it does from the states after the sequences, and ``d_initial`` is made, if there is one."""
    (_, _, _, K, V), tile = call.dims, call.tile(64, 64)
    if d_final is not None:
        rows = {"p_x": call.k, "p_z": d_final, "p_y": dv}
        launch(_of_edges(call, simple_edge_rows_kernel, cdiv(V, tile.block_v), sums, rows, False, GY=call.sharing[1]))
    if d_initial is not None:
        args: dict[str, Any] = {"p_x": call.q, "p_u": do, "p_z": d_final, "p_y": d_initial}
        launch(_of_edges(call, simple_edge_states_kernel, _tiles(tile, K, V), sums, args, True, GU=1))


def _tiles(tile: Tile, K: int, V: int) -> int:
    return cdiv(K, tile.block_k) * cdiv(V, tile.block_v)


def _of_edges(
    call: Call, kernel: Any, tiles: int, sums: Tensor, args: dict[str, Any], enters: bool, share: int = 1, **flags: int
) -> Launch:  # fmt: skip
    """A launch of so many programs a sequence and ``share`` heads; ``enters``: at first chunks, whose queries bear the
    scale."""
    args = {"p_lengths": call.cu_seqlens, "p_c": sums, "scale": call.scale if enters else 1.0} | args
    flags = flags | {"ENTERS": enters, "V_FIRST": call.v_first, "GX": call.sharing[0]}
    return call.launch_of(kernel, call.tile(64, 64), tiles * call.sequences, args, share, **flags)
