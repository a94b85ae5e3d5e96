"""What a walk over wide heads (wide_walk.py) reads in place of q, k and g: q and k decayed, and the scores of each
chunk, made once for all tiles of V. hopper/prepare.py makes them, and hopper/prepare_strong.py what it leaves undone,
the scores of chunks that are not mild.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from torch import Tensor

from ..launch import Launch, Launcher
from ..schedule import WGMMA_ROWS, Tile, cdiv
from ..tiles.descriptors import blocks
from ..tiles.slices import Slice
from .hopper import prepare_hopper_kernel, prepare_strong_hopper_kernel
from .problem import THREE, Problem
from .strong_gates import share_of

TILE = Tile(WGMMA_ROWS, WGMMA_ROWS, 4, 1, descriptors=True)
MOST = 8  # chunks that a program looks at for strong gates, at most


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
    strong = p.launch_of(prepare_strong_hopper_kernel, TILE, cdiv(n_here, share), args, MOST=MOST, **flags)
    return found, (made, strong)
