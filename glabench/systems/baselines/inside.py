"""Inside a chunk of C rows, without sub-chunks: decays of its rows, and its scores element by element.

    A_ij = scale sum_k q_ik k_jk e^{G_i-G_j}, i >= j          dA = scale tril(dO V^T)
    dq_i += sum_j dA_ij k_j e^{G_i-G_j}                       dk_j += sum_i dA_ij q_i e^{G_i-G_j}

G is the sum of the chunk's gates up to a row, that row's included, and e^gamma the decay of the whole chunk. G_i - G_j
is never taken: it is added up gate by gate while a kernel goes through the rows, so that a hard reset (g = -1e4) does
not swallow the digits of other differences.
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from gla_kernels.launch import Launch
from gla_kernels.schedule import cdiv, padded
from gla_kernels.tiles.operands import load_row, load_tile, store_tile
from gla_kernels.tiles.products import product
from glabench.systems.baselines.form import Call

COLUMNS = 64  # of K or V, of a tile of rows or of a state


@triton.jit
def load_after(p_g, i_row, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr):
    """The gates of the rows after each of a chunk's rows, float32 [BT, BK]; 0 after its last."""
    o_r = tl.arange(0, BT)
    m_g = ((o_r < BT - 1) & (i_row + 1 + o_r < T))[:, None] & (o_k < K)[None, :]
    p_g += (tl.cast(i_row, tl.int64) + 1) * stride
    return tl.load(p_g + o_r[:, None] * stride + o_k[None, :], mask=m_g, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["T"])
