"""What a walk over wide heads (wide_walk.py) reads in place of q, k and g: q and k decayed, and the scores of each
chunk, made once for all tiles of V. hopper/prepare.py makes them; here is what it leaves undone, the scores of chunks
that are not mild: of blocks of 16 rows, each with those before it through sums of gates, and exact where even one is
not mild.
"""

# mypy: disallow-untyped-defs=False
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, Launcher, settle_keys
from ..schedule import WGMMA_ROWS, Tile, cdiv
from ..tiles.descriptors import blocks
from ..tiles.gates import block_decay, decay, decayed_keys, mild_block, row_block_limit
from ..tiles.operands import dot, load_tile, split, store_tile
from ..tiles.scores import diagonal_scores
from ..tiles.slices import Slice
from .hopper import prepare_hopper_kernel
from .output import EXACT_ROWS
from .problem import Problem

TILE = Tile(WGMMA_ROWS, WGMMA_ROWS, 4, 1, descriptors=True)
THREE = 168  # registers of a thread with which three programs share a multiprocessor, as gates of 16 bits have room for
MOST = 8  # chunks that a program looks at for strong gates


@triton.jit(do_not_specialize=["T", "n_blocks", "first_chunk", "n_here", "rows_here"])
def prepare_strong_kernel(
    p_q, p_k, p_g, p_h, p_marks, p_a, scale, T, H, n_blocks, first_chunk, n_here, rows_here, heads_here,
    K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, MOST: tl.constexpr, PACKED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """a [B, rows_here, heads_here, 2*BT] of those of n_here chunks from first_chunk on that are not mild: scale times
    their scores, leading bits beside the next ones. A program looks at MOST chunks at once, and mostly finds that all
    are mild. p_h [B*H, n_blocks, K]: log2 of half of each one's decay. PACKED: of rows of one sequence alone; p_marks:
    of `packed.marks`."""
    ROWS: tl.constexpr = EXACT_ROWS
    LIMIT: tl.constexpr = -0.5 * row_block_limit(True, PRECISION)
    n_shares = tl.cdiv(n_here, MOST)
    i_p = tl.program_id(0)
    i_first, i_bh = (i_p % n_shares) * MOST, (i_p // n_shares).to(tl.int64)
    o_c, o_k = i_first + tl.arange(0, MOST), tl.arange(0, K)
    p_h += (i_bh * n_blocks + first_chunk) * K
    b_h = tl.load(p_h + o_c[:, None] * K + o_k[None, :], mask=(o_c < n_here)[:, None], other=0.0)
    if tl.min(tl.min(b_h, axis=1), axis=0) <= LIMIT:
        i_row0 = (i_bh // H) * T * H + i_bh % H
        p_q, p_k, p_g = p_q + i_row0 * K, p_k + i_row0 * K, p_g + i_row0 * K
        p_a += ((i_bh // H) * rows_here * heads_here + i_bh % H) * 2 * BT
        for i_here in range(0, MOST):
            i_c = i_first + i_here
            mild = True
            if i_c < n_here:
                mild = mild_block(p_h + i_c * K, K, PRECISION)
            if not mild:
                for i_r in range(0, BT // ROWS):
                    for i_col in range(0, BT // ROWS):
                        i_chunk, i_into = (first_chunk + i_c) * BT, i_c * BT + i_r * ROWS
                        b_a = _scores(p_q, p_k, p_g, i_chunk, i_r, i_col, T, H, K, ROWS, BK, DOT, PRECISION)
                        o_a = i_col * ROWS + tl.arange(0, ROWS)
                        if PACKED:
                            b_first = tl.load(p_marks + i_chunk + i_r * ROWS + tl.arange(0, ROWS)) - i_chunk
                            b_a = tl.where(o_a[None, :] >= b_first[:, None], b_a, 0.0)
                        b_high, b_low = split(b_a * scale, DOT)
                        store_tile(p_a, b_high, i_into, rows_here, heads_here * 2 * BT, o_a, 2 * BT, ROWS)
                        store_tile(p_a, b_low, i_into, rows_here, heads_here * 2 * BT, BT + o_a, 2 * BT, ROWS)


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
    """Of a slice's T' rows and its chunks: q and k decayed, [B, T', H, K], and scores in two parts, [B, T', H, 2 * 64],
    all bf16 and with the scale. Float32 [B*H, chunks, K]: log2 of half of what a state is multiplied by in each chunk,
    f; and e, where states enter in chunks, of packed sequences, log2 of half of their decay."""

    q: Tensor
    k: Tensor
    a: Tensor
    f: Tensor
    e: Tensor | None


def prepare(
    p: Problem, piece: Slice, tile: Tile | None, values: Tensor, halves: Tensor | None, back: bool, store_halves: bool,
    launch: Launcher,
) -> Prepared | None:  # fmt: skip
    """`prepared`, for a walk with such a tile over values, v or do [B, T, H, V]. None where that is none of wide heads,
    or a tensor bears no descriptor."""
    if not p.is_wide(tile) or not blocks({"p_v": values}, ("v",), WGMMA_ROWS, WGMMA_ROWS, WGMMA_ROWS):
        return None
    assert halves is not None  # of every walk of wide heads
    made, (first, strong) = prepared(p, piece, halves, back, store_halves)
    if not first.all_described:
        return None
    launch(first)
    launch(strong)
    return made


def prepared(
    p: Problem, piece: Slice, halves: Tensor, back: bool, store_halves: bool
) -> tuple[Prepared, tuple[Launch, Launch]]:
    """Room for all that a walk over a slice needs, and the launches that fill it, and with ``store_halves`` ``halves``
    of its chunks: log2 of half of each one's decay. back: for a walk back in time."""
    B, T, H, K, _ = p.dims
    marks = edges = None
    enters = False
    if p.packed is not None:
        marks, edges = p.packed.marks, p.packed.edges
        enters = (p.d_final if back else p.initial_state) is not None
    n_here, rows = min(piece.chunks, p.n_blocks), min(T - piece.first_chunk * WGMMA_ROWS, piece.chunks * WGMMA_ROWS)
    of_rows, of_chunks = partial(p.q.new_empty, B, rows, H), partial(halves.new_empty, B * H, n_here, K)
    own = p.packed is not None or n_here < p.n_blocks  # else f is what halves are
    found = Prepared(
        of_rows(K), of_rows(K), of_rows(2 * WGMMA_ROWS), of_chunks() if own else halves, of_chunks() if enters else None
    )
    args = {
        "p_q": p.q, "p_k": p.k, "p_g": p.g, "p_h": halves, "p_marks": marks, "p_edges": edges,
        "p_qd": found.q, "p_kd": found.k, "p_a": found.a, "p_f": found.f if own else None, "p_e": found.e,
        "scale": p.scale, "n_blocks": p.n_blocks, "n_here": n_here, "rows_here": rows, "heads_here": H,
    }  # fmt: skip
    flags = {"STORE_H": store_halves, "STORE_F": own, "PACKED": marks is not None, "ENTERS": enters, "BACK": back}
    assert p.g is not None  # of every walk of wide heads
    tile = replace(TILE, max_registers=THREE) if p.g.itemsize == p.q.itemsize else TILE
    x, i_row = [p.q, p.k, p.g], piece.first_chunk * WGMMA_ROWS
    if n_here < p.n_blocks:
        x = [one[:, i_row : i_row + rows] for one in x]
    of_slice = args | dict(zip(("p_q", "p_k", "p_g"), x, strict=True)) | {"first_block": piece.first_chunk}
    made = p.launch_of(prepare_hopper_kernel, tile, n_here, of_slice, **flags)
    args |= {"first_chunk": piece.first_chunk, "share": MOST}
    strong = p.launch_of(prepare_strong_kernel, TILE, cdiv(n_here, MOST), args, MOST=MOST, **flags)
    return found, (made, strong)
