"""The gates' gradients, from what walks over time left of each row and, every so many chunks, of the states.

Over the columns of row t, a_t is the sum of q dq and b_t that of k dk, x_t and y_t are what of these comes through the
state. As in grad_qk.py, with a chunk's rows alone,

    dg_t = sum_{i >= t} (a_i - (b_i - y_i)) + sum_{j < t} y_j + Z_c,          Z_c = e^{c_C} sum(S_{c-1} dS_c)

Z_c is what crosses all of the chunk c. With X_c and Y_c the chunk's sums of x and y, and P_c = sum(S_c dS_c) what
passes from it to the next one, Z_c can be had from before it and from after it:

    Z_c = P_{c-1} - X_c,   P_c = P_{c-1} - X_c + Y_c        Z_c = P_c - Y_c,   P_{c-1} = P_c - Y_c + X_c

At both ends of a run of chunks P is made of the states themselves. S and dS are rounded apart, so X and Y do not cancel
to the last bit, and what is off in P grows with each chunk that is passed. So both ways are weighed by how many these
are; a chunk that lets nothing pass has no Z, and P begins anew behind it; and a Z as small as what it may be off is
made smaller.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, settle_keys

if TYPE_CHECKING:
    from .call import Call

EVERY = 4  # chunks between two states
BLOCK = 2048  # numbers of two states that are multiplied at once
# Of P, what X - Y may be off, squared: S, dS and what they are made of are rounded to 2^-9. And log2 of a decay that
# lets nothing pass, which is less.
ROUNDED, NOTHING = tl.constexpr(2.0**-17), tl.constexpr(-12.0)


@triton.jit
def _sums(p_sums, o_t, m_t, n_sums, n_heads_rows, PARTS: tl.constexpr):
    """The sum over parts of rows o_t of one of both gradients, through the state and of all."""
    b_through = tl.zeros(o_t.shape, dtype=tl.float32)
    b_all = tl.zeros(o_t.shape, dtype=tl.float32)
    for i in tl.static_range(PARTS):
        b_through += tl.load(p_sums + i * n_heads_rows + o_t, mask=m_t, other=0.0)
        b_all += tl.load(p_sums + n_sums + i * n_heads_rows + o_t, mask=m_t, other=0.0)
    return b_through, b_all


@triton.jit
def _product(p_x, p_y, p_all, i_c, n_chunks, BT: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """P before the chunk i_c, of S and dS, or 0 where the chunks on both sides let nothing pass, for walks leave none
    then. p_all: of the head, the sum of all gates of the first chunk."""
    before = tl.load(p_all + (i_c - 1) * BT, mask=(i_c > 0) & (i_c < n_chunks), other=0.0).to(tl.float32)
    after = tl.load(p_all + i_c * BT, mask=i_c < n_chunks, other=0.0).to(tl.float32)
    b_xy = tl.zeros([BLOCK], dtype=tl.float32)
    if (before >= NOTHING) | (after >= NOTHING):
        for i in range(0, SIZE, BLOCK):
            o_i = i + tl.arange(0, BLOCK)
            b_xy += tl.load(p_x + o_i).to(tl.float32) * tl.load(p_y + o_i).to(tl.float32)
    return tl.sum(b_xy, axis=0)


@triton.jit(do_not_specialize=["T", "n_chunks", "n_few", "n_heads"])
def simple_gates_kernel(
    p_sums, p_few, p_c, p_dg, T, H, n_chunks, n_few, n_heads,
    SIZE: tl.constexpr, BT: tl.constexpr, EVERY: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dg [B, T, H]. p_sums [through the state, of all; of dq, of dk; PARTS, B*H, n_chunks * BT] float32; p_few [S, dS;
    B*H, n_few + 1, SIZE]: before every EVERY chunks and after the last, where
    `_product` asks for them. A program has EVERY of a head, n_heads of all
    [B, H]."""
    i_run, i_bh = tl.program_id(0) % n_few, (tl.program_id(0) // n_few).to(tl.int64)
    o_c, o_r = i_run * EVERY + tl.arange(0, EVERY), tl.arange(0, BT)
    m_c = o_c < n_chunks
    o_t, m_t = o_c[:, None] * BT + o_r[None, :], m_c[:, None] & (o_r >= 0)[None, :]
    n_rows = n_heads.to(tl.int64) * n_chunks * BT  # of one part
    p_sums += i_bh * n_chunks * BT
    b_x, b_a = _sums(p_sums, o_t, m_t, 2 * PARTS * n_rows, n_rows, PARTS)
    b_y, b_b = _sums(p_sums + PARTS * n_rows, o_t, m_t, 2 * PARTS * n_rows, n_rows, PARTS)
    p_few += (i_bh * (n_few + 1) + i_run) * SIZE
    p_few_ds, p_c = p_few + n_heads.to(tl.int64) * (n_few + 1) * SIZE, p_c + i_bh * n_chunks * BT + (BT - 1)
    first = _product(p_few, p_few_ds, p_c, i_run * EVERY, n_chunks, BT, SIZE, BLOCK)
    i_last = (i_run + 1) * EVERY
    last = _product(p_few + SIZE, p_few_ds + SIZE, p_c, i_last, n_chunks, BT, SIZE, BLOCK)

    # Z from before each chunk and from after it, and how many chunks are passed for that
    b_decay = tl.load(p_c + o_c * BT, mask=m_c, other=0.0).to(tl.float32)
    b_closed = (b_decay < NOTHING).to(tl.int32)
    b_count = tl.cumsum(b_closed, axis=0)
    b_before, b_after = b_count - b_closed, tl.sum(b_closed, axis=0) - b_count
    b_xs, b_ys = tl.sum(b_x, axis=1), tl.sum(b_y, axis=1)
    m_up = (o_c[:, None] > o_c[None, :]) & (b_before[:, None] == b_count[None, :])
    m_down = (o_c[:, None] < o_c[None, :]) & m_c[None, :] & (b_after[:, None] == (b_after + b_closed)[None, :])
    b_up = tl.where(b_closed > 0, b_ys, b_ys - b_xs)
    b_up = tl.sum(tl.where(m_up, b_up[None, :], 0.0), axis=1) + tl.where(b_before == 0, first, 0.0) - b_xs
    b_down = tl.where(b_closed > 0, b_xs, b_xs - b_ys)
    b_down = tl.sum(tl.where(m_down, b_down[None, :], 0.0), axis=1) + tl.where(b_after == 0, last, 0.0) - b_ys
    b_nu, b_nd = 1.0 + tl.sum(m_up.to(tl.float32), axis=1), 1.0 + tl.sum(m_down.to(tl.float32), axis=1)
    b_share = b_nd / (b_nu + b_nd)
    b_off, b_decay = ROUNDED * b_nu * b_share, tl.exp2(2.0 * b_decay)
    b_z = (b_share * b_up + (1.0 - b_share) * b_down) * (b_decay / (b_decay + b_off))
    b_z = tl.where(b_closed > 0, 0.0, b_z)

    b_dg = tl.cumsum(b_a - (b_b - b_y), axis=1, reverse=True) + (tl.cumsum(b_y, axis=1) - b_y) + b_z[:, None]
    p_dg += (i_bh // H) * T * H + i_bh % H + o_t.to(tl.int64) * H
    tl.store(p_dg, b_dg.to(p_dg.dtype.element_ty), mask=m_t & (o_t < T))


settle_keys(simple_gates_kernel)


def gates(call: Call, sums: Tensor, left: Tensor, few: Tensor, dg: Tensor) -> Launch:
    """Fill dg. left: the rows' sums, and few: the states that walks left."""
    B, T, H, K, V = call.dims
    sizes = {"SIZE": K * V, "BT": call.chunk, "EVERY": EVERY, "PARTS": left.shape[2], "BLOCK": BLOCK}
    args = {"p_sums": left, "p_few": few, "p_c": sums, "p_dg": dg, "T": T, "H": H, "n_chunks": call.n_chunks}
    n_few = few.shape[2] - 1
    return Launch(simple_gates_kernel, (B * H * n_few,), args | {"n_few": n_few, "n_heads": B * H}, sizes)