def inside_decay_kernel(
    p_q, p_k, p_g, p_qg, p_kg, p_gamma, scale, T, H,
    K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """p_qg = scale q e^G and p_kg = k e^{gamma-G} [B, T, H, K], and p_gamma = e^gamma [B*H, chunks, K] of one chunk and
    one tile of K."""
    NK: tl.constexpr = (K + BK - 1) // BK
    n_c = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_k, i_c, i_bh = i_p % NK, i_p // NK % n_c, (i_p // (NK * n_c)).to(tl.int64)
    i_first, i_row, o_k = ((i_bh // H) * T * H + i_bh % H) * K, i_c * BT, i_k * BK + tl.arange(0, BK)
    b_g = load_tile(p_g + i_first, i_row, T, H * K, o_k, K, BT).to(tl.float32)
    b_q = load_tile(p_q + i_first, i_row, T, H * K, o_k, K, BT).to(tl.float32)
    b_k = load_tile(p_k + i_first, i_row, T, H * K, o_k, K, BT).to(tl.float32)
    b_after = load_after(p_g + i_first, i_row, T, H * K, o_k, K, BT)
    b_qg, b_kg = scale * b_q * tl.exp(tl.cumsum(b_g, axis=0)), b_k * tl.exp(tl.cumsum(b_after, axis=0, reverse=True))
    store_tile(p_qg + i_first, b_qg, i_row, T, H * K, o_k, K, BT)
    store_tile(p_kg + i_first, b_kg, i_row, T, H * K, o_k, K, BT)
    tl.store(p_gamma + (i_bh * n_c + i_c) * K + o_k, tl.exp(tl.sum(b_g, axis=0)), mask=o_k < K)


@triton.jit(do_not_specialize=["T"])
def inside_scores_kernel(
    p_q, p_k, p_g, p_a, scale, T, H,
    K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, GATED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A [B, T, H, BT] of one chunk: column after column from the last, with the decay from that row to all after it."""
    n_c = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_c, i_bh = i_p % n_c, (i_p // n_c).to(tl.int64)
    i_first, i_row, o_r = (i_bh // H) * T * H + i_bh % H, i_c * BT, tl.arange(0, BT)
    b_a = tl.zeros([BT, BT], dtype=tl.float32)
    for i_k in range(0, K, BK):
        o_k = i_k + tl.arange(0, BK)
        b_q = load_tile(p_q + i_first * K, i_row, T, H * K, o_k, K, BT)
        if GATED:
            b_q = b_q.to(tl.float32)
            b_d = tl.zeros([BT, BK], dtype=tl.float32)
            for i in range(0, BT):
                j = BT - 1 - i
                m_next = (j + 1 < BT) & (i_row + j + 1 < T)
                b_next = load_row(p_g + i_first * K, i_row + j + 1, m_next, H * K, o_k, K)
                b_d += tl.where((o_r > j)[:, None], b_next[None, :], 0.0)
                b_k = load_row(p_k + i_first * K, i_row + j, i_row + j < T, H * K, o_k, K)
                b_column = tl.sum(b_q * b_k[None, :] * tl.exp(b_d), axis=1)
                b_a += tl.where((o_r == j)[None, :], b_column[:, None], 0.0)
        else:
            b_k = load_tile(p_k + i_first * K, i_row, T, H * K, o_k, K, BT)
            b_a = product(b_q, tl.trans(b_k), b_a, DOT, PRECISION)
    b_a = tl.where(o_r[:, None] >= o_r[None, :], b_a * scale, 0.0)
    store_tile(p_a + i_first * BT, b_a, i_row, T, H * BT, o_r, BT, BT)


@triton.jit(do_not_specialize=["T"])
def inside_grad_scores_kernel(
    p_do, p_v, p_da, scale, T, H,
    V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dA = scale tril(dO V^T), float32 [B, T, H, BT], of one chunk."""
    n_c = tl.cdiv(T, BT)
    i_p = tl.program_id(0)
    i_c, i_bh = i_p % n_c, (i_p // n_c).to(tl.int64)
    i_first, i_row, o_r = (i_bh // H) * T * H + i_bh % H, i_c * BT, tl.arange(0, BT)
    b_da = tl.zeros([BT, BT], dtype=tl.float32)
    for i_v in range(0, V, BV):
        o_v = i_v + tl.arange(0, BV)
        b_do = load_tile(p_do + i_first * V, i_row, T, H * V, o_v, V, BT)
        b_v = load_tile(p_v + i_first * V, i_row, T, H * V, o_v, V, BT)
        b_da = product(b_do, tl.trans(b_v), b_da, DOT, PRECISION)
    b_da = tl.where(o_r[:, None] >= o_r[None, :], b_da * scale, 0.0)
    store_tile(p_da + i_first * BT, b_da, i_row, T, H * BT, o_r, BT, BT)


@triton.jit
def grad_q_within(
    p_k, p_g, p_da, i_row, T, H, o_k, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """What a chunk's scores add to dq of its rows, but for each row's own, float32 [BT, BK].

    Column after column from the last, with the decay from that row to all after it.
    """
    o_r = tl.arange(0, BT)
    p_columns = p_da + (tl.cast(i_row, tl.int64) + o_r) * H * BT
    b_dq, b_d = tl.zeros([BT, BK], dtype=tl.float32), tl.zeros([BT, BK], dtype=tl.float32)
    for i in range(0, BT):
        j = BT - 1 - i
        if GATED:
            m_next = (j + 1 < BT) & (i_row + j + 1 < T)
            b_next = load_row(p_g, i_row + j + 1, m_next, H * K, o_k, K)
            b_d += tl.where((o_r > j)[:, None], b_next[None, :], 0.0)
        b_k = load_row(p_k, i_row + j, i_row + j < T, H * K, o_k, K)
        b_da = tl.load(p_columns + j, mask=(o_r > j) & (i_row + o_r < T), other=0.0)
        b_dq += b_da[:, None] * b_k[None, :] * tl.exp(b_d)
    return b_dq


@triton.jit
def grad_k_within(
    p_q, p_g, p_da, i_row, T, H, o_k, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """The same for dk: row after row, with the decay from all before it to that row."""
    o_r = tl.arange(0, BT)
    b_dk, b_d = tl.zeros([BT, BK], dtype=tl.float32), tl.zeros([BT, BK], dtype=tl.float32)
    for i in range(0, BT):
        if GATED:
            b_g = load_row(p_g, i_row + i, i_row + i < T, H * K, o_k, K)
            b_d += tl.where((o_r < i)[:, None], b_g[None, :], 0.0)
        b_q = load_row(p_q, i_row + i, i_row + i < T, H * K, o_k, K)
        p_row = p_da + (tl.cast(i_row, tl.int64) + i) * H * BT
        b_da = tl.load(p_row + o_r, mask=(o_r < i) & (i_row + i < T), other=0.0)
        b_dk += b_da[:, None] * b_q[None, :] * tl.exp(b_d)
    return b_dk


@triton.jit
def load_own(p_da, i_row, T, H, BT: tl.constexpr):
    """The diagonal of a chunk's scores' gradients, what each row's own q and k have of one another: [BT, 1]."""
    o_r = tl.arange(0, BT)
    p_own = p_da + (tl.cast(i_row, tl.int64) + o_r) * H * BT + o_r
    return tl.load(p_own, mask=i_row + o_r < T, other=0.0)[:, None]


def tiles_of(call: Call) -> tuple[int, int, int]:
    """The chunk, and the columns of K and of V of a tile."""
    _, _, _, K, V = call.dims
    assert call.chunk is not None  # these forms have one
    return call.chunk, min(padded(K), COLUMNS), min(padded(V), COLUMNS)


def by_chunks(call: Call, kernel: Any, args: dict[str, Any], split: str = "", **flags: Any) -> Launch:
    """One program a chunk and tile of the axis ``split`` ("K", "V" or neither)."""
    B, T, H, K, V = call.dims
    chunk, block_k, block_v = tiles_of(call)
    columns = {"K": cdiv(K, block_k), "V": cdiv(V, block_v), "": 1}[split]
    constexprs = {"K": K, "V": V, "BT": chunk, "BK": block_k, "BV": block_v, "GATED": call.g is not None}
    args = {"p_q": call.q, "p_k": call.k, "p_v": call.v, "p_g": call.g, "scale": call.scale, **call.sizes} | args
    grid = (columns * cdiv(T, chunk) * B * H,)
    warps = warps_for(chunk, min(block_k, block_v), split == "K")
    return Launch(kernel, grid, args, constexprs | call.operands | flags, warps, num_stages=2)


def warps_for(chunk: int, columns: int, by_element: bool) -> int:
    """Warps of a program: four; eight for large tiles that are worked on element by element.

    Two keep Triton from Hopper's own product instruction, which ptxas 12.8 gets wrong for 64 rows of fewer columns.
    """
    if chunk < COLUMNS:
        return 4
    if columns < COLUMNS:
        return 2
    return 8 if by_element else 4
