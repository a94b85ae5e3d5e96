"""What a walk over wide heads (wide_walk.py) reads in place of q, k and g: q and k decayed, and the scores of each
chunk, made once for all tiles of V. hopper/prepare.py makes them; here is what it leaves undone, the scores of chunks
that are not mild: of blocks of 16 rows, each with those before it through sums of gates, and exact where even one is
not mild.
"""

# mypy: disallow-untyped-defs=False
from dataclasses import replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, Launcher, settle_keys
from ..schedule import WGMMA_ROWS, Tile, cdiv
from ..tiles.descriptors import blocks
from ..tiles.gates import block_decay, decay, decayed_keys, mild_block, row_block_limit
from ..tiles.operands import dot, load_tile, split, store_tile
from ..tiles.scores import diagonal_scores
from .hopper import prepare_hopper_kernel
from .output import EXACT_ROWS
from .problem import Problem, all_described

TILE = Tile(WGMMA_ROWS, WGMMA_ROWS, 4, 1, descriptors=True)
THREE = 168  # registers of a thread with which three programs share a multiprocessor, as gates of 16 bits have room for
MOST = 8  # chunks that a program looks at for strong gates


@triton.jit(do_not_specialize=["T", "n_blocks"])
def prepare_strong_kernel(
    p_q, p_k, p_g, p_h, p_marks, p_a, scale, T, H, n_blocks,
    K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, MOST: tl.constexpr, PACKED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """a [B, T, H, 2*BT] of chunks that are not mild: scale times their scores, leading bits beside the next ones. A
    program looks at MOST chunks at once, and mostly finds that all are mild. p_h [B*H, n_blocks, K]: log2 of half of
    each one's decay. PACKED: of rows of one sequence alone; p_marks: of `packed.marks`."""
    ROWS: tl.constexpr = EXACT_ROWS
    LIMIT: tl.constexpr = -0.5 * row_block_limit(True, PRECISION)
    n_shares = tl.cdiv(n_blocks, MOST)
    i_p = tl.program_id(0)
    i_first, i_bh = (i_p % n_shares) * MOST, (i_p // n_shares).to(tl.int64)
    o_c, o_k = i_first + tl.arange(0, MOST), tl.arange(0, K)
    p_h += i_bh * n_blocks * K
    b_h = tl.load(p_h + o_c[:, None] * K + o_k[None, :], mask=(o_c < n_blocks)[:, None], other=0.0)
    if tl.min(tl.min(b_h, axis=1), axis=0) <= LIMIT:
        i_row0 = (i_bh // H) * T * H + i_bh % H
        p_q, p_k, p_g, p_a = p_q + i_row0 * K, p_k + i_row0 * K, p_g + i_row0 * K, p_a + i_row0 * 2 * BT
        for i_here in range(0, MOST):
            i_c = i_first + i_here
            mild = True
            if i_c < n_blocks:
                mild = mild_block(p_h + i_c * K, K, PRECISION)
            if not mild:
                for i_r in range(0, BT // ROWS):
                    for i_col in range(0, BT // ROWS):
                        b_a = _scores(p_q, p_k, p_g, i_c * BT, i_r, i_col, T, H, K, ROWS, BK, DOT, PRECISION)
                        o_a = i_col * ROWS + tl.arange(0, ROWS)
                        if PACKED:
                            b_first = tl.load(p_marks + i_c * BT + i_r * ROWS + tl.arange(0, ROWS)) - i_c * BT
                            b_a = tl.where(o_a[None, :] >= b_first[:, None], b_a, 0.0)
                        b_high, b_low = split(b_a * scale, DOT)
                        store_tile(p_a, b_high, i_c * BT + i_r * ROWS, T, H * 2 * BT, o_a, 2 * BT, ROWS)
                        store_tile(p_a, b_low, i_c * BT + i_r * ROWS, T, H * 2 * BT, BT + o_a, 2 * BT, ROWS)


@triton.jit
def _scores(
    p_q, p_k, p_g, i_chunk, i_r, i_col, T, H,
    K: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of the chunk's i_r-th few rows with its i_col-th, without the scale: [ROWS, ROWS]."""
    b_a = tl.zeros([ROWS, ROWS], dtype=tl.float32)
    if i_col <= i_r:
        i_row = i_chunk + i_r * ROWS
        for i_k in range(0, K // BK):
            o_k = i_k * BK + tl.arange(0, BK)
            b_q = load_tile(p_q, i_row, T, H * K, o_k, K, ROWS)
            b_prefix, b_total = block_decay(p_g, i_row, T, H * K, o_k, K, ROWS, BK, True)
            if i_col == i_r:
                b_k = load_tile(p_k, i_row, T, H * K, o_k, K, ROWS)
                b_a += diagonal_scores(
                    b_q, b_k, b_prefix, b_total, p_k, p_g, i_row, T, H * K, o_k, K, ROWS, BK, True, DOT, PRECISION
                )
            else:
                b_between = tl.zeros([BK], dtype=tl.float32)
                for i_mid in range(i_col + 1, i_r):
                    b_between += block_decay(p_g, i_chunk + i_mid * ROWS, T, H * K, o_k, K, ROWS, BK, True)[1]
                b_qd = decay(b_q.to(tl.float32) * tl.exp2(b_prefix), b_between, True)
                b_kd, _ = decayed_keys(p_k, p_g, i_chunk + i_col * ROWS, T, H * K, o_k, K, ROWS, True)
                b_a += dot(b_qd, tl.trans(b_kd), tl.float32, PRECISION)
    return b_a


settle_keys(prepare_strong_kernel)


class Prepared(NamedTuple):
    """q and k decayed, [B, T, H, K], and scores in two parts, [B, T, H, 2 * 64], all bf16 and with the scale. Float32
    [B*H, n_blocks, K]: log2 of half of what a state is multiplied by in each chunk, f; and e, where states enter in
    chunks, of packed sequences, log2 of half of their decay."""

    q: Tensor
    k: Tensor
    a: Tensor
    f: Tensor
    e: Tensor | None


def prepare(
    p: Problem, tile: Tile | None, values: Tensor, halves: Tensor | None, back: bool, store_halves: bool,
    launch: Launcher,
) -> Prepared | None:  # fmt: skip
    """`prepared`, for a walk with such a tile over values, v or do [B, T, H, V]. None where that is none of wide heads,
    or a tensor bears no descriptor."""
    if not p.is_wide(tile) or not blocks({"p_v": values}, ("v",), WGMMA_ROWS, WGMMA_ROWS, WGMMA_ROWS):
        return None
    assert halves is not None  # of every walk of wide heads
    made, (first, strong) = prepared(p, halves, back, store_halves)
    if not all_described(first):
        return None
    launch(first)
    launch(strong)
    return made


def prepared(p: Problem, halves: Tensor, back: bool, store_halves: bool) -> tuple[Prepared, tuple[Launch, Launch]]:
    """Room for all chunks', and the launches that fill it, and ``halves`` with ``store_halves``: log2 of half of each
    one's decay. back: for a walk back in time."""
    B, T, H, _, _ = p.dims
    marks, edges, f, enters = None, None, halves, False
    if p.packed is not None:
        marks, edges, f = p.packed.marks, p.packed.edges, torch.empty_like(halves)
        enters = (p.d_final if back else p.initial_state) is not None
    a, e = p.q.new_empty(B, T, H, 2 * WGMMA_ROWS), torch.empty_like(halves) if enters else None
    found = Prepared(torch.empty_like(p.q), torch.empty_like(p.k), a, f, e)
    args = {
        "p_q": p.q, "p_k": p.k, "p_g": p.g, "p_h": halves, "p_marks": marks, "p_edges": edges,
        "p_qd": found.q, "p_kd": found.k, "p_a": found.a, "p_f": None if marks is None else f, "p_e": e,
        "scale": p.scale, "n_blocks": p.n_blocks,
    }  # fmt: skip
    assert p.g is not None  # likewise
    tile = replace(TILE, max_registers=THREE) if p.g.itemsize == p.q.itemsize else TILE
    rows, flags = {"first_block": 0, "n_here": p.n_blocks}, {"PACKED": marks is not None, "ENTERS": enters}
    made = p.launch_of(prepare_hopper_kernel, tile, p.n_blocks, args | rows, STORE_H=store_halves, BACK=back, **flags)
    shares = {"first_chunk": 0, "n_here": p.n_blocks, "share": MOST}
    strong = p.launch_of(prepare_strong_kernel, TILE, cdiv(p.n_blocks, MOST), args | shares, MOST=MOST, **flags)
    return found, (made, strong)
