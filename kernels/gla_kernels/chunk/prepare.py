"""What a walk over wide heads (wide_walk.py) reads in place of q, k and g: q and k decayed, and the scores of each
chunk, made once for all tiles of V. hopper/prepare.py makes them; here is what it leaves undone, the scores of chunks
that are not mild, by halving (halving.py).
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
from ..tiles.gates import mild_block, row_block_limit
from ..tiles.halving import own_scores
from ..tiles.operands import split, store_tile
from ..tiles.slices import Slice
from .hopper import prepare_hopper_kernel
from .problem import THREE, Problem
from .strong_gates import share_of

TILE = Tile(WGMMA_ROWS, WGMMA_ROWS, 4, 1, descriptors=True)
MOST = 8  # chunks that a program looks at for strong gates, at most


@triton.jit(do_not_specialize=["T", "n_blocks", "first_chunk", "n_here", "rows_here", "share"])
def prepare_strong_kernel(
    p_q, p_k, p_g, p_h, p_marks, p_a, scale, T, H, n_blocks, first_chunk, n_here, rows_here, heads_here,
    share, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, MOST: tl.constexpr, PACKED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """a [B, rows_here, heads_here, 2*BT] of those of n_here chunks from first_chunk on that are not mild: scale times
    their scores, leading bits beside the next ones. A program looks at its share of chunks at once, MOST at most,
    and mostly finds that all are mild. p_h [B*H, n_blocks, K]: log2 of half of each one's decay. PACKED: of rows of one
    sequence alone; p_marks: of `packed.marks`."""
    LIMIT: tl.constexpr = -0.5 * row_block_limit(True, PRECISION)
    n_shares = tl.cdiv(n_here, share)
    i_p = tl.program_id(0)
    i_first, i_bh = (i_p % n_shares) * share, (i_p // n_shares).to(tl.int64)
    i_end = tl.minimum(i_first + share, n_here)
    o_c, o_k = i_first + tl.arange(0, MOST), tl.arange(0, K)
    p_h += (i_bh * n_blocks + first_chunk) * K
    b_h = tl.load(p_h + o_c[:, None] * K + o_k[None, :], mask=(o_c < i_end)[:, None], other=0.0)
    if tl.min(tl.min(b_h, axis=1), axis=0) <= LIMIT:
        i_row0 = (i_bh // H) * T * H + i_bh % H
        p_q, p_k, p_g = p_q + i_row0 * K, p_k + i_row0 * K, p_g + i_row0 * K
        p_a += ((i_bh // H) * rows_here * heads_here + i_bh % H) * 2 * BT
        for i_c in tl.range(i_first, i_end, disable_licm=True):
            if not mild_block(p_h + i_c * K, K, PRECISION):
                i_chunk, o_a = (first_chunk + i_c) * BT, tl.arange(0, BT)
                b_a = own_scores(p_q, p_k, p_g, i_chunk, T, H * K, K, BT, BK, PRECISION)
                if PACKED:
                    b_first = tl.load(p_marks + i_chunk + o_a) - i_chunk
                    b_a = tl.where(o_a[None, :] >= b_first[:, None], b_a, 0.0)
                b_high, b_low = split(b_a * scale, DOT)
                store_tile(p_a, b_high, i_c * BT, rows_here, heads_here * 2 * BT, o_a, 2 * BT, BT)
                store_tile(p_a, b_low, i_c * BT, rows_here, heads_here * 2 * BT, BT + o_a, 2 * BT, BT)


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
    # three programs share a multiprocessor, as gates of 16 bits have room for
    tile = replace(TILE, max_registers=THREE) if p.g.itemsize == p.q.itemsize else TILE
    x, i_row = [p.q, p.k, p.g], piece.first_chunk * WGMMA_ROWS
    if n_here < p.n_blocks:
        x = [one[:, i_row : i_row + rows] for one in x]
    of_slice = args | dict(zip(("p_q", "p_k", "p_g"), x, strict=True)) | {"first_block": piece.first_chunk}
    made = p.launch_of(prepare_hopper_kernel, tile, n_here, of_slice, **flags)
    share = share_of(n_here, B * H * TILE.num_warps, MOST)
    args |= {"first_chunk": piece.first_chunk, "share": share}
    strong = p.launch_of(prepare_strong_kernel, TILE, cdiv(n_here, share), args, MOST=MOST, **flags)
    return found, (made, strong)
